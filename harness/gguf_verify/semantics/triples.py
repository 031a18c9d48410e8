"""Trees of summation from triples: which of three summands is added last (`rungs.layers.sum_probes`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from .summation import Tree, both, fold, leaves_of

#: Which of three summands (a, b, c) is added last to the sum of the others.
Last = Literal["a", "b", "c"]


def last_in(tree: Tree, of: tuple[int, int, int]) -> Last:
    """Return which of three leaves (a, b, c) is added last."""
    found = list[Last]()
    names: dict[int, Last] = {of[0]: "a", of[1]: "b", of[2]: "c"}

    def join(a: set[int], b: set[int]) -> set[int]:
        if len(a) + len(b) == 3 and a and b:
            (last,) = a if len(a) == 1 else b
            found.append(names[last])
        return a | b

    fold(tree, lambda leaf: {leaf} & set(of), join)
    return found[0]


class Search:
    """The search of one tree, whose leaves are clusters: summands of the same 32 values that no other one separates.

    Args:
        total, count: summands, of which `count` consecutive ones have the same scale of activations.
        ask: returns which of three summands (a, b, c) is added last; c is of other 32 values than a and b.
    """

    def __init__(self, total: int, count: int, ask: Callable[[tuple[int, int, int]], Last]) -> None:
        self._total, self._count, self._ask = total, count, ask
        self._clusters: dict[int, list[int]] = {0: [0]}

    def found(self) -> tuple[Tree, dict[int, list[int]]]:
        """Return the tree, whose leaves are the first of their clusters, and the clusters. Raises NoOrder."""
        tree: Tree = 0
        for new in range(1, self._total):
            tree = self._with(tree, new)
        return fold(tree, lambda leaf: leaf, both), self._clusters

    def _of(self, leaf: int) -> int:
        """Return the number of its 32 values."""
        return leaf // self._count

    def _meet_first(self, a: int, b: int, new: int) -> Last:
        """Return which of three summands is added last, where not all are of the same 32 values."""
        names: tuple[Last, ...] = ("a", "b", "c")
        three = (a, b, new)
        alone = next(i for i in (2, 1, 0) if sum(self._of(three[i]) == self._of(v) for v in three) == 1)
        first, second = (i for i in range(3) if i != alone)
        last = self._ask((three[first], three[second], three[alone]))
        return names[{"a": first, "b": second, "c": alone}[last]]

    def _with(self, tree: Tree, new: int) -> Tree:
        """Return the tree with a new leaf."""
        above = list[tuple[Tree, bool]]()  # the other child, and whether it is the second
        while not isinstance(tree, int):
            a, b = self._representative(tree[0], new), self._representative(tree[1], new)
            last = self._meet_first(a, b, new)
            if last == "c":
                break
            above.append((tree[0], False) if last == "a" else (tree[1], True))
            tree = tree[1] if last == "a" else tree[0]
        made = (tree, new) if not isinstance(tree, int) else self._beside(tree, new)
        if not isinstance(tree, int):
            self._clusters[new] = [new]
        for other, second in reversed(above):
            made = (made, other) if second else (other, made)
        return made

    def _representative(self, tree: Tree, new: int) -> int:
        """Return a leaf, if possible of other 32 values than the new one."""
        at = leaves_of(tree)
        return next((leaf for leaf in at if self._of(leaf) != self._of(new)), at[0])

    def _beside(self, leaf: int, new: int) -> Tree:
        """Return the tree of a cluster and a new leaf, which may separate its members."""
        members = self._clusters.pop(leaf)
        if self._of(leaf) == self._of(new):
            self._clusters[leaf] = [*members, new]
            return leaf
        groups = list[list[int]]()  # the closest to the new leaf first
        for member in members:
            for place, group in enumerate(groups):
                last = self._ask((group[0], member, new))
                if last == "c":
                    group.append(member)
                    break
                if last == "a":
                    groups.insert(place, [member])
                    break
            else:
                groups.append([member])
        made: Tree = new
        self._clusters[new] = [new]
        for group in groups:
            self._clusters[group[0]] = group
            made = (made, group[0])
        return made
