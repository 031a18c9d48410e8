"""`q8_1_cpu`: llama.cpp's CPU backend for blocks with a minimum; s is computed from the activations' codes."""

from __future__ import annotations

from ...formats.c_arithmetic import to_half
from ...formats.q8_1 import Q8_1
from ..activations import Bytes, Floats, blocks_of, cpu_codes, cpu_ratios
from ..definition import Semantics
from ..encoding import Encoding
from ..terms.codes import SUMS


def encode_q8_1_cpu(x: Floats) -> Bytes:
    """Encode as `q8_0_cpu`, with s = half(d·Σq) and d before its rounding. quantize_row_q8_1 (SIMD).

    Returns:
        uint8[M, K/32·36].
    """
    d, q, s = cpu_codes(blocks_of(x))
    return Q8_1.pack(d=to_half(d), s=to_half(s), qs=q).reshape(len(x), -1)


CPU_Q8_1 = Encoding(
    name="q8_1_cpu",
    title="Q8_1: q = round(x·(127/max)), d = half(max/127), s = half(d·Σ q)",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c, quantize_row_q8_1)",
    encode=encode_q8_1_cpu,
    format=Q8_1,
    ratios=cpu_ratios,
    values_per_sum=32,
)

Q8_1_CPU = Semantics(
    name="q8_1_cpu",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(d_a·Σ q_a)",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    encoding=CPU_Q8_1,
    term=SUMS,
)
