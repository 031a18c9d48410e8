"""What the operations of llama.cpp's graphs should compute: definitions, exact results in float64, bounds.

It imports `semantics`, `formats` and `support`. An operation, or a family that shares its arithmetic, is one module
that defines `Operation` records; `OPERATIONS` has them by ggml's name. Nothing here computes by ggml.
"""

from __future__ import annotations

from ..support.registry import members
from .judging import Judged
from .node import Node, NoDefinition, Operand, parameters
from .operation import Operation

OPERATIONS: dict[str, Operation] = {each.op: each for each in members(__name__, Operation)}
#: Nodes that compute nothing: their result is a view of a tensor, which a later node uses.
VIEWS = ("NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE")


def judge(node: Node) -> Judged:
    """Judge a node by its operation. Raises NoDefinition."""
    operation = OPERATIONS.get(node.op)
    if operation is None:
        raise NoDefinition(f"the operation {node.operation}")
    return operation.judge(node)


__all__ = ["OPERATIONS", "VIEWS", "Judged", "NoDefinition", "Node", "Operand", "Operation", "judge", "parameters"]
