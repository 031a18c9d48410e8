"""Reporting of every node of a graph, with its actual inputs, to the parent as it is computed.

llama.cpp asks about each node before it computes it. Every computing node is wanted, so that it is computed alone, and
all nodes before it are complete at that time. Its sources are read then, because its output may overwrite them.
"""

from __future__ import annotations

import re
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.lanes import Lanes
from .. import ggml
from . import nodes
from .listener import Listener
from .nodes import operation


class NodeTap(Listener):
    """Reports every node whose operation matches. Each is announced.

    Args:
        lanes: for the arrays of nodes.
        wanted: a regular expression that must match an operation's full name, such as "ROPE|UNARY SILU".
        ahead: number of unanswered nodes while the graph continues.
    """

    announces = True

    def __init__(self, link: Connection, lanes: Lanes | None, wanted: str, ahead: int) -> None:
        super().__init__(link, lanes, ahead)
        self._pattern = re.compile(wanted)
        self._sources: list[dict[str, Any] | None] = []
        self._spans: list[npt.NDArray[np.uint8]] = []
        self._number = 0

    def _wanted(self, t: Any) -> bool:
        node = t.contents
        op, variant = operation(t)
        if not nodes.is_computed(node):
            return False
        self._number += 1
        self._sources, self._spans = [], []
        if not self._pattern.fullmatch(f"{op} {variant}".strip()):
            return True  # so that it is complete before the next node
        for source in node.src:
            described, span = (None, None) if not source else self._described(source)
            self._sources.append(described)
            if span is not None:
                self._spans.append(span)
        while self._sources and self._sources[-1] is None:
            self._sources.pop()
        return True

    def _described(self, t: Any) -> tuple[dict[str, Any], npt.NDArray[np.uint8] | None]:
        """Describe a tensor (type, sizes, strides), with its bytes unless they are in the model's file."""
        s = t.contents
        whole = s.view_src.contents if s.view_src else s
        said: dict[str, Any] = {
            "name": whole.name.decode(errors="replace"), "type": s.type, "ne": list(s.ne), "nb": list(s.nb),
        }  # fmt: skip
        if ggml.is_weight(t):
            return said | {"held": "file", "offset": s.view_offs if s.view_src else 0}, None
        if not ggml.buffer_name(t) or not s.data:
            return said | {"held": "nowhere", "offset": 0}, None
        return said | {"held": "here", "offset": 0}, self._read(t)

    def _read(self, t: Any) -> npt.NDArray[np.uint8]:
        raw = self._empty(ggml.ggml_nbytes(t))
        ggml.ggml_backend_tensor_get(t, ggml.pointer(raw), 0, raw.nbytes)
        return raw

    def _told(self, t: Any) -> None:
        op, variant = operation(t)
        if not self._pattern.fullmatch(f"{op} {variant}".strip()):
            return
        node = t.contents
        device = ggml.device_of(t)
        output, span = self._described(t)
        header = {
            "event": "node", "number": self._number, "op": op, "variant": variant,
            "name": node.name.decode(errors="replace"), "parameters": bytes(node.op_params).hex(),
            "sources": self._sources, "output": {**output, "name": node.name.decode(errors="replace")},
            "view_of": self._viewed(node), "device": ggml.device_name(device), "backend": ggml.backend_of(device),
        }  # fmt: skip
        spans, self._spans = self._spans, []
        self._tell(header, *spans, *([] if span is None else [span]))

    def _viewed(self, node: Any) -> int | None:
        """Return the index of the source that the node's result is a view of, and overwrites."""
        if not node.view_src:
            return None
        for i, source in enumerate(node.src):
            if source and source.contents.data == node.data and ggml.same_root(source, node):
                return i
        return None
