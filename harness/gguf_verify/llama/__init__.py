"""llama.cpp as the reference, in its own process: its library, passes over files, and a model with its graph.

This package may import hosts, semantics, gguf, formats, results and support. `worker/` runs in llama.cpp's process, the
rest in ours; `backends/` holds one file for each supported backend of llama.cpp.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evaluations import Evaluation
    from .files import Requantized, Scan, Scanned, ScannerOf
    from .gemms import Gemm
    from .installed import why_missing
    from .library import Llama, WithoutLlama
    from .process import LlamaRefused

_MODULES = {
    "Evaluation": "evaluations", "Gemm": "gemms", "Llama": "library", "LlamaRefused": "process", "Requantized": "files",
    "Scan": "files", "Scanned": "files", "ScannerOf": "files", "WithoutLlama": "library", "why_missing": "installed",
}  # fmt: skip

__all__ = [
    "Evaluation", "Gemm", "Llama", "LlamaRefused", "Requantized", "Scan", "Scanned", "ScannerOf", "WithoutLlama",
    "why_missing",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a module of the parent's side when one of its names is first used: llama.cpp's process imports this
    package too, and must start quickly."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
