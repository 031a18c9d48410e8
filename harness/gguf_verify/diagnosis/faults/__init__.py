"""The catalogue of known faults: names, fixes, and the outputs of a kernel with each fault.

A module of this package defines some faults of one theme, each one record; the registry finds them, and no list names
them. They may import what `diagnosis` may.
"""

from __future__ import annotations

from ...support.registry import members
from ..fault import Case, Fault

FAULTS: tuple[Fault, ...] = tuple(members(__name__, Fault))

#: Faults that were considered and not included, with the reason.
LEFT_OUT = {
    "scale as max/7": "a choice of the weight quantizer; a kernel reads d from the file, so no output of its "
    "product can show it",
}

__all__ = ["FAULTS", "LEFT_OUT", "Case", "Fault"]
