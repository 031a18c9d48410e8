"""Registries of everything extensible: a registry is the modules of a package.

A format, a host, a definition, a rung, a report, a fault, a kernel or a backend of llama.cpp is a record at the top
level of a module. To add one, add a module to its package; nothing lists them by name.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")


def members(package: str, kind: type[T]) -> list[T]:
    """Return every record of a class that modules of a package define at top level, each once, by module name.

    Args:
        package: the package's full name. Its modules are imported; modules of its subpackages are not.
        kind: the records' class.

    Raises ImportError if a module cannot be imported.
    """
    folder = import_module(package).__path__
    found: dict[int, T] = {}
    for name in sorted(m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("__")):
        module = import_module(f"{package}.{name}")
        found |= {id(value): value for value in vars(module).values() if isinstance(value, kind)}
    return list(found.values())
