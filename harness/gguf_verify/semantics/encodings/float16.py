"""`float16`: activations rounded to half, and multiplied as values."""

from __future__ import annotations

import numpy as np

from ..activations import Bytes, Floats
from ..encoding import Encoding


def encode_float16(x: Floats) -> Bytes:
    """Round to nearest even; beyond 65504 to infinity. Returns uint8[M, 2·K]."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(x, np.float32).astype(np.float16).view(np.uint8)


FLOAT16 = Encoding(
    name="float16",
    title="activations rounded to half",
    source="dequantize and multiply",
    encode=encode_float16,
    dtype="float16",
)
