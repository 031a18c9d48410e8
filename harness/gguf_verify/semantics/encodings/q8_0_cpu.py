"""`q8_0_cpu`: Q8_0 as llama.cpp's CPU backend quantizes activations."""

from __future__ import annotations

from ...formats.c_arithmetic import to_half
from ...formats.q8_0 import Q8_0
from ..activations import Bytes, Floats, blocks_of, cpu_codes, cpu_ratios
from ..encoding import Encoding


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
