"""Faults that no single output shows: the kernel runs again, with other numbers of tokens and rows and in other series.

What is named here was seen: outputs that are right in one call and wrong in another with the same operands, or outputs
of one call that are the product of another's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import WeightFormat
from ..kernels.interface import Kernel
from ..results import FaultMatch
from ..semantics import Product, Semantics, judge, product
from ..support.errors import KernelFault
from .operands import Bytes, Floats
from .pattern import ranges

Bools = npt.NDArray[np.bool_]

#: Numbers of tokens and of rows that are tried: small ones, and around the sizes of tiles.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 127, 128, 129, 131)
#: Sizes of tiles that are looked for.
_TILES = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
#: Tokens and rows of calls whose shape a kernel has hardly seen before.
_UNUSUAL = ((11, 29), (13, 27), (19, 23))
#: Multiplications of all calls of one experiment.
_MOST_WORK = 1 << 27
#: The share of the error that such a fault explains: it is seen in other calls, not computed.
_SEEN = float("nan")
#: A tile is named where the ends of so many calls are wrong.
_ENOUGH = 3


@dataclass(frozen=True)
class Experiments:
    """A kernel and the operands of a call that failed.

    Args:
        kernel, fmt, semantics: what multiplies, the weights' format, and the definition that the kernel declares.
        rows: weights uint8[N, row bytes].
        x: float32[M, K] that the kernel quantizes itself, or uint8[M, row bytes] as it is given them.
        threads: for the exact products.
    """

    kernel: Kernel
    fmt: WeightFormat
    semantics: Semantics
    rows: Bytes
    x: npt.NDArray[Any]
    threads: int = 1

    def named(self) -> Iterator[FaultMatch]:
        """The faults that the experiments show, until one is found."""
        for experiment in (self._memory, self._tokens, self._rows):  # first what would spoil the others
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
        kernel = self.kernel.of(self.fmt, len(x), len(rows), self._k)
        weights = kernel.upload(self.fmt, rows)
        return kernel.product(weights, x) if x.dtype == np.float32 else kernel.gemm(weights, x)

    def _exact(self, rows: Bytes, x: npt.NDArray[Any]) -> Product:
        taken = self.semantics.bytes_of(x) if x.dtype == np.float32 else x
        return product(
            self.semantics, self.fmt, np.ascontiguousarray(rows), np.ascontiguousarray(taken), threads=self.threads
        )

    def _wrong(self, y: Floats, exact: Product) -> Bools:
        """Which outputs are, of those that have a finite exact value."""
        return np.asarray(judge(np.ascontiguousarray(y), exact).bad & np.isfinite(exact.exact))

    @property
    def _k(self) -> int:
        return int(self.rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size)

    def _most(self, sizes: Sequence[int], other: int) -> int:
        """How many of `other` rows or tokens may stand beside these sizes."""
        return max(1, min(other, int(_MOST_WORK // max(1, sum(sizes) * self._k))))

    # ---- the number of tokens, of rows -------------------------------------------------------------------------------

    def _tokens(self) -> FaultMatch | None:
        sizes = sorted({*SIZES, len(self.x)} if len(self.x) <= 2 * max(SIZES) else SIZES)
        sizes = [m for m in sizes if m in self.kernel.domain.m]
        if not sizes:
            return None
        rows = self.rows[: self._most(sizes, len(self.rows))]
        x = np.resize(self.x, (max(sizes), self.x.shape[1]))
        exact = self._exact(rows, x)

        def of(m: int) -> Bools:
            return np.asarray(self._wrong(self._run(rows, x[:m]), exact.rows(np.arange(m))).any(axis=1))

        return _of_sizes(_each(sizes, of), "token", "M", len(self.x))

    def _rows(self) -> FaultMatch | None:
        sizes = [n for n in SIZES if n <= len(self.rows)]
        if len(self.rows) <= 2 * max(SIZES):
            sizes = sorted({*sizes, len(self.rows)})
        sizes = [n for n in sizes if n in self.kernel.domain.n]
        if not sizes or len(self.x) not in self.kernel.domain.m:
            return None
        few = self._most(sizes, len(self.x))
        x = self.x[:few] if few in self.kernel.domain.m else self.x
        exact = self._exact(self.rows[: max(sizes)], x)

        def of(n: int) -> Bools:
            of_n = Product(exact.exact[:, :n], exact.bound[:, :n], exact.spread[:, :n], None)
            return np.asarray(self._wrong(self._run(self.rows[:n], x), of_n).any(axis=0))

        return _of_sizes(_each(sizes, of), "row", "N", len(self.rows))

    # ---- what a kernel remembers -------------------------------------------------------------------------------------

    def _memory(self) -> FaultMatch | None:
        """Calls of one shape that was not used before, with other operands each."""
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
        """Whether the second and the third of three calls, right in the first, give what an earlier one should."""
        answers = [self._run(*operands) for operands in calls]
        exact = [self._exact(*operands) for operands in calls]

        def same(call: int, operands: int) -> bool:
            return not self._wrong(answers[call], exact[operands]).any()

        if not same(0, 0) or same(1, 1) or not same(1, 0) or same(2, 2):
            return None
        if same(2, 0):
            words = f"{what} are kept for each shape: later calls of the same shape get those of the first"
            fix = "key a cache by contents, or drop it when the operands change"
            return FaultMatch("cached-by-shape", words, fix, _SEEN, 0.0, True)
        if same(2, 1):
            fix = "fill the workspace before it is read, on the same stream"
            return FaultMatch("stale-workspace", f"the {what} are those of the call before", fix, _SEEN, 0.0, True)
        return None

    def _turned(self, of: npt.NDArray[Any], by: int, form: WeightFormat | None) -> npt.NDArray[Any]:
        """The same rows in another order or, of few, with their blocks in another."""
        if not by:
            return of
        if not (np.roll(of, by, axis=0) == of).all():
            return np.roll(of, by, axis=0)
        unit = 32 if of.dtype == np.float32 else 128 if form is None else form.block_bytes
        unit = unit if of.shape[1] % unit == 0 else of.itemsize  # rows that are no whole number of blocks
        return np.roll(of.reshape(len(of), -1, unit), by, axis=1).reshape(of.shape)


def _each(sizes: Sequence[int], of: Callable[[int], Bools]) -> dict[int, Bools]:
    """Size → which tokens (or rows) are wrong; nothing where a second series of calls gives another answer."""
    first = {n: of(n) for n in sizes}
    return first if all((of(n) == first[n]).all() for n in reversed(sizes)) else {}


def _of_sizes(wrong: dict[int, Bools], what: str, size: str, own: int) -> FaultMatch | None:
    """What the wrong tokens (or rows) of calls of several sizes have in common; `own` is the size of the call that
    failed."""
    failed = [n for n, of in wrong.items() if of.any()]
    passed = [n for n, of in wrong.items() if not of.any()]
    if not failed or not passed:
        return None
    for tile in _TILES:
        ends = {n: np.arange(n) >= n // tile * tile for n in wrong}
        whole = any(n % tile == 0 for n in passed)
        fits = all((of == ends[n]).all() or (n < tile and not of.any()) for n, of in wrong.items())
        if whole and fits and len(failed) >= _ENOUGH:
            words = f"{what}s past the last whole tile of {tile} are wrong"
            fix = f"round the number of tiles up, and check the bounds of {what}s within the last"
            return FaultMatch("partial-tile", words, fix, _SEEN, 0.0, True)
    if failed == [own] or (size == "N" and passed == [1]):
        return None  # it may remember that size from earlier calls; and one row is right where rows disturb each other
    right_somewhere = np.zeros(max(wrong), bool)
    for n, of in wrong.items():
        right_somewhere[:n] |= ~of
    if all((of & right_somewhere[:n]).any() for n, of in wrong.items() if of.any()):
        words = (
            f"only calls of some {size} are wrong: of the sizes that were tried, {ranges(np.array(failed), 12)} are "
            f"wrong and {ranges(np.array(passed), 12)} right, on the same operands"
        )
        fix = f"check what is chosen by {size}: which kernel, its tile, its grid, its shared memory"
        return FaultMatch(f"window-of-{size.lower()}", words, fix, _SEEN, 0.0, True)
    return None


__all__ = ["Experiments"]
