"""The products that benchmarks time: random weights and activations, and the check of a rival's outputs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import BlockFormat

from .drawn_blocks import random_rows

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]

#: Rows from the beginning and from the end of the weights that are compared on the card, for every token; rows and
#: tokens from both ends where NumPy computes what is expected.
CHECKED_ROWS, FEW_ROWS, CHECKED_TOKENS = 160, 40, 5
#: The most that the outputs of kernels whose order or definition is not known may differ from the product of the same
#: weights with the float32 activations, as NMSE: where they quantize the activations to 8 bits, and where they round
#: weights or activations to halves.
LIMIT_8_BITS, LIMIT_HALVES = 1e-3, 1e-4


def ends(size: int, each: int) -> Index:
    """The first and the last `each` of so many."""
    return np.unique(np.concatenate([np.arange(min(each, size)), np.arange(max(0, size - each), size)]))


def nmse(y: npt.NDArray[Any], expected: Doubles) -> float:
    """Σ(y - o)² / Σo², in float64; not a number where y is not finite."""
    off = y.astype(np.float64) - expected
    return float((off**2).sum() / (expected**2).sum())


class Activations:
    """Gaussian activations float32[most tokens, k] here and on the card; a product of m tokens takes the first m."""

    def __init__(self, most: int, k: int, seed: int, cupy: Any) -> None:
        self.k = k
        self.values: Floats = np.random.default_rng((seed, k)).standard_normal((most, k), np.float32)
        self._cupy = cupy

    @cached_property
    def on_card(self) -> Any:
        return self._cupy.asarray(self.values)


class Matrix:
    """Weights of one type, uint8[n, row bytes], here and on the card."""

    def __init__(self, fmt: BlockFormat, n: int, x: Activations, seed: int, cupy: Any) -> None:
        self.fmt, self.n, self.k, self.x = fmt, n, x.k, x
        self.rows = random_rows(fmt, n, x.k, seed)
        self._cupy = cupy

    @cached_property
    def on_card(self) -> Any:
        return self._cupy.asarray(self.rows)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @cached_property
    def checked(self) -> tuple[Index, Doubles]:
        """Rows that are checked, and their values float64[rows, k]."""
        index = ends(self.n, FEW_ROWS)
        blocks = self.rows[index].reshape(-1, self.fmt.block_bytes)
        return index, self.fmt.decode(blocks).astype(np.float64).reshape(len(index), self.k)

    def off(self, m: int, outputs: Any) -> float:
        """The NMSE of some outputs of a product of m tokens.

        Args:
            outputs: (tokens, rows) → array[tokens, rows] of NumPy.
        """
        tokens = ends(m, CHECKED_TOKENS)
        rows, values = self.checked
        return nmse(outputs(tokens, rows), self.x.values[tokens].astype(np.float64) @ values.T)
