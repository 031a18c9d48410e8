"""gguf-verify: proves, on the bytes of a real model, that a kernel computes what llama.cpp computes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .verification import Report, verify

__all__ = ["Report", "verify"]


def __getattr__(name: str) -> Any:
    """What is public, when it is first asked for: llama.cpp's process and the command line import less than all."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import verification

    return getattr(verification, name)
