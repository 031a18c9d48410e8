"""What a foreign process did to the memory of a call, judged here: it is asked nothing about that.

It may still write while it is judged. So an output is copied first, and judged as it is in the copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...hosts.base import POISON, outside
from ...support.errors import KernelFinding
from .operands import Operand

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Bytes that are compared at a time: they stay in the processor's cache.
_AT_A_TIME = 1 << 18


def taken(output: Operand, memory: Bytes) -> npt.NDArray[Any]:
    """A copy of what an output holds. Raises KernelFinding where its guards were written."""
    whole = output.whole_in(memory).copy()
    if touched := outside(whole):
        raise KernelFinding("outside", touched)
    inside = whole[output.guard : len(whole) - output.guard]
    made: npt.NDArray[Any] = inside.view(output.dtype).reshape(output.shape)
    return made


def unchanged(what: str, now: Bytes, before: Bytes) -> None:
    """Raises KernelFinding where the kernel wrote into one of its inputs, uint8[n]; `before` is what it was given."""
    wrong, first = 0, 0
    for at in range(0, len(before), _AT_A_TIME):
        a, b = now[at : at + _AT_A_TIME], before[at : at + _AT_A_TIME]
        if not np.array_equal(a, b):
            differ = np.flatnonzero(a != b)
            if len(differ):  # it may have been written again since
                first = first if wrong else at + int(differ[0])
            wrong += max(1, len(differ))
    if wrong:
        raise KernelFinding("input", f"the kernel modified its {what}: {wrong} bytes, the first at {first}")


def same_bits(first: Floats, second: Floats) -> None:
    """Raises KernelFinding where two runs on the same inputs gave different outputs."""
    if np.array_equal(first.view(np.uint32), second.view(np.uint32)):
        return
    differ = np.argwhere(first.view(np.uint32) != second.view(np.uint32))
    m, n = differ[0]
    if (second.view(np.uint32) == POISON).any() > (first.view(np.uint32) == POISON).any():
        m, n = np.argwhere(second.view(np.uint32) == POISON)[0]
        words = (
            f"the kernel leaves outputs as they were: in a second run on the same inputs row {n} token {m} was never "
            "written (a buffer that it keeps?)"
        )
        raise KernelFinding("unwritten", words)
    words = (
        f"the kernel is not deterministic: a second run on the same inputs changed {len(differ)} of {first.size} "
        f"outputs, the first row {n} token {m}: {first[m, n]:.9g}, then {second[m, n]:.9g}"
    )
    raise KernelFinding("changing", words)


__all__ = ["same_bits", "taken", "unchanged"]
