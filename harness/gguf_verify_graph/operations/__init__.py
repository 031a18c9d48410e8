"""What the operations of llama.cpp's graphs should compute: definitions, exact results in float64, bounds.

It imports `semantics`, `formats` and `support`. An operation, or a family that shares its arithmetic, is one module
that defines `Operation` records; `OPERATIONS` has them by ggml's name. Nothing here computes by ggml.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gguf_verify.llama.node import Node, NoDefinition, Operand, parameters

if TYPE_CHECKING:
    from .judging import Judged
    from .known import OPERATIONS, judge
    from .operation import Operation

#: Nodes that compute nothing: their result is a view of a tensor, which a later node uses.
VIEWS = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
_MODULES = {"OPERATIONS": "known", "judge": "known", "Judged": "judging", "Operation": "operation"}

__all__ = ["OPERATIONS", "VIEWS", "Judged", "NoDefinition", "Node", "Operand", "Operation", "judge", "parameters"]


def __getattr__(name: str) -> Any:
    """Import the operations when one of them is first used: whoever passes nodes on needs none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
