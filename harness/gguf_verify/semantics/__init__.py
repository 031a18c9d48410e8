"""Definitions of the quantized product, their exact results and bounds, and the gates that judge an output.

This package imports `formats` and `support`. A definition is composed of an encoding of the activations and
a term. Named definitions are the modules of `definitions/`, with the encodings and terms that only one of them has;
the others are in `encodings/` and `terms/`.
"""
