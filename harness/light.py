"""Imports of a part of a package, without the rest of it.

`import gguf` and `import llama_cpp` also run what neither an audit nor llama.cpp's process has a use for (YAML, chat
templates, caches and their libraries): a quarter of the time that an audit of a small model takes.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from threading import Lock
from types import ModuleType

_lock = Lock()


def submodule(name: str) -> ModuleType:
    """The module `package.module`, its package not run. Raises ImportError."""
    package = name.partition(".")[0]
    with _lock:
        if package in sys.modules:
            return import_module(name)
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        sys.modules[package] = importlib.util.module_from_spec(spec)
        try:
            return import_module(name)
        finally:
            del sys.modules[package]  # whoever imports it later gets all of it


__all__ = ["submodule"]
