"""Diagnosis of wrong outputs: the definition that a kernel computes, or the known fault that it has, and its place.

Diagnosis uses only inputs and outputs, and may run a kernel again. This package may import kernels, semantics, the
container, the formats, results and support.
"""
