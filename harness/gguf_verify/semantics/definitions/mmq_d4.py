"""`mmq_d4`: llama.cpp's CUDA kernels for many tokens, with activations in the layout D4: float32 scales, no sums.

The bytes of `mmq_d4` are blocks of 36, one after the other; `mmq_d4_bytes` has them as llama.cpp's kernels take them:
`block_q8_1_mmq`, 144 of 128 values.
"""

from __future__ import annotations

from ...formats.q8_1_d4 import Q8_1_D4
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios
from ..definition import Semantics
from ..encoding import Encoding
from ..encodings.mmq_blocks import D4_BLOCK, packed
from ..terms.codes import INTEGERS


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


def encode_mmq_d4_bytes(x: Floats) -> Bytes:
    """Return uint8[M, ceil(K/128)·144]; values past K are zeros."""
    return packed(D4.encode(x))


D4_BYTES = Encoding(
    name="mmq_d4_bytes",
    title="block_q8_1_mmq, layout D4: 4 × float32 d, 128 codes; d and codes as `mmq_d4`",
    source=D4.source,
    encode=encode_mmq_d4_bytes,
    format=D4_BLOCK,
    ratios=D4.ratios,
    rearranges=(D4, packed),
)

MMQ_D4 = Semantics(
    name="mmq_d4",
    title="d_w·d_a·Σ (q_w - offset)·q_a; q_a = round(x·(127/max)), d_a = 1/(127/max), a float32",
    source="llama.cpp CUDA MMQ on tensor cores (ggml-cuda/mmq.cuh, layout D4; quantize.cu)",
    encoding=D4,
    term=INTEGERS,
)
