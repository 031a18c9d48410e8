"""`f16`: activations are rounded to half, as llama.cpp's CPU backend does for weights of F16."""

from __future__ import annotations

from ..definition import ElementRounding, Semantics

F16 = Semantics(
    name="f16",
    title="Σ half(a)·w",
    source="llama.cpp CPU (ggml-cpu/vec.cpp, llamafile/sgemm.cpp)",
    of_elements=True,
    # no product of two halves is below 2^-48
    elements=ElementRounding(flushed=0.0, underflow=0.0, exact=True),
)
