"""One way to find what can be extended: a registry is the modules of a package.

A format, a host, a definition, a rung, a report, a fault, a kernel or a backend of llama.cpp is a record that a module
of its package defines at its top level. To add one is to add a module; nothing lists them by name.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")


def members(package: str, kind: type[T]) -> list[T]:
    """Every record of a kind that a module of a package defines at its top level, each once, by module name.

    Args:
        package: the package's full name. Its modules are imported; modules of its subpackages are not.
        kind: the records' class.

    Raises ImportError where a module cannot be imported.
    """
    folder = import_module(package).__path__
    found: dict[int, T] = {}
    for name in sorted(m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("__")):
        module = import_module(f"{package}.{name}")
        found |= {id(value): value for value in vars(module).values() if isinstance(value, kind)}
    return list(found.values())
