"""`q8_0_ref`: Q8_0 as ggml's reference code quantizes, in C without SIMD."""

from __future__ import annotations

from ...formats.q8_0 import Q8_0
from ..activations import Bytes, Floats, blocks_of, reference_ratios
from ..encoding import Encoding


def encode_q8_0_ref(x: Floats) -> Bytes:
    """d = max|x|/127, q = round-half-away(x·(1/d)), d stored as a half. ggml-quants.c, quantize_row_q8_0_ref (v0.5.0).

    Returns:
        uint8[M, K/32·34].
    """
    return Q8_0.encode(blocks_of(x)).reshape(len(x), -1)


REFERENCE_Q8_0 = Encoding(
    name="q8_0_ref",
    title="Q8_0: d = max/127, q = round(x·(1/d)); no sum",
    source="ggml's reference code (ggml-quants.c, quantize_row_q8_0_ref)",
    encode=encode_q8_0_ref,
    format=Q8_0,
    ratios=reference_ratios,
)
