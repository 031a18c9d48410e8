"""Activations as values, which are multiplied as they are: float32, or rounded to half or bfloat16."""

from __future__ import annotations

import numpy as np

from ...formats.tensor_types import ELEMENTS
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
