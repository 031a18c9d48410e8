"""The encoders of activations against slow restatements of them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.semantics.definitions.mmq import encode_mmq
from gguf_verify.semantics.definitions.mmq_d4 import encode_mmq_d4
from gguf_verify.semantics.definitions.q8_0_cpu import encode_q8_0_cpu
from gguf_verify.semantics.definitions.q8_1_cpu import encode_q8_1_cpu
from gguf_verify.semantics.definitions.q8_k_cpu import encode_q8_k
from gguf_verify.semantics.encodings.q8_1 import encode_q8_1
from tests.support.exact_products import (
    ACTIVATIONS,
    QK,
    QK_K,
    SUPERBLOCKS,
    Bytes,
    Floats,
    assert_same_blocks,
    generator,
    half,
)

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


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
    blocks = blocks[:: max(1, len(blocks) // 300)]
    slow = [slow_mmq(b) for b in blocks.tolist()]
    ds4 = np.array([list(half(d) + s + codes) for d, s, codes in slow], np.uint8)
    d4 = np.array([list(struct.pack("<f", d) + codes) for d, _, codes in slow], np.uint8)
    assert_same_blocks(encode_mmq(blocks), ds4, blocks, 36)
    assert_same_blocks(encode_mmq_d4(blocks), d4, blocks, 36)


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_q8_1_encoder_is_the_slow_one(case: Callable[[np.random.Generator], Floats]) -> None:
    x = case(generator("q8_1", case.__name__))
    blocks = x.reshape(-1, QK)
    blocks = blocks[:: max(1, len(blocks) // 300)]
    expected = np.array([list(slow_q8_1(b)) for b in blocks.tolist()], np.uint8)
    assert_same_blocks(encode_q8_1(blocks), expected, blocks, 36)


def test_q8_1_sum_is_of_the_raw_values() -> None:
    x = np.full((1, QK), 0.3, np.float32)
    x[0, 0] = 100.0
    block = encode_q8_1(x)
    assert block.view(np.float16)[0, 1] == np.float16(100 + 31 * 0.3)
    assert encode_q8_1_cpu(x).view(np.float16)[0, 1] == np.float16(100)  # the others have code 0


@pytest.mark.parametrize(
    ("encode", "size"), [(encode_q8_1, 32), (encode_q8_0_cpu, 32), (encode_q8_1_cpu, 32), (encode_q8_k, 32)]
)
def test_encoders_want_whole_blocks(encode: Callable[[Floats], Bytes], size: int) -> None:
    k = size + 8
    with pytest.raises(ValueError, match=f"a row of {k} activations is not a whole number of blocks of {size}"):
        encode(np.zeros((2, k), np.float32))
