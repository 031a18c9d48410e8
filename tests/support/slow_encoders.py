"""llama.cpp's reference quantizers in plain Python, one block at a time: the test of the vectorised encoders.

They share nothing with these: no NumPy, no tables. Each restates one function of llama.cpp v0.5.0,
ggml/src/ggml-quants.c.
"""

from __future__ import annotations

import math
import struct

from gguf_verify.formats._slow import f32, plus, times

QK = 32
_FLT_MAX = (2.0 - 2.0**-23) * 2.0**127


def q4_0(values: list[float]) -> bytes:
    """quantize_row_q4_0_ref"""
    d = f32(extreme(values) / -8)
    inverse = inverse_of(d)
    q = [min(15, int8(plus(times(v, inverse), 8.5))) & 0xFF for v in values]
    return half(d) + bytes((q[j] | q[j + 16] << 4) & 0xFF for j in range(16))


def q4_1(values: list[float]) -> bytes:
    """quantize_row_q4_1_ref"""
    low, high = least_and_greatest(values)
    d = f32(plus(high, -low) / 15)
    inverse = inverse_of(d)
    q = [min(15, int8(plus(times(plus(v, -low), inverse), 0.5))) & 0xFF for v in values]
    return half(d) + half(low) + bytes((q[j] | q[j + 16] << 4) & 0xFF for j in range(16))


def q5_0(values: list[float]) -> bytes:
    """quantize_row_q5_0_ref"""
    d = f32(extreme(values) / -16)
    inverse = inverse_of(d)
    return half(d) + pack_five_bits([min(31, int8(plus(times(v, inverse), 16.5))) & 0xFF for v in values])


def q5_1(values: list[float]) -> bytes:
    """quantize_row_q5_1_ref: alone in casting to uint8_t, with nothing clamped"""
    low, high = least_and_greatest(values)
    d = f32(plus(high, -low) / 31)
    inverse = inverse_of(d)
    codes = [low_byte(plus(times(plus(v, -low), inverse), 0.5)) for v in values]
    return half(d) + half(low) + pack_five_bits(codes)


def q8_0(values: list[float]) -> bytes:
    """quantize_row_q8_0_ref"""
    d, q = codes_of_eight_bits(values)
    return half(d) + struct.pack("<32b", *q)


def q8_1(values: list[float]) -> bytes:
    """quantize_row_q8_1_ref: s = half(Σq·d), with d before its rounding to half"""
    d, q = codes_of_eight_bits(values)
    return half(d) + half(times(sum(q), d)) + struct.pack("<32b", *q)


#: Type → its encoder: the values of a block → its bytes.
ENCODERS = {"Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0, "Q8_1": q8_1}


def half(x: float) -> bytes:
    """A float32 as the two bytes of a half, to nearest even; 65520 and more become infinite (struct would raise)."""
    try:
        return struct.pack("<e", x)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, x))


def inverse_of(d: float) -> float:
    """`d ? 1.0f/d : 0.0f`"""
    return f32(1.0 / d) if d != 0 else 0.0


def low_byte(x: float) -> int:
    """The bits of `(int8_t) x` and of `(uint8_t) x`: x86 truncates to int32 and keeps the low byte.

    C leaves open what happens where x does not fit; cvttss2si then gives INT_MIN, whose low byte is 0.
    """
    return int(x) & 0xFF if -(2.0**31) <= x < 2.0**31 else 0


def int8(x: float) -> int:
    byte = low_byte(x)
    return byte - 256 if byte > 127 else byte


def roundf(x: float) -> float:
    """C's roundf: half away from zero. x ± 0.5 is exact in a double for every float32 that has a fraction."""
    if not math.isfinite(x) or abs(x) >= 2.0**23:
        return x
    return math.copysign(math.floor(abs(x) + 0.5), x)


def extreme(values: list[float]) -> float:
    """The first value of the greatest magnitude, signed; +0 where all are zero."""
    magnitude, extreme = 0.0, 0.0
    for v in values:
        if magnitude < abs(v):
            magnitude, extreme = abs(v), v
    return extreme


def magnitude(values: list[float]) -> float:
    return abs(extreme(values))


def least_and_greatest(values: list[float]) -> tuple[float, float]:
    """Least and greatest value; of equal ones the first, which tells -0 from +0."""
    low, high = _FLT_MAX, -_FLT_MAX
    for v in values:
        if v < low:
            low = v
        if v > high:
            high = v
    return low, high


def pack_five_bits(q: list[int]) -> bytes:
    qh = sum(1 << j for j in range(QK) if q[j] & 16)
    return struct.pack("<I", qh) + bytes(q[j] % 16 + q[j + 16] % 16 * 16 for j in range(16))


def codes_of_eight_bits(values: list[float]) -> tuple[float, list[int]]:
    d = f32(magnitude(values) / 127)
    factor = inverse_of(d)
    return d, [int8(roundf(times(v, factor))) for v in values]
