"""Blocks and activations for tests of semantics, and their products in exact rational arithmetic."""

from __future__ import annotations

import contextlib
import math
import struct
import zlib
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.iq1_m import IQ1_M
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.cuda import NoDefinition, llama_cuda_semantics
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.definitions.mmq import MMQ
from gguf_verify.semantics.definitions.mmq_d4 import MMQ_D4
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW

Bytes = npt.NDArray[np.uint8]


Floats = npt.NDArray[np.float32]


QK = 32


QK_K = 256


FLT_MAX = float(np.finfo(np.float32).max)


def generator(*names: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


def nearest_float32(exact: Fraction) -> float:
    """To nearest even, from integers alone. A result that rounds to zero keeps the sign of what was rounded."""
    if exact == 0:
        return 0.0
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(size / quantum) * quantum
    return math.copysign(math.inf if rounded >= 2**128 else float(rounded), exact)


def bits(x: float | Floats) -> npt.NDArray[np.uint32]:
    return np.asarray(x, np.float32).view(np.uint32)


def gaussians(rng: np.random.Generator) -> Floats:
    return (rng.normal(size=(64, 2048)) * 2.0 ** rng.integers(-20, 12, (64, 1))).astype(np.float32)


def outliers(rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(32, 2048))
    x[rng.random(x.shape) < 0.02] *= 500
    return x.astype(np.float32)


def zeros(rng: np.random.Generator) -> Floats:
    """Blocks of +0 and -0 in every mixture, some with a few values among them."""
    x = np.where(rng.random((8, 1024)) < 0.5, 0.0, -0.0).astype(np.float32)
    x[0], x[1] = 0.0, -0.0
    x[4:][rng.random((4, 1024)) < 0.05] = rng.normal()
    return x


def maxima_of_both_signs(rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(16, 1024)).astype(np.float32)
    blocks = x.reshape(-1, QK)
    top = np.abs(blocks).max(axis=1, keepdims=True)
    at = rng.random(blocks.shape) < 0.2
    return np.where(at, top * rng.choice([-1, 1], blocks.shape), blocks).astype(np.float32).reshape(x.shape)


def halves(rng: np.random.Generator) -> Floats:
    """x·127/max (and x/d) half-way between two codes, exactly for powers of two, and up to two ulps beside."""
    step = np.where(rng.random((4096, 1)) < 0.5, 2.0 ** rng.integers(-12, 12, (4096, 1)), rng.normal(size=(4096, 1)))
    x = ((rng.integers(-127, 127, (4096, QK)) + 0.5) * step).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-2, 3, x.shape, np.int32) * (rng.random(x.shape) < 0.3)).view(np.float32)
    x[:, 5:6] = 127 * step
    return x.reshape(128, -1)


def s_overflows(rng: np.random.Generator) -> Floats:
    """Sums, and here and there scales, past the largest half, 65504: s and d become infinite."""
    top = 10.0 ** rng.uniform(3, 9, (64, 1))
    return (np.abs(rng.normal(size=(64, 1024))) * top * rng.choice([-1, 1], (64, 1))).astype(np.float32)


def huge(rng: np.random.Generator) -> Floats:
    return (rng.uniform(-1, 1, (64, 1024)) * FLT_MAX * 2.0 ** rng.integers(-60, 1, (64, 1))).astype(np.float32)


def subnormals_below_a_normal(rng: np.random.Generator) -> Floats:
    x = rng.integers(-1000, 1000, (16, 1024)) * 2.0**-149
    x[:, ::QK] = 2.0 ** rng.integers(-118, -100, (16, QK))
    return x.astype(np.float32)


def tiny(rng: np.random.Generator) -> Floats:
    """127/max overflows below 3.7e-37: SIMD code then stores -128 everywhere, beside a scale of zero."""
    x = rng.normal(size=(64, 1024)) * 2.0 ** rng.uniform(-150, -110, (64, 1))
    x[rng.random(x.shape) < 0.1] = 0
    return x.astype(np.float32)


def half_scales(rng: np.random.Generator) -> Floats:
    """d between two halves, subnormal halves among them."""
    h = np.arange(1, 0x7BFF, 61, dtype=np.uint16).view(np.float16).astype(np.float64)
    d = np.concatenate([h, h + np.spacing(h.astype(np.float16)).astype(np.float64) / 2])
    d = d[: len(d) // QK * QK, None]
    x = rng.uniform(-127, 127, (len(d), QK)) * d
    x[:, 0:1] = 127 * d
    return x.astype(np.float32).reshape(-1, QK * QK)


ACTIVATIONS = (
    gaussians, outliers, zeros, maxima_of_both_signs, halves, s_overflows, huge, subnormals_below_a_normal, tiny,
    half_scales,
)  # fmt: skip


def ties_of_superblocks(rng: np.random.Generator) -> Floats:
    """As `halves`, around an extreme of either sign for 256 values."""
    step = np.where(rng.random((512, 1)) < 0.5, 2.0 ** rng.integers(-12, 12, (512, 1)), rng.normal(size=(512, 1)))
    x = ((rng.integers(-127, 127, (512, QK_K)) + 0.5) * step).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-2, 3, x.shape, np.int32) * (rng.random(x.shape) < 0.3)).view(np.float32)
    x[:, 77:78] = 127 * step * rng.choice([-1, 1], (512, 1))
    return x


def extremes_of_superblocks(rng: np.random.Generator) -> Floats:
    """The greatest magnitude with both signs, either first; zeros, and blocks all of one magnitude."""
    x = rng.normal(size=(256, QK_K)).astype(np.float32)
    top = np.abs(x).max(axis=1, keepdims=True)
    x = np.where(rng.random(x.shape) < 0.05, top * rng.choice([-1, 1], x.shape), x).astype(np.float32)
    x[:16] = rng.choice([-1, 1], (16, QK_K)) * np.float32(3)
    x[16], x[17] = 0.0, -0.0
    return x


def subnormal_superblocks(rng: np.random.Generator) -> Floats:
    """Maxima of which 127/max overflows or nearly so, down to the least subnormal."""
    x = rng.uniform(-1, 1, (256, QK_K)) * 2.0 ** rng.integers(-149, -118, (256, 1))
    x[:64] = rng.integers(-2, 3, (64, QK_K)) * 2.0**-149
    x[rng.random(x.shape) < 0.2] = 0
    return x.astype(np.float32)


SUPERBLOCKS = (*ACTIVATIONS, ties_of_superblocks, extremes_of_superblocks, subnormal_superblocks)


def assert_same_blocks(got: Bytes, expected: Bytes, x: Floats, size: int) -> None:
    got, expected = got.reshape(-1, size), expected.reshape(-1, size)
    blocks = x.reshape(len(got), -1)
    differing = np.flatnonzero((got != expected).any(axis=1))
    if len(differing):
        b = differing[0]
        pytest.fail(
            f"{len(differing)} of {len(blocks)} blocks differ; {blocks[b].tolist()} => "
            f"{got[b].tobytes().hex()} {expected[b].tobytes().hex()}"
        )


def half(x: float) -> bytes:
    try:
        return struct.pack("<e", x)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, x))


def of_mmq(fmt: BlockFormat) -> Semantics | None:
    with contextlib.suppress(NoDefinition):
        return llama_cuda_semantics(fmt, 9)
    return None


# llama.cpp's definitions exist for these formats only (Q8_0 activations have no s, those of Q8_K blocks of 256)
PAIRS = [
    *((F32, f) for f in FORMATS.values()),
    *((Q8_1_RAW, f) for f in FORMATS.values()),
    *((llama_cpu_semantics(f), f) for f in FORMATS.values()),
    *((s, f) for f in FORMATS.values() for s in (MMQ, MMQ_D4) if s is of_mmq(f)),
]


IDS = [f"{s.name}-{f.name}" for s, f in PAIRS]


each_pair = pytest.mark.parametrize(("semantics", "fmt"), PAIRS, ids=IDS)


assert {f.name for s, f in PAIRS if s is MMQ} == {"Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K"}


LEGACY = [f for f in FORMATS.values() if f.encode_values is not None]  # of 32 values under one scale


def smallest_row(fmt: BlockFormat) -> int:
    """Values that are whole blocks of weights and of activations."""
    return max(QK, fmt.block_size)


def whole_row(fmt: BlockFormat, k: int) -> int:
    """k, or the next larger row length that the format can have."""
    return -(-k // smallest_row(fmt)) * smallest_row(fmt)


def random_blocks(fmt: BlockFormat, n: int, rng: np.random.Generator, wild: bool = False) -> Bytes:
    """Blocks of random bytes, but for the scales above all: near 0.01, or of many sizes and signs, subnormals too."""
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)

    def half() -> npt.NDArray[np.float16]:
        many = rng.normal(size=n) * 2.0 ** rng.integers(-22, 3, n)
        return (many if wild else rng.uniform(0.005, 0.02, n)).astype("<f2")

    structs = fmt.view(blocks)
    for field in fmt.fields:
        if field.dtype == "<f2":
            structs[field.name] = half()
    if fmt is IQ1_M:  # four bits of the half in each word, the lowest first
        nibbles = half().view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
        structs["scales"] = structs["scales"] & 0x0FFF | nibbles << 12
    elif fmt is MXFP4:
        structs["e"] = rng.integers(*((90, 135) if wild else (119, 123)), n)
    elif fmt is NVFP4 and not wild:
        structs["d"] = rng.integers(0x20, 0x30, (n, 4))
    assert fmt.finite(blocks).all()
    return blocks


def random_weights(fmt: BlockFormat, n: int, k: int, seed: str = "") -> Bytes:
    """Rows of random blocks, with finite scales of many sizes."""
    rng = generator("weights", fmt.name, seed)
    return random_blocks(fmt, n * k // fmt.block_size, rng, wild=True).reshape(n, -1)


def real_weights(fmt: BlockFormat, n: int, k: int, seed: str = "") -> Bytes:
    """Gaussians, or random blocks with scales of a real size where this project does not encode."""
    rng = generator("real weights", fmt.name, seed)
    if fmt.encode_values is None:
        return random_blocks(fmt, n * k // fmt.block_size, rng).reshape(n, -1)
    x = rng.normal(size=(n * k // QK, QK)) * 0.02
    return fmt.encode(x.astype(np.float32)).reshape(n, -1)


def activations(semantics: Semantics, m: int, k: int, seed: str = "") -> Bytes:
    """Gaussians with some outliers, as the semantics has them."""
    rng = generator("activations", seed)
    x = (rng.normal(size=(m, k)) * np.where(rng.random((m, k)) < 0.01, 20, 1)).astype(np.float32)
    return x.view(np.uint8) if semantics.encode is None else semantics.encode(x)
