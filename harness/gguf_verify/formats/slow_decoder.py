"""The slow oracle: one block at a time, in plain Python, against which the vectorised formats are tested.

It shares nothing with them: no NumPy, and no tables but the grids and values that the gguf package holds. Each
function restates one function of llama.cpp v0.5.0, ggml/src/ggml-quants.c (layouts: ggml-common.h). A C `float` is
a Python float that `_f32` has rounded: it carries 53 bits ≥ 2·24 + 2, so rounding twice gives what one float32
+, -, · or / gives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import cache

import gguf

QK, QK_K = 32, 256
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


# ---- K-quants: 256 values --------------------------------------------------------------------------------------------


def _field_of_byte(byte: int, low: int, width: int) -> int:
    """Bits `low` and up, `width` of them."""
    return byte // (1 << low) % (1 << width)


def _pair(qs: bytes, i: int) -> int:
    """Two bits for each value, in two halves of 32 bytes."""
    return _field_of_byte(qs[i // 128 * 32 + i % 32], i % 128 // 32 * 2, 2)


def _nibble(qs: bytes, i: int) -> int:
    """Four bits for each value, in four runs of 32 bytes."""
    return _field_of_byte(qs[i // 64 * 32 + i % 32], i % 64 // 32 * 4, 4)


def _bit(mask: bytes, i: int) -> int:
    return _field_of_byte(mask[i % 32], i // 32, 1)


def _scale_min_k4(g: int, packed: bytes) -> tuple[int, int]:
    """get_scale_min_k4"""
    if g < 4:
        return packed[g] % 64, packed[g + 4] % 64
    return packed[g + 4] % 16 + packed[g - 4] // 64 * 16, packed[g + 4] // 16 + packed[g] // 64 * 16


def decode_q2_k(raw: bytes) -> list[float]:
    """dequantize_row_q2_K: 16 bytes of scales and minima, 64 of codes, d, dmin"""
    scales, qs, d, dmin = raw[:16], raw[16:80], _read_half(raw, 80), _read_half(raw, 82)
    values = []
    for i in range(QK_K):
        scale, low = _times(d, scales[i // 16] % 16), _times(dmin, scales[i // 16] // 16)
        values.append(_plus(_times(scale, _pair(qs, i)), -low))
    return values


def decode_q3_k(raw: bytes) -> list[float]:
    """dequantize_row_q3_K: 32 bytes of high bits, 64 of low ones, 12 of scales, d"""
    mask, qs, packed, d = raw[:32], raw[32:96], raw[96:108], _read_half(raw, 108)
    values = []
    for i in range(QK_K):
        g = i // 16
        low = packed[g] % 16 if g < 8 else packed[g - 8] // 16
        scale = low + 16 * _field_of_byte(packed[8 + g % 4], g // 4 * 2, 2)
        values.append(_times(_times(d, scale - 32), _pair(qs, i) - (0 if _bit(mask, i) else 4)))
    return values


def decode_q4_k(raw: bytes) -> list[float]:
    """dequantize_row_q4_K: d, dmin, 12 bytes of scales and minima, 128 of codes"""
    d, dmin, packed, qs = _read_half(raw, 0), _read_half(raw, 2), raw[4:16], raw[16:144]
    values = []
    for i in range(QK_K):
        scale, low = _scale_min_k4(i // 32, packed)
        values.append(_plus(_times(_times(d, scale), _nibble(qs, i)), -_times(dmin, low)))
    return values


def decode_q5_k(raw: bytes) -> list[float]:
    """dequantize_row_q5_K: d, dmin, 12 bytes of scales and minima, 32 of fifth bits, 128 of nibbles"""
    d, dmin, packed, qh, qs = _read_half(raw, 0), _read_half(raw, 2), raw[4:16], raw[16:48], raw[48:176]
    values = []
    for i in range(QK_K):
        scale, low = _scale_min_k4(i // 32, packed)
        values.append(_plus(_times(_times(d, scale), _nibble(qs, i) + 16 * _bit(qh, i)), -_times(dmin, low)))
    return values


def decode_q6_k(raw: bytes) -> list[float]:
    """dequantize_row_q6_K: 128 bytes of low nibbles, 64 of high pairs, 16 signed scales, d"""
    ql, qh, scales, d = raw[:128], raw[128:192], struct.unpack_from("<16b", raw, 192), _read_half(raw, 208)
    values = []
    for i in range(QK_K):
        half, at = i // 128, i % 128
        low = _field_of_byte(ql[64 * half + at % 64], at // 64 * 4, 4)
        values.append(_times(_times(d, scales[i // 16]), low + 16 * _pair(qh, i) - 32))
    return values


def decode_q8_k(raw: bytes) -> list[float]:
    """dequantize_row_q8_K: d as a float, 256 signed bytes, 16 sums that only products read"""
    (d,) = struct.unpack_from("<f", raw, 0)
    return [_times(q, d) for q in struct.unpack_from("<256b", raw, 4)]


# ---- TQ1_0, TQ2_0: d for 256 values of -1, 0 and 1; Q1_0: of -1 and 1 for 128; Q2_0: of -1 to 2 for 64 ---------------


def _digit(byte: int, n: int) -> int:
    """Digit n in base 3 of a byte's fraction, as the code takes it: multiply in 8 bits, times 3, drop 8 bits."""
    return byte * int(3**n) % 256 * 3 // 256


def decode_tq1_0(raw: bytes) -> list[float]:
    """dequantize_row_tq1_0: 32 and 16 bytes of five digits, 4 of four, d"""
    d = _read_half(raw, 52)
    codes = [_digit(byte, n) for n in range(5) for byte in raw[:32]]
    codes += [_digit(byte, n) for n in range(5) for byte in raw[32:48]]
    codes += [_digit(byte, n) for n in range(4) for byte in raw[48:52]]
    return [_times(q - 1, d) for q in codes]


def decode_tq2_0(raw: bytes) -> list[float]:
    """dequantize_row_tq2_0: 64 bytes of codes, d"""
    d = _read_half(raw, 64)
    return [_times(_pair(raw, i) - 1, d) for i in range(QK_K)]


def decode_q1_0(raw: bytes) -> list[float]:
    """dequantize_row_q1_0: d, 16 bytes of bits"""
    d = _read_half(raw, 0)
    return [d if _field_of_byte(raw[2 + i // 8], i % 8, 1) else -d for i in range(128)]


def decode_q2_0(raw: bytes) -> list[float]:
    """dequantize_row_q2_0: d, 16 bytes of codes"""
    d = _read_half(raw, 0)
    return [_times(_field_of_byte(raw[2 + i // 4], i % 4 * 2, 2) - 1, d) for i in range(64)]


# ---- MXFP4: a power of two, 16 bytes of nibbles; NVFP4: four scales of 8 bits, 32 bytes of nibbles -------------------


def _e2m1_doubled(nibble: int) -> int:
    """kvalues_fp4: twice a float of a sign, two bits of exponent (bias 1) and one of mantissa"""
    exponent, mantissa = nibble // 2 % 4, nibble % 2
    magnitude = (2 + mantissa) * 2 ** (exponent - 1) if exponent else mantissa
    return -magnitude if nibble & 8 else magnitude


def decode_mxfp4(raw: bytes) -> list[float]:
    """dequantize_row_mxfp4, with ggml_e8m0_to_fp32_half"""
    d = 2.0 ** (raw[0] - 128)
    return [_times(_e2m1_doubled(b % 16), d) for b in raw[1:]] + [_times(_e2m1_doubled(b // 16), d) for b in raw[1:]]


def _ue4m3_halved(byte: int) -> float:
    """ggml_ue4m3_to_fp32"""
    if byte in (0, 127):
        return 0.0
    exponent, mantissa = byte // 8 % 16, byte % 8
    return ((8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9) / 2


def decode_nvfp4(raw: bytes) -> list[float]:
    """dequantize_row_nvfp4"""
    values = []
    for i in range(64):
        byte = raw[4 + i // 16 * 8 + i % 8]
        values.append(_times(_e2m1_doubled(byte // 16 if i % 16 > 7 else byte % 16), _ue4m3_halved(raw[i // 16])))
    return values


# ---- I-quants: the grids are gguf's, unpacked here; signs by parity --------------------------------------------------


@cache
def _grid(name: str) -> list[list[int]]:
    """The entries of a grid: hexadecimal digits of bytes of four 2-bit or two 4-bit numbers, the lowest first."""
    kind = getattr(gguf.quants, name)
    width = 2 if len(kind.grid_map) <= 4 else 4
    packed = bytes.fromhex(kind.grid_hex.decode())
    values = [int(kind.grid_map[_field_of_byte(b, low, width)]) for b in packed for low in range(0, 8, width)]
    size = kind.grid_shape[1]
    return [values[at : at + size] for at in range(0, len(values), size)]


def _sign(bits: int, j: int) -> int:
    return -1 if bits // 2**j % 2 else 1


def _sign_of_seven(bits: int, j: int) -> int:
    """ksigns_iq2xs: the eighth sign makes the number of negative ones even."""
    return _sign(bits % 128 + 128 * (bits % 128).bit_count(), j)


def _word(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", raw, at)[0])


def _short(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<H", raw, at)[0])


def decode_iq2_xxs(raw: bytes) -> list[float]:
    """dequantize_row_iq2_xxs: d; of each 32 values 4 grid indices, 28 bits of signs, 4 of scale"""
    d, values = _read_half(raw, 0), []
    for i in range(QK_K):
        at = 2 + 8 * (i // 32)
        aux = _word(raw, at + 4)
        db = _times(_times(d, 0.5 + aux // 2**28), 0.25)
        entry = _grid("IQ2_XXS")[raw[at + i // 8 % 4]]
        values.append(_times(_times(db, entry[i % 8]), _sign_of_seven(aux // 2 ** (7 * (i // 8 % 4)), i % 8)))
    return values


def decode_iq2_xs(raw: bytes) -> list[float]:
    """dequantize_row_iq2_xs: d; 32 times 9 bits of index and 7 of signs; 16 scales"""
    d, values = _read_half(raw, 0), []
    for i in range(QK_K):
        q = _short(raw, 2 + 2 * (i // 8))
        db = _times(_times(d, 0.5 + _field_of_byte(raw[66 + i // 32], i // 16 % 2 * 4, 4)), 0.25)
        values.append(_times(_times(db, _grid("IQ2_XS")[q % 512][i % 8]), _sign_of_seven(q // 512, i % 8)))
    return values


def decode_iq2_s(raw: bytes) -> list[float]:
    """dequantize_row_iq2_s: d; 32 bytes of indices, 32 of signs, 8 of the indices' high bits; 16 scales"""
    d, values = _read_half(raw, 0), []
    for i in range(QK_K):
        k = i // 8
        db = _times(_times(d, 0.5 + _field_of_byte(raw[74 + i // 32], i // 16 % 2 * 4, 4)), 0.25)
        entry = _grid("IQ2_S")[raw[2 + k] + 256 * _field_of_byte(raw[66 + k // 4], k % 4 * 2, 2)]
        values.append(_times(_times(db, entry[i % 8]), _sign(raw[34 + k], i % 8)))
    return values


def decode_iq3_xxs(raw: bytes) -> list[float]:
    """dequantize_row_iq3_xxs: d; 64 indices of four values; of each 32 values 28 bits of signs, 4 of scale"""
    d, values = _read_half(raw, 0), []
    for i in range(QK_K):
        aux = _word(raw, 66 + 4 * (i // 32))
        db = _times(_times(d, 0.5 + aux // 2**28), 0.5)
        entry = _grid("IQ3_XXS")[raw[2 + i // 4]]
        values.append(_times(_times(db, entry[i % 4]), _sign_of_seven(aux // 2 ** (7 * (i // 8 % 4)), i % 8)))
    return values


def decode_iq3_s(raw: bytes) -> list[float]:
    """dequantize_row_iq3_s: d; 64 bytes of indices, 8 of their high bits, 32 of signs; 8 scales"""
    d, values = _read_half(raw, 0), []
    for i in range(QK_K):
        db = _times(d, 1 + 2 * _field_of_byte(raw[106 + i // 64], i // 32 % 2 * 4, 4))
        entry = _grid("IQ3_S")[raw[2 + i // 4] + 256 * _field_of_byte(raw[66 + i // 32], i // 4 % 8, 1)]
        values.append(_times(_times(db, entry[i % 4]), _sign(raw[74 + i // 8], i % 8)))
    return values


def decode_iq1_s(raw: bytes) -> list[float]:
    """dequantize_row_iq1_s: d; 32 bytes of indices; of each 32 values 12 of their high bits, 3 of scale, 1 of delta"""
    d, values = _read_half(raw, 0), []
    for i in range(QK_K):
        k, qh = i // 8, _short(raw, 34 + 2 * (i // 32))
        dl = _times(d, 2 * (qh // 2**12 % 8) + 1)
        entry = _grid("IQ1_S")[raw[2 + k] + 256 * (qh // 2 ** (3 * (k % 4)) % 8)]
        values.append(_times(dl, _plus(entry[i % 8], -0.125 if qh >= 2**15 else 0.125)))
    return values


def decode_iq1_m(raw: bytes) -> list[float]:
    """dequantize_row_iq1_m: 32 bytes of indices; 32 times 3 of their high bits and delta; d in quarters, 16 scales"""
    words = [_short(raw, 48 + 2 * w) for w in range(4)]
    d, values = _read_half(struct.pack("<H", sum(word // 2**12 * 16**w for w, word in enumerate(words))), 0), []
    for i in range(QK_K):
        k = i // 8
        dl = _times(d, 2 * (words[i // 64] // 8 ** (i // 16 % 4) % 8) + 1)
        nibble = _field_of_byte(raw[32 + k // 2], k % 2 * 4, 4)
        entry = _grid("IQ1_S")[raw[k] + 256 * (nibble % 8)]
        values.append(_times(dl, _plus(entry[i % 8], -0.125 if nibble & 8 else 0.125)))
    return values


def _kvalue(nibble: int) -> int:
    return int(gguf.quants.IQ4_NL.kvalues[nibble])


def decode_iq4_nl(raw: bytes) -> list[float]:
    """dequantize_row_iq4_nl: d, 16 bytes of nibbles"""
    d, qs = _read_half(raw, 0), raw[2:18]
    return [_times(d, _kvalue(b % 16)) for b in qs] + [_times(d, _kvalue(b // 16)) for b in qs]


def decode_iq4_xs(raw: bytes) -> list[float]:
    """dequantize_row_iq4_xs: d; 2 bytes of the scales' high bits, 4 of their low ones; 128 of nibbles"""
    d, high, values = _read_half(raw, 0), _short(raw, 2), []
    for i in range(QK_K):
        g = i // 32
        scale = _field_of_byte(raw[4 + g // 2], g % 2 * 4, 4) + 16 * (high // 4**g % 4)
        byte = raw[8 + 16 * g + i % 16]
        values.append(_times(_times(d, scale - 32), _kvalue(byte // 16 if i % 32 > 15 else byte % 16)))
    return values


_DECODE: dict[str, Callable[[bytes], list[float]]] = {
    "Q4_0": decode_q4_0, "Q4_1": decode_q4_1, "Q5_0": decode_q5_0, "Q5_1": decode_q5_1,
    "Q8_0": decode_q8_0, "Q8_1": decode_q8_1,
    "Q2_K": decode_q2_k, "Q3_K": decode_q3_k, "Q4_K": decode_q4_k, "Q5_K": decode_q5_k, "Q6_K": decode_q6_k,
    "Q8_K": decode_q8_k, "TQ1_0": decode_tq1_0, "TQ2_0": decode_tq2_0, "Q1_0": decode_q1_0, "Q2_0": decode_q2_0,
    "MXFP4": decode_mxfp4, "NVFP4": decode_nvfp4,
    "IQ1_S": decode_iq1_s, "IQ1_M": decode_iq1_m, "IQ2_XXS": decode_iq2_xxs, "IQ2_XS": decode_iq2_xs,
    "IQ2_S": decode_iq2_s, "IQ3_XXS": decode_iq3_xxs, "IQ3_S": decode_iq3_s,
    "IQ4_NL": decode_iq4_nl, "IQ4_XS": decode_iq4_xs,
}  # fmt: skip
_ENCODE: dict[str, Callable[[list[float]], bytes]] = {
    "Q4_0": encode_q4_0, "Q4_1": encode_q4_1, "Q5_0": encode_q5_0, "Q5_1": encode_q5_1,
    "Q8_0": encode_q8_0, "Q8_1": encode_q8_1,
}  # fmt: skip


def decode_block(name: str, raw: bytes) -> list[float]:
    """The values of one block. Raises KeyError for a format that is not covered."""
    return _DECODE[name](raw)


def encode_block(name: str, values: list[float]) -> bytes:
    """One block of 32 float32 values, as llama.cpp's reference quantizer makes it. Raises KeyError likewise."""
    return _ENCODE[name](values)
