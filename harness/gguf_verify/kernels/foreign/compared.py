"""Observation of the comparisons that the code of a kernel in CUDA C++ makes, by a traced build on the CPU.

They come from an untrusted process. They are used to choose what is tried beside the probe plan, and never to skip
anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...hosts.base import Placed
from ...hosts.choice import HOSTS
from ...hosts.compiler import checks_fault
from ...hosts.schedule import Schedule
from ...support.text import printable
from ..comparisons import Compared, Comparison, Operands, Range
from ..launches import SparseCall
from .cuda import CudaKernels
from .products import ThreadBlocks

_TRACED = Schedule(traced=True)


class Comparisons:
    """The comparisons of a kernel.

    Args:
        compiled: its compiler, on an emulated host.
    """

    def __init__(self, compiled: CudaKernels) -> None:
        self._compiled = compiled
        #: Type and address in its traced build → FILE:LINE in the author's files; None for another file.
        self._places: dict[tuple[str, int], str | None] = {}

    @classmethod
    def in_code(cls, compiled: CudaKernels | None) -> Comparisons | None:
        """Return those of a kernel; None if they cannot be observed here."""
        emulated = compiled is not None and HOSTS[compiled.host.name].emulated
        return cls(compiled) if compiled is not None and emulated and checks_fault() is None else None

    def of(self, blocks: ThreadBlocks, fmt: str, call: SparseCall, launches: Sequence[dict[str, Any]]) -> Compared:
        """Return the comparisons of thread blocks of a call. Raises KernelFault, EnvironmentFault."""
        placed = self._compiled.under(fmt, _TRACED)
        records = blocks.compared(call, launches, placed)
        self._locate(blocks, fmt, placed, sorted({int(at) for at in records["at"]}))
        found: Compared = {}
        # the process's order depends on where it is loaded
        for at, times, which, outcomes, *ranges in sorted(records.tolist(), key=lambda one: (one[0], one[2])):
            place = self._places[fmt, at]
            if place is not None and np.isfinite(ranges).all():
                a, b, apart = (_range(*ends) for ends in ranges)
                found[Comparison(place, at << 32 | which)] = Operands(a, b, apart, outcomes, times)
        return found

    def unseen(self, fmt: str) -> str:
        """Return words for conversions to numbers of fewer bits whose values its build does not report; "" if none."""
        path = next(iter(self._compiled.under(fmt, _TRACED).values())).parts.get("unseen")
        return "" if path is None else Path(path).read_text()

    def _locate(self, blocks: ThreadBlocks, fmt: str, placed: Mapping[str, Placed], addresses: Sequence[int]) -> None:
        new = [at for at in addresses if (fmt, at) not in self._places]
        code = next(iter(placed.values())).parts["code"]
        for at, chain in zip(new, blocks.lines(code, new) if new else (), strict=True):
            self._places[fmt, at] = next(filter(None, map(self._place, chain)), None)

    def _place(self, line: str) -> str | None:
        path, _, number = line.rpartition(":")
        name = self._compiled.source.author_of(path)
        return f"{printable(name, 200)}:{int(number)}" if name is not None and number.isdecimal() else None


def _range(low: float, high: float) -> Range:
    return float(min(low, high)), float(max(low, high))
