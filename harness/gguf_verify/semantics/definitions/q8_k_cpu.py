"""`q8_k_cpu`: llama.cpp's CPU backend for superblocks of 256 values."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_k_cpu import CPU_Q8_K
from ..terms.integers_apart import INTEGERS_APART

Q8_K_CPU = Semantics(
    name="q8_k_cpu",
    title="d_w·d_a·Σ q_w·q_a + m_w·d_a·Σ q_a, activations in blocks of 256",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    encoding=CPU_Q8_K,
    term=INTEGERS_APART,
)
