"""`mmq_d4`: llama.cpp's CUDA kernels for many tokens, with activations in the layout D4: float32 scales, no sums."""

from __future__ import annotations

from ...formats import BlockFormat
from ...formats.q8_1_d4 import Q8_1_D4
from ..activations import Bytes, Floats, blocks_of, mmq_codes, mmq_ratios
from ..definition import Semantics


def encode_mmq_d4(x: Floats) -> Bytes:
    """d as a float32, no sum: the layout D4 of quantize_mmq_q8_1 (ggml-cuda/quantize.cu).

    Returns:
        uint8[M, K/32·36].
    """
    d, q = mmq_codes(blocks_of(x))
    return Q8_1_D4.pack(d=d, qs=q).reshape(len(x), -1)


def _offset_of_integers(fmt: BlockFormat) -> bool:
    return fmt.offset != 0 and fmt.llama.mmq == "mmq_d4"


MMQ_D4 = Semantics(
    name="mmq_d4",
    title="d_w·d_a·Σ (q_w - offset)·q_a; q_a = round(x·(127/max)), d_a = 1/(127/max), a float32",
    source="llama.cpp CUDA MMQ on tensor cores (ggml-cuda/mmq.cuh, layout D4; quantize.cu)",
    activations=Q8_1_D4,
    encode=encode_mmq_d4,
    ratios=mmq_ratios,
    integer_offset=_offset_of_integers,
    cuda_path="MMQ",
)
