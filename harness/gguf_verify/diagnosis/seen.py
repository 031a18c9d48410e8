"""Names of faults that a launch itself shows: findings of a host or of a checked build."""

from __future__ import annotations

from ..results.diagnoses import FaultMatch
from ..support.errors import KernelFinding
from .observed import observed

#: Kind of `KernelFinding` → id of the fault.
_KINDS = {
    "race": "data-race", "outside": "outside-buffers", "unset": "uninitialized-memory",
    "misaligned": "misaligned-access", "overflow": "signed-overflow", "divergent": "divergent-barrier",
    "shift": "undefined-shift", "division": "division-by-zero", "mask": "warp-mask", "limit": "impossible-launch",
    "operand": "illegal-operand", "assumption": "false-assumption",
    "input": "input-written", "unwritten": "unwritten", "changing": "not-deterministic",
    "address": "address-dependent",
}  # fmt: skip


def name_of(finding: KernelFinding) -> FaultMatch | None:
    """Return the fault that a finding shows; None for an unknown kind (a foreign process may send anything)."""
    id = _KINDS.get(finding.kind)
    return None if id is None else observed(id, finding.words)
