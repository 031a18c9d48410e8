"""Rules of summation that are read off a tree: lanes that have the same summands of every part of a row."""

from __future__ import annotations

from dataclasses import dataclass

from .summation import Tree, both, fold


@dataclass(frozen=True)
class Repeated:
    """A rule: lanes, each of which has the same summands of every part of a row.

    Args:
        size: summands of a part.
        lanes: the items that a lane adds in turn, of the first part.
        ending: how lanes are added: a tree of their numbers.
    """

    size: int
    lanes: tuple[tuple[Tree, ...], ...]
    ending: Tree

    def tree(self, n: int) -> Tree:
        """Return the tree of n summands."""

        def lane(number: int) -> Tree | None:
            made: Tree | None = None
            for start in range(0, n, self.size):
                for item in self.lanes[number]:
                    moved = _within(shifted(item, start), n)
                    if moved is not None:
                        made = moved if made is None else (made, moved)
            return made

        def join(a: Tree | None, b: Tree | None) -> Tree | None:
            return both(a, b) if a is not None and b is not None else b if a is None else a

        made = fold(self.ending, lane, join)
        assert made is not None
        return made

    @classmethod
    def of(cls, tree: Tree, size: int) -> Repeated | None:
        """Return the rule of a tree of two parts; None if it has none."""
        lanes: list[tuple[Tree, ...]] = []

        def walk(node: Tree) -> Tree | None:
            """Return the tree of the numbers of lanes."""
            stack: list[tuple[Tree, bool]] = [(node, False)]
            made: list[Tree] = []
            while stack:
                at, ready = stack.pop()
                if ready:
                    b, a = made.pop(), made.pop()
                    made.append((a, b))
                elif (items := _items(at, size)) is not None:
                    lanes.append(items)
                    made.append(len(lanes) - 1)
                elif isinstance(at, int):
                    return None
                else:
                    stack += [(at, True), (at[1], False), (at[0], False)]
            return made[0]

        ending = walk(tree)
        return None if ending is None else cls(size, tuple(lanes), ending)

    def __str__(self) -> str:
        lanes = "one lane" if len(self.lanes) == 1 else f"{len(self.lanes)} lanes"
        return f"{lanes}, the same in every {self.size} summands"


def _items(node: Tree, shift: int) -> tuple[Tree, ...] | None:
    """Return the first half of the items that a node adds in turn, if the second half is the same, `shift` later."""
    items = list[Tree]()
    while not isinstance(node, int):
        items.insert(0, node[1])
        count = len(items)
        node = node[0]
        for half in {(count + 1) // 2} if count % 2 else set[int]():
            first, rest = [node, *items[: half - 1]], items[half - 1 :]
            if [shifted(item, shift) for item in first] == rest:
                return tuple(first)
    return None


def shifted(tree: Tree, by: int) -> Tree:
    """Return a tree with other numbers of leaves."""

    def leaf(i: int) -> Tree:
        return i + by

    def join(a: Tree, b: Tree) -> Tree:
        return a, b

    return fold(tree, leaf, join)


def _within(tree: Tree, n: int) -> Tree | None:
    """Return a tree without the leaves from n on."""

    def leaf(i: int) -> Tree | None:
        return i if i < n else None

    def join(a: Tree | None, b: Tree | None) -> Tree | None:
        return (a, b) if a is not None and b is not None else b if a is None else a

    return fold(tree, leaf, join)
