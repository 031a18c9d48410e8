"""llama.cpp as the reference, in a process of its own."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Evaluation, Gemm, Gpu, Llama, LlamaRefused, Requantized, Scan, Scanned, ScannerOf

__all__ = ["Evaluation", "Gemm", "Gpu", "Llama", "LlamaRefused", "Requantized", "Scan", "Scanned", "ScannerOf"]


def __getattr__(name: str) -> Any:
    """The parent's side, when it is first asked for: llama.cpp's process imports this package too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import client

    return getattr(client, name)
