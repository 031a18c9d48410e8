"""TQ2_0: 256 values of 2 bits less 1 under one half scale."""

from __future__ import annotations

import numpy as np

from . import _slow as slow
from ._k_quants import PAIRS_DOC, pairs_by_128, pairs_layout
from ._legacy import D
from .block import QK_K, BlockFormat, Codes, Structs
from .layout import Field
from .llama_products import LlamaProducts


def _read_codes(structs: Structs) -> Codes:
    return pairs_by_128(structs["qs"]).astype(np.int8) - np.int8(1)


def _slow_decode(raw: bytes) -> list[float]:
    """dequantize_row_tq2_0: 64 bytes of codes, d"""
    d = slow.read_half(raw, 64)
    return [slow.times(slow.pair(raw, i) - 1, d) for i in range(QK_K)]


TQ2_0 = BlockFormat(
    name="TQ2_0",
    type_id=35,
    file_type=37,
    block_size=QK_K,
    fields=(Field("qs", "u1", 64, PAIRS_DOC, pairs_layout()), D),
    bits=2,
    group=QK_K,
    low=-1,
    zero=1,
    rule="x = d·q, q = bits - 1",
    read_codes=_read_codes,
    slow_decode=_slow_decode,
    llama=LlamaProducts(cpu="q8_k_cpu"),
)
