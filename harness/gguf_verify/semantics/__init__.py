"""Definitions of the quantized product, their exact results and bounds, and the gates that judge an output.

This package imports `formats` and `support`. A definition is composed of an encoding of the activations (`encodings/`)
and a term (`terms/`); definitions with their own name are the modules of `definitions/`.
"""
