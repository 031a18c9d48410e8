"""Faults that no single output shows: the kernel runs again, under other schedules, at other sizes, in other series.

Every fault named here was observed: a finding of a checked build, outputs that are correct in one call and wrong in
another with the same operands, or outputs of one call that are the product of another's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..hosts.schedule import Schedule
from ..results.diagnoses import FaultMatch
from ..semantics.definition import Semantics
from ..semantics.gates import judge
from ..support.errors import EnvironmentFault, KernelFault, KernelFinding
from ..support.text import counted
from . import windows
from .calls import MOST_WORK, Calls, others
from .diagnose import Diagnosis, most
from .fault import Case, Explanation, case_of, one_each
from .identify import identify_kernel, value_by_value
from .observed import FITTED, name_of, observed
from .operands import Bytes, Floats
from .routings import routing_fault
from .sizes import Series

Bools = npt.NDArray[np.bool_]

#: Orders of threads that need no separate build.
_ORDERS = (Schedule("descending"), Schedule("seeded", 1))
#: Tokens and rows of calls with a shape that the kernel has probably not seen before.
_UNUSUAL = ((11, 29), (13, 27), (19, 23))
#: Numbers of rows that are near no size of a tile.
_FRESH = ((37, 43), (46, 53))
#: Most multiplications of a call under another schedule, which an instrumented build makes on one core; its rows.
_MOST_CHECKED, _ROWS_CHECKED = 1 << 23, 72
#: Numbers of tokens at which another definition must fit, too: kernels choose their code by them.
_TOKENS = (1, 9, 64)


class Experiments(Calls):
    """The experiments with a kernel and the operands of a call that failed: see `Calls`."""

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

    def settled(self, found: Diagnosis) -> Diagnosis:
        """Return the diagnosis of the call after the experiments, whose names replace those that they contradict."""
        if found.definitions and not self.fitting(found.definitions):
            found = replace(found, definitions=(), advice="")  # of this call alone
        if found.verdict == "unknown":
            found = replace(found, faults=tuple(self.named()))
        elif found.verdict == "known fault":
            found = replace(found, faults=self.beside(found.explanations) or tuple(self.named()))
        if found.verdict == "unknown" or not all(fault.everywhere for fault in found.faults):
            found = replace(found, places=(*found.places, *self._places()))
        return found

    def _places(self) -> tuple[str, ...]:
        """Describe the rows and tokens that are wrong in calls of any size."""
        try:
            return tuple(series.place for series in (self.by_tokens, self.by_rows) if series.place)
        except KernelFault:
            return ()

    # ---- other schedules ---------------------------------------------------------------------------------------------

    def _under(self, *schedules: Schedule | None) -> Iterator[Floats]:
        """Yield the outputs of the first rows and tokens under each schedule; None is the ordinary launch.

        Nothing if a host cannot choose one.
        """
        rows = np.ascontiguousarray(self.rows[:_ROWS_CHECKED])
        x = np.ascontiguousarray(self.x[: max(1, _MOST_CHECKED // (len(rows) * self.k))])
        kernel = self.kernel.of(self.fmt, len(x), len(rows), self.k)
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
            left = [explanation for explanation in left if self._holds(explanation)]
            if not left:
                return ()
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

    def _holds(self, explanation: Explanation) -> bool:
        """Return whether factors that were fitted to the outputs also explain those of other operands."""
        if explanation.match.id not in FITTED:
            return True
        x, rows = self._turned(self.x, 1, self.semantics.activations), self._turned(self.rows, 1, self.fmt)
        tokens, few = most(self.fmt, rows)
        case = case_of(self.semantics, self.fmt, rows[:few], x[:tokens])
        predicted = None if case is None else explanation.predict(case)
        if predicted is None:
            return False
        y = self.run(rows, x)[:tokens, :few]
        fits = np.abs(y - predicted.exact) <= predicted.bound
        return bool((fits if explanation.part is None else fits[explanation.part]).all())

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
                    y = self.run(rows, x)
                except KernelFault:
                    return ()
                known = identify_kernel(self.semantics, self.fmt, rows, x, y, self.threads).names
                left = tuple(name for name in left if name in known)
        return left

    def _computes(self, definition: Semantics) -> bool:
        """Return whether calls with other numbers of tokens and of columns agree with a definition."""
        try:
            calls = [call for call in (*self._of_tokens(), *self._of_columns()) if self._takes(*call)]
            return all(judge(self.run(*call), self.exact(*call, definition)).passed for call in calls)
        except KernelFault:
            return False

    def _takes(self, rows: Bytes, x: npt.NDArray[Any]) -> bool:
        """Return whether a call is in the kernel's domain, and not too large."""
        domain, k = self.kernel.domain, rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size
        return len(x) in domain.m and len(rows) in domain.n and k in domain.k and x.size * len(rows) <= MOST_WORK

    def _right(self, rows: Bytes, x: npt.NDArray[Any]) -> Case | None:
        """Return a call in the form for replaying faults; None if it is wrong, or was not made."""
        if not self._takes(rows, x) or self.wrong(self.run(rows, x), self.exact(rows, x)).any():
            return None
        few, some = most(self.fmt, rows)
        return case_of(self.semantics, self.fmt, rows[:some], x[:few])

    def _of_tokens(self) -> Iterator[tuple[Bytes, npt.NDArray[Any]]]:
        """Yield calls with other numbers of tokens."""
        yield from ((self.rows, np.resize(self.x, (m, self.x.shape[1]))) for m in others(len(self.x)))

    def _of_rows(self) -> Iterator[tuple[Bytes, npt.NDArray[Any]]]:
        """Yield calls with other numbers of rows.

        Not for experts: with few rows, they hardly differ, so such calls show less.
        """
        if self.kernel.takes_experts is None:
            yield from ((np.resize(self.rows, (n, self.rows.shape[1])), self.x) for n in others(len(self.rows)))

    def _of_columns(self) -> Iterator[tuple[Bytes, npt.NDArray[Any]]]:
        """Yield calls with fewer columns."""
        units = self.k // self.fmt.unit
        yield from (self.first_columns(n) for n in others(units) if n < units)

    def _series(self) -> FaultMatch | None:
        return self._memory() or self._first_call()

    # ---- the number of tokens, of rows, of columns -------------------------------------------------------------------

    def _routings(self) -> FaultMatch | None:
        return routing_fault(self.kernel, self.fmt, self.semantics, self.rows, self.x)

    @cached_property
    def by_tokens(self) -> Series:
        """Calls with other numbers of tokens. Raises KernelFault."""
        return windows.of_tokens(self)

    @cached_property
    def by_rows(self) -> Series:
        """Calls with other numbers of rows. Raises KernelFault."""
        return windows.of_rows(self)

    def _tokens(self) -> FaultMatch | None:
        return self.by_tokens.fault

    def _rows(self) -> FaultMatch | None:
        return self.by_rows.fault

    def _columns(self) -> FaultMatch | None:
        return windows.of_columns(self)

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
        answers = [self.run(*operands) for operands in calls]
        exact = [self.exact(*operands) for operands in calls]

        def same(call: int, operands: int) -> bool:
            return not self.wrong(answers[call], exact[operands]).any()

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
                last = [self.run(rows, x[:m]) for m in calls][-1]
                return bool(self.wrong(last, self.exact(rows, x[: calls[-1]])).any())

            if wrong(used, first, then) and not wrong(fresh, then):
                words = (
                    "what the first call of some rows and columns sets up is kept: a call with "
                    f"{counted(then, 'tokens')} is wrong "
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


def _within(window: FaultMatch, named: Sequence[Explanation]) -> FaultMatch:
    """Return a window of sizes, with the explanation of its calls' outputs."""
    those = " or ".join(match.words for match in one_each(named))
    return observed(window.id, f"{window.words}; in the wrong calls, {those}", window.fix)
