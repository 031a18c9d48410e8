"""A graph's nodes as records: what is computed of what, without the values."""

from __future__ import annotations

from gguf_verify.backend_results import GraphStep
from gguf_verify.llama.graph import GraphNode
from gguf_verify.support.text import printable

from ..operations import Operand
from ..operations.parameter_names import named_parameters


def step_of(given: GraphNode) -> GraphStep:
    """The record of a node; of one whose inputs could not be read, its operation and its name alone."""
    operation, name, node = printable(given.operation, 100), printable(given.name, 100), given.node
    if node is None:
        return GraphStep(operation, name)
    sources = tuple("" if source is None else described(source) for source in node.sources)
    return GraphStep(operation, name, described(node.output), sources, named_parameters(node.op, node.parameters))


def described(operand: Operand) -> str:
    """A tensor's name, type and sizes, in ggml's order."""
    sizes = " × ".join(map(str, operand.ne))
    gaps = "" if operand.contiguous else ", not contiguous"
    return f"{printable(operand.name, 64)} {operand.type} [{sizes}]{gaps}".strip()
