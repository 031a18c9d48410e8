"""`q8_1_cpu`: llama.cpp's CPU backend for blocks with a minimum; s is computed from the activations' codes."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_1_cpu import CPU_Q8_1
from ..terms.sums import SUMS

Q8_1_CPU = Semantics(
    name="q8_1_cpu",
    title="d_w·d_a·Σ q_w·q_a + m_w·s, s = half(d_a·Σ q_a)",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    encoding=CPU_Q8_1,
    term=SUMS,
)
