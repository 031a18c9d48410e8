"""The slow oracle: one block at a time, in plain Python, against which the vectorised formats are tested.

It shares nothing with them: no NumPy, no tables. Each function restates one function of llama.cpp v0.5.0,
ggml/src/ggml-quants.c (layouts: ggml-common.h). A C `float` is a Python float that `_f32` has rounded: a Python float
carries 53 bits ≥ 2·24 + 2, so rounding twice gives what one float32 +, -, · or / gives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

QK = 32
_FLT_MAX = (2.0 - 2.0**-23) * 2.0**127


def _f32(x: float) -> float:
    """A double rounded to float32; what does not fit becomes infinite."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def _half(x: float) -> bytes:
    """A float32 as the two bytes of a half, to nearest even; 65520 and more become infinite (struct would raise)."""
    try:
        return struct.pack("<e", x)
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, x))


def _read_half(raw: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", raw, at)[0])


def _times(a: float, b: float) -> float:
    return _f32(a * b)


def _plus(a: float, b: float) -> float:
    return _f32(a + b)


def _inverse(d: float) -> float:
    """`d ? 1.0f/d : 0.0f`"""
    return _f32(1.0 / d) if d != 0 else 0.0


def _low_byte(x: float) -> int:
    """The bits of `(int8_t) x` and of `(uint8_t) x`: x86 truncates to int32 and keeps the low byte.

    C leaves open what happens where x does not fit; cvttss2si then gives INT_MIN, whose low byte is 0.
    """
    return int(x) & 0xFF if -(2.0**31) <= x < 2.0**31 else 0


def _int8(x: float) -> int:
    byte = _low_byte(x)
    return byte - 256 if byte > 127 else byte


def _roundf(x: float) -> float:
    """C's roundf: half away from zero. x ± 0.5 is exact in a double for every float32 that has a fraction."""
    if not math.isfinite(x) or abs(x) >= 2.0**23:
        return x
    return math.copysign(math.floor(abs(x) + 0.5), x)


def _extreme(values: list[float]) -> float:
    """The first value of the greatest magnitude, signed; +0 where all are zero."""
    magnitude, extreme = 0.0, 0.0
    for v in values:
        if magnitude < abs(v):
            magnitude, extreme = abs(v), v
    return extreme


def _magnitude(values: list[float]) -> float:
    return abs(_extreme(values))


def _range(values: list[float]) -> tuple[float, float]:
    """Least and greatest value; of equal ones the first, which tells -0 from +0."""
    low, high = _FLT_MAX, -_FLT_MAX
    for v in values:
        if v < low:
            low = v
        if v > high:
            high = v
    return low, high


# ---- Q4_0: d, 16 bytes of nibbles ------------------------------------------------------------------------------------


def decode_q4_0(raw: bytes) -> list[float]:
    """dequantize_row_q4_0"""
    d, qs = _read_half(raw, 0), raw[2:18]
    return [_times(b % 16 - 8, d) for b in qs] + [_times(b // 16 - 8, d) for b in qs]


def encode_q4_0(values: list[float]) -> bytes:
    """quantize_row_q4_0_ref"""
    d = _f32(_extreme(values) / -8)
    inverse = _inverse(d)
    q = [min(15, _int8(_plus(_times(v, inverse), 8.5))) & 0xFF for v in values]
    return _half(d) + bytes((q[j] | q[j + 16] << 4) & 0xFF for j in range(16))


# ---- Q4_1: d, m, 16 bytes of nibbles ---------------------------------------------------------------------------------


def decode_q4_1(raw: bytes) -> list[float]:
    """dequantize_row_q4_1"""
    d, m, qs = _read_half(raw, 0), _read_half(raw, 2), raw[4:20]
    codes = [b % 16 for b in qs] + [b // 16 for b in qs]
    return [_plus(_times(q, d), m) for q in codes]


def encode_q4_1(values: list[float]) -> bytes:
    """quantize_row_q4_1_ref"""
    low, high = _range(values)
    d = _f32(_plus(high, -low) / 15)
    inverse = _inverse(d)
    q = [min(15, _int8(_plus(_times(_plus(v, -low), inverse), 0.5))) & 0xFF for v in values]
    return _half(d) + _half(low) + bytes((q[j] | q[j + 16] << 4) & 0xFF for j in range(16))


# ---- Q5_0: d, 32 fifth bits, 16 bytes of nibbles ---------------------------------------------------------------------


def _five_bits(qh: int, qs: bytes) -> list[int]:
    codes = []
    for j in range(QK):
        nibble = qs[j] % 16 if j < 16 else qs[j - 16] // 16
        codes.append(nibble + 16 * (qh // 2**j % 2))
    return codes


def _pack_five_bits(q: list[int]) -> bytes:
    qh = sum(1 << j for j in range(QK) if q[j] & 16)
    return struct.pack("<I", qh) + bytes(q[j] % 16 + q[j + 16] % 16 * 16 for j in range(16))


def decode_q5_0(raw: bytes) -> list[float]:
    """dequantize_row_q5_0"""
    d, (qh,) = _read_half(raw, 0), struct.unpack_from("<I", raw, 2)
    return [_times(q - 16, d) for q in _five_bits(qh, raw[6:22])]


def encode_q5_0(values: list[float]) -> bytes:
    """quantize_row_q5_0_ref"""
    d = _f32(_extreme(values) / -16)
    inverse = _inverse(d)
    return _half(d) + _pack_five_bits([min(31, _int8(_plus(_times(v, inverse), 16.5))) & 0xFF for v in values])


# ---- Q5_1: d, m, 32 fifth bits, 16 bytes of nibbles ------------------------------------------------------------------


def decode_q5_1(raw: bytes) -> list[float]:
    """dequantize_row_q5_1"""
    d, m, (qh,) = _read_half(raw, 0), _read_half(raw, 2), struct.unpack_from("<I", raw, 4)
    return [_plus(_times(q, d), m) for q in _five_bits(qh, raw[8:24])]


def encode_q5_1(values: list[float]) -> bytes:
    """quantize_row_q5_1_ref: alone in casting to uint8_t, with nothing clamped"""
    low, high = _range(values)
    d = _f32(_plus(high, -low) / 31)
    inverse = _inverse(d)
    codes = [_low_byte(_plus(_times(_plus(v, -low), inverse), 0.5)) for v in values]
    return _half(d) + _half(low) + _pack_five_bits(codes)


# ---- Q8_0: d, 32 signed bytes ----------------------------------------------------------------------------------------


def decode_q8_0(raw: bytes) -> list[float]:
    """dequantize_row_q8_0"""
    d = _read_half(raw, 0)
    return [_times(q, d) for q in struct.unpack_from("<32b", raw, 2)]


def _codes_of_eight_bits(values: list[float]) -> tuple[float, list[int]]:
    d = _f32(_magnitude(values) / 127)
    inverse = _inverse(d)
    return d, [_int8(_roundf(_times(v, inverse))) for v in values]


def encode_q8_0(values: list[float]) -> bytes:
    """quantize_row_q8_0_ref"""
    d, q = _codes_of_eight_bits(values)
    return _half(d) + struct.pack("<32b", *q)


# ---- Q8_1: d, s, 32 signed bytes -------------------------------------------------------------------------------------


def decode_q8_1(raw: bytes) -> list[float]:
    """q·d as in Q8_0: llama.cpp has no function for it, s is for products only"""
    d = _read_half(raw, 0)
    return [_times(q, d) for q in struct.unpack_from("<32b", raw, 4)]


def encode_q8_1(values: list[float]) -> bytes:
    """quantize_row_q8_1_ref: s = half(Σq·d), with d before its rounding to half"""
    d, q = _codes_of_eight_bits(values)
    return _half(d) + _half(_times(sum(q), d)) + struct.pack("<32b", *q)


_DECODE: dict[str, Callable[[bytes], list[float]]] = {
    "Q4_0": decode_q4_0, "Q4_1": decode_q4_1, "Q5_0": decode_q5_0, "Q5_1": decode_q5_1,
    "Q8_0": decode_q8_0, "Q8_1": decode_q8_1,
}  # fmt: skip
_ENCODE: dict[str, Callable[[list[float]], bytes]] = {
    "Q4_0": encode_q4_0, "Q4_1": encode_q4_1, "Q5_0": encode_q5_0, "Q5_1": encode_q5_1,
    "Q8_0": encode_q8_0, "Q8_1": encode_q8_1,
}  # fmt: skip


def decode_block(name: str, raw: bytes) -> list[float]:
    """The 32 values of one block. Raises KeyError for a format that is not covered."""
    return _DECODE[name](raw)


def encode_block(name: str, values: list[float]) -> bytes:
    """One block of 32 float32 values, as llama.cpp's reference quantizer makes it. Raises KeyError likewise."""
    return _ENCODE[name](values)
