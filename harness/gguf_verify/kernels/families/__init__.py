"""The families of kernels, one module each, found through the registry.

A module here defines a `Family`; it imports that record and nothing above it.
"""

from __future__ import annotations

from ...results.options import DEFAULT_KERNEL
from ...support.registry import members
from ..family import Family

#: Keyed by name, the default first.
FAMILIES: dict[str, Family] = {
    f.name: f for f in sorted(members(__name__, Family), key=lambda f: (f.name != DEFAULT_KERNEL, f.name))
}

__all__ = ["DEFAULT_KERNEL", "FAMILIES"]
