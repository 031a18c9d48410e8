"""Kernels that multiply nothing, as others might write them, right and wrong: tests run them as FILE.py:NAME."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import numpy as np

from gguf_verify import kernel

sys.path.append(str(Path(__file__).resolve().parent))
import foreign_kernels as others  # type: ignore[import-not-found]

Q4_0 = others.numpy_q4_0.Q4_0
dequantizes = functools.partial(kernel, computes="dequantize", formats=["Q4_0"])
quantizes = functools.partial(kernel, computes="quantize", activations="q8_1")
repacks = functools.partial(kernel, computes="repack", formats=["Q4_0"])


# -- dequantizers ------------------------------------------------------------------------------------------------------


def values_of(weights, offset=8):
    """float32[N, K]."""
    blocks = weights.view(Q4_0)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float32)
    with np.errstate(all="ignore"):
        return ((codes - offset) * blocks["d"].astype(np.float32)[..., None]).reshape(len(weights), -1)


def halves(values):
    with np.errstate(all="ignore"):
        return values.astype(np.float16)


@dequantizes()
def floats(weights, shape):
    return values_of(weights)


@dequantizes(output="float16")
def rounded(weights, shape):
    return halves(values_of(weights))


@dequantizes(output="bfloat16", out=True)
def brain(weights, shape, out):
    bits = values_of(weights).view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    out[...] = np.where(nan, 0x7FC0, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)


@dequantizes()
def nibbles_in_turn(weights, shape):
    return values_of(weights).reshape(-1, 2, 16).transpose(0, 2, 1).reshape(shape.n, shape.k)


@dequantizes(output="float16")
def truncated(weights, shape):
    """Rounds towards zero."""
    values = values_of(weights)
    near = halves(values)
    with np.errstate(all="ignore"):
        larger = np.abs(near.astype(np.float32)) > np.abs(values)
    return np.where(larger, (near.view(np.uint16) - 1).view(np.float16), near)


@dequantizes()
def without_tail(weights, shape):
    """The last row is written only where their number is even."""
    made = values_of(weights)
    return made if shape.n % 2 == 0 else np.concatenate([made[:-1], np.zeros_like(made[-1:])])


@dequantizes()
def one_code_off(weights, shape):
    made = values_of(weights)
    made[0, -1] += np.abs(weights.view(Q4_0)["d"][0, -1].astype(np.float32))
    return made


@dequantizes()
def in_place(weights, shape):
    made = values_of(weights)
    weights[0, 0] ^= 1
    return made


@dequantizes()
def flushes(weights, shape):
    """A subnormal half is zero."""
    d = weights.view(Q4_0)["d"].astype(np.float32)
    made = values_of(weights).reshape(*d.shape, 32)
    return np.where((np.abs(d) < 2.0**-14)[..., None], np.float32(0), made).reshape(shape.n, shape.k)


def apart(weights, shape):
    """As some engines do: half(half(d·q) - half(8·d))."""
    blocks = weights.view(Q4_0)
    codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1).astype(np.float16)
    with np.errstate(all="ignore"):
        d = blocks["d"][..., None]
        return (codes * d - np.float16(8) * d).reshape(shape.n, shape.k)


in_halves = dequantizes(output="float16", arithmetic="float16_offset_mul_add")(lambda w, s: apart(w, s))
in_some_halves = dequantizes(output="float16", arithmetic="float16")(lambda w, s: apart(w, s))
in_halves_unsaid = dequantizes(output="float16")(lambda w, s: apart(w, s))
#: Beyond any order of roundings.
far_from_halves = dequantizes(output="float16", arithmetic="float16")(lambda w, s: apart(w, s) * np.float16(1.01))


@dequantizes()
def doubles(weights, shape):
    return values_of(weights).astype(np.float64)


@dequantizes(domain={"N": {"multiple": 8}})
def eight_rows(weights, shape):
    assert shape.n % 8 == 0
    return values_of(weights)


# -- quantizers --------------------------------------------------------------------------------------------------------


def encoded(x, rounded=others.half_away):
    with np.errstate(all="ignore"):
        return others.quantized(np.ascontiguousarray(x, np.float32), rounded)


@quantizes()
def codes(x, shape):
    return encoded(x)


@quantizes(takes="float16")
def codes_of_halves(x, shape):
    assert x.dtype == np.float16
    return encoded(x)


@quantizes()
def sums_in_order(x, shape):
    with np.errstate(all="ignore"):
        return others.quantized_in_order(np.ascontiguousarray(x, np.float32))


order_said = quantizes(ordered=True)(lambda x, s: sums_in_order(x, s))


@quantizes()
def to_even(x, shape):
    return encoded(x, np.rint)


@quantizes()
def sums_off(x, shape):
    made = encoded(x).copy()
    made.view(others.numpy_q4_0.Q8_1)["s"].view(np.uint16)[...] += 1
    return made


def approximate(x):
    """As fast math may be: a code moves only where x/d is within a few ulps of a half."""
    return encoded(x, lambda v: others.half_away(v * np.float32(1 + 2e-7)))


fast = quantizes(fast_math=True)(lambda x, s: approximate(x))
fast_unsaid = quantizes()(lambda x, s: approximate(x))


@quantizes(fast_math=True)
def too_fast(x, shape):
    return encoded(x, lambda v: others.half_away(v * np.float32(1 + 2e-6)))


@quantizes()
def last_token_missing(x, shape):
    made = encoded(x).copy()
    if shape.m % 2:
        made[-1, -1] = 0
    return made


# -- repackings --------------------------------------------------------------------------------------------------------


def separated(rows, fmt):
    blocks = rows.view(Q4_0)
    scales, codes = (np.ascontiguousarray(blocks[name]).view(np.uint8).reshape(-1) for name in ("d", "qs"))
    return np.concatenate([scales, codes])


def joined(packed, shape):
    n = shape.n * shape.k // 32
    out = np.zeros(n, Q4_0)
    out["d"] = packed[: 2 * n].view(np.float16)
    out["qs"] = packed[2 * n :].reshape(n, 16)
    return out.view(np.uint8).reshape(shape.n, -1)


packs = repacks(unpack=joined)(lambda rows, fmt: separated(rows, fmt))
packs_alone = repacks()(lambda rows, fmt: separated(rows, fmt))


def with_lost_bit(rows, fmt):
    made = separated(rows, fmt).copy()
    made[-1] &= 0x7F
    return made


loses = repacks(unpack=joined)(lambda rows, fmt: with_lost_bit(rows, fmt))
loses_alone = repacks()(lambda rows, fmt: with_lost_bit(rows, fmt))
_remembered: dict = {}


def remembers(rows, fmt):
    _remembered[rows.shape] = rows.copy()
    return np.zeros(4, np.uint8)


def recalls(packed, shape):
    return _remembered[shape.n, shape.k // 32 * 18]


cheats = repacks(unpack=recalls)(lambda rows, fmt: remembers(rows, fmt))


@repacks()
def widens(rows, fmt):
    """No permutation: values as halves."""
    return halves(values_of(rows))


@repacks(unpack=lambda packed, shape: np.ascontiguousarray(packed[:, : shape.k // 32 * 18]))
def padded(rows, fmt):
    return np.pad(rows, ((0, 0), (0, 7)))


_packed: dict = {}
_number_of: dict = {}
_known_blocks: list = []
_taken_apart: dict = {}


def from_numbers(packed, shape):
    raw = packed.tobytes()
    if raw not in _taken_apart:
        n, blocks = int.from_bytes(raw[:4], "little"), raw[4:]
        _known_blocks.extend(blocks[18 * i : 18 * i + 18] for i in range(n))
        numbers = np.frombuffer(blocks[18 * n :], np.uint32)
        _taken_apart[raw] = b"".join(_known_blocks[i] for i in numbers)
    return np.frombuffer(_taken_apart[raw], np.uint8).reshape(shape.n, -1).copy()


@repacks(unpack=from_numbers)
def numbers_known_blocks(rows, fmt):
    """A block that an earlier matrix had is a number of four bytes."""
    raw = rows.tobytes()
    if raw not in _packed:
        blocks = [block.tobytes() for block in rows.reshape(-1, 18)]
        new = [block for block in dict.fromkeys(blocks) if block not in _number_of]
        _number_of.update({block: len(_number_of) + i for i, block in enumerate(new)})
        numbers = np.array([_number_of[block] for block in blocks], np.uint32)
        _packed[raw] = len(new).to_bytes(4, "little") + b"".join(new) + numbers.tobytes()
    return np.frombuffer(_packed[raw], np.uint8).copy()
