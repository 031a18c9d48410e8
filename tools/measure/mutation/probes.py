"""Further valid inputs for a mutant that no rung uses: other shapes, and weights and activations of any size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.rungs.generated_inputs import any_blocks

from ..inputs import Bytes, Floats, in_type

#: Tokens, rows and slices of 32: slightly more or less than the size of tiles, long and short, in other combinations
#: than in the layers rung.
_SHAPES = (
    (3, 31, 3), (17, 300, 5), (8, 40, 4), (4, 65, 7), (9, 63, 11), (1, 130, 17), (65, 17, 3), (16, 1, 6), (7, 513, 1),
    (129, 64, 1), (1, 2, 33), (64, 96, 2), (34, 258, 1), (6, 127, 2), (130, 5, 9), (4, 36, 280), (2, 130, 140),
    (1, 34, 150), (6, 35, 90), (14, 70, 35), (20, 34, 130), (18, 129, 66), (70, 2050, 1), (3, 4200, 2), (2, 36, 170),
    (2, 128, 64), (64, 1100, 2),
)  # fmt: skip


def shapes(fmt: WeightFormat) -> Iterator[tuple[int, int, int]]:
    """Yield (M, N, K) of each product; for unquantized weights K is not a multiple of 32."""
    for m, n, slices in _SHAPES:
        yield m, n, -(-slices * 32 // fmt.unit) * fmt.unit if isinstance(fmt, BlockFormat) else slices * 37


def _halves(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.float16]:
    """Generate finite halves: usual, arbitrary, subnormal and large ones."""
    low, high = np.array([(0x1000, 0x2C00), (0, 0x7C00), (0, 0x0400), (0x7000, 0x7C00)])[rng.integers(0, 4, shape)].T
    bits = rng.integers(low.T, high.T) | rng.integers(0, 2, shape) << 15
    return np.asarray(bits.astype("<u2").view("<f2"))


def weights(rng: np.random.Generator, fmt: WeightFormat, n: int, k: int) -> Bytes:
    """Generate random codes with finite scales, or normally distributed values: uint8[N, row bytes]."""
    if isinstance(fmt, BlockFormat):
        return any_blocks(fmt, n * k // fmt.block_size, int(rng.integers(1 << 32))).reshape(n, -1)
    return in_type(fmt, rng.standard_normal((n, k)).astype(np.float32))


def values(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Generate activations of many magnitudes, with outliers, zeros and ties between codes: float32[M, K]."""
    x = rng.standard_normal((m, k)) * np.array([1, 1e-3, 30, 1e-7, 1e-41, 1e4])[np.arange(m) % 6][:, None]
    x[:, rng.random(k) < 0.01] *= 300
    x[rng.random((m, k)) < 0.02] = 0
    x[rng.random((m, k)) < 0.02] *= -0.0
    ties = rng.random(m) < 0.2
    x[ties] = np.round(x[ties] * 2) / 2
    x[ties, ::32] = 127 * rng.choice([-1, 1], (int(ties.sum()), len(range(0, k, 32))))
    return np.ascontiguousarray(x, np.float32)


def q8_1_blocks(rng: np.random.Generator, m: int, k: int) -> Bytes:
    """Generate Q8_1 activations with random codes and arbitrary finite d and s: uint8[M, row bytes]."""
    structs = np.zeros((m, k // 32), Q8_1.dtype)
    structs["qs"] = rng.integers(-128, 128, structs["qs"].shape)
    structs["d"], structs["s"] = _halves(rng, structs.shape), _halves(rng, structs.shape)
    return structs.view(np.uint8).reshape(m, -1)


def for_the_quantizer(rng: np.random.Generator) -> Iterator[tuple[str, Floats]]:
    """Yield activations of all magnitudes, and ties. NaN and infinities are not valid input."""
    yield "every size", np.ldexp(rng.standard_normal((64, 96)), rng.integers(-140, 120, (64, 1))).astype(np.float32)
    x = (rng.integers(-254, 255, (64, 96)) / 2).astype(np.float32)
    x[:, ::32] = 127
    yield "ties", x
    # 1/d is not exact in float32, so x·(1/d) falls short of the tie x/d = q + 1/2
    x = np.float32(rng.integers(0, 126, (64, 96)) + 0.5) * np.arange(40, 104, dtype=np.float32)[:, None]
    x[:, ::32] = 127 * np.arange(40, 104, dtype=np.float32)[:, None]
    yield "ties of d = 40 … 103", x
