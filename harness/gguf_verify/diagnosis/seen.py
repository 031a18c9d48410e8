"""Faults that a launch itself shows: what a host or a checked build found, as a name."""

from __future__ import annotations

from ..results import FaultMatch
from ..support.errors import KernelFinding

#: The share of the error that such a fault explains: it was seen, not computed.
SEEN = float("nan")

#: Kind of `KernelFinding` → id, and the fix in one line.
_KINDS = {
    "race": ("data-race", "put a barrier, or the wait for a copy, between the write and the read"),
    "outside": ("outside-buffers", "check the bounds of what the last row, block or tile accesses"),
    "unset": (
        "uninitialized-memory",
        "write shared memory, or wait for the copy, before it is read, also where a tile is not full",
    ),
    "misaligned": ("misaligned-access", "load in units that the address is a multiple of"),
    "overflow": ("signed-overflow", "compute in a wider type"),
    "divergent": ("divergent-barrier", "let all threads of a block reach the same barriers"),
    "input": ("input-written", "write into the output and shared memory alone"),
    "unwritten": ("unwritten", "every output needs a thread: check the grid and the bounds of the last tile"),
    "changing": ("not-deterministic", "look for races, and for memory that is not initialised"),
}
#: After these, outputs may look like those of any fault.
_SPOILING = {"data-race", "outside-buffers", "uninitialized-memory", "divergent-barrier", "not-deterministic"}


def name_of(finding: KernelFinding) -> FaultMatch | None:
    """The fault that a finding shows; None for a kind that is not known (a foreign process may say anything)."""
    if finding.kind not in _KINDS:
        return None
    id, fix = _KINDS[finding.kind]
    return FaultMatch(id, finding.words, fix, SEEN, 0.0, True)


def spoils(fault: FaultMatch) -> bool:
    """Whether outputs may look like those of any fault where a kernel has this one."""
    return fault.id in _SPOILING


__all__ = ["SEEN", "name_of", "spoils"]
