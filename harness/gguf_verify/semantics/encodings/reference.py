"""Q8_0 and Q8_1 as ggml's reference code quantizes, in C without SIMD: the s of Q8_1 is computed from the codes."""

from __future__ import annotations

from ...formats.q8_0 import Q8_0
from ...formats.q8_1 import Q8_1
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


def encode_q8_1_ref(x: Floats) -> Bytes:
    """Encode as `q8_0_ref`, with s = half(d·Σq) and d before its rounding. ggml-quants.c, quantize_row_q8_1_ref
    (v0.5.0).

    Returns:
        uint8[M, K/32·36].
    """
    return Q8_1.encode(blocks_of(x)).reshape(len(x), -1)


REFERENCE_Q8_1 = Encoding(
    name="q8_1_ref",
    title="Q8_1: d = max/127, q = round(x·(1/d)), s = half(d·Σ q)",
    source="ggml's reference code (ggml-quants.c, quantize_row_q8_1_ref)",
    encode=encode_q8_1_ref,
    format=Q8_1,
    ratios=reference_ratios,
    values_per_sum=32,
)
