"""Check whether llama.cpp is installed. Verification compares with it; an audit can do without."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

#: Installation command. It compiles from source, which takes some minutes and a C++ compiler.
INSTALL = "pip install 'llama-cpp-python>=0.3.36'"


def why_missing() -> str | None:
    """Return None if llama-cpp-python is installed, otherwise one line that says what to do."""
    try:
        found = find_spec("llama_cpp") is not None
    except (ImportError, ValueError):
        found = False
    return None if found else f"llama.cpp, the reference, is not installed; run: {INSTALL}"


def version() -> str:
    """Return the version of llama-cpp-python, without loading llama.cpp; "none" if it is not installed."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:  # it may be on the path without being installed
        return "none" if why_missing() else str(import_module("llama_cpp").__version__)
