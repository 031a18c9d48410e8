"""Definitions of the quantized product, their exact results and bounds, and the gates that judge an output.

It imports `formats` and `support`. A definition is composed of an encoding of the activations
(`encodings/`) and a term (`terms/`); those with a name of their own are the modules of `definitions/`.
"""
