"""Records of a graph's nodes: operation, operands and parameters, without values."""

from __future__ import annotations

from gguf_verify.backend_results import GraphStep
from gguf_verify.llama.graph import GraphNode
from gguf_verify.support.text import printable

from ..operations import Operand
from ..operations.parameter_names import named_parameters


def step_of(given: GraphNode) -> GraphStep:
    """Return the record of a node; only its operation and name if its inputs could not be read."""
    operation, name, node = printable(given.operation, 100), printable(given.name, 100), given.node
    if node is None:
        return GraphStep(operation, name)
    sources = tuple("" if source is None else described(source) for source in node.sources)
    return GraphStep(operation, name, described(node.output), sources, named_parameters(node.op, node.parameters))


def described(operand: Operand) -> str:
    """Describe a tensor: name, type and sizes in ggml's order."""
    sizes = " × ".join(map(str, operand.ne))
    gaps = "" if operand.contiguous else ", not contiguous"
    return f"{printable(operand.name, 64)} {operand.type} [{sizes}]{gaps}".strip()
