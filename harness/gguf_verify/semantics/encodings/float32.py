"""`float32`: activations are not changed, and multiplied as values."""

from __future__ import annotations

import numpy as np

from ..activations import Bytes, Floats
from ..encoding import Encoding


def encode_float32(x: Floats) -> Bytes:
    """Return the bytes of the values, uint8[M, 4·K]."""
    return np.ascontiguousarray(x, np.float32).view(np.uint8)


FLOAT32 = Encoding(
    name="float32",
    title="activations as they are",
    source="dequantize and multiply",
    encode=encode_float32,
    dtype="float32",
)
