"""Decoding shared by the formats of 4-bit floats (E2M1). The codes are twice the floats, which makes them integers.

Rules: ggml/src/ggml-quants.c and ggml-impl.h (llama.cpp v0.5.0). The scales are half of those in the formats'
standards.
"""

from __future__ import annotations

import numpy as np

from .block import Bytes

#: Twice the value of each E2M1: a sign, two bits of exponent (bias 1), one of mantissa. -0 is 0.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
#: The source named by the records.
SOURCE = "ggml-common.h, ggml-quants.c, ggml-impl.h (llama.cpp v0.5.0)"


def nibbles(qs: Bytes) -> Bytes:
    """Split uint8[..., n] into nibbles: first all low ones, then all high ones, [..., 2n]."""
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)
