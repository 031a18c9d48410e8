"""Comparison of a graph whose nodes may be fused with the same nodes computed one by one.

A backend may fuse nodes in a graph, but not while single nodes are recorded. Here, nodes are given to it in windows,
with the input bits that they had one by one (`llama.worker.fused_tap`): first each node with its reader, if that is
near; then windows of `_WINDOW` nodes, twice, so that each group of half as many lies inside one of them. No window has
nodes of two devices. If an output has the same bits as before, fusing changed nothing, and the node is judged already.

If bits differ, the smallest window in which they do is searched. The node, the nodes of the window that it reads, and
so on, form a group. A fused node need not be rounded before it is read: any value that its definition allows may have
been read, and no other. So the output is correct if the definition of the last node allows it for the inputs that the
last node had alone; otherwise, for each node i of the group in order,

    |y_i - o_i| ≤ d_i    d_i: the definition's tolerance, plus the largest change of the exact result o_i when each
                              source inside the group changes by its own d

The largest change occurs where all elements of a source move to one end, if the output is monotone in them
(`_MONOTONE`). For other operations the change is unknown, and outputs that their own definition does not allow are not
judged. Finally, the whole graph is evaluated at once, and its logits are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from gguf_verify.backend_results import Varying
from gguf_verify.llama.answers import RecordedNode
from gguf_verify.llama.evaluations import Evaluation, FusedEnd, FusedOutput
from gguf_verify.llama.graph import GraphNode, WeightsOf
from gguf_verify.llama.model import LoadedModel
from gguf_verify.llama.node import F32, Doubles
from gguf_verify.support.text import printable

from ..operations import Judged, Node, NoDefinition, Operand, judge
from ..operations.judging import watched, within
from .tally import Tally

#: Nodes per window, and the largest distance between a node and its reader in a window of two.
_WINDOW, _NEAR = 16, 8
#: Operations whose outputs each are monotone in every element of a source: all increasing or all decreasing.
_MONOTONE = {
    "MUL", "ADD", "SUB", "DIV", "SCALE", "CLAMP", "SUM_ROWS", "MEAN", "GET_ROWS", "CPY", "CONT", "DUP", "SET_ROWS",
    "UNARY RELU", "UNARY SIGMOID", "UNARY TANH", "UNARY EXP", "UNARY SOFTPLUS", "UNARY NEG",
}  # fmt: skip
#: Operations that return indices: if these are equal, they did not change.
_INDICES = {"ARGSORT", "TOP_K", "ARGMAX"}
#: Largest number of sources inside the group that a node may have.
_MOST_MOVED = 3
#: Name of such an evaluation among those whose bits are compared.
FUSED = "nodes fused"

Window = tuple[int, int]
#: The number of a node, and its output's bytes.
_Bits = tuple[int, bytes]


class Fusing:
    """One comparison; `run` performs it.

    Args:
        model: a model with a context that takes the tokens in one micro-batch.
        weights: returns the weights in the model's file by name.
    """

    def __init__(self, model: LoadedModel, tokens: list[int], weights: WeightsOf) -> None:
        self._model, self._tokens, self._weights = model, tokens, weights
        self._nodes: list[RecordedNode] = []
        self._compared = 0
        self._fused: Counter[str] = Counter()

    def run(self, tally: Tally, words: str) -> Varying:
        """Compare, judge differing outputs in the tally, and return the first difference in bits.

        Args:
            words: description of the evaluation.
        """
        self._nodes, recorded = self._model.record(self._tokens)
        found = self._differences()
        first = min(found, key=lambda each: each.number, default=None)
        self._judge(found, tally, f"{words}, {FUSED}")
        plain = self._model.evaluate(self._tokens)
        same = plain.logits.tobytes() == recorded.logits.tobytes()
        if not same and not found:
            device = self._nodes[-1].device if self._nodes else ""
            tally.leave("the graph evaluated at once", device, f"logits differ, but no {_WINDOW} nodes together do")
        node = None if first is None else self._node(first.number)
        return Varying(
            micro_batch=len(self._tokens),
            against=len(self._tokens),
            slot=FUSED,
            token=-1,
            compared=self._compared,
            operation="" if first is None else self._name(self._group(first)),
            node="" if node is None else printable(node.name, 100),
            device="" if node is None else printable(node.device, 100),
            fused=tuple(f"{pair} ({n:,})" for pair, n in self._fused.most_common()),
        )

    # Search for differing bits.

    def _differences(self) -> list[FusedOutput]:
        """Return every distinct value of each differing output, with the smallest window that shows it."""
        n = len(self._nodes)
        whole = self._pieces()
        pairs = [(i, node.use) for i, node in enumerate(self._nodes, 1) if 0 < node.use - i <= _NEAR]
        pairs = [(i, use) for i, use in pairs if whole[i - 1] == whole[use - 1]]
        found = {(d.number, d.span.tobytes()): d for some in _apart(pairs) for d in self._evaluate(some)}
        wide: dict[_Bits, FusedOutput] = {}
        for offset in (0, _WINDOW // 2):
            edges = sorted({*whole, *range(1 + offset, n + 1, _WINDOW), n + 1})
            for each in self._evaluate([(a, b - 1) for a, b in pairwise(edges)]):
                bits = each.number, each.span.tobytes()
                if bits not in found:
                    wide.setdefault(bits, each)
        wide = self._narrowed(wide)
        return [*found.values(), *(one for each in wide.values() for one in self._origins(each))]

    def _origins(self, each: FusedOutput) -> list[FusedOutput]:
        """If it is unknown how the nodes of a window propagate a difference, find the output of its first part that
        the rest only propagates.

        That is the case if the rest alone has the recorded bits and, after the first part, has those of the whole
        window.
        """
        first, last = each.window
        group = self._group(each)
        known = all(self._node(i).op in _MONOTONE or not {*self._node(i).reads} & {*group} for i in group)
        if known or each.number != last:
            return [each]
        for end in range(first + 1, last):
            parts = [(first, end), (end + 1, last)]
            if [*self._evaluate(parts[1:])]:
                continue
            carried = [d.span.tobytes() for d in self._evaluate(parts, back=False) if d.number == last]
            if carried == [each.span.tobytes()]:
                return [*self._evaluate(parts[:1])] or [each]
        return [each]

    def _pieces(self) -> list[int]:
        """Return for each node the first node of its piece of the graph. One device computes a piece; what another
        device reads of it is copied after it, and its memory is then reused."""
        made: list[int] = []
        for i, node in enumerate(self._nodes, 1):
            before = self._nodes[i - 2] if i > 1 else None
            same = before is not None and (before.graph, before.device) == (node.graph, node.device)
            made.append(made[-1] if same else i)
        return made

    def _narrowed(self, wide: dict[_Bits, FusedOutput]) -> dict[_Bits, FusedOutput]:
        """Replace each window by the shortest one that ends with the node and shows the same bits, if there is one."""
        found: dict[_Bits, FusedOutput] = {}
        for size in range(1, _WINDOW):
            left = {bits[0]: each.window[0] for bits, each in wide.items() if bits not in found}
            windows = [(i - size, i) for i in sorted(left) if i - size >= left[i]]
            for some in _apart(windows):
                for each in self._evaluate(some):
                    bits = each.number, each.span.tobytes()
                    if each.number == each.window[1] and bits in wide:
                        found.setdefault(bits, each)
        return wide | found

    def _evaluate(self, windows: list[Window], back: bool = True) -> Iterator[FusedOutput]:
        if not windows:
            return
        lasts = dict(windows)
        for each in self._model.windows(self._tokens, windows, back):
            if isinstance(each, FusedEnd):
                self._compared += each.compared
                for first in each.fused:
                    if first in lasts and lasts[first] == self._node(first).use:
                        self._fused[self._name([first, lasts[first]])] += 1
            else:
                yield each

    def _node(self, number: int) -> RecordedNode:
        return self._nodes[number - 1]

    def _group(self, found: FusedOutput) -> list[int]:
        """Return the differing node and the nodes of its window that it depends on, without indices that are read
        after the window."""
        first, last = found.window
        group, left = {found.number}, [found.number]
        while left:
            for i in self._node(left.pop()).reads:
                kept = self._node(i).op in _INDICES and self._node(i).use > last
                if i >= first and i not in group and not kept:
                    group.add(i)
                    left.append(i)
        return sorted(group)

    def _name(self, group: list[int]) -> str:
        return " + ".join(printable(self._node(i).op, 60) for i in group)

    # Judgement of the differences.

    def _judge(self, found: list[FusedOutput], tally: Tally, words: str) -> None:
        """Judge the outputs in graph order."""
        groups = [(each, self._group(each)) for each in sorted(found, key=lambda d: d.number)]
        wanted, given = {i for _, group in groups for i in group}, dict[int, GraphNode]()
        for node in self._model.nodes(self._tokens, self._weights) if wanted else ():
            if not isinstance(node, Evaluation) and node.number in wanted:
                given[node.number] = node
        for each, group in groups:
            reads = [[i for i in self._node(number).reads if i in group] for number in group]
            judging = _judged(dict(zip(group, (given.get(i) for i in group), strict=True)), reads, each)
            tally.judge_by(given.get(each.number), f"{self._name(group)}, fused", words, judging)


def _apart(windows: Sequence[Window]) -> Iterator[list[Window]]:
    """Split windows, sorted by first node, into as few lists of non-overlapping ones as possible."""
    left = list(windows)
    while left:
        some, rest, end = list[Window](), list[Window](), 0
        for window in left:
            (some if window[0] > end else rest).append(window)
            end = max(end, window[1]) if window is some[-1] else end
        yield some
        left = rest


def _judged(
    group: Mapping[int, GraphNode | None], reads: Sequence[Sequence[int]], found: FusedOutput
) -> Callable[[], tuple[Node, Judged]]:
    """Return a function that judges the last node of a group with its fused output.

    Args:
        group: number → node.
        reads: for each node, the nodes of the group that it reads.
    """

    def judged() -> tuple[Node, Judged]:
        last = _node_of(group[found.number])
        fused = replace(last, output=replace(last.output, span=found.span))
        alone = judge(fused)
        if alone.passed or len(group) == 1:
            return fused, alone
        places = {number: i for i, number in enumerate(group)}
        nodes = [_node_of(each) for each in group.values()]
        return fused, judge_group(nodes, [[places[i] for i in each] for each in reads], fused)

    return judged


def _node_of(given: GraphNode | None) -> Node:
    """Return the node. Raises NoDefinition if its inputs could not be recorded."""
    if given is None or given.node is None:
        raise NoDefinition("a node of the group could not be recorded" if given is None else given.why)
    return given.node


def judge_group(nodes: Sequence[Node], reads: Sequence[Sequence[int]], fused: Node) -> Judged:
    """Judge the output of fused nodes by the rule in the module's docstring.

    Args:
        nodes: each with the inputs and the output that it has alone, in order.
        reads: for each node, the indices in `nodes` of those that it reads.
        fused: the last node, with the output to judge.

    Raises NoDefinition if it is unknown how far the output may move.
    """
    for node, of in zip(nodes, reads, strict=True):
        if of and node.operation not in _MONOTONE:
            raise NoDefinition(
                f"how far {node.operation} moves where {nodes[of[0]].operation} is not rounded before it"
            )
    known: list[tuple[Doubles, Doubles]] = []
    for node, of in zip(nodes, reads, strict=True):
        moved = {at: known[i] for i in of for at in _read_at(nodes[i], node)}
        exact, tolerance = _expected(node)
        if len(moved) > _MOST_MOVED:
            raise NoDefinition(f"how far {node.operation} of {len(moved)} nodes moves that are not rounded before it")
        far = np.zeros(exact.shape)
        with np.errstate(all="ignore"):
            for sides in product((-1, 1), repeat=len(moved)) if moved else ():
                ends = {at: _outward(o, side * d) for side, (at, (o, d)) in zip(sides, moved.items(), strict=True)}
                end, more = _expected(_with(node, ends))
                far = np.fmax(far, np.abs(end - exact) + np.fmax(0, more - tolerance))
        known.append((exact, tolerance + far))
    unrounded = ", ".join(dict.fromkeys(nodes[i].operation for i in reads[-1]))
    return within(fused, f"{fused.operation} of {unrounded} before it is rounded", *known[-1])


def _expected(node: Node) -> tuple[Doubles, Doubles]:
    """Return a node's exact output and its tolerance. Raises NoDefinition if its definition has no tolerance."""
    with watched() as seen:
        judged = judge(node)
    found = [each for each in seen if each.definition == judged.definition]
    if not found or found[-1].exact.shape != node.output.shape:
        raise NoDefinition(f"{node.operation}, whose outputs are not judged by a bound, behind a node that was fused")
    return found[-1].exact, found[-1].tolerance


def _read_at(before: Node, node: Node) -> list[int]:
    """Return the indices of a node's sources that are the output of an earlier one. Raises NoDefinition."""
    found = [
        i for i, source in enumerate(node.sources)
        if source is not None and source.type_id == before.output.type_id == F32 and i != node.view_of
        and source.data.tobytes() == before.output.data.tobytes()
    ]  # fmt: skip
    if not found:
        raise NoDefinition(f"{node.operation} reads {before.operation} in another order")
    return found


def _outward(exact: Doubles, by: Doubles) -> Doubles:
    """Round `exact` + `by` to float32, away from `exact`."""
    with np.errstate(all="ignore"):
        wanted = exact + by
        return np.nextafter(wanted.astype(np.float32), np.where(by < 0, -np.inf, np.inf).astype(np.float32))


def _with(node: Node, ends: Mapping[int, Doubles]) -> Node:
    """Replace the values of some of a node's sources."""
    sources = list(node.sources)
    for at, values in ends.items():
        old = node.source(at)
        sources[at] = Operand.of(values.reshape(old.shape).astype(np.float32), name=old.name)
    return replace(node, sources=tuple(sources))
