"""Definitions of the operations in llama.cpp's graphs: exact results in float64 and their error bounds.

The package imports `semantics`, `formats` and `support`. One module defines one operation, or a family that shares its
arithmetic, as `Operation` records; `OPERATIONS` maps ggml's names to them. Nothing here calls ggml.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gguf_verify.llama.node import Node, NoDefinition, Operand, parameters

if TYPE_CHECKING:
    from .judging import Judged
    from .known import OPERATIONS, judge
    from .operation import Operation

#: Nodes that compute nothing: the result is a view of a tensor, used by a later node.
VIEWS = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")
_MODULES = {"OPERATIONS": "known", "judge": "known", "Judged": "judging", "Operation": "operation"}

__all__ = ["OPERATIONS", "VIEWS", "Judged", "NoDefinition", "Node", "Operand", "Operation", "judge", "parameters"]


def __getattr__(name: str) -> Any:
    """Import the operations on first use: code that only passes nodes on does not need them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
