"""Operations that kernels fuse behind a product, one a module, with their effect on the exact result and its bound.

They may import the modules of `semantics` outside this package. The registry finds them; no list names them.
"""

from __future__ import annotations

from ...support.registry import members
from .operation import Operation

OPERATIONS: dict[str, Operation] = {o.name: o for o in sorted(members(__name__, Operation), key=lambda o: o.name)}

__all__ = ["OPERATIONS", "Operation"]
