"""Definitions of the operations in llama.cpp's graphs: exact results in float64 and their error bounds.

The package imports `semantics`, `formats` and `support`. A module defines one operation, or a family that shares its
arithmetic, as `Operation` records with the names that ggml gives them: `grep -r "^ROPE = "` finds ROPE. `OPERATIONS`
maps these names to the records. Modules without records hold arithmetic that several operations share. Nothing here
calls ggml.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gguf_verify.llama.node import Node, NoDefinition, Operand, parameters
from gguf_verify.support.registry import members

from .judging import Judged, Operation

if TYPE_CHECKING:
    OPERATIONS: dict[str, Operation]

#: Nodes that compute nothing: the result is a view of a tensor, used by a later node.
VIEWS = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")

__all__ = ["OPERATIONS", "VIEWS", "Judged", "NoDefinition", "Node", "Operand", "Operation", "judge", "parameters"]


@cache
def _operations() -> dict[str, Operation]:
    """Return every operation, by ggml's name."""
    return {each.op: each for each in members(__name__, Operation)}


def __getattr__(name: str) -> Any:
    """Import the operations on first use: code that only passes nodes on does not need them."""
    if name == "OPERATIONS":
        return _operations()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def judge(node: Node) -> Judged:
    """Judge a node by its operation's definition. Raises NoDefinition."""
    operation = _operations().get(node.op)
    if operation is None:
        raise NoDefinition(f"the operation {node.operation}")
    return operation.judge(node)
