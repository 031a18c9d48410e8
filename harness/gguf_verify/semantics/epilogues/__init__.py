"""Operations that kernels fuse behind a product, one a module: what each adds to the exact result and to its bound.

They import what lies beside this room in `semantics`. Nothing lists them by name: the registry finds them.
"""

from __future__ import annotations

from ...support.registry import members
from .operation import Operation

OPERATIONS: dict[str, Operation] = {o.name: o for o in sorted(members(__name__, Operation), key=lambda o: o.name)}

__all__ = ["OPERATIONS", "Operation"]
