"""TQ1_0: 256 values of -1, 0 and 1 under one half scale, five to a byte, which is a fraction written in base 3."""

from __future__ import annotations

import numpy as np

from ..support.arrays import beside
from . import _slow as slow
from ._legacy import D
from .block import QK_K, BlockFormat, Bytes, Codes, Structs
from .layout import Bits, Field, Items
from .llama_products import LlamaProducts

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def _trits(packed: Bytes, count: int) -> Bytes:
    """Unpack uint8[..., n] to digits [..., count·n]: the first digit of each byte, then the second of each, and so on.

    A byte b stands for the fraction b/256. Its digit n in base 3 is the whole part of 3·frac(3^n·b/256).
    """
    fraction = packed[..., None, :] * beside(packed, _POWERS[:count])  # wraps at 256, which leaves the fraction
    digits = fraction.astype(np.uint16) * 3 >> 8
    return digits.astype(np.uint8).reshape(*packed.shape[:-1], count * packed.shape[-1])


def _read_codes(structs: Structs) -> Codes:
    qs = structs["qs"]
    trits = [_trits(qs[..., :32], 5), _trits(qs[..., 32:], 5), _trits(structs["qh"], 4)]
    return np.concatenate(trits, axis=-1).astype(np.int8) - np.int8(1)


def _trit_items(items: range, first: int, count: int) -> Items:
    """Return a layout without single bits: every bit of a byte depends on all of its values."""
    step = len(items)
    values = ", ".join(f"x[j+{first + n * step}]" if first + n * step else "x[j]" for n in range(count))
    return Items(items, (Bits(8, f"base 3: {values}"),))


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_tq1_0: 32 and 16 bytes of five digits, 4 of four, d"""
    d = slow.read_half(raw, 52)
    codes = [slow.digit(byte, n) for n in range(5) for byte in raw[:32]]
    codes += [slow.digit(byte, n) for n in range(5) for byte in raw[32:48]]
    codes += [slow.digit(byte, n) for n in range(4) for byte in raw[48:52]]
    return [slow.times(q - 1, d) for q in codes]


TQ1_0 = BlockFormat(
    name="TQ1_0",
    type_id=34,
    file_type=36,
    block_size=QK_K,
    fields=(
        Field(
            "qs",
            "u1",
            48,
            "five values a byte: the digits of byte/256 in base 3",
            (_trit_items(range(32), 0, 5), _trit_items(range(32, 48), 160, 5)),
        ),
        Field("qh", "u1", 4, "four values a byte: the digits of byte/256 in base 3", (_trit_items(range(4), 240, 4),)),
        D,
    ),
    bits=2,
    group=QK_K,
    low=-1,
    zero=1,
    rule="x = d·q, q = floor(3·frac(3^n·byte/256)) - 1",
    read_codes=_read_codes,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu"),
)
