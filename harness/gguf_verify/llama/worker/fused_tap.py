"""Comparison of a graph in which llama.cpp may fuse nodes with the same graph computed node by node.

A backend fuses nodes that it is given together, and llama.cpp's callback splits a graph after each node that it wants.
So a first evaluation wants every node (`Recorder`), and later ones want only the last node of each window (`Windows`):
inside a window anything may be fused. A window's outputs are compared with the bits of the first evaluation, which then
replace them. So each window has the same inputs as in the record, and a difference begins in it.
"""

from __future__ import annotations

import bisect
import ctypes as c
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...support.lanes import Lanes
from .. import ggml
from . import nodes
from .calls import CallFailed
from .listener import Listener
from .nodes import operation

Bytes = npt.NDArray[np.uint8]

_OUTPUT = 2  # GGML_TENSOR_FLAG_OUTPUT
#: A byte value that does not occur in a model's numbers.
_FILL = 0xB5


class _Part(NamedTuple):
    """The bytes of a tensor that a view shows: start, and sizes and strides; the last axis is an element's bytes."""

    at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def mark(self, read: npt.NDArray[np.bool_]) -> None:
        """Set the bytes that are read; all if the part is not inside."""
        end = self.at + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if not all(self.shape):
            return
        if self.at < 0 or end >= len(read):
            read[:] = True
        else:
            np.lib.stride_tricks.as_strided(read[self.at :], self.shape, self.strides)[...] = True


@dataclass
class Record:
    """A graph that was computed node by node. Nodes are counted from 1, without views.

    Args:
        outputs: output of each node.
        said: operation, name and device of each node, and the number of its graph.
        reads: for each node, the nodes that it reads.
        uses: for each node, the last node that reads it; 0 if none does.
        kept: nodes that are read after the graph.
        views: for each node, its readers and what they read of it.
    """

    outputs: list[Bytes] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    views: list[list[tuple[int, _Part]]] = field(default_factory=list)

    def left_by(self, first: int, last: int) -> list[int]:
        """Return the nodes from `first` to `last` that are read after `last`."""
        return [
            i for i in range(first, last + 1)
            if i in self.kept or self.uses[i - 1] > last or not self.uses[i - 1]
        ]  # fmt: skip

    def read_of(self, number: int, last: int) -> npt.NDArray[np.bool_]:
        """Return which bytes of a node are read after `last`, or after the graph."""
        everything = number in self.kept or not self.uses[number - 1]
        read = np.full(len(self.outputs[number - 1]), everything)
        for reader, part in self.views[number - 1]:
            if reader > last:
                part.mark(read)
        return read


class Recorder(Listener):
    """Records an evaluation. Each node is announced."""

    announces = True

    def __init__(self, link: Connection, lanes: Lanes | None) -> None:
        super().__init__(link, lanes, 0)
        self.record = Record()
        self._graph = 0
        self._numbers: dict[int, int] = {}

    def begin(self) -> None:
        self._graph += 1
        self._numbers.clear()  # another graph may reuse the memory

    def _wanted(self, t: Any) -> bool:
        node, record = t.contents, self.record
        if not nodes.is_computed(node):
            return False
        record.uses.append(0)
        number = len(record.uses)
        record.views.append([])
        makers = set()
        for source in node.src:
            maker = _maker(source) if source else None
            made_by = None if maker is None else self._numbers.get(c.addressof(maker))
            if maker is not None and made_by is not None:
                makers.add(made_by)
                record.uses[made_by - 1] = number
                record.views[made_by - 1].append((number, _part_of(source.contents, maker)))
        record.reads.append(sorted(makers))
        self._numbers[c.addressof(node)] = number
        if node.flags & _OUTPUT:
            record.kept.add(number)
        return True

    def _told(self, t: Any) -> None:
        op, variant = operation(t)
        self.record.outputs.append(ggml.read_bytes(t, 0, ggml.ggml_nbytes(t)))
        self.record.said.append(
            {
                "op": f"{op} {variant}".strip(),
                "name": t.contents.name.decode(errors="replace"),
                "device": ggml.device_name(ggml.device_of(t)),
                "graph": self._graph,
            }
        )

    def told(self) -> list[dict[str, Any]]:
        """Return the parent's information on each node."""
        record = self.record
        return [
            {**said, "reads": reads, "use": use}
            for said, reads, use in zip(record.said, record.reads, record.uses, strict=True)
        ]


class Windows(Listener):
    """Reports each output of a window whose bits differ from the record's.

    The first node of a window is also watched: if it was fused with later nodes, which then have its output in
    registers, its memory keeps its former bytes.

    Args:
        record: of the same tokens.
        windows: the first and the last node of each, in order; a node in none of them is computed alone.
        back: replace differing bits by the record's.

    Each node that ends a computed span is announced.
    """

    announces = True

    def __init__(
        self, link: Connection, lanes: Lanes | None, record: Record, windows: list[list[int]], back: bool
    ) -> None:
        super().__init__(link, lanes, 0)
        self._record, self._windows, self._puts_back = record, windows, back
        self._firsts = [first for first, _ in windows]
        self._tensors: dict[int, Any] = {}
        self._number, self._watched = 0, False
        self.compared = 0
        #: Nodes that were seen to be fused with later ones.
        self.fused: list[int] = []

    def _wanted(self, t: Any) -> bool:
        if not nodes.is_computed(t.contents):
            return False
        self._number += 1
        if self._number > len(self._record.outputs):
            raise CallFailed("the graph differs from the recorded one")
        window = self._window()
        if window is None:
            return True
        self._tensors[self._number] = t
        if self._number == window[0]:
            self._watched = self._number not in self._record.left_by(*window) and _has_room(t.contents)
            if self._watched:
                raw = np.full(ggml.ggml_nbytes(t), _FILL, np.uint8)
                ggml.ggml_backend_tensor_set(t, ggml.pointer(raw), 0, raw.nbytes)
        return self._number == window[1]

    def _window(self) -> list[int] | None:
        """Return the window of the current node."""
        at = bisect.bisect_right(self._firsts, self._number) - 1
        return self._windows[at] if at >= 0 and self._number <= self._windows[at][1] else None

    def _told(self, t: Any) -> None:
        window = self._window()
        if window is None:
            return
        first = self._tensors[window[0]]
        if self._watched and not _overlap(first.contents, t.contents) and _is_filled(first):
            self.fused.append(window[0])
        for number in self._record.left_by(*window):
            tensor, before = self._tensors[number], self._record.outputs[number - 1]
            if self._is_overwritten(number):
                continue
            now = ggml.read_bytes(tensor, 0, ggml.ggml_nbytes(tensor))
            if len(now) != len(before):
                raise CallFailed("the graph differs from the recorded one")
            self.compared += 1
            if not np.array_equal(now, before):
                now = np.where(self._record.read_of(number, window[1]), now, before)  # unread bytes may differ
            if not np.array_equal(now, before):
                self._tell({"event": "fused", "number": number, "first": window[0], "last": window[1]}, now)
                if self._puts_back:
                    ggml.ggml_backend_tensor_set(tensor, ggml.pointer(before), 0, before.nbytes)
        self._tensors.clear()

    def _is_overwritten(self, number: int) -> bool:
        """Whether a later node of the window changed a node's output, as one that writes into a cache does."""
        output = self._tensors[number].contents
        return any(_overlap(output, later.contents) for i, later in self._tensors.items() if i > number)


def _overlap(a: Any, b: Any) -> bool:
    """Whether two tensors share memory. Device addresses are comparable only within one buffer."""
    roots = [t.view_src.contents if t.view_src else t for t in (a, b)]
    ends = [(t.data or 0, (t.data or 0) + ggml.ggml_nbytes(c.pointer(t))) for t in (a, b)]
    if roots[0].buffer != roots[1].buffer:
        return False
    return bool(max(start for start, _ in ends) < min(end for _, end in ends))


def _has_room(node: Any) -> bool:
    """Whether the memory for a node's output holds nothing that is still read: it overlaps none of its sources. (A
    graph's allocator may place a node only over memory that no later node but itself reads.)"""
    some = ggml.ggml_nbytes(c.pointer(node)) > 0 and not node.view_src
    return some and not any(_overlap(node, source.contents) for source in node.src if source)


def _is_filled(t: Any) -> bool:
    return bool((ggml.read_bytes(t, 0, ggml.ggml_nbytes(t)) == _FILL).all())


def _maker(t: Any) -> Any:
    """Return the tensor that a source is, or is a view of."""
    while nodes.is_view(t.contents) and t.contents.src[0]:
        t = t.contents.src[0]
    return t.contents


def _part_of(view: Any, whole: Any) -> _Part:
    """Return the part of a tensor that a view shows."""
    kind = ggml.ggml_get_type_traits(view.type).contents
    ne0, ne1, ne2, ne3 = view.ne
    nb0, nb1, nb2, nb3 = view.nb
    at = (view.data or 0) - (whole.data or 0)
    return _Part(at, (ne3, ne2, ne1, ne0 // kind.blck_size, kind.type_size), (nb3, nb2, nb1, nb0, 1))
