"""Reporting of a graph's products to the parent as they are computed, and replacement by its answers."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from ...support.checksums import crc32_of
from ...support.command_line import cores
from ...support.lanes import Lanes
from .. import ggml
from ..backends.device import Device, Product
from . import nodes
from .calls import CallFailed
from .listener import Listener

#: GGML_OP_NONE: such a node is not computed.
_NOTHING = 0


class Tap(Listener):
    """Reports products with weights; `seen` lists other uses of weights in the graph.

    Args:
        lanes: for the arrays of products, and of answers.
        device: where the model is loaded.
        replaces: the parent's answer is the output with which the graph continues.
        activations: ggml types in which to report activations too.
        spared: tensors for whose products the parent always gives the output: on the CPU they are not computed.
        checksum: report the crc32 of the weights too.
        ahead: number of unanswered products while the graph continues.
    """

    def __init__(
        self,
        link: Connection,
        lanes: Lanes | None,
        device: Device,
        replaces: bool,
        activations: Sequence[int] = (),
        checksum: bool = False,
        ahead: int = 0,
        spared: Sequence[str] = (),
    ) -> None:
        super().__init__(link, lanes, 0 if replaces else ahead)
        self._device, self._replaces, self._activations, self._checksum = device, replaces, activations, checksum
        self._spared = frozenset(spared if replaces else ())
        #: A node whose operation is skipped, and that operation.
        self._left_out: tuple[Any, int] | None = None

    def _wanted(self, t: Any) -> bool:
        """Whether a node is a product with weights that can be split."""
        node = t.contents
        if not node.src[0] or not nodes.is_computed(node):
            return False
        op = ggml.ggml_op_name(node.op).decode()
        w = node.src[0].contents
        traits = ggml.ggml_get_type_traits(w.type).contents
        self._note_uses(node, op)
        if op not in nodes.PRODUCTS or not (traits.is_quantized or ggml.is_weight(node.src[0])):
            return False  # an unquantized operand may be a cache or a result, as in attention
        if not traits.is_quantized and w.type not in nodes.ELEMENTS:
            why: str | None = f"products with {traits.type_name.decode()} are not covered"
        else:
            why = nodes.obstacle(node)
        if why is not None:
            self.seen["unsupported"][nodes.weights_name(w)] = why
        elif nodes.weights_name(w) in self._spared and _on_cpu(node.src[0]):
            self._left_out, node.op = (node, node.op), _NOTHING
        return why is None

    def _note_uses(self, node: Any, op: str) -> None:
        """Record uses of weights other than in products with activations."""
        for i, source in enumerate(node.src):
            if not source:
                break
            if (i == 0 and op in nodes.PRODUCTS) or not ggml.is_weight(source):
                continue
            name = nodes.weights_name(source.contents)
            if op == "GET_ROWS":
                kind = ggml.ggml_get_type_traits(source.contents.type).contents.type_name
                self.seen["lookup"][name] = kind.decode()
            elif op not in self.seen["used"].setdefault(name, []):
                self.seen["used"][name].append(op)

    def _put_back(self) -> None:
        """Restore a node's operation if it was skipped."""
        left_out, self._left_out = self._left_out, None
        if left_out is not None:
            left_out[0].op = left_out[1]

    def settle(self) -> None:
        self._put_back()  # llama.cpp may compute the graph again
        super().settle()

    def _told(self, t: Any) -> None:
        self._put_back()
        node = t.contents
        if not node.src[0]:
            return
        op = ggml.ggml_op_name(node.op).decode()
        w = node.src[0].contents
        name = nodes.weights_name(w)
        try:
            parts = nodes.layout(node)
        except ValueError as error:
            raise CallFailed(f"{name} {error}") from None
        experts = op == "MUL_MAT_ID"
        product = Product(
            w.type, node.ne[2] if experts else node.src[1].contents.ne[1], experts, self._device.computed(t)
        )
        header: dict[str, Any] = {
            "event": "gemm", "tensor": name, "node": node.name.decode(errors="replace"), "type": w.type,
            "first_rows": parts.first_rows, "on_backend": product.on_backend, "experts": experts,
            "tokens": product.tokens,
        }  # fmt: skip
        x = ggml.read_tensor(node.src[1], empty=self._empty)
        y = ggml.read_tensor(t, empty=self._empty)
        if self._checksum and ggml.readable(node.src[0]):
            header["crc32"] = [_checksum(node.src[0], at, parts.nbytes) for at in parts.offsets]
        wanted = self._activations
        if wanted and not ggml.ggml_get_type_traits(w.type).contents.is_quantized:
            wanted = [w.type] if w.type != ggml.F32 else []  # rounded to the weights' type, or not at all
        quantized = self._device.taken(product, x, wanted) if wanted else {}
        header["activations"] = list(quantized)
        given = self._tell(header, x, y, parts.matrix, parts.row, *quantized.values())
        if self._replaces and given:
            ggml.write_tensor(t, given[0])
        elif name in self._spared:
            raise CallFailed(f"no output was given for {name}, whose products are replaced")


def _checksum(t: Any, offset: int, nbytes: int) -> int:
    """Return the CRC-32 of some bytes of a weight; computed by several threads if it is in host memory."""
    threads = cores() if _on_cpu(t) else 1
    return crc32_of(lambda at, count: ggml.read_bytes(t, offset + at, count).data, nbytes, threads)


def _on_cpu(t: Any) -> bool:
    """Whether a weight is in host memory, where the CPU backend multiplies it."""
    return ggml.buffer_name(t).startswith(b"CPU")
