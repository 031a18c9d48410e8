"""`q8_1_cpu`: llama.cpp's CPU backend for blocks with a minimum; s is made of the activations' codes."""

from __future__ import annotations

from ...formats.c_arithmetic import to_half
from ...formats.q8_1 import Q8_1
from ..activations import Bytes, Floats, blocks_of, cpu_codes, cpu_ratios
from ..definition import Semantics


def encode_q8_1_cpu(x: Floats) -> Bytes:
    """As `q8_0_cpu`, and s = half(d·Σq) with d before its rounding. quantize_row_q8_1 (SIMD).

    Returns:
        uint8[M, K/32·36].
    """
    d, q, s = cpu_codes(blocks_of(x))
    return Q8_1.pack(d=to_half(d), s=to_half(s), qs=q).reshape(len(x), -1)


Q8_1_CPU = Semantics(
    name="q8_1_cpu",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(d_a·Σ q_a)",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    activations=Q8_1,
    encode=encode_q8_1_cpu,
    ratios=cpu_ratios,
)
