"""Products of a graph, told to the parent as they are computed, and replaced by what it answers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy.typing as npt

from ...support import protocol
from ...support.lanes import Lane, Lanes
from .. import ggml
from ..backends.device import Device, Product
from . import nodes
from .calls import CallFailed


class Tap:
    """Called for each node of one evaluation; `seen` tells what the graph did with weights but multiply them.

    Args:
        lanes: for the arrays of products, and of answers.
        device: where the model is loaded.
        replaces: the parent's answer is the output with which the graph goes on.
        activations: ggml types in which activations are wanted too.
        checksum: the crc32 of the weights is wanted too.
        ahead: the graph goes on while so many products are not answered.
    """

    def __init__(
        self, link: Connection, lanes: Lanes | None, device: Device, replaces: bool, activations: Sequence[int] = (),
        checksum: bool = False, ahead: int = 0,
    ) -> None:  # fmt: skip
        self._link, self._device = link, device
        self._out: Lane | None
        self._back: Lane | None
        self._out, self._back = lanes or (None, None)
        self._replaces, self._activations, self._checksum = replaces, activations, checksum
        self._ahead, self._unanswered = 0 if replaces else ahead, 0
        self.seen: dict[str, dict[str, Any]] = {"lookup": {}, "unsupported": {}, "used": {}}
        self.failure: BaseException | None = None

    def __call__(self, t: Any, ask: bool) -> bool:
        """llama.cpp's callback: with `ask`, whether the node is wanted; without, whether the graph goes on."""
        if self.failure is not None:
            return ask  # asks to be called, so that the graph can be broken off
        try:
            return self._wanted(t) if ask else self._told(t)
        except BaseException as error:  # must not unwind through C
            self.failure = error
            return False

    def _wanted(self, t: Any) -> bool:
        """Whether a node is a product with weights that can be taken apart."""
        node = t.contents
        if not node.src[0]:
            return False
        op = ggml.ggml_op_name(node.op).decode()
        w = node.src[0].contents
        traits = ggml.ggml_get_type_traits(w.type).contents
        self._note_uses(node, op)
        if op not in nodes.PRODUCTS or not (traits.is_quantized or ggml.is_weight(node.src[0])):
            return False  # what is not quantized may be a cache or a result, as in attention
        if not traits.is_quantized and w.type not in nodes.ELEMENTS:
            why: str | None = f"products with {traits.type_name.decode()} are not covered"
        else:
            why = nodes.obstacle(node)
        if why is not None:
            self.seen["unsupported"][nodes.weights_name(w)] = why
        return why is None

    def _note_uses(self, node: Any, op: str) -> None:
        """Record what a node does with weights other than multiply them with activations."""
        if op in nodes.VIEWS:
            return
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

    def _told(self, t: Any) -> bool:
        """Tell the parent of a product, and wait for its answers until no more than `ahead` are missing."""
        while self._unanswered and self._link.poll():  # one of them may say that nobody follows any more
            self._answer()
        node = t.contents
        if not node.src[0]:
            return True
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
        empty = ggml.empty if self._out is None else self._out.empty
        x = ggml.read_tensor(node.src[1], empty=empty)
        y = ggml.read_tensor(t, empty=empty)
        if self._checksum and ggml.readable(node.src[0]):
            header["crc32"] = [zlib.crc32(ggml.read_bytes(node.src[0], at, parts.nbytes).data) for at in parts.offsets]
        wanted = self._activations
        if wanted and not ggml.ggml_get_type_traits(w.type).contents.is_quantized:
            wanted = [w.type] if w.type != ggml.F32 else []  # rounded to the weights' type, or not at all
        quantized = self._device.taken(product, x, wanted) if wanted else {}
        header["activations"] = list(quantized)
        protocol.send(self._link, header, x, y, parts.matrix, parts.row, *quantized.values(), lane=self._out)
        self._unanswered += 1
        while self._unanswered > self._ahead:
            given = self._answer()
            if self._replaces and given:
                ggml.write_tensor(t, given[0])
        return True

    def _answer(self) -> list[npt.NDArray[Any]]:
        """Wait for the answer to the oldest product without one: its arrays. Raises CallFailed where it says that no
        further answer comes."""
        answer, given = protocol.receive(self._link, lane=self._back)
        if answer.get("stop"):
            self._unanswered = 0
            raise CallFailed("stopped")
        self._unanswered -= 1
        if self._out is not None:
            self._out.taken()
        return given

    def settle(self) -> None:
        """Wait for the answers that are still missing: none may be taken for the next call."""
        while self._unanswered:
            self._answer()
