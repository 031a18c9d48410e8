"""Faults that no single output shows: the kernel runs again, under other schedules, at other sizes, in other series.

Every fault named here was observed: a finding of a checked build, outputs that are correct in one call and wrong in
another with the same operands, or outputs of one call that are the product of another's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..hosts.schedule import Schedule
from ..kernels.interface import Kernel
from ..results.diagnoses import FaultMatch
from ..semantics.definition import Semantics
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.sums import Product
from ..support.errors import EnvironmentFault, KernelFault, KernelFinding
from .diagnose import most
from .fault import Case, Explanation, case_of, one_each
from .identify import identify_kernel, value_by_value
from .observed import name_of, observed
from .operands import Bytes, Floats
from .routings import routing_fault
from .sizes import around, each, of_lengths, of_sizes

Bools = npt.NDArray[np.bool_]

#: Orders of threads that need no separate build.
_ORDERS = (Schedule("descending"), Schedule("seeded", 1))
#: Numbers of tokens and of rows to try: small ones, and around the sizes of tiles.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 127, 128, 129, 131)
#: Approximate number of calls to find the sizes at which outputs become wrong.
_EDGES = 16
#: Tokens and rows of calls with a shape that the kernel has probably not seen before.
_UNUSUAL = ((11, 29), (13, 27), (19, 23))
#: Numbers of rows that are near no size of a tile.
_FRESH = ((37, 43), (46, 53))
#: Up to this K, wrong rows are no evidence that a kernel is only wrong for large K: their last tile may be wrong.
_LONG = 2048
#: Most multiplications of all calls of one experiment; most values of the operand whose size changes.
_MOST_WORK, _MOST_VALUES = 1 << 27, 1 << 24
#: Most multiplications of a call under another schedule, which an instrumented build makes on one core; its rows.
_MOST_CHECKED, _ROWS_CHECKED = 1 << 23, 72
#: Numbers of tokens at which another definition must fit, too: kernels choose their code by them.
_TOKENS = (1, 9, 64)
#: Multiples of a domain's step that are tried.
_MORE_ROWS = 8


@dataclass(frozen=True)
class Experiments:
    """A kernel and the operands of a call that failed.

    Args:
        kernel, fmt, semantics: the kernel, the weights' format, and the definition that the kernel declares.
        rows: weights uint8[N, row bytes].
        x: float32[M, K] that the kernel quantizes itself, or uint8[M, row bytes] as it gets them.
        threads: for the exact products.
    """

    kernel: Kernel
    fmt: WeightFormat
    semantics: Semantics
    rows: Bytes
    x: npt.NDArray[Any]
    threads: int = 1

    def named(self) -> Iterator[FaultMatch]:
        """Yield the fault that the experiments show, if one does."""
        # Experiments whose faults would invalidate the others come first.
        calls = (
            self.checked, self._order, self._memory, self._first_call, self._routings, self._tokens, self._rows,
            self._columns,
        )  # fmt: skip
        for experiment in calls:
            try:
                found = experiment()
            except KernelFault:
                continue
            if found is not None:
                yield found
                return

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _run(self, rows: Bytes, x: npt.NDArray[Any]) -> Floats:
        rows, x = np.ascontiguousarray(rows), np.ascontiguousarray(x)
        k = rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size
        kernel = self.kernel.of(self.fmt, len(x), len(rows), k)
        weights = kernel.upload(self.fmt, rows)
        return kernel.product(weights, x) if x.dtype == np.float32 else kernel.gemm(weights, x)

    def _exact(self, rows: Bytes, x: npt.NDArray[Any], definition: Semantics | None = None) -> Product:
        definition = definition or self.semantics
        taken = np.ascontiguousarray(definition.bytes_of(x) if x.dtype == np.float32 else x)
        return product(definition, self.fmt, np.ascontiguousarray(rows), taken, threads=self.threads)

    def _wrong(self, y: Floats, exact: Product) -> Bools:
        """Return which outputs are wrong, among those with a finite exact value."""
        return np.asarray(judge(np.ascontiguousarray(y), exact).bad & np.isfinite(exact.exact))

    @property
    def _k(self) -> int:
        return int(self.rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size)

    def _most(self, sizes: Sequence[int], other: int) -> int:
        """Return how many of `other` rows or tokens may be combined with these sizes."""
        return max(1, min(other, int(_MOST_WORK // max(1, sum(sizes) * self._k))))

    # ---- other schedules ---------------------------------------------------------------------------------------------

    def _under(self, *schedules: Schedule | None) -> Iterator[Floats]:
        """Yield the outputs of the first rows and tokens under each schedule; None is the ordinary launch.

        Nothing if a host cannot choose one.
        """
        rows = np.ascontiguousarray(self.rows[:_ROWS_CHECKED])
        x = np.ascontiguousarray(self.x[: max(1, _MOST_CHECKED // (len(rows) * self._k))])
        kernel = self.kernel.of(self.fmt, len(x), len(rows), self._k)
        for schedule in schedules:
            chosen = kernel if schedule is None else kernel.under(schedule)
            if chosen is not None:
                weights = chosen.upload(self.fmt, rows)
                y = chosen.product(weights, x) if x.dtype == np.float32 else chosen.gemm(weights, x)
                if kernel.order is None and chosen.adds_floats:
                    return  # atomic additions, whose order is not defined: outputs may differ
                yield y

    def _order(self) -> FaultMatch | None:
        """Return a fault if outputs depend on the order of threads, on when copies complete, or on other memory."""
        try:
            found = list(self._under(None, *_ORDERS))
        except KernelFinding as finding:
            return name_of(finding)
        except EnvironmentFault:
            return None
        if all(y.tobytes() == found[0].tobytes() for y in found[1:]):
            return None
        words = "the outputs depend on the order in which threads run, or on uninitialised memory"
        return name_of(KernelFinding("changing", words))

    def checked(self) -> FaultMatch | None:
        """Return the finding of an instrumented build in a call with the first rows and tokens."""
        try:
            list(self._under(Schedule(checked=True)))
        except KernelFinding as finding:
            return name_of(finding)
        except (KernelFault, EnvironmentFault):
            return None
        return None

    def beside(self, named: Sequence[Explanation]) -> tuple[FaultMatch, ...]:
        """Return the faults to name, given those that explain the outputs of the call.

        Outputs that depend on the order of threads may look like those of any fault. And a variant of a fault that
        would make correct calls wrong is not the kernel's. If that holds for all variants, only calls of some sizes
        have the fault, or those of a series, which is named. Otherwise the variants are named that no call contradicts;
        one that explains a part of the outputs is only contradicted by that part.
        """
        left = list(named)
        try:
            found = self._order()
            if found is not None:
                return (self.checked() or found,)
            for experiment, calls in (
                (self._tokens, self._of_tokens()),
                (self._rows, self._of_rows()),
                (self._columns, self._of_columns()),
                (self._series, iter([(self.rows, self.x)])),
            ):
                right = [case for call in calls if (case := self._right(*call)) is not None]
                if all(any(explanation.shows(case) for case in right) for explanation in left):
                    window = experiment()
                    if window is not None:
                        return (_within(window, left),)
                left = [e for e in left if not any(e.shows_in_its_part(case) for case in right)]
                if not left:
                    break
        except KernelFault:
            pass
        return one_each(left)

    def fitting(self, definitions: Sequence[str]) -> tuple[str, ...]:
        """Return those of the definitions that also fit other calls than the failed one.

        They are calls with other numbers of tokens and, since its bound is wide, for the definition that adds value by
        value also with fewer columns.
        """
        by_value = value_by_value(self.semantics.inside or self.semantics)
        if by_value is not None and by_value.name in definitions:
            return (by_value.name,) if self._computes(by_value) else ()
        few, some = most(self.fmt, self.rows)
        rows, domain, left = np.ascontiguousarray(self.rows[:some]), self.kernel.domain, tuple(definitions)
        if self.x.dtype != np.float32 or len(rows) not in domain.n:
            return left
        for m in {domain.m.up(m) or 0 for m in _TOKENS}:
            if left and 0 < m <= few:
                x = np.resize(self.x, (m, self.x.shape[1]))
                try:
                    y = self._run(rows, x)
                except KernelFault:
                    return ()
                known = identify_kernel(self.semantics, self.fmt, rows, x, y, self.threads).names
                left = tuple(name for name in left if name in known)
        return left

    def _computes(self, definition: Semantics) -> bool:
        """Return whether calls with other numbers of tokens and of columns agree with a definition."""
        try:
            calls = [call for call in (*self._of_tokens(), *self._of_columns()) if self._takes(*call)]
            return all(judge(self._run(*call), self._exact(*call, definition)).passed for call in calls)
        except KernelFault:
            return False

    def _takes(self, rows: Bytes, x: npt.NDArray[Any]) -> bool:
        """Return whether a call is in the kernel's domain, and not too large."""
        domain, k = self.kernel.domain, rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size
        return len(x) in domain.m and len(rows) in domain.n and k in domain.k and x.size * len(rows) <= _MOST_WORK

    def _right(self, rows: Bytes, x: npt.NDArray[Any]) -> Case | None:
        """Return a call in the form for replaying faults; None if it is wrong, or was not made."""
        if not self._takes(rows, x) or self._wrong(self._run(rows, x), self._exact(rows, x)).any():
            return None
        few, some = most(self.fmt, rows)
        return case_of(self.semantics, self.fmt, rows[:some], x[:few])

    def _of_tokens(self) -> Iterator[tuple[Bytes, npt.NDArray[Any]]]:
        """Yield calls with other numbers of tokens."""
        yield from ((self.rows, np.resize(self.x, (m, self.x.shape[1]))) for m in _others(len(self.x)))

    def _of_rows(self) -> Iterator[tuple[Bytes, npt.NDArray[Any]]]:
        """Yield calls with other numbers of rows.

        Not for experts: with few rows, they hardly differ, so such calls show less.
        """
        if self.kernel.takes_experts is None:
            yield from ((np.resize(self.rows, (n, self.rows.shape[1])), self.x) for n in _others(len(self.rows)))

    def _of_columns(self) -> Iterator[tuple[Bytes, npt.NDArray[Any]]]:
        """Yield calls with fewer columns."""
        units = self._k // self.fmt.unit
        yield from (self._columns_of(n) for n in _others(units) if n < units)

    def _series(self) -> FaultMatch | None:
        return self._memory() or self._first_call()

    def _columns_of(self, units: int) -> tuple[Bytes, npt.NDArray[Any]]:
        """Return rows and activations of only the first columns."""
        all_units = self._k // self.fmt.unit
        width, wide = (of.shape[1] // all_units for of in (self.rows, self.x))
        return np.ascontiguousarray(self.rows[:, : units * width]), np.ascontiguousarray(self.x[:, : units * wide])

    # ---- the number of tokens, of rows, of columns -------------------------------------------------------------------

    def _routings(self) -> FaultMatch | None:
        return routing_fault(self.kernel, self.fmt, self.semantics, self.rows, self.x)

    def _tokens(self) -> FaultMatch | None:
        domain, own = self.kernel.domain.m, len(self.x)
        sizes = [m for m in sorted({*SIZES, own}) if m in domain]
        if not sizes or own * self._k > _MOST_VALUES:
            return None
        most = max(2 * own, max(sizes))
        # One row less, a shape that has rarely been used before.
        rows = self.rows[: self._most([*sizes, *[most] * _EDGES], max(1, len(self.rows) - 1))]
        x = np.resize(self.x, (most, self.x.shape[1]))
        exact = self._exact(rows, x)

        def of(m: int) -> Bools:
            return np.asarray(self._wrong(self._run(rows, x[:m]), exact.rows(np.arange(m))).any(axis=1))

        return of_sizes(around(each(sizes, of), of, own, most, domain), "token", "M", own)

    def _rows(self) -> FaultMatch | None:
        domain, own = self.kernel.domain.n, len(self.rows)
        most = max(2 * own, min(_MORE_ROWS * domain.multiple, _MOST_VALUES // self._k))
        multiples = range(domain.multiple, most + 1, domain.multiple) if domain.multiple > 1 else ()
        sizes = [n for n in sorted({*SIZES, own, *multiples}) if n in domain and n <= max(own, *multiples, 0)]
        # With few rows, experts hardly differ, so that a call of them shows less.
        if not sizes or own * self._k > _MOST_VALUES or self.kernel.takes_experts is not None:
            return None
        few = self._most([*sizes, *[most] * _EDGES], len(self.x))
        x = self.x[:few] if few in self.kernel.domain.m else self.x
        rows = np.resize(self.rows, (most, self.rows.shape[1]))
        exact = self._exact(rows, x)

        def of(n: int) -> Bools:
            of_n = Product(exact.exact[:, :n], exact.bound[:, :n], exact.spread[:, :n], None)
            return np.asarray(self._wrong(self._run(rows[:n], x), of_n).any(axis=0))

        return of_sizes(around(each(sizes, of), of, own, len(rows), domain), "row", "N", own)

    def _columns(self) -> FaultMatch | None:
        """Return a fault if calls with some K are wrong, and others correct."""
        unit, k = self.fmt.unit, self._k
        if k % unit:
            return None
        few = {*range(1, 9), *_others(k // unit), *(64 << i for i in range(9)), k // unit}
        lengths = [length for length in sorted(few) if length * unit <= k]
        lengths = [length for length in lengths if length * unit in self.kernel.domain.k]

        def wrong(length: int) -> float:
            rows, x = self._columns_of(length)
            rows, x = rows[:_ROWS_CHECKED], x[:2]
            return float(self._wrong(self._run(rows, x), self._exact(rows, x)).mean())

        shares = {length: wrong(length) for length in lengths}
        right = max((n for n, share in shares.items() if not share), default=0)
        bad = min((n for n, share in shares.items() if share), default=0)
        if not right or not bad or not shares.get(k // unit):
            return None
        if k <= _LONG or right > bad or set(shares.values()) != {0.0, 1.0}:
            return of_lengths({length * unit: bool(share) for length, share in shares.items()})
        while bad - right > 1 and (middle := (right + bad) // 2) * unit in self.kernel.domain.k:
            share = wrong(middle)
            if 0 < share < 1:
                return None
            right, bad = (right, middle) if share else (middle, bad)
        if right * unit <= _LONG:
            return of_lengths({length * unit: bool(share) for length, share in shares.items()})
        words = f"only calls of large K are wrong: all outputs from K = {bad * unit} on, and none up to {right * unit}"
        return observed("window-of-k", words)

    # ---- what a kernel remembers -------------------------------------------------------------------------------------

    def _memory(self) -> FaultMatch | None:
        """Make calls of one shape that was not used before, each with other operands."""
        domain = self.kernel.domain
        for few, some in _UNUSUAL:
            m, n = domain.m.up(few) or domain.m.down(few), domain.n.up(some) or domain.n.down(some)
            if not m or not n:
                continue
            w, x = np.resize(self.rows, (n, self.rows.shape[1])), np.resize(self.x, (m, self.x.shape[1]))
            for what, calls in (
                ("activations", [(w, self._turned(x, by, self.semantics.activations)) for by in range(3)]),
                ("weights", [(self._turned(w, by, self.fmt), x) for by in range(3)]),
            ):
                found = self._remembered(what, calls)
                if found is not None:
                    return found
        return None

    def _remembered(self, what: str, calls: list[tuple[Bytes, npt.NDArray[Any]]]) -> FaultMatch | None:
        """Return a fault if the second and the third of three calls, the first being correct, give the result of an
        earlier one.
        """
        answers = [self._run(*operands) for operands in calls]
        exact = [self._exact(*operands) for operands in calls]

        def same(call: int, operands: int) -> bool:
            return not self._wrong(answers[call], exact[operands]).any()

        if not same(0, 0) or same(1, 1) or not same(1, 0) or same(2, 2):
            return None
        if same(2, 0):
            words = f"{what} are cached by shape: later calls of the same shape use those of the first"
            return observed("cached-by-shape", words)
        if same(2, 1):
            return observed("stale-workspace", f"the {what} are those of the call before")
        return None

    def _first_call(self) -> FaultMatch | None:
        """Return a fault if a call is wrong after one with the same rows and columns and another number of tokens."""
        domain = self.kernel.domain
        for (first, then), (used, fresh) in zip(((3, 10), (10, 3)), _FRESH, strict=True):
            if not all(m in domain.m for m in (first, then)) or not all(n in domain.n for n in (used, fresh)):
                continue
            x = np.resize(self.x, (max(first, then), self.x.shape[1]))

            def wrong(n: int, *calls: int, x: npt.NDArray[Any] = x) -> bool:
                rows = np.resize(self.rows, (n, self.rows.shape[1]))
                last = [self._run(rows, x[:m]) for m in calls][-1]
                return bool(self._wrong(last, self._exact(rows, x[: calls[-1]])).any())

            if wrong(used, first, then) and not wrong(fresh, then):
                words = (
                    f"what the first call of some rows and columns sets up is kept: a call with {then} tokens is wrong "
                    f"after one with {first}, and right without"
                )
                return observed("cached-by-shape", words, "include the number of tokens in the cache key")
        return None

    def _turned(self, of: npt.NDArray[Any], by: int, form: WeightFormat | None) -> npt.NDArray[Any]:
        """Return the same rows in another order or, of few, with their blocks in another order."""
        if not by:
            return of
        if not (np.roll(of, by, axis=0) == of).all():
            return np.roll(of, by, axis=0)
        unit = 32 if of.dtype == np.float32 else 128 if form is None else form.block_bytes
        unit = unit if of.shape[1] % unit == 0 else of.itemsize  # rows that are not whole blocks
        return np.roll(of.reshape(len(of), -1, unit), by, axis=1).reshape(of.shape)


def _others(own: int) -> list[int]:
    """Return sizes besides that of the call at which a fault is tried: small ones, parts of it, one less, twice as
    many.
    """
    return [n for n in sorted({1, 2, own // 3, own // 2, own - 1, 2 * own}) if n > 0 and n != own]


def _within(window: FaultMatch, named: Sequence[Explanation]) -> FaultMatch:
    """Return a window of sizes, with the explanation of its calls' outputs."""
    those = " or ".join(match.words for match in one_each(named))
    return observed(window.id, f"{window.words}; in the wrong calls, {those}", window.fix)
