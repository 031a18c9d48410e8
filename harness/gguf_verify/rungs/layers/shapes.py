"""The shapes at which the layers rung runs a kernel beside those of the model's own graph.

Models have round sizes, behind which the bounds of a last tile, of a quantizer's last warp or of an odd number of
blocks hide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...formats import SLICE, BlockFormat, WeightFormat
from ..generated_inputs import any_blocks, drawn, ties_of_codes
from ..run import Matrix

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Numbers of tokens at which the kernel also runs, once for each shape of the weights: with the prompt's tokens, and
#: then with drawn ones, all different. Kernels choose their code by M, so this holds small M one by one, whole tiles,
#: and an M past tiles of 128 that is a multiple of none.
OTHER_M = (1, 2, 3, 4, 5, 6, 7, 8, 64, 128, 131)
#: Numbers of tokens at which a kernel that promises any shape also runs with one row and one block fewer. M·(N - 1) is
#: then one and three more than a multiple of 4.
CUT_M = (3, 5)
#: Tokens, rows, and slices of 32 values a row, at which such a kernel runs once for each type, on the type's blocks
#: laid out anew. The shapes are: one output; a little more than a tile in one direction and less in the others; K
#: large enough to wrap the pipelines' ring buffers, to take activations in parts and to split sums; more rows than the
#: thread blocks of one launch take at a time; 1 to 7 blocks of activations past a multiple of eight; and whole rounds
#: and tiles, as large models have.
SHAPES = (
    (1, 1, 1), (2, 7, 9), (5, 129, 1), (33, 257, 2), (131, 33, 2), (1, 34, 200), (2, 40, 90), (3, 65, 300),
    (4, 33, 128), (7, 71, 40), (12, 33, 100), (20, 66, 100), (34, 40, 70), (66, 2100, 1), (1, 4300, 7), (300, 65, 3),
    (1, 4300, 32), (64, 2100, 1), (33, 890, 1), (33, 5500, 1),
)  # fmt: skip
#: The same, for blocks of any bits. Rows of a single block show scales that vanish in a sum with larger ones.
ANY_BITS = ((6, 70, 24), (6, 1700, 1))


@dataclass(frozen=True)
class Trial:
    """A product at another shape.

    Args:
        rows: weights, uint8[N, row bytes].
        k: values in a row.
        x: activations, float32[M, K]; those of the last token are ties of codes.
        words: what is special about the weights, for a failure.
    """

    rows: Bytes
    k: int
    x: Floats
    words: str = ""


def _trial(rows: Bytes, k: int, x: Floats, words: str = "") -> Trial:
    return Trial(rows, k, np.concatenate([x, ties_of_codes(k)]), words)


def with_more_tokens(x: Floats, m: int, seed: int) -> Floats:
    """The first m of x float32[M, K], followed by drawn ones where there are fewer."""
    if len(x) >= m:
        return x[:m]
    return np.concatenate([x, drawn((m - len(x), x.shape[1]), x, seed)])


def cut_trials(matrix: Matrix, x: Floats) -> Iterator[Trial]:
    """The matrix with a row and a block fewer, where there are more, on the first of activations float32[M, K]."""
    n, k = max(1, len(matrix.rows) - 1), matrix.tensor.k
    k -= matrix.fmt.unit if k > matrix.fmt.unit else 0
    rows = np.ascontiguousarray(matrix.rows[:n, : matrix.rows.shape[1] * k // matrix.tensor.k])
    for m in CUT_M:
        yield _trial(rows, k, x[: m - 1, :k])


def laid_out_trials(fmt: WeightFormat, rows: Bytes, like: Floats, seed: int) -> Iterator[Trial]:
    """The blocks of weights uint8[N, row bytes] laid out in SHAPES, and blocks of any bits in the shapes ANY_BITS, on
    drawn activations of the size of `like`."""
    size = fmt.unit // fmt.block_size * fmt.block_bytes
    units = rows[:, : rows.shape[1] // size * size].reshape(-1, size)
    for m, n, slices in SHAPES if len(units) else ():
        wide = -(-slices * SLICE // fmt.unit)
        there = len(units) - (len(units) % wide == 0 and len(units) > 1)  # so that rows repeat late
        x = drawn((m - 1, wide * fmt.unit), like, seed)
        yield _trial(np.resize(units[:there], (n, wide * size)), wide * fmt.unit, x)
    for m, n, slices in ANY_BITS if isinstance(fmt, BlockFormat) else ():
        wide = -(-slices * SLICE // fmt.unit)
        assert isinstance(fmt, BlockFormat)
        blocks = any_blocks(fmt, n * wide * fmt.unit // fmt.block_size, seed)
        x = drawn((m - 1, wide * fmt.unit), like, seed)
        yield _trial(blocks.reshape(n, -1), wide * fmt.unit, x, " of any bits")
