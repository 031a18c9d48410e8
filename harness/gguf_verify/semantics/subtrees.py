"""Parts of trees of summation: leaves that become sums, and subtrees that become leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from .summation import Joining, Tree, both, fold, joined, leaves_of

#: What the summands of a subtree have in common.
Key = tuple[int, bool]


def with_parts(tree: Tree, part_of: Callable[[int], int | None], how: Literal["together", "in turn"]) -> Tree:
    """Return a tree with a second leaf beside some leaves: added to them, or after them to the sum before."""

    def own(node: Tree) -> Tree:
        second = part_of(node) if isinstance(node, int) else None
        return node if second is None else (node, second)

    def join(a: Tree, b: Tree) -> Tree:
        if how == "together":
            return own(a), own(b)
        leaf, before = (b, own(a)) if isinstance(b, int) else (a, b)
        second = part_of(leaf) if isinstance(leaf, int) else None
        return (before, leaf) if second is None else ((before, leaf), second)

    made = fold(tree, lambda leaf: leaf, join)
    return own(made)


def gather(tree: Tree, key: Callable[[int], Key], most: int) -> tuple[Tree, list[tuple[Key, Tree]]]:
    """Replace the largest subtrees whose leaves have one key, and are at most `most`, by leaves: their numbers."""
    parts: list[tuple[Key, Tree]] = []
    Node = tuple[Tree, Key | None, int]

    def closed(of: Node) -> Tree:
        node, same, _ = of
        if same is None:
            return node
        parts.append((same, node))
        return len(parts) - 1

    def join(a: Node, b: Node) -> Node:
        if a[1] is not None and a[1] == b[1] and a[2] + b[2] <= most:
            return (a[0], b[0]), a[1], a[2] + b[2]
        return (closed(a), closed(b)), None, 0

    made = fold(tree, lambda leaf: (leaf, key(leaf), 1), join)
    return closed(made), parts


def sizes_within(tree: Tree, key: Callable[[int], Key]) -> list[int]:
    """Return the sizes of the subtrees whose leaves have one key, the largest first."""
    found = {1}
    Node = tuple[Key | None, int]

    def join(a: Node, b: Node) -> Node:
        if a[0] is None or a[0] != b[0]:
            return None, 0
        found.add(a[1] + b[1])
        return a[0], a[1] + b[1]

    fold(tree, lambda leaf: (key(leaf), 1), join)
    return sorted(found, reverse=True)


def expand(tree: Tree, clusters: Mapping[int, Sequence[int]], how: Joining, count: int) -> Tree:
    """Replace leaves by sums of several, of which the order cannot be seen.

    Those that are in one cluster in all other parts of `count` summands are joined first. They are joined in the order
    that others of a part have, or in pairs.
    """
    cluster = {member: leaf for leaf, members in clusters.items() for member in members}
    alone = [leaf for leaf in leaves_of(tree) if len(clusters[leaf]) == 1]
    last = [leaf % count for leaf in alone if leaf // count == max(of // count for of in alone)] if alone else []

    def key(leaf: int) -> tuple[int, int]:
        return last.index(leaf % count) if leaf % count in last else count, leaf

    def together(a: int, b: int) -> bool:
        others = ((at + a % count, at + b % count) for at in range(0, len(cluster), count) if at != a // count * count)
        return all(cluster[i] == cluster[j] for i, j in others if i in cluster and j in cluster)

    def sum_of(leaf: int) -> Tree:
        groups = list[list[Tree]]()
        for member in sorted(clusters[leaf], key=key):
            found = (group for group in groups if isinstance(group[0], int) and together(group[0], member))
            group = next(found, None)
            if group is None:
                groups.append([member])
            else:
                group.append(member)
        return joined([joined(group, how) for group in groups], how)

    return fold(tree, sum_of, both)
