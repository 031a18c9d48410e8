"""llama.cpp as the reference, in a process of its own."""

from .client import Evaluation, Gemm, Llama, LlamaRefused, Requantized, Scan

__all__ = ["Evaluation", "Gemm", "Llama", "LlamaRefused", "Requantized", "Scan"]
