"""`mmq_d4`: activations of llama.cpp's CUDA kernels for many tokens, layout D4: float32 scales, no sums.

The bytes here are blocks of 36, one after the other; `mmq_d4_bytes` has them as llama.cpp's kernels take them.
"""

from __future__ import annotations

from ...formats.q8_1_d4 import Q8_1_D4
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios
from ..encoding import Encoding


def encode_mmq_d4(x: Floats) -> Bytes:
    """Encode d as a float32, without a sum: the layout D4 of quantize_mmq_q8_1 (ggml-cuda/quantize.cu).

    Returns:
        uint8[M, K/32·36].
    """
    d, q = mmq_codes(blocks_of(x))
    return Q8_1_D4.pack(d=d, qs=q).reshape(len(x), -1)


D4 = Encoding(
    name="mmq_d4",
    title="blocks of 32: q = round(x·(127/max)), d = 1/(127/max), a float32; no sum",
    source="llama.cpp CUDA (ggml-cuda/quantize.cu, quantize_mmq_q8_1)",
    encode=encode_mmq_d4,
    format=Q8_1_D4,
    ratios=mmq_ratios,
    cuda_path="MMQ",
)
