"""F16: a weight is an IEEE half, a float of 16 bits."""

from __future__ import annotations

import numpy as np

from .element import ON_CUDA, Bytes, ElementFormat, Floats
from .llama_products import LlamaProducts


def _read(raw: Bytes) -> Floats:
    return raw.view("<f2").astype(np.float32)


def _round(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


F16 = ElementFormat(
    name="F16",
    type_id=1,
    file_type=1,
    words="<u2",
    exponent=5,
    mantissa=10,
    doc="a half",
    read=_read,
    round=_round,
    llama=LlamaProducts(cpu="f16", no_mmvq=ON_CUDA, no_mmq=ON_CUDA),
)
