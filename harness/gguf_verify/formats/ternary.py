"""Formats of one to three values a code under one half scale for 64, 128 or 256 values: Q1_0, Q2_0, TQ1_0 and TQ2_0.

Layouts: ggml/src/ggml-common.h. Rules: ggml/src/ggml-quants.c, `dequantize_row_*` (llama.cpp v0.5.0). Zero points and
signs are part of the codes.
"""

from __future__ import annotations

import numpy as np

from .block import BlockFormat, Bytes, Codes, Field, Items, Run, Structs, each
from .kquants import PAIRS_DOC, QK_K, pairs_by_128, pairs_layout

_SOURCE = "ggml-common.h, ggml-quants.c (llama.cpp v0.5.0)"
_D = Field("d", "<f2", 1, "scale", each(1, Run(16, "scale")))

# -- Q1_0, Q2_0 --------------------------------------------------------------------------------------------------------


def _read_q1_0(structs: Structs) -> Codes:
    bits = np.unpackbits(structs["qs"], axis=-1, bitorder="little")
    return np.asarray(2 * bits.astype(np.int8) - np.int8(1))


def _read_q2_0(structs: Structs) -> Codes:
    q = (structs["qs"][..., None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
    return np.asarray(q.astype(np.int8) - np.int8(1)).reshape(*structs.shape, 64)


Q1_0 = BlockFormat(
    "Q1_0", 41, 128,
    (
        _D,
        Field("qs", "u1", 16, "a sign for each value, in order: 0 is -1, 1 is +1",
              each(16, *(Run(1, "x", i, step=8) for i in range(7, -1, -1)))),
    ),
    2, 0, _SOURCE, _read_q1_0, group=128, low=-1, rule="x = d·q, q = 2·bit - 1",
)  # fmt: skip

Q2_0 = BlockFormat(
    "Q2_0", 42, 64,
    (
        _D,
        Field("qs", "u1", 16, "codes in order, four a byte",
              each(16, *(Run(2, "x", i, step=4) for i in range(3, -1, -1)))),
    ),
    2, 0, _SOURCE, _read_q2_0, group=64, low=-1, zero=1, rule="x = d·q, q = bits - 1",
)  # fmt: skip

# -- TQ1_0, TQ2_0 ------------------------------------------------------------------------------------------------------

_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]


def _trits(packed: Bytes, count: int) -> Bytes:
    """uint8[..., n] → digits [..., count·n], the first of each byte, the second of each, and so on.

    A byte b stands for the fraction b/256. Its digit n in base 3 is the whole part of 3·frac(3^n·b/256).
    """
    fraction = packed[..., None, :] * _POWERS[:count]  # wraps at 256, which leaves the fraction
    digits = fraction.astype(np.uint16) * 3 >> 8
    return digits.astype(np.uint8).reshape(*packed.shape[:-1], count * packed.shape[-1])


def _read_tq1_0(structs: Structs) -> Codes:
    qs = structs["qs"]
    trits = [_trits(qs[..., :32], 5), _trits(qs[..., 32:], 5), _trits(structs["qh"], 4)]
    return np.asarray(np.concatenate(trits, axis=-1).astype(np.int8) - np.int8(1))


def _read_tq2_0(structs: Structs) -> Codes:
    return np.asarray(pairs_by_128(structs["qs"]).astype(np.int8) - np.int8(1))


def _trit_items(items: range, first: int, count: int) -> Items:
    """All values of a byte meet in all of its bits: no bit is one value's."""
    step = len(items)
    values = ", ".join(f"x[j+{first + n * step}]" if first + n * step else "x[j]" for n in range(count))
    return Items(items, (Run(8, f"base 3: {values}"),))


TQ1_0 = BlockFormat(
    "TQ1_0", 34, QK_K,
    (
        Field("qs", "u1", 48, "five values a byte: the digits of byte/256 in base 3",
              (_trit_items(range(32), 0, 5), _trit_items(range(32, 48), 160, 5))),
        Field("qh", "u1", 4, "four values a byte: the digits of byte/256 in base 3",
              (_trit_items(range(4), 240, 4),)),
        _D,
    ),
    2, 0, _SOURCE, _read_tq1_0, group=QK_K, low=-1, zero=1,
    rule="x = d·q, q = floor(3·frac(3^n·byte/256)) - 1",
)  # fmt: skip

TQ2_0 = BlockFormat(
    "TQ2_0", 35, QK_K, (Field("qs", "u1", 64, PAIRS_DOC, pairs_layout()), _D),
    2, 0, _SOURCE, _read_tq2_0, group=QK_K, low=-1, zero=1, rule="x = d·q, q = bits - 1",
)  # fmt: skip
