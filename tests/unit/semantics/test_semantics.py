"""Semantics: the encoders of activations against llama.cpp and a slow restatement, the oracles against exact rational
arithmetic, the gates against outputs that are right, or wrong in a known way."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats import FORMATS, BlockFormat
from gguf_verify.formats.iq1_m import IQ1_M
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.nvfp4 import NVFP4
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q4_k import Q4_K
from gguf_verify.formats.q5_1 import Q5_1
from gguf_verify.hosts.base import POISON
from gguf_verify.llama import Llama
from gguf_verify.semantics import (
    ASCENDING,
    F32,
    Q8_0_CPU,
    Q8_1_CPU,
    Q8_1_RAW,
    SCORE_LIMIT,
    Product,
    Semantics,
    exact_result,
    gamma,
    judge,
    llama_cpu_semantics,
    product,
)
from gguf_verify.semantics import exact as oracle
from gguf_verify.semantics.activations import (
    encode_mmq,
    encode_mmq_d4,
    encode_q8_0_cpu,
    encode_q8_1,
    encode_q8_1_cpu,
    encode_q8_k,
)
from gguf_verify.semantics.cuda import NoDefinition, llama_cuda_semantics
from gguf_verify.semantics.definitions import MMQ, MMQ_D4, Q8_1_HALF, Q8_K_CPU
from gguf_verify.semantics.rounding import add_rounded, chain_rounded

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

QK = 32
QK_K = 256
FLT_MAX = float(np.finfo(np.float32).max)

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


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


# ---- quantizers of activations ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("case", ACTIVATIONS)
@pytest.mark.parametrize(("type_id", "size", "encode"), [(8, 34, encode_q8_0_cpu), (9, 36, encode_q8_1_cpu)])
def test_cpu_encoders_are_llama_cpps(
    type_id: int, size: int, encode: Callable[[Floats], Bytes], case: Callable[[np.random.Generator], Floats],
    llama: Llama,
) -> None:  # fmt: skip
    """NaN is left out: which operand maxps keeps depends on its lane."""
    if "AVX" not in llama.versions()["system"]:
        pytest.skip("the encoders restate the x86 SIMD code of llama.cpp, which this build does not run")
    x = case(generator(case.__name__))
    assert_same_blocks(encode(x), llama.from_float(type_id, x), x, size)


@pytest.mark.parametrize("case", SUPERBLOCKS)
def test_q8_k_encoder_is_llama_cpps(case: Callable[[np.random.Generator], Floats], llama: Llama) -> None:
    x = case(generator("q8_k", case.__name__))
    assert_same_blocks(encode_q8_k(x), llama.from_float(15, x), x, 292)


def f32(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def slow_q8_k(values: list[float]) -> bytes:
    """One block of semantics `q8_k_cpu`; float32 by rounding after each operation."""
    extreme = 0.0
    for v in values:
        if abs(v) > abs(extreme):
            extreme = v
    if extreme == 0:
        return bytes(292)
    inverse = f32(-127 / extreme)
    codes = []
    for v in values:
        scaled = f32(v * inverse)
        # where -127/extreme overflows, the integer has no bits of infinity's or NaN's in its low byte
        codes.append(min(127, round(scaled)) if math.isfinite(scaled) else 0)
    sums = [sum(codes[i : i + 16]) for i in range(0, QK_K, 16)]
    return struct.pack("<f256b16h", f32(1 / inverse), *codes, *sums)


@pytest.mark.parametrize("case", SUPERBLOCKS)
def test_q8_k_encoder_is_the_slow_one(case: Callable[[np.random.Generator], Floats]) -> None:
    blocks = case(generator("slow q8_k", case.__name__)).reshape(-1, QK_K)
    blocks = blocks[:: max(1, len(blocks) // 100)]
    expected = np.array([list(slow_q8_k(b)) for b in blocks.tolist()], np.uint8)
    assert_same_blocks(encode_q8_k(blocks), expected, blocks, 292)


def half(x: float) -> bytes:
    try:
        return struct.pack("<e", x)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, x))


def slow_q8_1(values: list[float]) -> bytes:
    """One block of semantics `q8_1`; float32 by rounding after each operation."""
    d = f32(max(abs(v) for v in values) / 127)
    codes = []
    for v in values:
        steps = f32(v / d) if d else 0.0
        code = int(math.copysign(math.floor(abs(steps) + 0.5), steps))
        codes.append(max(-127, min(127, code)))
    lanes = list(values)
    for distance in (16, 8, 4, 2, 1):  # each lane of the warp adds the lane whose number differs in one bit
        lanes = [f32(lanes[i] + lanes[i ^ distance]) for i in range(QK)]
    return half(d) + half(lanes[0]) + struct.pack("<32b", *codes)


def slow_mmq(values: list[float]) -> tuple[float, bytes, bytes]:
    """d, half(s) and the codes of one block of semantics `mmq` and `mmq_d4`."""
    largest = max(abs(v) for v in values)
    inverse = f32(127 / largest) if largest else math.inf
    codes = []
    for v in values:
        steps = f32(v * inverse) if math.isfinite(inverse) else 0.0
        codes.append(int(math.copysign(math.floor(abs(steps) + 0.5), steps)))
    lanes = []
    for i in range(0, QK, 4):  # a thread has four values
        total = f32(values[i] + values[i + 1])
        total = f32(total + values[i + 2])
        lanes.append(f32(total + values[i + 3]))
    for distance in (4, 2, 1):
        lanes = [f32(lanes[i] + lanes[i ^ distance]) for i in range(8)]
    d = f32(1 / inverse) if math.isfinite(inverse) else 0.0
    return d, half(lanes[0]), struct.pack("<32b", *codes)


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_mmq_encoders_are_the_slow_ones(case: Callable[[np.random.Generator], Floats]) -> None:
    x = case(generator("mmq", case.__name__))
    blocks = x.reshape(-1, QK)
    blocks = blocks[:: max(1, len(blocks) // 1000)]
    slow = [slow_mmq(b) for b in blocks.tolist()]
    ds4 = np.array([list(half(d) + s + codes) for d, s, codes in slow], np.uint8)
    d4 = np.array([list(struct.pack("<f", d) + codes) for d, _, codes in slow], np.uint8)
    assert_same_blocks(encode_mmq(blocks), ds4, blocks, 36)
    assert_same_blocks(encode_mmq_d4(blocks), d4, blocks, 36)


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_q8_1_encoder_is_the_slow_one(case: Callable[[np.random.Generator], Floats]) -> None:
    x = case(generator("q8_1", case.__name__))
    blocks = x.reshape(-1, QK)
    blocks = blocks[:: max(1, len(blocks) // 1000)]
    expected = np.array([list(slow_q8_1(b)) for b in blocks.tolist()], np.uint8)
    assert_same_blocks(encode_q8_1(blocks), expected, blocks, 36)


def test_q8_1_sum_is_of_the_raw_values() -> None:
    x = np.full((1, QK), 0.3, np.float32)
    x[0, 0] = 100.0
    block = encode_q8_1(x)
    assert block.view(np.float16)[0, 1] == np.float16(100 + 31 * 0.3)
    assert encode_q8_1_cpu(x).view(np.float16)[0, 1] == np.float16(100)  # the others have code 0


@pytest.mark.parametrize(
    ("encode", "size"), [(encode_q8_1, 32), (encode_q8_0_cpu, 32), (encode_q8_1_cpu, 32), (encode_q8_k, 256)]
)
def test_encoders_want_whole_blocks(encode: Callable[[Floats], Bytes], size: int) -> None:
    k = size + 8
    with pytest.raises(ValueError, match=f"a row of {k} activations is not a whole number of blocks of {size}"):
        encode(np.zeros((2, k), np.float32))


# ---- the fused multiply-add ------------------------------------------------------------------------------------------


def with_bits(rng: np.random.Generator, n: int, count: int) -> npt.NDArray[np.float64]:
    """n doubles in ±[1, 2) of so many significant bits: what a product of two floats can be."""
    return rng.choice([-1, 1], n) * (1 + np.floor(rng.random(n) * 2.0 ** (count - 1)) * 2.0 ** (1 - count))


def fma_random(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    acc = rng.normal(size=n) * 2.0 ** rng.integers(-10, 10, n)
    return with_bits(rng, n, 48) * 2.0 ** rng.integers(-40, 20, n), acc.astype(np.float32)


def fma_midpoints_off_by_the_accumulator(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """A product half-way between two floats, and an accumulator too small for float64 to see."""
    odd = with_bits(rng, n, 24) + rng.choice([-1, 1], n) * 2.0**-24
    return odd, (with_bits(rng, n, 24) * 2.0 ** rng.integers(-100, -45, n)).astype(np.float32)


def fma_midpoints_off_by_the_product(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """Half an ulp of the accumulator and a little more or less; sometimes exactly half: a tie."""
    acc = with_bits(rng, n, 24)
    off = rng.choice([-1, 0, 1], n) * 2.0 ** -rng.integers(25, 50, n)
    return rng.choice([-1, 1], n) * 2.0**-24 * (1 + off), acc.astype(np.float32)


def fma_subnormal_results(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """Around halves of the least subnormal, 2^-149, and around the least normal."""
    acc = rng.integers(-(2**24), 2**24, n) * 2.0**-149
    acc[::2] = rng.integers(-3, 4, len(acc[::2])) * 2.0**-149
    steps = rng.integers(-8, 8, n) + rng.choice([0, 0.5], n)
    return steps * 2.0**-149 * (1 + rng.choice([-1, 0, 1], n) * 2.0 ** -rng.integers(5, 48, n)), acc.astype(np.float32)


def fma_double_rounding_below_normal(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """Products of 53 bits at 2^-130 and accumulators far below: the float64 sum itself is inexact."""
    half_way = (rng.integers(1, 2**18, n) + 0.5) * 2.0**-149
    off = 2.0**-149 * 2.0 ** -rng.integers(30, 34, n) * rng.choice([-1, 1], n)
    return half_way + off, (rng.integers(-2, 3, n) * 2.0**-149).astype(np.float32)


def fma_cancellation(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    exact = with_bits(rng, n, 48) * 2.0 ** rng.integers(-140, 60, n)
    return exact, (-exact).astype(np.float32)


def fma_overflow(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """The largest float and half its ulp, a little less, a little more."""
    sign = rng.choice([-1, 1], n)
    acc = np.where(rng.random(n) < 0.7, FLT_MAX, FLT_MAX / 2) * sign
    off = rng.choice([-1, 0, 1], n) * 2.0 ** -rng.integers(1, 50, n)
    return sign * 2.0**103 * (1 + off) * rng.choice([1, 1, 2.0**24], n), acc.astype(np.float32)


@pytest.mark.parametrize(
    "case",
    [
        fma_random, fma_midpoints_off_by_the_accumulator, fma_midpoints_off_by_the_product, fma_subnormal_results,
        fma_double_rounding_below_normal, fma_cancellation, fma_overflow,
    ],
)  # fmt: skip
def test_add_rounded_rounds_once(case: Callable[..., tuple[npt.NDArray[np.float64], Floats]]) -> None:
    a, acc = case(generator(case.__name__), 6000)
    with np.errstate(over="ignore"):  # as its callers have it
        got = add_rounded(a, acc)
    for p, c, y in zip(a.tolist(), acc.tolist(), got, strict=True):
        exact = Fraction(p) + Fraction(c)
        if exact == 0:
            assert y == 0
            continue
        expected = nearest_float32(exact)
        assert bits(y) == bits(expected), f"{p.hex()} + {c.hex()} => {float(y).hex()} {expected.hex()}"


def test_the_cases_tell_one_rounding_from_two() -> None:
    """float64 and then float32, which add_rounded would be without its care, must err on these."""
    for case in (fma_midpoints_off_by_the_accumulator, fma_midpoints_off_by_the_product):
        a, acc = case(generator(case.__name__), 6000)
        twice = (a + acc).astype(np.float32)
        assert (twice != add_rounded(a, acc)).mean() > 0.1


def test_add_rounded_zeros_and_infinities() -> None:
    a = np.array([0.0, -0.0, 0.0, -0.0, 1.5, np.inf, -np.inf, np.inf, np.nan, 1.0, -np.inf])
    acc = np.array([0.0, -0.0, -0.0, 0.0, -1.5, 1.0, 1.0, -np.inf, 1.0, np.nan, -np.inf], np.float32)
    expected = np.array([0.0, -0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, np.nan, np.nan, np.nan, -np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        got = add_rounded(a, acc)
    assert (np.isnan(got) == np.isnan(expected)).all()
    assert (bits(got) == bits(expected))[~np.isnan(expected)].all()


# ---- the oracle against exact arithmetic -----------------------------------------------------------------------------


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
HALF_PRODUCTS = Q8_1_HALF
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


def fewer(fmt: BlockFormat, rows: int) -> int:
    """All of these rows for the formats with an encoder, a third for the other twenty."""
    return rows if fmt in LEGACY else -(-rows // 3)


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
    x = rng.normal(size=(m, k)) * np.where(rng.random((m, k)) < 0.01, 20, 1)
    x = x.astype(np.float32)
    return x.view(np.uint8) if semantics.encode is None else semantics.encode(x)


def read_activations(semantics: str, raw: bytes) -> list[tuple[Fraction, Fraction, list[int]]]:
    """(d, s or 0, codes) of each block of a row, from the structs of ggml-common.h."""
    layout = {"q8_0_cpu": "<e32b", "mmq_d4": "<f32b", "q8_k_cpu": "<f256b16h"}.get(semantics, "<ee32b")
    blocks = []
    for d, *rest in struct.iter_unpack(layout, raw):
        s = rest.pop(0) if layout == "<ee32b" else 0.0
        blocks.append((Fraction(d), Fraction(s), rest[:QK_K]))
    return blocks


def half_rounded(x: Fraction) -> Fraction:
    return Fraction(struct.unpack("<e", struct.pack("<e", float(x)))[0])  # the product of two halves is a double


def float32_rounded(x: Fraction) -> Fraction:
    return Fraction(nearest_float32(x))


OFFSETS = {"Q4_0": 8, "Q5_0": 16}
#: Zero points that llama.cpp multiplies apart.
ZEROS = {f.name: f.zero for f in FORMATS.values() if f.zero}


@dataclasses.dataclass
class Term:
    """What one scale of the weights and one of the activations belong to, exactly."""

    first: Fraction
    second: Fraction
    magnitude: Fraction
    steps: list[Fraction]  # what a declared order adds, one by one


def term_of(
    semantics: str, name: str, d_w: Fraction, m_w: Fraction, q_w: list[int], a: tuple[Fraction, Fraction, list[int]]
) -> Term:
    """Each definition spelled out."""
    d_a, s, q_a = a
    rounded = semantics == "mmq" and name in ("Q4_K", "Q5_K")
    if rounded:
        d_w, m_w = half_rounded(d_w), half_rounded(m_w)
    scale, second = d_w * d_a, Fraction(0)
    integer_offset = semantics in ("q8_0_cpu", "mmq_d4") or (semantics, name) == ("mmq", "Q4_0")
    if integer_offset:
        q_w = [q - OFFSETS.get(name, 0) for q in q_w]
    elif name in OFFSETS:
        second = -OFFSETS[name] * d_w * s
    elif name in ("Q4_1", "Q5_1") or rounded:
        second = m_w * s
    if semantics == "q8_1_half" and name in ("Q4_1", "Q5_1"):
        scale, second = half_rounded(scale), half_rounded(second)
    zero = ZEROS.get(name, 0) if semantics in ("q8_0_cpu", "q8_k_cpu") else 0
    dot = sum(x * y for x, y in zip(q_w, q_a, strict=True))
    magnitude = abs(scale) * sum((abs(x) + 2 * zero) * abs(y) for x, y in zip(q_w, q_a, strict=True)) + abs(second)
    steps = [float32_rounded(scale) * dot]
    if name in ("Q2_K", "Q4_K", "Q5_K") and not rounded:
        second = m_w * d_a * sum(q_a)
        magnitude += abs(m_w * d_a) * sum(map(abs, q_a))
        steps.append(float32_rounded(m_w * d_a) * sum(q_a))
    elif name in OFFSETS and not integer_offset:
        steps = [d_w * float32_rounded(d_a * dot - OFFSETS[name] * s)]
    elif name in ("Q4_1", "Q5_1") or rounded:
        steps.append(second)
    return Term(scale * dot, second, magnitude, steps)


@dataclasses.dataclass
class Rational:
    """One element of a product, exactly."""

    result: Fraction
    magnitude: Fraction
    steps: list[Fraction]  # what a declared order adds, one by one


def rational(semantics: Semantics, fmt: BlockFormat, w: bytes, x: bytes) -> Rational:
    size = fmt.block_bytes
    rows = [w[i : i + size] for i in range(0, len(w), size)]
    if semantics.activations is None:
        values = [Fraction(v) for row in rows for v in fmt.slow_decode(row)]
        steps = [v * Fraction(a) for v, a in zip(values, struct.unpack(f"<{len(values)}f", x), strict=True)]
        return Rational(sum(steps, Fraction(0)), sum(map(abs, steps), Fraction(0)), steps)
    blocks = np.frombuffer(w, np.uint8).reshape(-1, size)
    q_w = [int(q) for q in fmt.codes(blocks).ravel()]
    d_w = [Fraction(float(d)) for d in fmt.scales(blocks).ravel()]
    m_w = [Fraction(float(m)) for m in fmt.minima(blocks).ravel()]
    a = read_activations(semantics.name, x)
    of_a = len(a[0][2])
    terms = []
    values_of_term = 16 if fmt.group == 16 else 32
    for at in range(0, len(q_w), values_of_term):
        span = slice(at, at + values_of_term)
        d_a, s, q_a = a[at // of_a]
        inside = slice(at % of_a, at % of_a + values_of_term)
        g = at // fmt.group
        terms.append(term_of(semantics.name, fmt.name, d_w[g], m_w[g], q_w[span], (d_a, s, q_a[inside])))
    steps = [step for term in terms for step in term.steps]
    result = sum((term.first + term.second for term in terms), Fraction(0))
    return Rational(result, sum((term.magnitude for term in terms), Fraction(0)), steps)


def number_of_terms(semantics: Semantics, fmt: BlockFormat, k: int) -> int:
    """That may be added one by one: products and, where there are minima or sums, their terms."""
    if semantics is F32:
        return k
    apart = 2 if semantics.uses_sum(fmt) or fmt.has_min else 1
    return apart * k // (16 if fmt.group == 16 else 32)


def elements(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> Iterator[tuple[tuple[int, int], Rational]]:
    for m, row in enumerate(x):
        for n, weights in enumerate(w):
            yield (m, n), rational(semantics, fmt, weights.tobytes(), row.tobytes())


@pytest.mark.parametrize(
    ("semantics", "fmt"),
    [*PAIRS, *((HALF_PRODUCTS, f) for f in LEGACY)],
    ids=[*IDS, *(f"q8_1_half-{f.name}" for f in LEGACY)],
)
def test_product_is_exact(semantics: Semantics, fmt: BlockFormat) -> None:
    """Result, bound and the bits of the declared order against rational arithmetic, at several K."""
    legacy = [(32, 4, random_weights), (96, 4, random_weights), (160, 4, real_weights)]
    block = smallest_row(fmt)
    for k, rows, weights in legacy if fmt in LEGACY else [(block, 2, random_weights), (2 * block, 2, real_weights)]:
        w, x = weights(fmt, rows, k), activations(semantics, 3, k)
        p = product(semantics, fmt, w, x, order=ASCENDING)
        n = number_of_terms(semantics, fmt, k) + 8
        u = Fraction(1, 2**24)
        assert p.exact.shape == p.bound.shape == p.spread.shape == (3, rows)
        assert p.ordered is not None
        for at, exact in elements(semantics, fmt, w, x):
            assert abs(Fraction(p.exact[at]) - exact.result) <= exact.magnitude * Fraction(2, 10**15)
            bound = n * u / (1 - n * u) * exact.magnitude
            assert abs(Fraction(p.bound[at]) - bound) <= bound / 10**12
            acc = 0.0
            for step in exact.steps:
                acc = nearest_float32(Fraction(acc) + step)
            assert bits(p.ordered[at]) == bits(acc), (k, at)


def test_gamma() -> None:
    u = Fraction(1, 2**24)
    for n in (9, 456, 14344):
        assert gamma(n) == pytest.approx(float(n * u / (1 - n * u)), rel=1e-15)


@each_pair
def test_one_exact_result(semantics: Semantics, fmt: BlockFormat) -> None:
    """Two ways to the same number: block sums in integers, and one matrix product."""
    w, x = real_weights(fmt, 37, 1024), activations(semantics, 5, 1024)
    p = product(semantics, fmt, w, x)
    magnitude = p.bound / gamma(number_of_terms(semantics, fmt, 1024) + 8)
    for threads in (1, 2):
        assert (np.abs(exact_result(semantics, fmt, w, x, threads) - p.exact) <= 1e-12 * magnitude).all()


def test_half_products_have_no_matrix_product() -> None:
    """They are rounded inside a block: exact_result must not take the short way."""
    w, x = real_weights(Q5_1, 2, 64), activations(HALF_PRODUCTS, 2, 64)
    expected = product(HALF_PRODUCTS, Q5_1, w, x).exact
    assert (exact_result(HALF_PRODUCTS, Q5_1, w, x) == expected).all()
    assert (exact_result(Q8_1_RAW, Q5_1, w, x) != expected).any()


def test_chain_is_add_rounded_step_by_step() -> None:
    rng = np.random.default_rng(5)
    products = [rng.standard_normal((4, 50)) * 2.0 ** rng.integers(-60, 10, (4, 50)) for _ in range(30)]
    products = [p.astype(np.float32).astype(np.float64) for p in products]
    # sums that look like ties and are none: 1 + 2^-24 + 2^-60 rounds up, not to even
    products += [np.full((4, 50), 2.0**-24 + 2.0**-53), np.full((4, 50), -(2.0**-149) / 2)]
    expected = np.zeros((4, 50), np.float32)
    for p in products:
        expected = add_rounded(p, expected)
    one_stream, two_streams = np.array(products), [np.array(products[0::2]), np.array(products[1::2])]
    assert (chain_rounded([one_stream]).view(np.uint32) == expected.view(np.uint32)).all()
    assert (chain_rounded(two_streams).view(np.uint32) == expected.view(np.uint32)).all()
    one = np.array([[[1.0]], [[2.0**-24 + 2.0**-60]]])
    assert chain_rounded([one])[0, 0] == np.float32(1 + 2.0**-23)


@pytest.mark.parametrize("begun", [False, True])
def test_chain_sees_what_is_no_tie_wherever_it_is(begun: bool) -> None:
    """1 + 2^-24 + 2^-60, in any step of two streams and at any element, the only one that float64 does not hold."""
    start = np.ones((2, 3), np.float32) if begun else None
    for order in range(0 if begun else 1, 8):
        for element in range(6):
            products = np.zeros((4, 2, 6))
            if not begun:
                products[0, 0] = 1
            products.reshape(8, 6)[order, element] = 2.0**-24 + 2.0**-60
            streams = products.reshape(4, 2, 2, 3).swapaxes(0, 1)
            expected = np.ones(6, np.float32)
            expected[element] += np.float32(2.0**-23)
            assert (chain_rounded(list(streams), start).reshape(-1) == expected).all()


def test_chain_of_ties_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that float64 holds need no care, and ties of small integers are many."""
    rng = np.random.default_rng(6)
    streams = [(rng.integers(-8, 8, (40, 3, 50)) * 2.0**-24 + np.float64(1) * (rng.random((40, 3, 50)) < 0.1))
               for _ in range(2)]  # fmt: skip
    monkeypatch.setattr("gguf_verify.semantics.rounding.add_rounded", None)
    for n in (1, 2):
        total = chain_rounded(streams[:n], np.ones((3, 50), np.float32))
        assert (total != np.sum(streams[:n], axis=(0, 1)) + 1).any()  # some were rounded


@each_pair
def test_tiles_and_threads_do_not_matter(
    semantics: Semantics, fmt: BlockFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = real_weights(fmt, 45 if fmt in LEGACY else 7, 256), activations(semantics, 3, 256)
    whole = product(semantics, fmt, w, x, order=ASCENDING)
    magnitude = whole.bound / gamma(264)
    for tile in (1, 3 * 8 * 7, 1 << 20):
        monkeypatch.setattr(oracle, "_TILE", tile)
        for threads in (1, 2, 5):
            p = product(semantics, fmt, w, x, order=ASCENDING, threads=threads)
            assert p.ordered is not None
            assert whole.ordered is not None
            assert (bits(p.ordered) == bits(whole.ordered)).all()
            # a BLAS may add in another order where the shape is another
            assert (np.abs(p.exact - whole.exact) <= 1e-13 * magnitude).all()
            np.testing.assert_allclose(p.bound, whole.bound, rtol=1e-12)
            np.testing.assert_allclose(p.spread, whole.spread, rtol=1e-12)
            assert (np.abs(exact_result(semantics, fmt, w, x, threads) - whole.exact) <= 1e-12 * magnitude).all()
    assert product(semantics, fmt, w, x).ordered is None


def test_one_row_and_one_column() -> None:
    w, x = real_weights(Q4_0, 1, 32), activations(Q8_1_RAW, 1, 32)
    p = product(Q8_1_RAW, Q4_0, w, x, order=ASCENDING, threads=4)
    assert p.exact.shape == (1, 1)
    assert judge(p.ordered, p).passed


# ---- the gates -------------------------------------------------------------------------------------------------------


def undeclared(p: Product) -> Product:
    """The same product for a kernel that declares no order."""
    return dataclasses.replace(p, ordered=None)


@pytest.fixture(scope="module")
def judged() -> Product:
    return product(Q8_1_RAW, Q4_0, real_weights(Q4_0, 24, 512), activations(Q8_1_RAW, 5, 512), order=ASCENDING)


@each_pair
def test_the_ordered_result_passes(semantics: Semantics, fmt: BlockFormat) -> None:
    p = product(semantics, fmt, real_weights(fmt, fewer(fmt, 40), 512), activations(semantics, 6, 512), order=ASCENDING)
    judgement = judge(p.ordered, p)
    assert judgement.passed
    assert not judgement.bad.any()
    assert judgement.differing_bits == 0
    assert 0 < judgement.utilisation < 0.5
    assert 0 < judgement.score < 6
    assert judgement.nmse < 1e-12
    assert judge(p.ordered, undeclared(p)).differing_bits is None


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "value",
    [np.nan, np.inf, -np.inf, POISON.view(np.float32), np.float32(0), np.float32(1e30)],
    ids=["nan", "inf", "-inf", "unwritten", "zero", "huge"],
)
def test_one_wrong_element_fails_alone(judged: Product, value: float, declared: bool) -> None:
    y = judged.ordered.copy()
    y[3, 7] = value
    judgement = judge(y, judged if declared else undeclared(judged))
    assert not judgement.passed
    assert np.argwhere(judgement.bad).tolist() == [[3, 7]]
    assert judgement.worst == (3, 7)
    assert judgement.utilisation > 1
    assert judgement.score > SCORE_LIMIT


def test_all_unwritten_fails_everywhere(judged: Product) -> None:
    y = np.full(judged.exact.shape, POISON.view(np.float32), np.float32)
    assert judge(y, undeclared(judged)).bad.all()


@pytest.mark.parametrize("toward", [np.inf, -np.inf])
def test_one_ulp_fails_only_a_declared_order(judged: Product, toward: float) -> None:
    y = judged.ordered.copy()
    y[2, 11] = np.nextafter(y[2, 11], np.float32(toward))
    judgement = judge(y, judged)
    assert np.argwhere(judgement.bad).tolist() == [[2, 11]]
    assert judgement.differing_bits == 1
    assert judgement.utilisation < 1
    assert judge(y, undeclared(judged)).passed


def test_the_sign_of_zero_is_a_bit() -> None:
    w, x = np.zeros((3, 18), np.uint8), activations(Q8_1_RAW, 2, 32)
    p = product(Q8_1_RAW, Q4_0, w, x, order=ASCENDING)
    assert judge(p.ordered, p).passed
    assert judge(-p.ordered, p).differing_bits == 6
    assert judge(-p.ordered, undeclared(p)).passed
    # the bound is zero, so anything else is wrong, however small
    assert judge(p.ordered + np.float32(2.0**-148), undeclared(p)).bad.all()


def test_an_infinite_oracle_passes_nothing() -> None:
    """s overflows: the kernel and the oracle agree on infinity or NaN, and nothing was verified."""
    x = encode_q8_1(np.full((1, QK), 5000, np.float32))
    p = product(Q8_1_RAW, Q4_0, real_weights(Q4_0, 3, QK), x, order=ASCENDING)
    assert not np.isfinite(p.exact).any()
    for y in (p.ordered, np.zeros_like(p.ordered)):
        assert judge(y, p).bad.all()
        assert judge(y, undeclared(p)).bad.all()


def with_code_off_by_one(fmt: BlockFormat, w: Bytes, row: int, block: int) -> Bytes:
    """One bit of the codes flipped: of those that change the codes least the one of a median effect on the values.

    In most formats a code goes up or down by one; in those with a grid an entry or a sign is another.
    """
    at = slice(block * fmt.block_bytes, (block + 1) * fmt.block_bytes)
    right = np.ascontiguousarray(w[row : row + 1, at])
    flips = np.packbits(np.eye(8 * fmt.block_bytes, dtype=np.uint8), axis=1, bitorder="little")
    flipped = right ^ flips
    same_scales = (fmt.scales(flipped) == fmt.scales(right)).all(axis=-1)
    same_minima = (fmt.minima(flipped) == fmt.minima(right)).all(axis=-1)
    change = np.abs(fmt.codes(flipped).astype(int) - fmt.codes(right).astype(int)).sum(axis=-1)
    with np.errstate(invalid="ignore", over="ignore"):
        effect = np.abs(fmt.decode(flipped) - fmt.decode(right)).sum(axis=-1)
    candidates = same_scales & same_minima & (effect > 0)
    candidates &= change == change[candidates].min()
    ranked = np.flatnonzero(candidates)[np.argsort(effect[candidates], kind="stable")]
    wrong = w.copy()
    wrong[row, at] = flipped[ranked[len(ranked) // 2]]
    return wrong


def with_scale_one_percent_off(fmt: BlockFormat, w: Bytes, row: int, block: int) -> Bytes:
    """The scale of the block one percent larger, or off in a low bit: IQ1_M's in the fourth, fp4's in the lowest."""
    wrong = w.copy()
    at = block * fmt.block_bytes
    if fmt is IQ1_M:
        wrong[row, at + fmt.field_offset("scales") + 1] ^= 0x80
    elif fmt in (MXFP4, NVFP4):
        wrong[row, at] ^= 1
    else:
        at += fmt.field_offset("d")
        d = wrong[row, at : at + 2].view("<f2")
        d[0] = np.float16(float(d[0]) * 1.01)
    return wrong


# row lengths with a row and a value in the block to spoil in each
PLACES = ((32, 0, 0), (128, 3, 64), (4096, 2, 3200), (14336, 5, 14335))


@pytest.mark.parametrize("spoil", [with_code_off_by_one, with_scale_one_percent_off])
@pytest.mark.parametrize(("semantics", "fmt"), PAIRS, ids=IDS)
def test_one_wrong_block_fails(
    semantics: Semantics, fmt: BlockFormat, spoil: Callable[[BlockFormat, Bytes, int, int], Bytes]
) -> None:
    """A correct computation on weights one block of which is wrong, judged without a declared order."""
    for k, row, value in PLACES if fmt in LEGACY else PLACES[1:]:
        k, block = whole_row(fmt, k), value // fmt.block_size
        w, x = real_weights(fmt, 8, k), activations(semantics, 4, k)
        p = undeclared(product(semantics, fmt, w, x))
        judgement = judge(exact_result(semantics, fmt, spoil(fmt, w, row, block), x).astype(np.float32), p)
        said = f"K={k}: utilisation {judgement.utilisation:.3g}, score {judgement.score:.3g}"
        if semantics is F32 and fmt.name in ("Q8_0", "Q5_K") and k == 14336 and spoil is with_code_off_by_one:
            # 1/127 of a value (Q5_K: 1/31 under a scale of 6 bits) among 14336 roundings: too small for this gate, the
            # blocks rung looks at 32 or 256 at a time
            assert judgement.score > 20, said
            continue
        assert np.unique(np.argwhere(judgement.bad)[:, 1]).tolist() == [row], said
        assert judgement.worst[1] == row, said
        assert judgement.score > 1.5 * SCORE_LIMIT, said
        if k <= QK_K:
            assert judgement.utilisation > 10, said


def test_the_score_sees_what_the_bound_does_not() -> None:
    """One 4-bit code among 14336: about 1 against the bound, thousands against the spread."""
    w, x = real_weights(Q4_0, 8, 14336), activations(Q8_0_CPU, 4, 14336)
    wrong = exact_result(Q8_0_CPU, Q4_0, with_code_off_by_one(Q4_0, w, 5, 447), x).astype(np.float32)
    judgement = judge(wrong, undeclared(product(Q8_0_CPU, Q4_0, w, x)))
    assert judgement.utilisation < 3
    assert judgement.score > 1000
    assert judgement.bad[:, 5].all()


@each_pair
def test_one_percent_fails_where_nmse_does_not(semantics: Semantics, fmt: BlockFormat) -> None:
    for k in (64, 4096, 14336):
        k = whole_row(fmt, k)
        w, x = real_weights(fmt, 6, k), activations(semantics, 2, k)
        p = undeclared(product(semantics, fmt, w, x))
        judgement = judge((1.01 * p.exact).astype(np.float32), p)
        assert judgement.bad.mean() > 0.8, k  # all but results near zero
        assert judgement.nmse < 5e-4  # what llama.cpp's own op test would let pass


def test_slack_widens_both_gates(judged: Product) -> None:
    p = undeclared(judged)
    slack = np.full(p.exact.shape, 1e-2)
    y = (p.exact + 0.9e-2).astype(np.float32)
    assert judge(y, p).bad.all()
    assert judge(y, p, slack).passed
    assert judge((p.exact + 1.2e-2).astype(np.float32), p, slack).bad.all()
    y[0, 0] = np.nan
    assert np.argwhere(judge(y, p, slack).bad).tolist() == [[0, 0]]


def test_nmse_is_over_all_elements(judged: Product) -> None:
    y = (judged.exact * 1.5).astype(np.float32)
    assert judge(y, judged).nmse == pytest.approx(0.25, rel=1e-5)


# ---- correct sums in other orders ------------------------------------------------------------------------------------


def float32_terms(semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes) -> tuple[Floats, Floats | None]:
    """What a kernel that rounds every operation adds up: float32 [nb, M, N], scale·sum and m·s or m·d_a·Σ q_a."""
    a = semantics.activations
    assert a is not None
    values = 16 if fmt.group == 16 else 32
    wb, xb = w.reshape(len(w), -1, fmt.block_bytes), x.reshape(len(x), -1, a.block_bytes)
    q = fmt.codes(wb).astype(np.float32).reshape(len(w), -1, values)
    if fmt.name in semantics.integer_offset:
        q -= np.float32(fmt.offset)
    q_a = a.codes(xb).astype(np.float32).reshape(len(x), -1, values)
    sums = np.matmul(q_a.transpose(1, 0, 2), q.transpose(1, 2, 0))

    def by_term(of_groups: Floats) -> Floats:
        flat = of_groups.reshape(len(w), -1)
        return np.repeat(flat, q.shape[1] // flat.shape[1], axis=1).T[:, None, :]

    d_a = np.repeat(a.scale(xb), a.block_size // values, axis=1).T[:, :, None]
    first = d_a * by_term(fmt.scales(wb)) * sums
    if semantics.uses_sum(fmt):
        return first, a.view(xb)["s"].astype(np.float32).T[:, :, None] * by_term(fmt.minima(wb))
    if fmt.has_min:
        return first, d_a * by_term(fmt.minima(wb)) * q_a.sum(axis=-1).T[:, :, None]
    return first, None


def forward(t: Floats) -> Floats:
    total = np.zeros_like(t[0])
    for term in t:
        total = total + term
    return total


def reverse(t: Floats) -> Floats:
    return forward(t[::-1])


def pairwise(t: Floats) -> Floats:
    while len(t) > 1:
        odd = t[len(t) // 2 * 2 :]
        t = np.concatenate([t[0 : len(t) // 2 * 2 : 2] + t[1::2], odd])
    return t[0]


def eight_lanes(t: Floats) -> Floats:
    return pairwise(np.stack([forward(t[lane::8]) for lane in range(min(8, len(t)))]))


def split(t: Floats) -> Floats:
    """Two halves of K apart, as split-K kernels do."""
    return forward(t[: len(t) // 2]) + forward(t[len(t) // 2 :])


ORDERS = (forward, reverse, pairwise, eight_lanes, split)


@pytest.mark.parametrize(
    ("semantics", "fmt", "m", "n", "k"),
    [
        (Q8_1_RAW, Q4_0, 500, 1000, 512),
        (Q8_1_RAW, Q5_1, 500, 1000, 128),
        (Q8_1_CPU, Q5_1, 200, 500, 1024),
        (Q8_0_CPU, Q4_0, 500, 1000, 1024),
        (Q8_0_CPU, FORMATS["Q8_0"], 500, 1000, 64),
        (Q8_1_RAW, Q4_0, 8, 200, 14336),
        (Q8_1_RAW, FORMATS["Q2_K"], 100, 300, 512),
        (Q8_K_CPU, Q4_K, 100, 300, 1024),
        (Q8_K_CPU, FORMATS["Q6_K"], 100, 300, 1024),
        (Q8_K_CPU, FORMATS["TQ1_0"], 100, 300, 512),
        (Q8_0_CPU, NVFP4, 100, 300, 1024),
    ],
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_correct_sums_in_any_order_pass(
    semantics: Semantics, fmt: BlockFormat, m: int, n: int, k: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Together some millions of outputs: the limit on the score never calls a correct kernel wrong, and is silent."""
    w, x = real_weights(fmt, n, k, "orders"), activations(semantics, m, k, "orders")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = product(semantics, fmt, w, x, threads=2)
        first, second = float32_terms(semantics, fmt, w, x)
        for order in ORDERS:
            outputs = [order(first if second is None else first + second)]
            if second is not None:
                outputs.append(order(first) + order(second))  # integer products and m·s apart
            for y in outputs:
                judgement = judge(y, p)
                said = f"{order.__name__}: utilisation {judgement.utilisation:.3g}, score {judgement.score:.3g}"
                assert judgement.passed, said
                assert judgement.utilisation < 0.5, said
                assert judgement.score < SCORE_LIMIT / 2, said
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("semantics", [F32, Q8_1_RAW, Q8_0_CPU], ids=lambda s: s.name)
def test_products_that_underflow_pass(semantics: Semantics) -> None:
    """MXFP4's scales go down to 2^-128, where float32 no longer holds d_w·d_a: right in any order of the factors, and
    an error beyond what underflows is still seen."""
    m, n, k = 40, 60, 64
    w = real_weights(MXFP4, n, k, "tiny")
    x = semantics.bytes_of(np.random.default_rng(6).standard_normal((m, k)).astype(np.float32) / np.float32(512))
    blocks = MXFP4.view(w.reshape(n, -1, MXFP4.block_bytes))
    blocks["e"] = np.random.default_rng(5).integers(0, 2, blocks["e"].shape)
    w = blocks.view(np.uint8).reshape(n, -1)
    p = product(semantics, MXFP4, w, x)
    assert (np.abs(p.exact) < 2.0**-110).all()
    values = MXFP4.decode(w.reshape(n, -1, MXFP4.block_bytes)).reshape(n, k)
    if semantics is F32:
        outputs = [forward((x.view(np.float32)[:, None] * values).transpose(2, 0, 1))]
    else:
        sums = np.matmul(*(v.astype(np.float32) for v in codes_of(semantics, w, x)))  # [nb, m, n]
        d_w, d_a = scales_of(semantics, w, x)
        outputs = [forward(d_w * d_a * sums), forward(d_w * (d_a * sums)), forward(d_w * sums * d_a)]
    for y in outputs:
        assert judge(y, p).passed
    assert not judge(outputs[0] * np.float32(1.01), p).passed
    w[:] = 0
    nothing = product(semantics, MXFP4, w, np.zeros_like(x))
    assert not judge(np.full((m, n), 1e-45, np.float32), nothing).passed


def codes_of(semantics: Semantics, w: Bytes, x: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """[nb, M, 32] and [nb, 32, N] of MXFP4."""
    assert semantics.activations is not None
    q_w = MXFP4.codes(w.reshape(len(w), -1, MXFP4.block_bytes)).reshape(len(w), -1, 32)
    q_a = semantics.activations.codes(x.reshape(len(x), -1, semantics.activations.block_bytes))
    return q_a.reshape(len(x), -1, 32).transpose(1, 0, 2), q_w.transpose(1, 2, 0)


def scales_of(semantics: Semantics, w: Bytes, x: Bytes) -> tuple[Floats, Floats]:
    """float32[nb, 1, N] and [nb, M, 1] of MXFP4."""
    assert semantics.activations is not None
    d_w = MXFP4.scales(w.reshape(len(w), -1, MXFP4.block_bytes)).reshape(len(w), -1)
    d_a = semantics.activations.scale(x.reshape(len(x), -1, semantics.activations.block_bytes)).reshape(len(x), -1)
    return d_w.astype(np.float32).T[:, None, :], d_a.astype(np.float32).T[:, :, None]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_a_float32_matrix_product_passes_as_f32(fmt: BlockFormat) -> None:
    """Whatever order this machine's BLAS adds in."""
    m, n = (200, 500) if fmt in LEGACY else (40, 100)
    for k in (64, 1024):
        k = whole_row(fmt, k)
        w, x = real_weights(fmt, n, k), activations(F32, m, k)
        y = x.view(np.float32) @ fmt.decode(w.reshape(n, -1, fmt.block_bytes)).reshape(n, k).T
        judgement = judge(y, product(F32, fmt, w, x))
        assert judgement.passed
        assert judgement.utilisation < 0.5
        assert judgement.score < SCORE_LIMIT / 2


# ---- llama.cpp -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_llama_cpp_passes_and_the_other_definition_fails(fmt: BlockFormat, llama: Llama) -> None:
    """llama.cpp's own product of each block meets its declared semantics, and no other."""
    semantics = llama_cpu_semantics(fmt)
    size = fmt.block_size
    k = whole_row(fmt, 256) if size < QK_K else 2 * QK_K
    w = real_weights(fmt, 16, k)
    x = activations(F32, 4, k).view(np.float32)
    y = llama.block_products(fmt.type_id, w, x)
    assert y.shape == (k // size, 4, 16)
    # without an offset or minimum, these differ only where a code was rounded the other way
    near = Q8_1_RAW if semantics is Q8_0_CPU and not fmt.offset else None
    for b in range(k // size):
        block = slice(b * fmt.block_bytes, (b + 1) * fmt.block_bytes)
        part = np.ascontiguousarray(x[:, b * size : (b + 1) * size])
        for other in (semantics, Q8_1_RAW, F32):
            encoded = part.view(np.uint8) if other.encode is None else other.encode(part)
            judgement = judge(y[b], product(other, fmt, np.ascontiguousarray(w[:, block]), encoded))
            if other is semantics:
                assert judgement.passed
            elif other is not near:
                assert not judgement.passed


def mostly_zero(rng: np.random.Generator, n: int, k: int) -> Floats:
    x = rng.normal(size=(n, k)) * 0.02
    x[rng.random((n, k)) < 0.97] = 0
    return x.astype(np.float32)


def one_large(rng: np.random.Generator, n: int, k: int) -> Floats:
    """One weight of each 256 a thousand times the others, whose codes become zero."""
    x = rng.normal(size=(n, k)) * 1e-3
    x[:, rng.integers(0, QK_K) :: QK_K] = 1
    return x.astype(np.float32)


def few_outliers(rng: np.random.Generator, m: int, k: int) -> Floats:
    x = rng.normal(size=(m, k))
    x[rng.random((m, k)) < 0.005] *= 3000
    return x.astype(np.float32)


def all_alike(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Every code near 127: zero points multiplied apart are as large as they can be."""
    return (rng.uniform(0.98, 1, (m, k)) * rng.choice([-1, 1], (m, 1))).astype(np.float32)


def alternating(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Signs that cancel between neighbours, or between the halves of 32."""
    period = rng.choice([1, 8, 16], (m, 1))
    return (rng.uniform(0.9, 1, (m, k)) * np.where(np.arange(k) // period % 2, -1, 1)).astype(np.float32)


def one_block(rng: np.random.Generator, m: int, k: int) -> Floats:
    """All in the first 256 values, and next to nothing after them."""
    return (rng.normal(size=(m, k)) * np.where(np.arange(k) < QK_K, 1000, 1e-3)).astype(np.float32)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_llama_cpp_passes_on_adversarial_values(fmt: BlockFormat, llama: Llama) -> None:
    """What llama.cpp adds up apart and cancels late is in the bound and the spread, for all of its types."""
    semantics = llama_cpu_semantics(fmt)
    assert semantics.encode is not None
    rng = generator("adversarial", fmt.name)
    n, k = 16, 1024
    alike = real_weights(fmt, n, k, "alike")
    structs = fmt.view(alike.reshape(-1, fmt.block_bytes))
    structs["qs" if "qs" in fmt.dtype.names else "ql"] = 0
    weights = {"random": real_weights(fmt, n, k), "wild": random_weights(fmt, n, k), "alike": alike}
    # the grids of IQ1 and IQ2 take llama.cpp many seconds to search, and have no zero to be found
    for values in () if fmt.name.startswith(("IQ1", "IQ2")) else (mostly_zero, one_large):
        x = values(rng, n, k)
        weights[values.__name__] = llama.quantize(fmt.type_id, x, np.ones(k, np.float32))
    for given in (few_outliers, all_alike, alternating, one_block):
        x = given(rng, 16, k)
        for name, w in weights.items():
            p = product(semantics, fmt, w, semantics.encode(x))
            for y in (llama.multiply(fmt.type_id, w, x), llama.block_products(fmt.type_id, w, x).sum(axis=0)):
                judgement = judge(y, p)
                said = f"{name}, {given.__name__}: utilisation {judgement.utilisation:.3g}, score {judgement.score:.3g}"
                assert judgement.passed, said
                assert judgement.utilisation < 0.5, said
