"""Observation of the comparisons that the code of a kernel in CUDA C++ makes, by a traced build on the CPU.

They come from an untrusted process. They are used to choose what is tried beside the probe plan, and never to skip
anything.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...hosts.base import Placed
from ...hosts.choice import HOSTS
from ...hosts.compiler import checks_fault
from ...hosts.schedule import Schedule
from ...results.coverage import Noted, Outcomes
from ...support.text import printable
from ..comparisons import Compared, Comparison, Operands, Range
from ..launches import SparseCall
from .cuda import CudaKernels
from .products import ThreadBlocks

_TRACED = Schedule(traced=True)
#: A comparison of a line that GCC lists: its number, its constant, its operator, whether its outcome is a value.
_Listed = tuple[int, int | None, str, bool]
#: A file, the line and the number of a comparison, and its operator.
_Value = tuple[str, tuple[int, int], str]


class Comparisons:
    """The comparisons of a kernel.

    Args:
        compiled: its compiler, on an emulated host.
    """

    def __init__(self, compiled: CudaKernels) -> None:
        self._compiled = compiled
        #: Type and address in its traced build → FILE:LINE in the author's files; None for another file.
        self._places: dict[tuple[str, int], str | None] = {}
        #: The same → file and line of an address in the author's files that is no inlined function of others.
        self._innermost: dict[tuple[str, int], tuple[str, int]] = {}
        #: The same → the comparison there whose outcome is a value: its file, its line and number, its operator.
        self._values: dict[tuple[str, int], _Value | None] = {}
        self._listed: dict[str, dict[tuple[str, int], list[_Listed]]] = {}
        #: The outcomes of such comparisons.
        self.noted = Noted()

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
                value = None if which else self._value(fmt, at, a)
                if value is not None:
                    file, where, operator = value
                    self.noted.note(fmt, file, where, Outcomes(operator, outcomes, False), (at, *a, *b))
        return found

    def _value(self, fmt: str, at: int, a: Range) -> _Value | None:
        """Return the comparison at an address whose outcome is a value; None if it is none, or may be another one."""
        if (fmt, at) not in self._values:
            line = self._innermost.get((fmt, at))
            listed = () if line is None else self._in_code(fmt).get(line, ())
            with_constant = [one for one in listed if one[1] is not None and a == (one[1], one[1])]
            alike = with_constant or [one for one in listed if one[1] is None] or listed
            number, _, operator, _ = alike[0] if alike else (0, None, "", False)
            sure = bool(alike) and all(one[2] == operator and one[3] for one in alike)
            self._values[fmt, at] = (line[0], (line[1], number), operator) if line is not None and sure else None
        return self._values[fmt, at]

    def _in_code(self, fmt: str) -> dict[tuple[str, int], list[_Listed]]:
        """Return those that GCC lists for a type: file and line → them."""
        if fmt not in self._listed:
            path = next(iter(self._compiled.under(fmt, _TRACED).values())).parts.get("comparisons")
            found: dict[tuple[str, int], list[_Listed]] = {}
            for one in [] if path is None else json.loads(Path(path).read_bytes()):
                file, line, column, operator, constant, value = one
                name = self._compiled.source.author_of(file)
                if name is not None:
                    of_line = found.setdefault((printable(name, 200), line), [])
                    number = zlib.crc32(f"{column} {operator} {constant}".encode())  # one of all types and instances
                    of_line.append((number, constant, operator, value))
            self._listed[fmt] = found
        return self._listed[fmt]

    def unseen(self, fmt: str) -> str:
        """Return words for conversions to numbers of fewer bits whose values its build does not report; "" if none."""
        path = next(iter(self._compiled.under(fmt, _TRACED).values())).parts.get("unseen")
        return "" if path is None else Path(path).read_text()

    def _locate(self, blocks: ThreadBlocks, fmt: str, placed: Mapping[str, Placed], addresses: Sequence[int]) -> None:
        new = [at for at in addresses if (fmt, at) not in self._places]
        code = next(iter(placed.values())).parts["code"]
        for at, chain in zip(new, blocks.lines(code, new) if new else (), strict=True):
            self._places[fmt, at] = next(filter(None, map(self._place, chain)), None)
            innermost = self._place(chain[0]) if chain else None
            if innermost is not None:
                name, _, line = innermost.rpartition(":")
                self._innermost[fmt, at] = name, int(line)

    def _place(self, line: str) -> str | None:
        path, _, number = line.rpartition(":")
        name = self._compiled.source.author_of(path)
        return f"{printable(name, 200)}:{int(number)}" if name is not None and number.isdecimal() else None


def _range(low: float, high: float) -> Range:
    return float(min(low, high)), float(max(low, high))
