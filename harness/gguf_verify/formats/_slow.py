"""Plain Python for the slow decoders: one block at a time, the test of the vectorised formats.

The slow functions of a format share nothing with its vectorised ones: no NumPy, and no tables but the grids and values
of the gguf package. Each restates one function of llama.cpp v0.5.0, ggml/src/ggml-quants.c (layouts: ggml-common.h). A
C `float` is a Python float rounded by `f32`: it carries 53 bits ≥ 2·24 + 2, so rounding twice equals one float32
operation +, -, · or /.
"""

from __future__ import annotations

import math
import struct
from functools import cache

from ..support.partial_import import submodule
from .block import QK


def f32(x: float) -> float:
    """Round a double to float32; an overflow becomes infinite."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", x))[0])
    except OverflowError:
        return math.copysign(math.inf, x)


def read_half(raw: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", raw, at)[0])


def times(a: float, b: float) -> float:
    return f32(a * b)


def plus(a: float, b: float) -> float:
    return f32(a + b)


def five_bits(qh: int, qs: bytes) -> list[int]:
    codes = []
    for j in range(QK):
        nibble = qs[j] % 16 if j < 16 else qs[j - 16] // 16
        codes.append(nibble + 16 * (qh // 2**j % 2))
    return codes


def field_of_byte(byte: int, low: int, width: int) -> int:
    """Return `width` bits from bit `low` on."""
    return byte // (1 << low) % (1 << width)


def pair(qs: bytes, i: int) -> int:
    """Return two bits of value i, stored in two halves of 32 bytes."""
    return field_of_byte(qs[i // 128 * 32 + i % 32], i % 128 // 32 * 2, 2)


def nibble(qs: bytes, i: int) -> int:
    """Return four bits of value i, stored in four runs of 32 bytes."""
    return field_of_byte(qs[i // 64 * 32 + i % 32], i % 64 // 32 * 4, 4)


def bit(mask: bytes, i: int) -> int:
    return field_of_byte(mask[i % 32], i // 32, 1)


def scale_min_k4(g: int, packed: bytes) -> tuple[int, int]:
    """get_scale_min_k4"""
    if g < 4:
        return packed[g] % 64, packed[g + 4] % 64
    return packed[g + 4] % 16 + packed[g - 4] // 64 * 16, packed[g + 4] // 16 + packed[g] // 64 * 16


def digit(byte: int, n: int) -> int:
    """Return digit n in base 3 of a byte's fraction, as llama.cpp does: multiply in 8 bits, times 3, drop 8 bits."""
    return byte * int(3**n) % 256 * 3 // 256


def e2m1_doubled(nibble: int) -> int:
    """kvalues_fp4: twice a float of a sign, two bits of exponent (bias 1) and one of mantissa."""
    exponent, mantissa = nibble // 2 % 4, nibble % 2
    magnitude = (2 + mantissa) * 2 ** (exponent - 1) if exponent else mantissa
    return -magnitude if nibble & 8 else magnitude


def ue4m3_halved(byte: int) -> float:
    """ggml_ue4m3_to_fp32"""
    if byte in (0, 127):
        return 0.0
    exponent, mantissa = byte // 8 % 16, byte % 8
    return ((8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9) / 2


@cache
def grid(name: str) -> list[list[int]]:
    """Return the entries of a grid, from hexadecimal bytes of four 2-bit or two 4-bit numbers, the lowest first."""
    kind = getattr(submodule("gguf.quants"), name)
    width = 2 if len(kind.grid_map) <= 4 else 4
    packed = bytes.fromhex(kind.grid_hex.decode())
    values = [int(kind.grid_map[field_of_byte(b, low, width)]) for b in packed for low in range(0, 8, width)]
    size = kind.grid_shape[1]
    return [values[at : at + size] for at in range(0, len(values), size)]


def sign(bits: int, j: int) -> int:
    return -1 if bits // 2**j % 2 else 1


def sign_of_seven(bits: int, j: int) -> int:
    """ksigns_iq2xs: the eighth sign makes the number of negative ones even."""
    return sign(bits % 128 + 128 * (bits % 128).bit_count(), j)


def word(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", raw, at)[0])


def short(raw: bytes, at: int) -> int:
    return int(struct.unpack_from("<H", raw, at)[0])


def kvalue(nibble: int) -> int:
    return int(submodule("gguf.quants").IQ4_NL.kvalues[nibble])
