"""F32: a weight is an IEEE float of 32 bits."""

from __future__ import annotations

import numpy as np

from .element import ON_CUDA, Bytes, ElementFormat, Floats
from .llama_products import LlamaProducts


def _read(raw: Bytes) -> Floats:
    return raw.view("<f4").astype(np.float32)


def _round(x: Floats) -> Floats:
    return x


F32 = ElementFormat(
    name="F32",
    type_id=0,
    file_type=0,
    words="<u4",
    exponent=8,
    mantissa=23,
    doc="a float",
    read=_read,
    round=_round,
    to_float=False,
    llama=LlamaProducts(cpu="f32", no_mmvq=ON_CUDA, no_mmq=ON_CUDA),
)
