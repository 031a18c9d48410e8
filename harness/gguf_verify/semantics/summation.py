"""Trees of summation: found from outputs alone, recognised as a rule, and shown as text.

The n summands of an output are the leaves of a tree, whose nodes are the additions. Let two leaves i < j be +M and -M,
with M so large that M + n = M in float32, and the others 1. What is added to +M or -M before these two meet is lost, so
the output is n less the leaves below the node in which i and j meet (Xie et al., "FPRev: revealing the order of
floating-point summation operations", arXiv 2411.00442). From these numbers of leaves, l[i, j], the tree follows:

    the leaves j that meet the first leaf i at the same node have the same l[i, j]: they are the node's other child,
    a tree of their own, and l[i, j] is the number of leaves of both children

Leaves among them that meet each other only at that node are terms of one addition: tensor cores add the products of an
instruction at once (`added_at_once`). If an instruction adds exactly and rounds once, as the CPU host's does, masks
within it swallow nothing: l[i, j] is 2 for each of its pairs.

A *rule* has a tree for any number of summands: the items (leaves, or groups of consecutive ones) are distributed over
lanes or chunks, each of which is added in ascending order, and then the lanes are added.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from .rounding import add_rounded
from .sums import Doubles, Floats

#: A leaf's number, or the two subtrees of an addition; the one with the smallest leaf is first.
Tree = int | tuple["Tree", "Tree"]
T = TypeVar("T")
#: Takes pairs (i, j); returns for each how many of the summands 1 are in the output.
Counted = Callable[[Sequence[tuple[int, int]]], npt.NDArray[np.float64]]


class NoOrder(Exception):
    """That no tree was found, and why."""


def find(n: int, counted: Counted) -> Tree:
    """Find the tree of n summands. Raises NoOrder."""

    def binary(node: _Node) -> Tree:
        if isinstance(node, int):
            return node
        if len(node) > 2:
            raise NoOrder("it adds more than two terms at once, and not as the tensor cores that are known")
        return binary(node[0]), binary(node[1])

    return binary(_Search(n, counted).tree(list(range(n))))


def added_at_once(n: int, counted: Counted) -> list[list[int]]:
    """Return the summands in groups: those that one addition of more than two terms has, or one. Raises NoOrder."""
    groups, left = list[list[int]](), list(range(n))
    while left:
        first, *others = left
        lost = n - np.rint(counted([(first, j) for j in others])) if others else np.zeros(0)
        groups.append([first, *(j for j, number in zip(others, lost, strict=True) if number == 2)])
        left = [j for j in left if j not in groups[-1]]
        if len(groups[-1]) < 3:
            break
    else:
        return groups
    found = list[list[int]]()

    def collect(node: _Node) -> None:
        if isinstance(node, int):
            found.append([node])
            return
        alone = [child for child in node if isinstance(child, int)]
        found.extend([alone] if len(node) > 2 and alone else [[leaf] for leaf in alone])
        for child in node:
            if not isinstance(child, int):
                collect(child)

    collect(_Search(n, counted).tree(list(range(n))))
    return sorted(found)


#: A tree whose nodes have two children or more.
_Node = int | tuple["_Node", ...]


class _Search:
    def __init__(self, n: int, counted: Counted) -> None:
        self._n, self._counted = n, counted

    def tree(self, leaves: list[int]) -> _Node:
        """Return the tree of these leaves, which have no others among them."""
        return self._children(leaves, self._n + 1)[0]

    def _children(self, leaves: list[int], above: int) -> list[_Node]:
        """Return the trees of these leaves, which are all below the children of a node with `above` leaves."""
        first, others = leaves[0], leaves[1:]
        below, size = self._below(first, others) if others else [], 1
        made: _Node = first
        for number in sorted({number for number in below if number < above}):
            meeting = [j for j, at in zip(others, below, strict=True) if at == number]
            size += len(meeting)
            if number != size:
                raise NoOrder(f"its outputs are those of no tree: {number} summands meet where {size} should")
            made = (made, *self._children(meeting, number))
        rest = [j for j, at in zip(others, below, strict=True) if at >= above]
        return [made, *self._children(rest, above)] if rest else [made]

    def _below(self, i: int, others: list[int]) -> list[int]:
        """Return how many leaves meet where i meets each of the others."""
        lost = self._n - self._counted([(i, j) for j in others])
        whole = np.rint(lost)
        if not (np.isfinite(lost) & (np.abs(lost - whole) < 0.01) & (whole >= 2) & (whole <= self._n)).all():
            raise NoOrder("it does not add in float32: masks of both signs do not cancel, or do not cover the others")
        return [int(of) for of in whole]


def meeting(tree: Tree, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return how many leaves are below the node in which each pair of leaves meets."""
    found = dict[tuple[int, int], int]()
    wanted = {(min(pair), max(pair)) for pair in pairs}

    def join(a: set[int], b: set[int]) -> set[int]:
        for i, j in wanted - found.keys():
            if (i in a and j in b) or (i in b and j in a):
                found[i, j] = len(a) + len(b)
        return a | b

    fold(tree, lambda leaf: {leaf}, join)
    return [found[min(pair), max(pair)] for pair in pairs]


def fold(tree: Tree, leaf: Callable[[int], T], join: Callable[[T, T], T]) -> T:
    """Combine a tree of any depth from its leaves upwards."""
    made, stack = list[T](), [(tree, False)]
    while stack:
        node, ready = stack.pop()
        if isinstance(node, int):
            made.append(leaf(node))
        elif not ready:
            stack += [(node, True), (node[1], False), (node[0], False)]
        else:
            b, a = made.pop(), made.pop()
            made.append(join(a, b))
    (last,) = made
    return last


def leaves_of(tree: Tree) -> list[int]:
    """Return the leaves in the order of the tree."""
    found, stack = list[int](), [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, int):
            found.append(node)
        else:
            stack += [node[1], node[0]]
    return found


# ---- rules -----------------------------------------------------------------------------------------------------------

Parting = Literal["lanes", "chunks"]
Joining = Literal["ascending", "neighbours", "halves"]
_JOINED = {
    "ascending": "then in ascending order", "neighbours": "then neighbours in pairs",
    "halves": "then halves onto each other",
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """A rule of summation.

    Args:
        count: lanes, or chunks.
        parting: lane l has the items l, l + count, …; chunk c has consecutive ones.
        joining: how the lanes' sums are added.
        descending: whether items are taken from the last to the first.
        width: consecutive summands that are a group: it is in one lane.
        together: whether the summands of a group are added to each other first.
    """

    count: int = 1
    parting: Parting = "lanes"
    joining: Joining = "ascending"
    descending: bool = False
    width: int = 1
    together: bool = False

    def tree(self, n: int) -> Tree:
        """Return the tree of n summands."""
        groups = [list[Tree](range(i, min(i + self.width, n))) for i in range(0, n, self.width)]
        if self.together:
            groups = [[_chain(group)] for group in groups]
        if self.descending:
            groups.reverse()
        if self.parting == "lanes":
            lanes = [groups[lane :: self.count] for lane in range(min(self.count, len(groups)))]
        else:
            ends = np.linspace(0, len(groups), min(self.count, len(groups)) + 1).astype(int)
            lanes = [groups[a:b] for a, b in itertools.pairwise(ends)]
        return joined([_chain([item for group in lane for item in group]) for lane in lanes], self.joining)

    def __str__(self) -> str:
        order = "descending k" if self.descending else "ascending k"
        if self.width > 1:
            order = f"groups of {self.width} in {order}"
        first = "; each group by itself first" if self.together else ""
        if self.count == 1:
            return order + first
        if self.count >= ALL:
            return _JOINED[self.joining].removeprefix("then ") + first
        return f"{self.count} {self.parting}, each in {order}, {_JOINED[self.joining]}{first}"


#: A number of lanes that makes each item one.
ALL = 1 << 30


def both(a: Tree, b: Tree) -> Tree:
    """Return the addition of two sums."""
    return (a, b) if min(leaves_of(a)) < min(leaves_of(b)) else (b, a)


def _chain(items: Sequence[Tree]) -> Tree:
    made = items[0]
    least = min(leaves_of(made))
    for item in items[1:]:
        other = min(leaves_of(item))
        made, least = ((made, item), least) if least < other else ((item, made), other)
    return made


def joined(sums: list[Tree], how: Joining) -> Tree:
    """Return the addition of several sums."""
    if how == "ascending":
        return _chain(sums)
    while len(sums) > 1:
        half = -(-len(sums) // 2)
        if how == "neighbours":
            pairs = [sums[i : i + 2] for i in range(0, len(sums), 2)]
        else:
            pairs = [[sums[i], *sums[i + half : i + half + 1]] for i in range(half)]
        sums = [both(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return sums[0]


def rules(widths: Sequence[int] = (1,)) -> Iterator[Rule]:
    """Yield all rules, the simplest first: those without lanes."""
    joinings: tuple[Joining, ...] = ("ascending", "neighbours", "halves")
    groups = [(width, together) for width in widths for together in (False, True) if width > 1 or not together]
    for (width, together), descending in itertools.product(groups, (False, True)):
        yield Rule(descending=descending, width=width, together=together)
    for (width, together), descending in itertools.product(groups, (False, True)):
        for count in (2, 4, 8, 16, 32, 64, 3, 5, 6, 7, 10, 12, ALL):
            partings: tuple[Parting, ...] = ("lanes", "chunks") if count < ALL else ("lanes",)
            for parting, joining in itertools.product(partings, joinings):
                yield Rule(count, parting, joining, descending, width, together)


def recognised(trees: Mapping[int, Tree], known: Iterable[Rule]) -> Iterator[Rule]:
    """Yield those of the rules that have these trees, by number of summands."""
    return (r for r in known if all(r.tree(n) == tree for n, tree in sorted(trees.items())))


# ---- bits and pictures -----------------------------------------------------------------------------------------------


#: Whether a leaf that is added to a sum is rounded before, or not (a fused multiply-add); and of two leaves, which one.
Fused = Literal["", "second", "first"]


def sum_in(
    tree: Tree, summand: Callable[[int], Doubles], fused: Fused, step: Callable[[int, Floats], Floats] | None = None
) -> Floats:
    """Add summands, float64[M, N] each, in float32 in the order of a tree.

    Args:
        summand: returns the exact value of a leaf, of at most 53 bits.
        step: adds a leaf to a sum; None: by `fused`.
    """

    def add(leaf: int, acc: Floats) -> Floats:
        return add_rounded(summand(leaf), acc) if step is None else step(leaf, acc)

    def alone(leaf: int) -> Floats:
        value = summand(leaf)
        return value.astype(np.float32) if step is None else step(leaf, np.zeros(value.shape, np.float32))

    def join(a: Floats | int, b: Floats | int) -> Floats | int:
        if fused and isinstance(a, int) and (not isinstance(b, int) or fused == "first"):
            a, b = b, a
        first = alone(a) if isinstance(a, int) else a
        if not isinstance(b, int):
            return first + b
        return add(b, first) if fused else first + alone(b)

    last = fold(tree, lambda leaf: leaf, join)
    return alone(last) if isinstance(last, int) else last


def as_text(tree: Tree) -> str:
    """Return the tree in a line: sums in parentheses, and a chain of ascending leaves as `0+1+…+7`."""

    def text(node: Tree) -> str:
        chain, rest = list[Tree](), node
        while not isinstance(rest, int):
            chain.append(rest[1])
            rest = rest[0]
        chain = [rest, *reversed(chain)]
        words = [str(c) if isinstance(c, int) else f"({text(c)})" for c in chain]
        steps = {b - a for a, b in itertools.pairwise(chain) if isinstance(a, int) and isinstance(b, int)}
        if len(chain) > 4 and all(isinstance(c, int) for c in chain) and len(steps) == 1:
            words = [*words[:2], "…", words[-1]]
        return "+".join(words)

    return text(tree)
