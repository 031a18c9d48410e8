"""Whole products larger than a model's, of which some outputs are judged.

They show an index that a short or a float does not hold in any kernel: one in Python, in a library, on a GPU, or whose
thread blocks cannot run alone (`huge`). Rows and tokens repeat, so most outputs have the bits of another one; those
that differ are judged too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....diagnosis.observed import observed
from ....formats.tensor_types import WeightFormat
from ....kernels.domain import Domain
from ....support.errors import EnvironmentFault, KernelFault, NotRun
from ...index_limits import LIMITS, Large, Shape, passes
from ...plan import near
from ...run import Run
from .findings import Findings, narrow
from .limits import Refusal, limit_of, record_limit
from .repeating import Judged, RepeatingProducts, Single, Wrong

Places = npt.NDArray[np.int64]

#: Rows of one block that repeat, a prime.
_ROWS = 521
#: Outputs that are judged: of small products all; random ones past a limit, in each order of counting; random ones; and
#: those whose bits differ from those of an equal row.
_ALL, _PAST, _ANY, _DIFFERING = 48, 24, 16, 48
#: The longest that a product may take, in seconds, as the smaller one predicts.
MOST_SECONDS = 10.0
#: How much smaller a product is that must be correct where the first wrong one is searched for.
_LESS = 19


@dataclass(frozen=True)
class Ran:
    """A product that ran.

    Args:
        judged: its chosen outputs.
        outputs: the number of these.
        seconds: that it took.
    """

    judged: Judged
    outputs: int
    seconds: float


@dataclass(frozen=True)
class WholeProducts:
    """The products of one type of weights.

    Args:
        products: the operands.
        findings: get what is found.
        refused: why CUDA refuses a launch of M, N and K, or None.
    """

    run: Run
    fmt: WeightFormat
    products: RepeatingProducts
    findings: Findings
    refused: Refusal

    def check(self, large: Large, domain: Domain) -> None:
        """Run the products of one kind, the smaller ones first, and judge some of their outputs."""
        found, before = self.findings.found, list[tuple[Shape, Ran]]()
        past = f"{large.what} of 2^{large.limit.bit_length() - 1} and more"
        for shape in large.shapes:
            at, outputs = _in_words(shape), passes("M·N", shape)
            if before and _predicted(*before[-1], shape) > MOST_SECONDS:
                found.not_covered.append((past, f"a product of {at} would take too long"))
                return
            if self.refused(*shape):
                limit = limit_of(self.refused, shape, domain, self.products.unit)
                if limit is not None:
                    record_limit(self.findings.result, limit, self.fmt.name, self.findings.tensor.name)
                return
            try:
                ran = self.ran(shape, large)
            except EnvironmentFault as error:
                found.not_covered.append((past, str(error)))
                return
            if isinstance(ran.judged.wrong, Wrong):
                self._explain(large, domain, shape, ran.judged.wrong)
                return
            if ran.judged.weak:
                found.not_covered.append((past, "most of these outputs could be zero within their bounds"))
                return
            before.append((shape, ran))
            found.large.append(f"{ran.outputs} of {outputs:,} outputs of {at}")

    def ran(self, shape: Shape, large: Large) -> Ran:
        """Run a product, and judge some of its outputs. Raises EnvironmentFault."""
        kernel, fmt = self.run.kernel.of(self.fmt, *shape), self.fmt
        of = self.products.sparse(kernel, shape)
        if shape[2] == fmt.unit:
            of = replace(of, weights=of.weights[: _ROWS * fmt.unit // fmt.block_size * fmt.block_bytes])
        begin = time.monotonic()
        try:
            y = kernel.together(of)
        except KernelFault as error:
            if isinstance(error, NotRun) or error.late:
                raise EnvironmentFault(str(error)) from None
            words = f"{fmt.name} at {_in_words(shape)}: {error}"
            return Ran(Judged(Wrong(words, error=error), False), 0, 0.0)
        seconds = time.monotonic() - begin
        bits = y.view(np.uint32)
        past = min(1.0, large.limit / passes(large.what, shape))
        tokens, rows = np.divmod(chosen(bits, past, self.run.options.seed), shape[1])
        outputs = [Single("the kernel", m, n, bits[m, n]) for m, n in zip(tokens.tolist(), rows.tolist(), strict=True)]
        judged = self.products.judge(of, kernel.order, outputs, f"{fmt.name} at {_in_words(shape)}: ")
        return Ran(judged, len(outputs), seconds)

    def _explain(self, large: Large, domain: Domain, shape: Shape, wrong: Wrong) -> None:
        """Record a fault; and its name if it begins where an index passes a limit."""
        found = between(large, domain, self.products.unit, shape, lambda at: self.ran(at, large).judged.wrong is None)
        where, named = _in_words(shape), None
        if found is not None:
            right, first = found
            counted = crossed(right, first, self.products)
            if counted is not None:
                named = observed("narrow-index", narrow(right, _in_words(first), counted))
            elif first != shape:
                where = f"{where}, from {_in_words(first)} on"
                wrong = replace(
                    wrong, words=f"{wrong.words} (right at {_in_words(right)}, wrong at {_in_words(first)})"
                )
        self.findings.fail(wrong, where, named)


def between(
    large: Large, domain: Domain, unit: int, wrong: Shape, right: Callable[[Shape], bool]
) -> tuple[Shape, Shape] | None:  # fmt: skip
    """The last correct and the first wrong shape along one dimension; None where a much smaller one is wrong too.

    Raises EnvironmentFault.
    """
    d = "MNK".index(large.what[-1])
    extent, step = (domain.m, domain.n, domain.k)[d], unit if d == 2 else 1

    def of(size: int) -> Shape:
        m, n, k = (size if i == d else other for i, other in enumerate(wrong))
        return m, n, k

    low, high = near(extent, max(1, wrong[d] // _LESS), step), wrong[d]
    if low is None or low >= high or not right(of(low)):
        return None
    while (middle := near(extent, (low + high) // 2, step)) is not None and low < middle < high:
        low, high = (middle, high) if right(of(middle)) else (low, middle)
    return of(low), of(high)


def crossed(right: Shape, wrong: Shape, products: RepeatingProducts) -> str | None:
    """Which number passes a limit of a type between two shapes, in words."""
    row, token = products.value_bytes
    of_row, of_token = products.blocks
    units = {
        "M": (1.0,), "N": (1.0,), "K": (1.0, row, token, 1 / of_row, 1 / of_token), "M·N": (1.0, 4.0),
        "N·K": (1.0, row, 1 / of_row), "M·K": (1.0, token, 1 / of_token),
    }  # fmt: skip
    names = {row: "bytes of weights", token: "bytes of activations", 1.0: "values", 4.0: "bytes"}
    for what, each in units.items():
        for size in each:
            low, high = (passes(what, shape) * size for shape in (right, wrong))
            slack = high - low
            for limit in LIMITS:
                if slack and low - slack <= limit < high:
                    return f"{what} passes 2^{limit.bit_length() - 1} {names.get(size, 'blocks')}"
    return None


def chosen(y: npt.NDArray[np.uint32], past: float, seed: int) -> Places:
    """The places m·N + n of outputs uint32[M, N] that are judged."""
    (m, n), count = y.shape, y.size
    if count <= _ALL:
        return np.arange(count)
    rng, border = np.random.default_rng((seed, m, n)), min(int(past * count), count - 1)
    flat = [0, count - 1, *rng.integers(0, count, _ANY), *range(max(0, border - 1), min(count, border + 2))]
    beyond = rng.integers(border, count, 2 * _PAST)
    by_column = np.array([*flat, *beyond[_PAST:]], np.int64)
    differing = np.flatnonzero(y[:, _ROWS:] != y[:, :-_ROWS]) if n > _ROWS else np.zeros(0, np.int64)
    some = differing[rng.permutation(len(differing))[:_DIFFERING]] if len(differing) else differing
    token, row = np.divmod(some, max(1, n - _ROWS))
    places = [flat, beyond[:_PAST], by_column % m * n + by_column // m, token * n + row + _ROWS]
    return np.unique(np.concatenate([np.asarray(one, np.int64) for one in places]))


def _predicted(small: Shape, ran: Ran, large: Shape) -> float:
    """Seconds that a larger product takes."""
    return ran.seconds * passes("M·N·K", large) / passes("M·N·K", small)


def _in_words(shape: Shape) -> str:
    m, n, k = shape
    return f"M={m}, N={n}, K={k}"
