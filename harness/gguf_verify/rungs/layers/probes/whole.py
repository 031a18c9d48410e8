"""Whole products larger than a model's, of which some outputs are judged.

They show an index that a short or a float does not hold in any kernel: one in Python, in a library, on a GPU, or whose
thread blocks cannot run alone (`huge`). Rows and tokens repeat, so most outputs have the bits of another one; those
that differ are judged too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....formats.tensor_types import WeightFormat
from ....kernels.domain import Domain
from ....support.errors import EnvironmentFault, KernelFault, NotRun
from ...index_limits import Large, Shape, passes
from ...run import Run
from .borders import explained, shape_in_words
from .findings import Findings
from .limits import Refusal, limit_of, record_limit
from .repeating import Judged, RepeatingProducts, Single, Wrong

Places = npt.NDArray[np.int64]

#: Rows of one block that repeat, a prime.
_ROWS = 521
#: Outputs that are judged: of small products all; random ones past a limit, in each order of counting; random ones; and
#: those whose bits differ from those of an equal row.
_ALL, _PAST, _ANY, _DIFFERING = 48, 24, 16, 48
#: Seconds of processor time that the exact product may take at the outputs that are judged.
_MOST_JUDGING = 1.5


@dataclass(frozen=True)
class Ran:
    """A product that ran.

    Args:
        judged: its chosen outputs.
        outputs: the number of these.
        seconds: that it took.
        judging: seconds of processor time that the exact product took.
    """

    judged: Judged
    outputs: int
    seconds: float = 0.0
    judging: float = 0.0

    def takes_long(self, shape: Shape, larger: Shape, most: float) -> bool:
        """Whether a larger product of the kind takes too long, if this one is of a shape."""
        of_all, of_judged = passes("M·N·K", larger) / passes("M·N·K", shape), larger[2] / shape[2]
        return self.seconds * of_all > most or self.judging * of_judged > _MOST_JUDGING


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
            at, outputs = shape_in_words(shape), passes("M·N", shape)
            if before and before[-1][1].takes_long(before[-1][0], shape, large.seconds):
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
            wrong = ran.judged.wrong
            if wrong is not None and wrong.expected is not None and not np.isfinite(wrong.expected):
                found.not_covered.append((past, "such sums are not finite"))
                return
            if wrong is not None and isinstance(wrong.error, NotRun):
                self.findings.fail(wrong, at)
                return
            if wrong is not None:
                right = lambda of: self.ran(of, large).judged.wrong is None  # noqa: E731
                explained(self.findings, self.products, large.what, domain, shape, wrong, right)
                return
            if ran.judged.weak:
                found.not_covered.append((past, "most of these outputs could be zero within their bounds"))
                return
            before.append((shape, ran))
            found.indices.append(f"{ran.outputs} of {outputs:,} outputs of {at}")

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
            if error.late:
                raise EnvironmentFault(str(error)) from None
            words = f"{fmt.name} at {shape_in_words(shape)}: {error}"
            return Ran(Judged(Wrong(words, error=error), False), 0)
        seconds = time.monotonic() - begin
        bits = y.view(np.uint32)
        past = min(1.0, large.limit / passes(large.what, shape))
        tokens, rows = np.divmod(chosen(bits, past, self.run.options.seed), shape[1])
        outputs = [Single("the kernel", m, n, bits[m, n]) for m, n in zip(tokens.tolist(), rows.tolist(), strict=True)]
        begin = time.process_time()
        judged = self.products.judge(of, kernel.order, outputs, f"{fmt.name} at {shape_in_words(shape)}: ")
        return Ran(judged, len(outputs), seconds, time.process_time() - begin)


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
