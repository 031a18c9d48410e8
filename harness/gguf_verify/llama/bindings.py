"""llama-cpp-python's bindings: the C functions, and where its libraries are."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from ..support.partial_import import submodule

api = submodule("llama_cpp.llama_cpp")
#: The folder of its shared libraries.
LIBRARIES = Path(str(api.__file__)).parent / "lib"


@cache
def version() -> str:
    """Of llama-cpp-python."""
    from importlib import metadata

    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:  # on the path without being installed
        return str(import_module("llama_cpp").__version__)


__all__ = ["LIBRARIES", "api", "version"]
