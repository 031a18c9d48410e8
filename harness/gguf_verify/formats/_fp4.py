"""What the formats of 4-bit floats (E2M1) share. The codes are twice the floats, which makes them integers.

Rules: ggml/src/ggml-quants.c and ggml-impl.h (llama.cpp v0.5.0). The scales are half of what the formats' standards
say.
"""

from __future__ import annotations

import numpy as np

from .block import Bytes

#: Twice the value of each E2M1: a sign, two bits of exponent (bias 1), one of mantissa. -0 is 0.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
#: What the records name as their source.
SOURCE = "ggml-common.h, ggml-quants.c, ggml-impl.h (llama.cpp v0.5.0)"


def nibbles(qs: Bytes) -> Bytes:
    """uint8[..., n] → first the low nibbles, then the high ones, [..., 2n]."""
    return np.concatenate([qs & 0x0F, qs >> 4], axis=-1)
