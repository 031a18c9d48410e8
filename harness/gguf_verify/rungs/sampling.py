"""Samples of large matrices: the rows that are judged element by element, and the checks of whole outputs.

A small matrix is judged whole, and so is every one with `--effort thorough`. Of a large one runs of rows are judged:
the first, the last, and random ones, one in each stretch between these. The whole outputs are checked by random
combinations of all rows (`semantics.combinations`). Where a combination is suspicious, or a sampled element is wrong,
the other rows are judged too, so a combination alone never fails a kernel. Which rows are judged, and the signs, depend
on the bytes of the outputs: no kernel can know them while it computes.

A definition whose product is none of matrices (it rounds inside an element, or stores halves) has no combinations: it
is judged whole.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..results.margins import Sampled
from ..results.rungs import RungResult
from ..semantics.combinations import LIMIT, MISSED, Combinations
from ..semantics.definition import Semantics
from ..semantics.screen import bilinear
from ..semantics.sums import Product
from .run import Matrix, Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
#: Numbers of rows.
Rows = npt.NDArray[np.intp]
#: Rows that are judged together: consecutive ones of a whole matrix, or those of a sample.
Span = slice | Rows

#: Weights of a matrix that is judged whole.
SMALL = 1 << 21
#: Runs of rows whose elements are judged, and the rows of each.
RUNS, ROWS = 4, 64


def whole(n: int, step: int) -> list[slice]:
    """All of n rows, `step` at a time."""
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def numbers_of(span: Span) -> Rows:
    """The numbers of the rows."""
    return np.arange(span.start, span.stop) if isinstance(span, slice) else span


def runs(n: int, count: int, rows: int, seed: tuple[int, ...]) -> list[slice]:
    """`count` runs of consecutive rows of n, at least two and apart: the first rows, the last, and random ones."""
    starts = [0, n - rows]
    rng, stretch = np.random.default_rng(seed), (n - 2 * rows) // max(1, count - 2)
    starts += [rows + i * stretch + int(rng.integers(0, stretch - rows + 1)) for i in range(count - 2)]
    return [slice(start, start + rows) for start in sorted(starts)]


def together(of_runs: Iterable[slice]) -> Rows:
    """The rows of all runs, in order."""
    return np.concatenate([np.arange(span.start, span.stop) for span in of_runs])


def is_large(run: Run, n: int, k: int) -> bool:
    """Whether of a matrix of n rows and k columns a sample is enough."""
    return not run.options.thorough and n * k > SMALL


class SampledOutputs:
    """The outputs of one matrix.

    Args:
        run, result: of the rung.
        matrix: uint8[N, row bytes].
        first_row: of the tensor, with which it begins.
        definitions: of its outputs.
        outputs: of the kernel, float32[M, N] each.
        step: rows that are judged at a time where all are.
    """

    def __init__(
        self, run: Run, result: RungResult, matrix: Matrix, first_row: int, definitions: list[Semantics],
        outputs: Iterable[Floats], step: int,
    ) -> None:  # fmt: skip
        fmt, n = matrix.fmt, len(matrix.rows)
        self._result, self._n = result, n
        self._combinations: Combinations | None = None
        self._seen: dict[Hashable, tuple[Floats, Product]] = {}
        self._smallest = 0.0
        self.spans, self.rest = list[Span](whole(n, step)), list[Span]()
        if not isinstance(fmt, BlockFormat) or not all(bilinear(of, fmt) for of in definitions):
            return
        if run.only is None and is_large(run, n, matrix.tensor.k) and n >= 2 * RUNS * ROWS:
            seed = run.options.seed, first_row, _digest(matrix.tensor.name, outputs)
            drawn = runs(n, RUNS, ROWS, seed)
            self.spans = [together(drawn)]
            ends, starts = [0, *(s.stop for s in drawn)], [*(s.start for s in drawn), n]
            self.rest = [
                slice(start, min(start + step, b))
                for a, b in zip(ends, starts, strict=True) for start in range(a, b, step)
            ]  # fmt: skip
            mixed = int(np.random.default_rng(seed).integers(1 << 62))
            self._combinations = Combinations(fmt, matrix.rows, mixed, run.options.threads, run.exact_on[0])

    @property
    def _n_sampled(self) -> int:
        return sum(len(numbers_of(span)) for span in self.spans)

    def saw(self, side: Hashable, y: Floats, expected: Product) -> None:
        """Take the sampled outputs float32[M, n] and their product, for the rounding of the others; a side is one
        definition and the activations of one call."""
        if self._combinations is not None and side not in self._seen:
            self._seen[side] = y, expected

    def suspicious(self, side: Hashable, y: Floats, semantics: Semantics, x: Bytes) -> bool:
        """Whether a combination of a whole output float32[M, N] of activations uint8[M, row bytes] is too far off.

        Args:
            side: as in `saw`.
        """
        if self._combinations is None:
            return False
        made = self._combinations
        expected = made.expected(semantics, x if len(x) == len(y) else x[: len(y)])
        noise = made.noise(numbers_of(self.spans[0]), *self._seen[side])
        with np.errstate(all="ignore"):
            size = np.sqrt(((y * made.inverse) ** 2).mean(axis=1))
            least = 2 * LIMIT * np.sqrt(noise.variance * made.share)
            shares = np.divide(least, size, out=np.zeros(len(y)), where=size > 0)
        self._smallest = max(self._smallest, float(shares.max(initial=0.0)))
        return made.suspicious(y, expected, noise)

    def record(self, outputs: int, judged_whole: bool) -> None:
        """Record what was sampled, unless all was judged in the end.

        Args:
            outputs: of all calls with the matrix.
        """
        if self._combinations is None or judged_whole:
            return
        alone = outputs * self._n_sampled // self._n
        self._result.keep_sampled(Sampled("outputs", outputs, alone, MISSED, self._smallest))


def _digest(name: str, outputs: Iterable[Floats]) -> int:
    found = hashlib.sha256(name.encode())
    for y in outputs:
        found.update(np.ascontiguousarray(y).data)
    return int.from_bytes(found.digest()[:8], "little")


# ---- blocks ----------------------------------------------------------------------------------------------------------

_CHUNK_VALUES = 1 << 25
#: Runs of rows of a large tensor, and columns of blocks, whose blocks are judged. Each column is a call of its own.
_RUNS, _COLUMNS = 4, 8
#: Weights of these blocks.
_SAMPLE = 1 << 19


@dataclass(frozen=True)
class BlockSample:
    """The blocks of a tensor that are judged: those of some rows and columns, or all.

    Args:
        fmt: of the weights.
        rows: of the tensor, uint8[N, row bytes].
        chunks: the numbers of the rows that are judged together.
        columns: the numbers of the blocks along K.
    """

    fmt: WeightFormat
    rows: npt.NDArray[np.uint8]
    chunks: list[Rows]
    columns: Rows

    @classmethod
    def of(cls, run: Run, tensor: Tensor, fmt: WeightFormat) -> BlockSample:
        """Of a tensor of the run."""
        rows, n, k = run.row_bytes(tensor), tensor.n_rows, tensor.k
        columns, step = np.arange(-(-k // fmt.unit)), max(1, _CHUNK_VALUES // k)
        large = is_large(run, n, k)
        seed = run.options.seed, zlib.crc32(tensor.name.encode())
        if large and len(columns) >= 2 * _COLUMNS and k % fmt.unit == 0:
            columns = together(runs(len(columns), _COLUMNS, 1, (*seed, 1)))
        step = min(step, run.kernel.domain.n.most or step)
        sampled = min(step, _SAMPLE // (len(columns) * fmt.unit)) // _RUNS
        if large and sampled and n >= 2 * _RUNS * sampled:
            chunks = [together(runs(n, _RUNS, sampled, seed))]
        else:
            chunks = [numbers_of(span) for span in whole(n, step)]
        return cls(fmt, rows, chunks, columns)

    @property
    def _in_all_columns(self) -> bool:
        return bool(len(self.columns) * self._size >= self.rows.shape[1])

    @property
    def _size(self) -> int:
        """Bytes of a block along K."""
        return self.fmt.unit // self.fmt.block_size * self.fmt.block_bytes

    def weights(self, numbers: Rows) -> npt.NDArray[np.uint8]:
        """The bytes of these rows in the columns, uint8[n, bytes]."""
        return self.rows[numbers] if self._in_all_columns else self._taken(self.rows, self._size, numbers)

    def activations(self, x: Floats) -> Floats:
        """The values float32[M, K] in the columns."""
        return x if self._in_all_columns else self._taken(x, self.fmt.unit, np.arange(len(x)))

    def _taken(self, of: npt.NDArray[Any], size: int, numbers: Rows) -> npt.NDArray[Any]:
        parts = of.reshape(len(of), -1, size)[numbers[:, None], self.columns]
        return np.ascontiguousarray(parts.reshape(len(numbers), -1))
