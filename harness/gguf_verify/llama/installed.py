"""Whether llama.cpp is installed: what is verified is compared with it, but a file can be audited without."""

from __future__ import annotations

from importlib import import_module, metadata
from importlib.util import find_spec

#: What installs it. It is compiled from source, which takes some minutes and a C++ compiler.
INSTALL = "pip install 'llama-cpp-python>=0.3.36'"


def why_missing() -> str | None:
    """None where llama-cpp-python is installed, else one line that says what to do."""
    try:
        found = find_spec("llama_cpp") is not None
    except (ImportError, ValueError):
        found = False
    return None if found else f"llama.cpp is not installed, which everything is compared with; run: {INSTALL}"


def version() -> str:
    """Of llama-cpp-python; "none" where it is not installed. llama.cpp itself is not loaded for it."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:  # it may be on the path without being installed
        return "none" if why_missing() else str(import_module("llama_cpp").__version__)
