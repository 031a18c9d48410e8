"""What a quantization costs, measured against the model that it was made from: see `measure`.

The costs are reported beside a verdict and never part of one. The room may import rungs, llama, gguf, formats, results
and support.
"""

from .costs import Text, measure, open_source, read_text

__all__ = ["Text", "measure", "open_source", "read_text"]
