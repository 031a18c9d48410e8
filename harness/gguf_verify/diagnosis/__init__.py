"""What a black box computes: which definition of the product, or which known fault, explains its outputs."""

from .diagnose import Diagnosis, diagnose
from .faults import FAULTS, LEFT_OUT, Fault
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
