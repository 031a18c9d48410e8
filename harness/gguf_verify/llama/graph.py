"""Conversion of graph nodes from llama.cpp's process to nodes of `operations`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..support.protocol import ProtocolError
from . import answers
from .node import Node, NoDefinition, Operand, span_bytes

Bytes = npt.NDArray[np.uint8]
#: Returns the bytes of a tensor in the model's file by name, or None.
WeightsOf = Callable[[str], Bytes | None]


class GraphNode(NamedTuple):
    """A node of a graph.

    Args:
        number: in the order of an evaluation's graphs, from 1, without views.
        name, operation, device: of the node, even if `node` is None.
        node: the node with its inputs and its output; None if these are not available.
        why: the reason in that case.
        file_sources: indices of sources that were taken from the model's file.
    """

    number: int
    name: str
    operation: str
    device: str
    node: Node | None
    why: str = ""
    file_sources: tuple[int, ...] = ()


def graph_node(said: answers.NodeSaid, arrays: list[npt.NDArray[Any]], weights: WeightsOf) -> GraphNode:
    """Convert a message to a node. Raises ProtocolError if the arrays are not the announced ones."""
    operation = f"{said.op} {said.variant}".strip()
    left = list(arrays)

    def without(why: str) -> GraphNode:
        return GraphNode(said.number, said.name, operation, said.device, None, why)

    sources: list[Operand | None] = []
    in_file: list[int] = []
    missing = ""
    for i, each in enumerate(said.sources):
        made: Operand | str | None = None
        if each is not None:
            try:
                made = _operand(each, left, weights)
            except NoDefinition as error:
                made = str(error)
            in_file += [i] if each.held == "file" else []
        if isinstance(made, str):
            missing = missing or made
            sources.append(None)
        else:
            sources.append(made)
    try:
        output = _operand(said.output, left, weights)
    except NoDefinition as error:
        output = str(error)
    if left:
        raise ProtocolError("arrays follow those of the node")
    if missing or isinstance(output, str):
        return without(missing or str(output))
    view_of = said.view_of if said.view_of is not None and said.view_of < len(sources) else None
    node = Node(
        said.op,
        tuple(sources),
        output,
        bytes.fromhex(said.parameters),
        said.variant,
        said.backend,
        said.device,
        view_of,
        said.name,
    )
    return GraphNode(said.number, said.name, operation, said.device, node, "", tuple(in_file))


def _operand(said: answers.TensorSaid, left: list[npt.NDArray[Any]], weights: WeightsOf) -> Operand | str:
    """Return a tensor with its bytes, or why they are not available. Raises ProtocolError; NoDefinition for a type."""
    held = None
    if said.held == "here":
        if not left:
            raise ProtocolError("an array is missing")
        held = answers.expect(left.pop(0), np.uint8, None)
    ne0, ne1, ne2, ne3 = said.ne
    nb0, nb1, nb2, nb3 = said.nb
    ne, nb = (ne0, ne1, ne2, ne3), (nb0, nb1, nb2, nb3)
    if prod(max(1, n) for n in ne) >> 48 or any(b >> 48 for b in nb):
        raise ProtocolError("a tensor has no valid size")
    size = span_bytes(said.type, ne, nb)
    if said.held == "nowhere":
        return f"the bytes of {said.name} could not be read"
    if said.held == "file":
        whole = weights(said.name)
        if whole is None:
            return f"the file has no tensor {said.name}"
        if said.offset + size > len(whole):
            return f"{said.name} is larger in the graph than in the file"
        held = whole[said.offset : said.offset + size]
    assert held is not None
    if len(held) < size:
        raise ProtocolError("a tensor has fewer bytes than its sizes")
    return Operand(said.name, said.type, ne, nb, held)
