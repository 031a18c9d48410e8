"""gguf-verify: proves, on the bytes of a real model, that a kernel computes what llama.cpp computes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .kernels.foreign.api import Oracle, Shape, kernel
    from .results import Report
    from .verification import verify

    __version__: str

__all__ = ["Oracle", "Report", "Shape", "__version__", "kernel", "verify"]

#: What is public, and the module that defines it. It is imported when it is first asked for: llama.cpp's process and
#: the command line import this package too, and need far less of it.
_PUBLIC = {
    "Oracle": ".kernels.foreign.api", "Shape": ".kernels.foreign.api", "kernel": ".kernels.foreign.api",
    "Report": ".results", "verify": ".verification",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from .support.version import project_version

        return project_version()
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name], __name__), name)
