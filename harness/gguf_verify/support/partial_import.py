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
#: By package, the modules that were imported here and that `sys.modules` does not know: whoever imports the package
#: itself gets all of it, from its beginning.
_parts: dict[str, dict[str, ModuleType]] = {}


def submodule(name: str) -> ModuleType:
    """The module `package.module`, its package not run unless it already was. Raises ImportError."""
    package = name.partition(".")[0]
    with _lock:
        if package in sys.modules:
            return import_module(name)
        parts = _parts.setdefault(package, {})
        if name in parts:
            return parts[name]
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        sys.modules |= {package: importlib.util.module_from_spec(spec), **parts}
        try:
            return import_module(name)
        finally:
            for key in [k for k in sys.modules if k == package or k.startswith(f"{package}.")]:
                parts[key] = sys.modules.pop(key)
            del parts[package]


__all__ = ["submodule"]
