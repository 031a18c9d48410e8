"""BF16: a weight is a bfloat16, the high half of an IEEE float of 32 bits."""

from __future__ import annotations

import numpy as np

from .element import ON_CUDA, Bytes, ElementFormat, Floats
from .llama_products import LlamaProducts


def _read(raw: Bytes) -> Floats:
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _round(x: Floats) -> Floats:
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


BF16 = ElementFormat(
    name="BF16",
    type_id=30,
    file_type=32,
    words="<u2",
    exponent=8,
    mantissa=7,
    doc="a bfloat16, the high half of a float",
    read=_read,
    round=_round,
    llama=LlamaProducts(cpu="bf16", no_mmvq=ON_CUDA, no_mmq=ON_CUDA),
)
