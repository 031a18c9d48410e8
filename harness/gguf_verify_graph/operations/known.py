"""Every operation with a definition, by ggml's name, collected from the registry."""

from __future__ import annotations

from gguf_verify.llama.node import Node, NoDefinition
from gguf_verify.support.registry import members

from .judging import Judged
from .operation import Operation

OPERATIONS: dict[str, Operation] = {each.op: each for each in members(__package__ or "", Operation)}


def judge(node: Node) -> Judged:
    """Judge a node by its operation's definition. Raises NoDefinition."""
    operation = OPERATIONS.get(node.op)
    if operation is None:
        raise NoDefinition(f"the operation {node.operation}")
    return operation.judge(node)
