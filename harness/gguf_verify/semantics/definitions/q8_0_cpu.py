"""`q8_0_cpu`: llama.cpp's CPU backend for blocks of 32 to 128 values without minima."""

from __future__ import annotations

from ..definition import Semantics
from ..encodings.q8_0_cpu import CPU_Q8_0
from ..terms.integers_apart import INTEGERS_APART

Q8_0_CPU = Semantics(
    name="q8_0_cpu",
    title="d_w·d_a·Σ (q_w - offset)·q_a",
    source="llama.cpp CPU (ggml-cpu/arch/x86/quants.c)",
    encoding=CPU_Q8_0,
    term=INTEGERS_APART,
)
