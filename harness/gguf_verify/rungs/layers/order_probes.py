"""Probes of the order in which a kernel adds: products of which each output shows the order of its summands.

`value_probes` has those of a definition that multiplies values, `sum_probes` those of one that multiplies codes. The
search is the same for both. The tree of a row of at most MOST summands is found for the product itself. Else trees of
shorter rows are found, and a rule that has all of them is tried for random summands of a long row.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.repeated import Repeated
from ...semantics.replay import Arithmetic, FoundOrder, differing
from ...semantics.summation import NoOrder, Rule, Tree, as_text, recognised, rules
from ...semantics.sums import Floats, Rows
from ...support.errors import KernelFault
from ..generated_inputs import drawn as random_activations

Bytes = npt.NDArray[np.uint8]


class ProbeFault(NoOrder):
    """That a call of the kernel failed, which another call may not."""


#: Products that are made for one product of the model.
MOST_PRODUCTS = 1 << 14
#: Summands of which the tree is found for the product itself.
MOST = 64
#: Rows of the products that prove the arithmetic.
_ROWS = 64
#: Outputs that prove it, and the most products with so many.
_OUTPUTS, _MOST_TURNS = 512, 64
#: At most one in this number of the rows may be faulty.
FAULTY = 8
#: Arithmetics with few wrong rows whose weights are tried in other rows.
_MOST_CLOSE = 4
#: Rules that are tried for long rows.
_MOST_RULES = 16
#: Characters of the trees in a reason.
_TEXT = 400


@dataclass(frozen=True)
class Probes(ABC):
    """The probes of a kernel with weights of a type.

    Args:
        kernel, semantics, fmt: the kernel.
        rows: weights of the file, uint8[N, row bytes], for products that prove the arithmetic.
    """

    kernel: Kernel
    semantics: Semantics
    fmt: BlockFormat
    rows: Bytes
    seed: int
    #: The numbers of its products.
    _numbers: Iterator[int] = field(
        default_factory=partial(itertools.count, 1), kw_only=True, repr=False, compare=False
    )
    #: Rows that probes leave aside: the same weights give other bits in them than in other rows.
    aside: set[int] = field(default_factory=set, kw_only=True, repr=False, compare=False)

    @property
    @abstractmethod
    def short(self) -> Iterable[int]:
        """The columns of shorter rows, in ascending order."""

    @abstractmethod
    def summands(self, m: int, n: int, k: int) -> int:
        """Return the number of summands of a row. Raises NoOrder."""

    @abstractmethod
    def proposed(self, m: int, n: int, k: int) -> Iterable[tuple[Tree, Arithmetic]]:
        """Find the tree of a shape, and return it with the arithmetics that kernels have. Raises NoOrder.

        Summands whose order shows in no probe make several trees.
        """

    @abstractmethod
    def widths(self) -> Iterable[int]:
        """Return the numbers of consecutive summands that kernels add in one lane."""

    @abstractmethod
    def agrees(self, m: int, n: int, k: int, tree: Tree) -> bool:
        """Return whether random summands of long rows are added as in a tree. Raises NoOrder."""

    @abstractmethod
    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        """Find the tree of a single output, for long rows from random summands. Raises NoOrder."""

    def at(self, arithmetic: Arithmetic, k: int) -> Arithmetic:
        """Return the arithmetic of rows of K columns, from that of shorter rows."""
        return arithmetic

    def order(self, m: int, n: int, k: int) -> FoundOrder:
        """Find the order of products of this shape. Raises NoOrder."""
        few, total, trees = self.few(n, k), self.summands(m, self.few(n, k), k), dict[int, Tree]()
        if total <= MOST:
            arithmetic, proposed = self._proven(m, n, k)
            aside = tuple(sorted(self.aside))
            first, *also = (
                FoundOrder(tree, next(iter(self.rules({total: tree})), None), arithmetic, aside) for tree in proposed
            )
            return replace(first, also=tuple(also))
        lengths = [of for of in self.short if self.kernel.domain.outside(few, of) is None]
        for length in lengths or [k]:
            count = self.summands(m, few, length)
            arithmetic, (trees[count], *_) = self._proven(m, few, length)
            for rule in self.rules(trees):
                if self.agrees(m, few, k, tree := rule.tree(total)):
                    return FoundOrder(tree, rule, self.at(arithmetic, k), tuple(sorted(self.aside)))
        found = "; ".join(as_text(tree) for tree in trees.values())
        raise NoOrder(f"no rule has the trees of shorter rows, {found[:_TEXT]}, and of long ones")

    def rules(self, trees: Mapping[int, Tree]) -> Iterator[Rule | Repeated]:
        """Yield the rules that have these trees, by number of summands: the simplest first."""
        yield from itertools.islice(recognised(trees, rules(sorted(self.widths()))), _MOST_RULES)
        for count in sorted(trees):
            rule = Repeated.of(trees[count], count // 2) if count % 2 == 0 else None
            if rule is not None and all(rule.tree(n) == tree for n, tree in trees.items()):
                yield rule

    def few(self, n: int, k: int) -> int:
        """Return a number of rows that is enough for probes, or N if the kernel does not take it."""
        few = min(n, _ROWS)
        return n if self.kernel.domain.outside(few, k) else few

    def _proven(self, m: int, n: int, k: int) -> tuple[Arithmetic, list[Tree]]:
        """Find the arithmetic that gives all bits of random products of a shape. Raises NoOrder.

        Returns it with its tree, followed by the other ones that are proposed.

        In every second product all activations are positive: the sums of most blocks are large, and so is what rounds
        them. A few rows may be faulty: all their outputs have other bits. An arithmetic that rarely rounds otherwise
        does not look so. If only some of their outputs have, their weights are tried in other rows.
        """
        n, size = self.few(n, k), k // self.fmt.block_size
        blocks, rng = self.rows.reshape(-1, self.fmt.block_bytes), np.random.default_rng((self.seed, m, n, k))
        w = np.ascontiguousarray(blocks[rng.integers(0, len(blocks), n * size)].reshape(n, -1))
        made = list(self.random(m, w, self._turns(m, n)))
        trees, best, close = list[Tree](), None, list[tuple[Rows, Tree, Arithmetic]]()
        least = n // FAULTY + 1 - len(self.aside)
        proposed = iter(self.proposed(m, n, k))
        for tree, arithmetic in proposed:
            trees.append(tree)
            wrong = self._wrong(tree, arithmetic, w, made)
            rows = np.flatnonzero(wrong.any(axis=0))
            if len(rows) < least and wrong[:, rows].all():
                least, best = len(rows), (tree, arithmetic)
            elif FAULTY * (len(rows) + len(self.aside)) <= n:
                close.append((rows, tree, arithmetic))
            if best is not None and not least:
                break
        best = best or self._with_rows_aside(m, w, close)
        if best is not None:
            trees += [tree for tree, _ in proposed]
            return best[1], list(dict.fromkeys([best[0], *trees]))
        words = as_text(trees[-1])[:_TEXT] if trees else ""
        raise NoOrder(f"terms are added as {words}, but no known arithmetic of a term gives the bits")

    def _turns(self, m: int, n: int) -> int:
        return min(_MOST_TURNS, max(2, -(-_OUTPUTS // (m * n))))

    def _wrong(
        self, tree: Tree, arithmetic: Arithmetic, w: Bytes, made: Iterable[tuple[Bytes, Floats]]
    ) -> npt.NDArray[np.bool_]:
        """Return which outputs have other bits, bool[tokens, n]; none in rows that are left aside."""
        order = FoundOrder(tree, None, arithmetic)
        wrong = np.concatenate([differing(order, self.semantics, self.fmt, w, *one) for one in made])
        wrong[:, list(self.aside)] = False
        return wrong

    def _with_rows_aside(
        self, m: int, w: Bytes, close: Sequence[tuple[Rows, Tree, Arithmetic]]
    ) -> tuple[Tree, Arithmetic] | None:
        """Return the tree and the arithmetic that give all bits but those of few rows, which are then left aside.

        If the bits depend on the weights, those of the weights in other rows are wrong as well. Raises NoOrder.
        """
        for rows, tree, arithmetic in sorted(close, key=lambda of: len(of[0]))[:_MOST_CLOSE]:
            moved = np.ascontiguousarray(w[self.exchanged(len(w), rows)])
            wrong = self._wrong(tree, arithmetic, moved, self.random(m, moved, self._turns(m, len(w))))
            wrong[:, rows] = False
            if not wrong.any():
                self.aside.update(rows.tolist())
                return tree, arithmetic
        return None

    def exchanged(self, n: int, rows: Rows) -> Rows:
        """Return the numbers of n rows, of which some change places with others that are not left aside."""
        order = np.arange(n)
        others = np.setdiff1d(order, [*rows, *self.aside])[: len(rows)]
        order[rows], order[others] = others, rows
        return order

    def random(self, m: int, w: Bytes, count: int) -> Iterator[tuple[Bytes, Floats]]:
        """Yield activations of random products with weights uint8[N, row bytes], in the definition's blocks, and the
        outputs; in every second one all activations are positive. Raises NoOrder."""
        k = w.shape[1] // self.fmt.block_bytes * self.fmt.block_size
        for turn in range(count):
            x = random_activations((m, k), np.ones((1, 1), np.float32), self.seed + turn // 2)
            x = np.abs(x) if turn % 2 else x
            yield self.semantics.bytes_of(x), self.product(w, x)

    def product(self, w: Bytes, x: Floats) -> Floats:
        """Return the kernel's product of weights uint8[N, row bytes] and activations float32[M, K]. Raises NoOrder."""
        if next(self._numbers) > MOST_PRODUCTS:
            raise NoOrder(f"it is not found by {MOST_PRODUCTS:,} products")
        try:
            kernel = self.kernel.of(self.fmt, len(x), len(w), x.shape[1])
            return kernel.product(kernel.upload(self.fmt, w), x)
        except KernelFault as error:
            raise ProbeFault(f"a probe ends in a fault: {error}") from None

    def outputs(self, m: int, w: Bytes, tokens: list[Floats], at: tuple[int, int] | None = None) -> Floats:
        """Return the outputs of tokens, float32[tokens, n]. Raises NoOrder.

        Args:
            at: the token and the row of the only output, float32[tokens, 1]; None: all rows.
        """
        made, step = list[Floats](), m if at is None else 1
        first = 0 if at is None else at[0]
        for start in range(0, len(tokens), step):
            some = tokens[start : start + step]
            x = np.zeros((m, len(some[0])), np.float32)
            x[first : first + len(some)] = some
            y = self.product(w, x)[first : first + len(some)]
            made.append(y if at is None else y[:, at[1] : at[1] + 1])
        return np.concatenate(made)


def of_most_rows(y: Floats) -> npt.NDArray[np.float64]:
    """Return the outputs that most rows of float32[tokens, n] have, float64[tokens]. Raises NoOrder."""
    middle = np.sort(y, axis=1)[:, y.shape[1] // 2].astype(np.float64)
    if not (2 * (y == middle[:, None]).sum(axis=1) > y.shape[1]).all():
        raise NoOrder("it adds the terms of rows in different orders")
    return middle


def set_halves(fmt: BlockFormat, blocks: Bytes, name: str, values: npt.NDArray[np.float64] | float) -> None:
    """Write halves into a field of blocks uint8[..., block bytes]."""
    at = fmt.field_offset(name)
    halves = np.ascontiguousarray(np.broadcast_to(values, blocks.shape[:-1]), np.float16)
    blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
