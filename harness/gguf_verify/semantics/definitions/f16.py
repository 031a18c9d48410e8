"""`f16`: activations are rounded to half, as llama.cpp's CPU backend does for weights of F16."""

from __future__ import annotations

from ..definition import ElementRounding, Semantics
from ..encodings.values import FLOAT32
from ..terms.values import VALUES

F16 = Semantics(
    name="f16",
    title="Σ half(a)·w",
    source="llama.cpp CPU (ggml-cpu/vec.cpp, llamafile/sgemm.cpp)",
    encoding=FLOAT32,
    term=VALUES,
    of_elements=True,
    # No product of two halves is below 2^-48.
    elements=ElementRounding(flushed=0.0, underflow=0.0, exact=True),
)
