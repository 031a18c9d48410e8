"""Probes of the order in which a kernel adds integer sums of codes: one or more for 32 values.

Which products of 32 values are added as integers: a kernel gets the same sum of codes in two ways, where one value has
more and another less. If both are in one integer sum, the bits of all rows, with random scales, are the same. Else the
roundings differ.

How these integer sums are added: swallowing masks (`summation`) need a scale for each summand, but several share that
of 32 activations. So three summands a, b, c at a time are not zero. c is in other 32 values, and so large that its sums
with a or b are rounded. The rounding is not the same in the three orders:

    (a + b) + c        (a + c) + b        (b + c) + a

Which two of any three leaves meet first determines a tree. It is built leaf by leaf: at each node, a leaf of either
child and the new one say whether the new one belongs to a child, or to neither. Summands of the same 32 values that no
other one separates form a cluster. Its order cannot be seen; the bits of random products decide between a few.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

from ...formats.block import QK, BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.repeated import Repeated
from ...semantics.replay import Arithmetic, FoundOrder
from ...semantics.summation import Joining, NoOrder, Rule, Tree, drawn, recognised, rules
from ...semantics.sums import Floats
from ...semantics.superblocks import Summand, arithmetics_of_summands, expand, is_half
from ...semantics.terms.codes import CodeTerm
from ...semantics.triples import Last, Search, last_in
from ..field_classes import numbers_of
from .order_probes import Bytes, Probes, set_halves
from .value_probes import blocks_of_one_size

Codes = npt.NDArray[np.int64]

#: Summands of which the tree is found for the product itself, and for shorter rows.
MOST, _MOST_SHORT = 64, 1024
#: Superblocks of shorter rows, and values of at least so many.
_SUPERBLOCKS, _SHORT = (2, 4, 8, 16), 256
#: Rows of the probes, random triples that are tried for long rows, and rules.
_ROWS, _TRIPLES, _MOST_RULES = 64, 32, 8
#: The scale of a and b.
_SCALE = 2.0**-20
#: The exponent of a mask that swallows ones, and their number at most: less than half an ulp of 64·2^28.
_SWALLOWS, _ONES = 28, 512
#: Ways in which a sum of codes is divided among two values: with rows of different scales, or of the same one.
_TRIES, _TRIES_OF_ONE = 8, 32


@dataclass(frozen=True)
class _Sizes:
    """Numbers a·2^0, b·2^0 and c·2^exponent: only if a is added to b + c, the rounded sum is another one."""

    a: int
    b: int
    c: int
    exponent: int
    a_last: float
    else_: float


@cache
def sizes_for(unit: float) -> _Sizes:
    """Return sizes of summands in units of a block's values. Raises NoOrder if none are known."""
    f = np.float32
    for exponent, b, a in itertools.product(range(26, 3, -1), (127, 96, 64, 101), range(127, 40, -1)):
        wide = [f(unit * a), f(unit * b), f(unit * 64 * 2.0**exponent)]
        a_last, b_last, c_last = (
            (wide[2] + wide[1]) + wide[0],
            (wide[2] + wide[0]) + wide[1],
            (wide[0] + wide[1]) + wide[2],
        )
        if b_last == c_last != a_last:
            return _Sizes(a, b, 64, exponent, float(a_last), float(b_last))
    raise NoOrder("no summands were found whose roundings show their order")


@dataclass(frozen=True)
class SuperblockProbes(Probes):
    """The probes of a definition that multiplies sums of codes within superblocks by scales.

    Args:
        term: of the definition.
        even: a block whose values are all c or -c, uint8[block bytes], and the signs of its values.
        trees: those that were found, by shape.
    """

    term: CodeTerm
    even: Bytes
    signs: Codes
    unit: float
    _cache: dict[object, object] = field(default_factory=dict)

    @classmethod
    def of(
        cls, kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int, term: CodeTerm
    ) -> SuperblockProbes:
        """Raises NoOrder."""
        if fmt.has_min and not {"x", "scale", "min"} <= numbers_of(fmt).keys():
            raise NoOrder(f"the minima of {fmt.name} cannot be set one by one")
        blocks, values = blocks_of_one_size(fmt, 16 if fmt.has_min else 10)
        at = int(np.abs(values[:, 0]).argmax())  # the largest codes: their products are rounded
        unit = 1.0 if fmt.has_min else abs(float(values[at, 0]))
        return cls(
            kernel, semantics, fmt, rows, seed, term, blocks[at], np.sign(values[at]).astype(np.int64).reshape(-1, QK),
            unit,
        )  # fmt: skip

    def order(self, m: int, n: int, k: int) -> FoundOrder:
        domain, size = self.kernel.domain, self.fmt.block_size
        few = min(n, _ROWS)
        at_least = -(-_SHORT // size)
        lengths = [of * at_least * size for of in _SUPERBLOCKS]
        lengths = [of for of in lengths if domain.outside(few, of) is None] or [k]
        summands = self._summands(m, few, lengths[0])
        per_row = len(summands) * (k // QK)
        if per_row <= MOST:
            tree, arithmetic = self._proven(m, n, k, summands)
            return FoundOrder(tree, next(recognised({per_row: tree}, self._rules(summands)), None), arithmetic)
        trees = dict[int, Tree]()
        for length in lengths:
            count = len(summands) * (length // QK)
            if count > _MOST_SHORT:
                break
            trees[count], arithmetic = self._proven(m, few, length, summands)
            for rule in self._known(trees, summands, size * at_least):
                if self._agrees(m, n, k, rule.tree(per_row), summands):
                    return FoundOrder(rule.tree(per_row), rule, arithmetic)
        found = "; ".join(drawn(tree) for tree in trees.values()) if trees else "too many summands"
        raise NoOrder(f"no rule has the trees of shorter rows, {found[:400]}, and of long ones")

    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        """Here masks swallow ones, of which a fault of a few ulps changes no number."""
        summands, rng = self._summands(m, min(n, _ROWS), k), np.random.default_rng((self.seed, token, row))
        count, total = len(summands), len(summands) * (k // QK)
        tokens, left = list[Floats](), list[int]()
        for _ in range(_TRIPLES // 4):
            pair = tuple(int(i) * count + int(rng.integers(count)) for i in rng.choice(k // QK, 2, False))
            others = [i for i in range(total) if i // count not in (pair[0] // count, pair[1] // count)]
            others = rng.permutation(others)[:_ONES].tolist()
            sizes = {**dict.fromkeys(others, 1), pair[0]: 64, pair[1]: -64}
            tokens.append(self._token(k, sizes, dict.fromkeys(pair, _SWALLOWS), summands))
            left.append(sum(last_in(of.tree, (*pair, other)) == "c" for other in others))
        y = self._outputs(m, self._flat(n, k, summands), tokens, (token, row))[:, 0].astype(np.float64)
        if not (np.abs(y / (_SCALE * self.unit) - left) < 0.01).all():
            raise NoOrder("this output is added in another order than others")
        return of.tree

    def _rules(self, summands: Sequence[Summand]) -> Iterator[Rule]:
        count = len(summands)
        return rules(widths=sorted({1, count, count * (self.fmt.block_size // QK)}))

    def _known(self, trees: dict[int, Tree], summands: Sequence[Summand], values: int) -> Iterator[Rule | Repeated]:
        """Yield the rules that have all trees."""
        yield from itertools.islice(recognised(trees, self._rules(summands)), _MOST_RULES)
        count = len(summands) * (values // QK)
        for period in (1, 2, 4, 8):
            of = trees.get(2 * period * count)
            rule = None if of is None else Repeated.of(of, period, count)
            if rule is not None and all(rule.tree(n) == tree for n, tree in trees.items()):
                yield rule

    def _proven(self, m: int, n: int, k: int, summands: tuple[Summand, ...]) -> tuple[Tree, Arithmetic]:
        """Find the tree of a shape, and the arithmetic that gives the bits of a random product. Raises NoOrder."""
        ask = lambda of: self.last_of(m, n, k, [of], summands)[0]  # noqa: E731
        tree, clusters = Search(len(summands) * (k // QK), len(summands), ask).found()
        joinings: tuple[Joining, ...] = ("ascending", "neighbours", "halves")
        some = joinings if any(len(of) > 2 for of in clusters.values()) else joinings[:1]
        trees = [expand(tree, clusters, how, len(summands)) for how in some]
        tried = (FoundOrder(of, None, how) for of in trees for how in arithmetics_of_summands(summands, self.fmt, of))
        few = min(n, _ROWS)
        for found in self.fitting(m, n if self.kernel.domain.outside(few, k) else few, k, tried):
            return found.tree, found.arithmetic
        whole = trees[0]
        raise NoOrder(f"sums are added as {drawn(whole)[:400]}, but no known arithmetic of a summand gives the bits")

    def _agrees(self, m: int, n: int, k: int, tree: Tree, summands: Sequence[Summand]) -> bool:
        """Return whether random triples of summands are added as a tree says."""
        rng, count = np.random.default_rng((self.seed, n, k)), len(summands)
        total = count * (k // QK)
        triples = list[tuple[int, int, int]]()
        for a, b, c in (rng.choice(total, 3, False).tolist() for _ in range(8 * _TRIPLES) if total > 2):
            if c // count not in (a // count, b // count):
                triples.append((a, b, c))
        triples = triples[:_TRIPLES]
        return self.last_of(m, n, k, triples, summands) == [last_in(tree, of) for of in triples]

    # -- products ------------------------------------------------------------------------------------------------------

    def last_of(
        self, m: int, n: int, k: int, triples: Sequence[tuple[int, int, int]], summands: Sequence[Summand]
    ) -> list[Last]:
        """Return which of three summands (a, b, c) is added last; c is in other 32 values. Raises NoOrder."""
        of, tokens = sizes_for(self.unit), list[Floats]()
        for a, b, c in triples:
            for first, second in ((a, b), (b, a)):
                tokens.append(self._token(k, {first: of.a, second: of.b, c: of.c}, {c: of.exponent}, summands))
        y = self._outputs(m, self._flat(n, k, summands), tokens).astype(np.float64) / _SCALE
        middle = np.sort(y, axis=1)[:, y.shape[1] // 2]
        if not (2 * (y == middle[:, None]).sum(axis=1) > y.shape[1]).all():
            raise NoOrder("it adds the terms of rows in different orders")
        y = middle
        if not np.isin(y, (of.a_last, of.else_)).all():
            raise NoOrder(
                "it does not add two terms at a time in float32: a sum of three summands is rounded otherwise"
            )
        seen = (y == of.a_last).reshape(-1, 2)
        if seen.all(axis=1).any():
            raise NoOrder("its outputs are those of no tree")
        return ["a" if a else "b" if b else "c" for a, b in seen.tolist()]

    def _token(self, k: int, sizes: dict[int, int], exponents: dict[int, int], summands: Sequence[Summand]) -> Floats:
        """Return activations float32[k] with which these summands are not zero."""
        count, x, scales = len(summands), np.zeros((k // QK, QK)), np.full((k // QK, 1), _SCALE)
        cells = [of for of in summands if of.of_minima]
        for block, of_block in itertools.groupby(sorted(sizes), lambda i: i // count):
            wanted = {i % count: sizes[i] for i in of_block}
            scales[block] *= 2.0 ** max((exponents.get(block * count + at, 0) for at in wanted), default=0)
            code, signs = x[block], self.signs[block % len(self.signs)]
            for at, size in wanted.items():
                first, second, *_ = summands[at].values
                if cells and not summands[at].of_minima:
                    code[first] = size
                elif not cells:
                    largest = 127 if size > 0 else -127
                    code[first], code[second] = largest * signs[first], (size - largest) * signs[second]
            for cell in cells:  # the codes are 1 for the first value of a sum, and else 0: those set the minima's sums
                own = [v for v in cell.values if v not in self._firsts(summands)]
                total = -wanted.get(summands.index(cell), 0) - code[list(cell.values)].sum()
                if total:
                    largest = 127 if total > 0 else -127
                    code[own[0]], code[own[1]] = largest, total - largest
        made: Floats = (x * scales).astype(np.float32).reshape(k)
        return made

    def _firsts(self, summands: Sequence[Summand]) -> set[int]:
        return {of.values[0] for of in summands if not of.of_minima}

    def _flat(self, n: int, k: int, summands: Sequence[Summand]) -> Bytes:
        """Return weights whose summands have the size of a code: uint8[n, row bytes]."""
        block = self.even
        if self.fmt.has_min:
            numbers = numbers_of(self.fmt)
            bits = np.zeros(8 * self.fmt.block_bytes, np.uint8)
            firsts = self._firsts(summands)
            ones = [*numbers["scale"], *numbers["min"]]
            ones += [places for i, places in enumerate(numbers["x"]) if i % QK in firsts]
            for places in ones:
                bits[[place for place, low in places if low == 0]] = 1
            block = np.packbits(bits, bitorder="little")
            set_halves(self.fmt, block, "d", np.array(1.0, np.float64))
            set_halves(self.fmt, block, "dmin", np.array(1.0, np.float64))
        return np.ascontiguousarray(np.tile(block, (n, k // self.fmt.block_size)))

    def _outputs(self, m: int, w: Bytes, tokens: Sequence[Floats], at: tuple[int, int] | None = None) -> Floats:
        """Return the outputs of tokens, float32[tokens, n], or of one row, float32[tokens, 1]. Raises NoOrder."""
        made, step = list[Floats](), m if at is None else 1
        for start in range(0, len(tokens), step):
            some = tokens[start : start + step]
            x = np.zeros((m, len(some[0])), np.float32)
            first = 0 if at is None else at[0]
            x[first : first + len(some)] = some
            y = self.product(w, x)[first : first + len(some)]
            made.append(y if at is None else y[:, at[1] : at[1] + 1])
        return np.concatenate(made) if made else np.zeros((0, 1), np.float32)

    # -- integer sums --------------------------------------------------------------------------------------------------

    def _summands(self, m: int, n: int, k: int) -> tuple[Summand, ...]:
        """Return the integer sums of 32 values. Raises NoOrder."""
        key = "summands", m, n
        if key not in self._cache:
            made = self._sums(m, n, k, False)
            if self.fmt.has_min:
                of_block = Summand(True, tuple(range(QK)))
                made += (of_block,) if self.term.reads_sum(self.fmt) else self._sums(m, n, k, True)
            if min(len(of.values) for of in made) < (4 if self.fmt.has_min else 2):
                raise NoOrder("it adds products of single codes, not integer sums of several")
            self._cache[key] = made
        found = self._cache[key]
        assert isinstance(found, tuple)
        return found

    def _sums(self, m: int, n: int, k: int, of_minima: bool) -> tuple[Summand, ...]:
        sums, left = list[Summand](), list(range(QK))
        while left:
            first, *others = left
            same = self._together(m, n, k, first, others, of_minima)
            sums.append(Summand(of_minima, (first, *same)))
            left = [v for v in others if v not in same]
        return tuple(sums)

    def _together(self, m: int, n: int, k: int, first: int, others: Sequence[int], of_minima: bool) -> list[int]:
        """Return which values are in the integer sum of the first one."""
        rng, tokens = np.random.default_rng((self.seed, first)), list[Floats]()
        tries = _TRIES if is_half(self.fmt, "d") else _TRIES_OF_ONE
        for other in others:
            for of_try in range(tries):
                b = -(of_try % 2)  # of the first values of a row and of the last ones: a kernel may begin with either
                codes = rng.integers(-60, 61, QK)
                codes[next(v for v in range(QK) if v not in (first, other))] = 127
                scale = float(rng.uniform(1, 2)) * 2.0**-4
                moved = codes.copy()
                by = int(rng.integers(20, 60))
                moved[first] += by
                moved[other] -= by
                rest = rng.uniform(-1, 1, (k // QK, QK)) * 127 * scale * 2.0 ** (4 * (of_try // 2 % 4))
                for of in (codes, moved):
                    x = rest.copy()  # the sums of other values: beside them, more is rounded
                    x[b] = of * scale if of_minima else of * self.signs[b] * scale
                    tokens.append(x.astype(np.float32).reshape(k))
        blocks = np.tile(self.even, (n, k // self.fmt.block_size, 1))
        halves: npt.NDArray[np.float64] = rng.integers(1025, 2048, blocks.shape[:2]).astype(np.float64) * 2.0**-12
        for name, used in (("d", not of_minima), ("dmin", of_minima)):
            if is_half(self.fmt, name):
                set_halves(self.fmt, blocks, name, halves if used else np.zeros_like(halves))
        y = self._outputs(m, blocks.reshape(n, -1), tokens).view(np.uint32).reshape(len(others), tries, 2, n)
        same = (y[:, :, 0] == y[:, :, 1]).all(axis=(1, 2))
        return [other for other, is_same in zip(others, same, strict=True) if is_same]
