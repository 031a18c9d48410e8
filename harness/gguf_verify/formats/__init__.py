"""The formats of a GGUF tensor: one record for each type, with everything known about it.

This package imports only `support`. A module that is named after a type defines its record (`q4_0.py`: Q4_0), and no
list names the types: the registry finds records by their class. Every other module is a helper; a leading underscore
marks helpers of records. To add a type, add such a module and its CUDA header `kernels/formats/<name>.cuh`.
"""
