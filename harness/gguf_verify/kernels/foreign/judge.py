"""Checks of the memory of a call after a foreign process ran it. The process itself is not trusted to answer.

It may still write while the checks run, so an output is copied first, and the copy is judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hosts.base import outside
from ...hosts.memory import GUARD_BYTES, POISON, POISON_16
from ...support.errors import FindingKind, KernelFinding
from ...support.text import counted
from .operands import Operand

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Bytes compared at a time, so that they stay in the processor's cache.
_AT_A_TIME = 1 << 18


def taken(output: Operand, memory: Bytes, before: Bytes) -> npt.NDArray[Any]:
    """Return a copy of an output, as an array of its shape.

    Args:
        before: its content before the call, uint8[nbytes].

    Raises KernelFinding if its guards, or the bytes between its rows, were written.
    """
    whole = output.whole_in(memory).copy()
    _untouched(whole, output)
    inside = whole[GUARD_BYTES : len(whole) - GUARD_BYTES]
    at_start = replace(output, at=0)
    made = at_start.array_in(inside)
    if output.strides is not None or output.tail:
        expected = before.copy()
        at_start.array_in(expected)[...] = made
        wrong = int((expected != inside).sum())
        if wrong:
            words = f"the kernel wrote outside its output: {counted(wrong, 'bytes')} between or after its rows"
            raise KernelFinding("outside", words)
    return made


def written(made: npt.NDArray[Any], before: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which elements of an output a run wrote. `before`: the output before the run, of the same dtype."""
    bits = f"u{made.itemsize}"
    found: npt.NDArray[np.bool_] = made.view(bits) != before.view(bits)
    return found


def widened(made: npt.NDArray[Any], dtype: str) -> Floats:
    """Convert outputs to float32, exactly. Elements that were never written become float32 poison; bytes stay bytes."""
    if dtype not in ("float16", "bfloat16"):
        return made
    bits = made.view(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else made.astype(np.float32)
    wide[bits == POISON_16] = POISON.view(np.float32)
    return wide


def guarded(operand: Operand, memory: Bytes) -> None:
    """Raise KernelFinding if the guards of an operand were written."""
    _untouched(operand.whole_in(memory), operand)


def _untouched(whole: Bytes, operand: Operand) -> None:
    if touched := outside(whole, operand.name, operand.guard_fill):
        raise KernelFinding("outside", touched)


def unchanged(what: str, now: Bytes, before: Bytes) -> None:
    """Raise KernelFinding if the kernel wrote into one of its inputs, uint8[n]; `before` is what it was given."""
    wrong, first = 0, 0
    for at in range(0, len(before), _AT_A_TIME):
        a, b = now[at : at + _AT_A_TIME], before[at : at + _AT_A_TIME]
        if not np.array_equal(a, b):
            differ = np.flatnonzero(a != b)
            if len(differ):  # empty if the process restored the bytes between the two comparisons
                first = first if wrong else at + int(differ[0])
            wrong += max(1, len(differ))
    if wrong:
        raise KernelFinding("input", f"the kernel modified its {what}: {counted(wrong, 'bytes')}, the first at {first}")


#: Beginnings of faults: two runs on the same inputs gave other outputs, at the same addresses, only at others, or only
#: after so many other runs.
_WHY: dict[FindingKind, str] = {
    "changing": "the kernel is not deterministic",
    "address": "the kernel's outputs depend on the addresses of its operands (the runs differ only in the "
    "addresses, not in the contents)",
    "count": "the kernel's outputs depend on how often it was called (the runs differ in nothing else)",
}


def written_again(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> None:
    """Raise KernelFinding if outputs float32[M, N] were written in a first run but not in a second one."""
    if first.dtype != np.float32:
        return
    left = np.argwhere(np.ascontiguousarray(second).view(np.uint32) == POISON)
    if len(left) and not (np.ascontiguousarray(first).view(np.uint32) == POISON).any():
        m, n = left[0]
        words = (
            f"the kernel does not always write its outputs: in a second run on the same inputs row {n} token {m} was "
            "never written (does it keep a buffer?)"
        )
        raise KernelFinding("unwritten", words)


def same_bits(
    first: npt.NDArray[Any], second: npt.NDArray[Any], kind: FindingKind = "changing", which: str = "a second run"
) -> None:  # fmt: skip
    """Raise KernelFinding if two runs on the same inputs gave different outputs.

    Args:
        first, second: float32[M, N], or arrays of another type.
        kind: of the fault to report.
        which: the second one, in words.
    """
    why = _WHY[kind]
    if first.dtype != np.float32:
        differ = np.argwhere(first != second) if first.shape == second.shape else np.zeros((1, first.ndim), int)
        if len(differ):
            at = ", ".join(map(str, differ[0]))
            stale = ", or does not write all outputs" if kind == "changing" else ""
            words = f"changed {len(differ)} of {first.size} of them, the first at [{at}]"
            raise KernelFinding(kind, f"{why}{stale}: {which} on the same inputs {words}")
        return
    differ = np.argwhere(np.ascontiguousarray(first).view(np.uint32) != np.ascontiguousarray(second).view(np.uint32))
    if len(differ):
        m, n = differ[0]
        values = f"{first[m, n]:.9g}, then {second[m, n]:.9g}"
        words = f"changed {len(differ)} of {first.size} outputs, the first row {n} token {m}: {values}"
        raise KernelFinding(kind, f"{why}: {which} on the same inputs {words}")
