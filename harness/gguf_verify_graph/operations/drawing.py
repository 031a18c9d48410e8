"""Random inputs for nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Shape = tuple[int, int, int, int]
#: Shapes [ne3, ne2, ne1, ne0]: not divisible into vectors, divisible into some, and rows longer than a thread block.
SIZES: tuple[Shape, ...] = ((1, 1, 1, 1), (1, 1, 3, 7), (2, 3, 5, 33), (1, 2, 4, 256), (1, 1, 2, 1100))


def floats(rng: np.random.Generator, shape: Sequence[int], spread: float = 2.0) -> npt.NDArray[np.float32]:
    """Return float32 numbers of random signs and sizes: Gaussian times powers of two.

    Args:
        spread: standard deviation of the exponent.
    """
    scale = np.exp2(np.round(rng.normal(0, spread, shape)))
    return (rng.standard_normal(shape) * scale).astype(np.float32)
