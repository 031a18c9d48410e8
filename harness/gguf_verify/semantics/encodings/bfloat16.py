"""`bfloat16`: activations rounded to bfloat16, and multiplied as values."""

from __future__ import annotations

import numpy as np

from ...formats import ELEMENTS
from ..activations import Bytes, Floats
from ..encoding import Encoding


def encode_bfloat16(x: Floats) -> Bytes:
    """Round to nearest even. Returns uint8[M, 2·K]."""
    rounded = ELEMENTS["BF16"].round(np.ascontiguousarray(x, np.float32))
    return (rounded.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(np.uint8)


BFLOAT16 = Encoding(
    name="bfloat16",
    title="activations rounded to bfloat16",
    source="dequantize and multiply",
    encode=encode_bfloat16,
    dtype="bfloat16",
)
