"""Activations that are drawn, where the model's own would let a fault hide."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

#: Above it, the sum of a block of equal activations is no finite half.
_MOST = 2000.0


def drawn(shape: tuple[int, int], like: Floats, seed: int) -> Floats:
    """float32[M, K] of the size of `like`, with magnitudes within a factor of ten: none gets the code zero."""
    rng = np.random.default_rng(seed)
    size = min(float(np.sqrt(np.mean(like.astype(np.float64) ** 2))), _MOST) or 1.0
    values = rng.uniform(0.2, 2.0, shape) * rng.choice([-1.0, 1.0], shape) * size
    return np.asarray(values, np.float32)


def on_ties(kind: str, like: Floats) -> Floats:
    """float32[1, K] about as large as the largest of `like`: each lies midway between two F16 or BF16, of which the
    even one is above and below in turn. Rounding in another way, or not at all, shows in every product."""
    low = {"F16": 13, "BF16": 16}.get(kind, 0)  # bits of a float32 that the type does not have
    values = largest_codes(like)
    if low:
        bits = values.view(np.uint32) >> low << low | np.uint32(1 << low - 1)
        values = (bits & ~np.uint32(1 << low) | np.arange(like.shape[1], dtype=np.uint32) % 2 << low).view(np.float32)
    return values


def largest_codes(like: Floats) -> Floats:
    """float32[1, K] of one value: every code is 127, and integer sums and s are as large as they get."""
    size = min(float(np.abs(like).max()), _MOST) or 1.0
    return np.full((1, like.shape[1]), size, np.float32)
