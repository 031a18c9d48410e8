"""Diagnosis of wrong outputs: the definition that a kernel computes, or the known fault that it has, and its place.

Diagnosis uses only inputs and outputs, and may run a kernel again. This package may import kernels, semantics, the
container, the formats, results and support.
"""

from .diagnose import Diagnosis, diagnose
from .fault import Fault
from .faults import FAULTS, LEFT_OUT
from .identify import Candidate, Identification, definitions, identify, known_inputs
from .pattern import Map, pattern, utilisation

__all__ = [
    "FAULTS",
    "LEFT_OUT",
    "Candidate",
    "Diagnosis",
    "Fault",
    "Identification",
    "Map",
    "definitions",
    "diagnose",
    "identify",
    "known_inputs",
    "pattern",
    "utilisation",
]
