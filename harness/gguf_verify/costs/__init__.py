"""The cost of a quantization, measured against the original model: see `measure`.

Costs are reported beside a verdict and are never part of it. This package may import rungs, llama, gguf, formats,
results and support.
"""

from .costs import Text, measure, open_source, read_text

__all__ = ["Text", "measure", "open_source", "read_text"]
