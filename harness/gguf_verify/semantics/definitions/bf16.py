"""`bf16`: activations are rounded to bfloat16, as llama.cpp's CPU backend does for weights of BF16."""

from __future__ import annotations

from ..definition import ElementRounding, Semantics
from ..encodings.values import FLOAT32
from ..terms.values import VALUES

BF16 = Semantics(
    name="bf16",
    title="Σ bfloat16(a)·w",
    source="llama.cpp CPU (ggml-cpu/vec.cpp, llamafile/sgemm.cpp)",
    encoding=FLOAT32,
    term=VALUES,
    of_elements=True,
    # AVX512-BF16 treats subnormal operands as zero and flushes subnormal results.
    elements=ElementRounding(flushed=2.0**-126, underflow=2.0**-125, exact=True),
)
