"""Products that are made again: how a doubtful score is settled.

Structured activations, such as runs of ±c, leave large sums in lanes, and rows of identical blocks round in one
direction. So a score that fails is a doubt, not a verdict (`semantics.gates`). The same rows of weights are multiplied
again, by random activations of the same size, where neither happens: a fault of the kernel shows there, and a correct
kernel passes. An output is a mismatch where its row fails there, too.

The error of a wrong weight in an output of random activations is normally distributed, so that of one token may be
small by chance: with a deviation of a hundred times what the score admits, 1 in 125 is not seen. Products of few tokens
are therefore made again several times.

Of coarse sums over long rows, such as sums in half, a judgement may not show that a block of the row is missing
(`semantics.power`). Such a product is made again with activations that are zero outside of one part of the row, for
each part and with the same sizes, one token for each. To add zeros rounds nothing, so each token is judged as the
product of that part alone, in which a block is a large share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..kernels.interface import Kernel, Weights
from ..semantics.definition import Semantics
from ..semantics.exact import product
from ..semantics.gates import Judgement, judge
from ..semantics.sums import Product
from .run import Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
#: Rows that are judged together.
Span = slice | npt.NDArray[np.intp]

#: Tokens that are judged of a product that was made again, at most; and at least, of several such products.
_TOKENS, _FEWEST = 16, 8
#: Columns of a part of a row.
PART = 256


@dataclass(frozen=True)
class Part:
    """The outputs of one token whose activations are zero outside of a part of the row.

    Args:
        columns: the part.
        token: its number in the call.
        y: float32[1, n].
        x: its activations as the definition has them, uint8[1, row bytes].
        expected: the product of the part alone.
    """

    columns: range
    token: int
    y: Floats
    x: Bytes
    expected: Product


@dataclass(frozen=True)
class Remade:
    """How a product is made again.

    Args:
        semantics, fmt: its definition, and the format of its weights.
        rows: the weights of the rows that are judged, uint8[n, row bytes].
        make: activations float32[M, K] → the outputs of these rows, float32[M, n], and the activations as the
            definition has them, uint8[M, row bytes]. Raises KernelFault.
        shape: M and K.
        seed: of the activations.
        threads: of the exact product.
    """

    semantics: Semantics
    fmt: WeightFormat
    rows: Bytes
    make: Callable[[Floats], tuple[Floats, Bytes]]
    shape: tuple[int, int]
    seed: int = 0
    threads: int = 1

    def settled(self, judgement: Judgement, size: float) -> Judgement:
        """The judgement of an output whose activations have this root mean square, without doubts. Raises
        KernelFault."""
        rows, tokens = np.flatnonzero(judgement.doubtful.any(axis=0)), _worst_tokens(judgement.doubtful)
        weights = np.ascontiguousarray(self.rows[rows])
        wrong = np.zeros(judgement.bad.shape[1], bool)
        for turn in range(-(-_FEWEST // len(tokens))):
            y, encoded = self.make(random_activations(self.shape, size, (self.seed, turn)))
            given = np.ascontiguousarray(encoded[tokens])
            expected = product(self.semantics, self.fmt, weights, given, threads=self.threads)
            found = judge(np.ascontiguousarray(y[np.ix_(tokens, rows)]), expected)
            wrong[rows] |= found.bad.any(axis=0)
        return judgement.cleared(wrong)

    def parts(self, size: float, turn: int = 0) -> Iterator[Part]:
        """The outputs of each part of the rows by itself, of random activations of this size, others in each turn.
        Raises KernelFault."""
        m, k = self.shape
        parts = [range(start, min(start + PART, k)) for start in range(0, k, PART)]
        for first in range(0, len(parts), m):
            together = parts[first : first + m]
            tokens = [i * m // len(together) for i in range(len(together))]
            x, values = (
                np.zeros(self.shape, np.float32),
                random_activations(self.shape, size, (self.seed, PART, turn, first)),
            )
            for token, part in zip(tokens, together, strict=True):
                x[token, part.start : part.stop] = values[token, part.start : part.stop]
            y, encoded = self.make(x)
            for token, part in zip(tokens, together, strict=True):
                one = slice(token, token + 1)
                yield Part(part, token, np.ascontiguousarray(y[one]), encoded[one], self._of_part(x[one], part))

    def _of_part(self, x: Floats, part: range) -> Product:
        first, last = (column // self.fmt.block_size * self.fmt.block_bytes for column in (part.start, part.stop))
        at = slice(first, last)
        weights, given = self.rows[:, at], np.ascontiguousarray(x[:, part.start : part.stop])
        return product(self.semantics, self.fmt, np.ascontiguousarray(weights), self.semantics.bytes_of(given))


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel, whose product can be made again.

    Args:
        kernel: the kernel.
        fmt, rows: the format of the weights, and the weights uint8[N, row bytes].
        m: tokens.
        given: the kernel is given activations as its definition has them, not values.
        weights: as the kernel takes them; None: they are uploaded when they are needed.
    """

    kernel: Kernel
    fmt: WeightFormat
    rows: Bytes
    m: int
    given: bool = False
    weights: Weights | None = None

    def remade(self, run: Run, span: Span) -> Remade:
        """How the product of these rows is made again."""
        semantics, options = run.semantics(self.fmt), run.options

        def make(x: Floats) -> tuple[Floats, Bytes]:
            encoded = semantics.bytes_of(x)
            weights = self.kernel.upload(self.fmt, self.rows) if self.weights is None else self.weights
            made = self.kernel.gemm(weights, encoded) if self.given else self.kernel.product(weights, x)
            return made[:, span], encoded

        shape = self.m, self.rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size
        return Remade(semantics, self.fmt, self.rows[span], make, shape, options.seed, options.threads)


def random_activations(shape: tuple[int, int], size: float, seed: tuple[int, ...]) -> Floats:
    """float32[M, K], uniform within ±size, the root mean square of other activations: none is larger than theirs."""
    rng = np.random.default_rng((*seed, *shape))
    return np.asarray(rng.uniform(-1, 1, shape) * (size or 1.0), np.float32)


def root_mean_square(x: npt.NDArray[np.floating]) -> float:
    """Of the finite values; 1 where there is none."""
    finite = x[np.isfinite(x)].astype(np.float64)
    return float(np.sqrt((finite**2).mean())) if finite.size else 1.0


def _worst_tokens(doubtful: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """The tokens with the most doubtful outputs, in order."""
    return np.sort(np.argsort(-doubtful.sum(axis=1), kind="stable")[:_TOKENS])
