"""Import of one module of a package without running the package's `__init__`.

`import gguf` and `import llama_cpp` also load YAML, chat templates, caches and their libraries, which neither an audit
nor llama.cpp's process uses. Loading them would take a quarter of the time of an audit of a small model.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from threading import Lock
from types import ModuleType

_lock = Lock()
#: Package → its modules imported here. They are kept out of `sys.modules`, so that a later import of the package itself
#: runs completely.
_parts: dict[str, dict[str, ModuleType]] = {}


def submodule(name: str) -> ModuleType:
    """Import `package.module` without running its package, unless that is already imported. Raises ImportError."""
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
