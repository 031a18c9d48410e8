"""Q8_1_D4: 32 signed bytes of activations under one float32 scale, as MMQ quantizes them in its layout D4.

It is one of the four blocks in a `block_q8_1_mmq` of llama.cpp's CUDA backend (ggml-cuda/mmq.cuh), with its scale and
its codes put together. No file contains it, and ggml has no number for it.
"""

from __future__ import annotations

import struct

from . import _slow as slow
from ._legacy import SIGNED_BYTES, read_bytes
from .block import NO_TYPE_ID, QK, BlockFormat
from .layout import Bits, Field, each


def _slow_decode(raw: bytes) -> list[float]:
    """q·d as in Q8_0: llama.cpp has no function for it."""
    (d,) = struct.unpack_from("<f", raw, 0)
    return [slow.times(q, d) for q in struct.unpack_from("<32b", raw, 4)]


Q8_1_D4 = BlockFormat(
    name="Q8_1_D4",
    type_id=NO_TYPE_ID,
    block_size=QK,
    fields=(Field("d", "<f4", 1, "scale", each(1, Bits(32, "scale"))), SIGNED_BYTES),
    bits=8,
    low=-128,
    source="ggml-cuda/mmq.cuh, quantize.cu (llama.cpp v0.5.0)",
    read_codes=read_bytes,
    slow_decode=_slow_decode,
    activations=True,
)
