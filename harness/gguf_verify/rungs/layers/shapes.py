"""The shapes at which the layers rung runs a kernel on each matrix of the graph beside those of the graph itself. Those
that only need a type of weights are in `rungs.plan`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..generated_inputs import drawn, ties_of_codes
from ..run import Matrix

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Numbers of tokens at which the kernel also runs, once for each shape of the weights: with the prompt's tokens, and
#: then with drawn ones, all different. Kernels choose their code by M, so this holds small M one by one, whole tiles,
#: and an M past tiles of 128 that is a multiple of none.
OTHER_M = (1, 2, 3, 4, 5, 6, 7, 8, 64, 128, 131)
#: Numbers of tokens at which the kernel also runs with one row and one block fewer. M·(N - 1) is then one and three
#: more than a multiple of 4.
CUT_M = (3, 5)


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
