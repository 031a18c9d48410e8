"""What explains outputs: which definition of the product a kernel computes, or which known fault it has, and where.

Diagnosis looks only at inputs and outputs, and may run a kernel again. It may import kernels, semantics, the container,
the formats, results and support.
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
