"""`q8_0_cpu`: llama.cpp's CPU backend for blocks of 32 to 128 values without minima."""

from __future__ import annotations

from ...formats.c_arithmetic import to_half
from ...formats.q8_0 import Q8_0
from ..activations import Bytes, Floats, blocks_of, cpu_codes, cpu_ratios
from ..definition import Semantics
from ..encoding import Encoding
from ..terms.codes import INTEGERS_APART


def encode_q8_0_cpu(x: Floats) -> Bytes:
    """Encode d = half(max|x|/127), without a sum. llama.cpp v0.5.0, ggml-cpu, quantize_row_q8_0 (SIMD).

    Returns:
        uint8[M, K/32·34].
    """
    d, q, _ = cpu_codes(blocks_of(x))
    return Q8_0.pack(d=to_half(d), qs=q).reshape(len(x), -1)


CPU_Q8_0 = Encoding(
    name="q8_0_cpu",
    title="Q8_0: q = round(x·(127/max)), d = half(max/127); no sum",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c, quantize_row_q8_0)",
    encode=encode_q8_0_cpu,
    format=Q8_0,
    ratios=cpu_ratios,
)

Q8_0_CPU = Semantics(
    name="q8_0_cpu",
    title="d_w·d_a·Σ (q_w - offset)·q_a",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    encoding=CPU_Q8_0,
    term=INTEGERS_APART,
)
