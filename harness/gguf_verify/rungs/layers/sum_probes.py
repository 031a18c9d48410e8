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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from ...formats.block import QK, BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.integer_sums import SumArithmetic, Summand, arithmetics_of_sums, is_half, minimum_of
from ...semantics.replay import FoundOrder
from ...semantics.subtrees import expand
from ...semantics.summation import Joining, NoOrder, Tree
from ...semantics.sums import Floats, Rows
from ...semantics.terms.codes import CodeTerm
from ...semantics.triples import Last, Search, last_in
from ...semantics.values import term_values
from ..field_classes import numbers_of
from .order_probes import FAULTY, Bytes, Probes, of_most_rows, set_halves
from .value_probes import blocks_of_one_size, uniform_blocks

Codes = npt.NDArray[np.int64]

#: Superblocks of shorter rows, the values of one at least, and the most summands.
_SUPERBLOCKS, _SHORT, _MOST_SHORT = (2, 4, 8, 16), 256, 1024
#: Random triples that are tried for long rows.
_TRIPLES = 32
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
class SumProbes(Probes):
    """The probes of a definition that multiplies sums of codes by scales.

    Args:
        term: of the definition.
        even: a block whose values are all c or -c, uint8[block bytes], and the signs of its values.
        unit: c.
        sums: the summands of 32 values; none before they are known.
    """

    term: CodeTerm
    even: Bytes
    signs: Codes
    unit: float
    sums: tuple[Summand, ...] = ()

    @classmethod
    def of(
        cls, kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int, term: CodeTerm
    ) -> SumProbes:
        """Raises NoOrder."""
        read = term.reads(fmt)
        blocks, values = blocks_of_one_size(fmt, 16 if read.has_min else 10)
        codes = np.abs(term.codes(read, blocks)[:, 0])
        at = int((np.abs(values[:, 0]) * (codes > 0)).argmax())  # the largest values: their products are rounded
        signs = np.sign(values[at] if not _has_seconds(term, fmt) else codes[at : at + 1].repeat(fmt.block_size))
        unit = abs(float(values[at, 0]))
        return cls(kernel, semantics, fmt, rows, seed, term, blocks[at], signs.astype(np.int64).reshape(-1, QK), unit)

    @property
    def short(self) -> Iterable[int]:
        size = self.fmt.block_size
        lengths = [of * -(-_SHORT // size) * size for of in _SUPERBLOCKS]
        return [of for of in lengths if len(self.sums) * (of // QK) <= _MOST_SHORT]

    def order(self, m: int, n: int, k: int) -> FoundOrder:
        lengths = [of for of in self.short if self.kernel.domain.outside(self.few(n, k), of) is None]
        why: NoOrder | None = None
        for sums in self._summands(m, self.few(n, k), min([*lengths, k])):
            try:
                return Probes.order(replace(self, sums=sums), m, n, k)
            except NoOrder as error:
                why = why or error
        assert why is not None
        raise why

    def summands(self, m: int, n: int, k: int) -> int:
        return len(self.sums) * (k // QK)

    def proposed(self, m: int, n: int, k: int) -> Iterable[tuple[Tree, SumArithmetic]]:
        count, inner = self._per_scale, self.semantics.inside or self.semantics
        tree, clusters = Search(self.summands(m, n, k), count, lambda of: self.last_of(m, n, k, [of])[0]).found()
        no_room = tuple(inner.encoding.no_room(self._read.block_size // term_values(self._read)).tolist())
        joinings: tuple[Joining, ...] = ("ascending", "neighbours", "halves")
        some = joinings if any(len(of) > 2 for of in clusters.values()) else joinings[:1]
        for whole in (expand(tree, clusters, how, count) for how in some):
            for arithmetic in arithmetics_of_sums(self.sums, self.term, self.fmt, whole, no_room):
                yield whole, arithmetic

    def widths(self) -> Iterable[int]:
        count = len(self.sums)
        return {1, count, count * (self.fmt.block_size // QK)}

    def agrees(self, m: int, n: int, k: int, tree: Tree) -> bool:
        rng, count, total = np.random.default_rng((self.seed, n, k)), self._per_scale, self.summands(m, n, k)
        triples = list[tuple[int, int, int]]()
        for a, b, c in (rng.choice(total, 3, False).tolist() for _ in range(8 * _TRIPLES) if total > 2):
            if c // count not in (a // count, b // count):
                triples.append((a, b, c))
        triples = triples[:_TRIPLES]
        return self.last_of(m, n, k, triples) == [last_in(tree, of) for of in triples]

    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        """Here masks swallow ones, of which a fault of a few ulps changes no number."""
        assert isinstance(of.arithmetic, SumArithmetic)
        probes = replace(self, sums=of.arithmetic.summands)
        rng, count = np.random.default_rng((self.seed, token, row)), probes._per_scale
        tokens, expected, total = list[Floats](), list[int](), probes.summands(m, n, k)
        if total < 2 * count:
            return of.tree  # all summands share a scale
        for _ in range(_TRIPLES // 4):
            pair = tuple(int(i) * count + int(rng.integers(count)) for i in rng.choice(total // count, 2, False))
            others = [i for i in range(total) if i // count not in (pair[0] // count, pair[1] // count)]
            others = rng.permutation(others)[:_ONES].tolist()
            sizes = {**dict.fromkeys(others, 1), pair[0]: 64, pair[1]: -64}
            tokens.append(probes._token(k, sizes, dict.fromkeys(pair, _SWALLOWS)))
            expected.append(sum(last_in(of.tree, (*pair, other)) == "c" for other in others))
        y = self.outputs(m, probes._flat(n, k), tokens, (token, row))[:, 0].astype(np.float64)
        if not (np.abs(y / (_SCALE * probes._unit) - expected) < 0.01).all():
            raise NoOrder("this output is added in another order than others")
        return of.tree

    # -- products ------------------------------------------------------------------------------------------------------

    def last_of(self, m: int, n: int, k: int, triples: Sequence[tuple[int, int, int]]) -> list[Last]:
        """Return which of three summands (a, b, c) is added last; c has another scale d_a. Raises NoOrder."""
        of, tokens = sizes_for(self._unit), list[Floats]()
        for a, b, c in triples:
            for first, second in ((a, b), (b, a)):
                tokens.append(self._token(k, {first: of.a, second: of.b, c: of.c}, {c: of.exponent}))
        y = of_most_rows(self.outputs(m, self._flat(n, k), tokens)) / _SCALE
        if not np.isin(y, (of.a_last, of.else_)).all():
            raise NoOrder(
                "it does not add two terms at a time in float32: a sum of three summands is rounded otherwise"
            )
        seen = (y == of.a_last).reshape(-1, 2)
        if seen.all(axis=1).any():
            raise NoOrder("its outputs are those of no tree")
        return ["a" if a else "b" if b else "c" for a, b in seen.tolist()]

    @cached_property
    def _block(self) -> tuple[Bytes, Codes]:
        """Return a block with minima 1, uint8[block bytes], and its codes as multiplied, [K/32, 32]. Raises NoOrder.

        Each integer sum has a code of 1, and each sum of a minimum two of 0.
        """
        numbers, blocks = numbers_of(self.fmt), uniform_blocks(self.fmt)
        if "x" in numbers:
            firsts = {of.values[0] for of in self.sums if not of.of_minima}
            bits = np.zeros(8 * self.fmt.block_bytes, np.uint8)
            ones = [*numbers.get("scale", []), *numbers.get("min", [])]
            ones += [places for i, places in enumerate(numbers["x"]) if i % QK in firsts]
            bits[[place for places in ones for place, low in places if low == 0]] = 1
            blocks = np.packbits(bits, bitorder="little")[None]
        for name in ("d", "m", "dmin"):
            if is_half(self.fmt, name):
                set_halves(self.fmt, blocks, name, 1.0)
        codes = self.term.codes(self._read, blocks).astype(np.int64).reshape(len(blocks), -1, QK)
        fits = (self._read.scales(blocks) == self._read.scales(blocks)[:, :1]).all(axis=1)
        for of in self.sums:
            fits &= ((codes[..., of.values] == 1).any(axis=2) | of.of_minima).all(axis=1)
        for of in self._cells:
            fits &= ((codes[..., of.values] == 0).sum(axis=2) > 1).all(axis=1)
        if not fits.any():
            raise NoOrder(f"no block of {self.fmt.name} was found whose integer sums can be set one by one")
        return blocks[fits.argmax()], codes[fits.argmax()]

    @property
    def _per_scale(self) -> int:
        """Summands of values whose activations share a scale."""
        return len(self.sums) * ((self.semantics.inside or self.semantics).encoding.values_per_scale // QK)

    @property
    def _read(self) -> BlockFormat:
        return self.term.reads(self.fmt)

    @property
    def _cells(self) -> list[Summand]:
        """The values whose activations are added, for minima and for a stored s."""
        cells = [of for of in self.sums if of.of_minima]
        return cells or [Summand(True, tuple(range(QK)))] * _has_seconds(self.term, self.fmt)

    @property
    def _unit(self) -> float:
        """The value of a weight whose code is 1, or of any one of a block without minima."""
        return float(self._read.scales(self._block[0][None])[0, 0]) if self._cells else self.unit

    def _token(self, k: int, sizes: dict[int, int], exponents: dict[int, int]) -> Floats:
        """Return activations float32[k] with which these summands are not zero."""
        count, x, scales = len(self.sums), np.zeros((k // QK, QK)), np.full((k // QK, 1), _SCALE)
        for block, of_block in itertools.groupby(sorted(sizes), lambda i: i // count):
            wanted = {self.sums[i % count]: sizes[i] for i in of_block}
            first_of = block * count // self._per_scale * self._per_scale
            scales[block] *= 2.0 ** max(exponents.get(first_of + i, 0) for i in range(self._per_scale))
            code = x[block]
            if not self._cells:
                signs = self.signs[block % len(self.signs)]
                for of, size in wanted.items():
                    (first, second, *_), largest = of.values, 127 if size > 0 else -127
                    code[first], code[second] = largest * signs[first], (size - largest) * signs[second]
                continue
            q = self._block[1][block % len(self._block[1])]
            for of, size in wanted.items():
                if not of.of_minima:
                    code[next(v for v in of.values if q[v] == 1)] = size
            least = np.sign(self._read.minima(self._block[0][None])[0, 0])
            for cell in self._cells:
                first, second, *_ = (v for v in cell.values if q[v] == 0)
                total = least * wanted.get(cell, 0) - code[list(cell.values)].sum()
                largest = 127 if total > 0 else -127
                code[first], code[second] = largest, total - largest
        made: Floats = (x * scales).astype(np.float32).reshape(k)
        return made

    def _flat(self, n: int, k: int) -> Bytes:
        """Return weights whose summands have the size of a code: uint8[n, row bytes]."""
        return np.ascontiguousarray(
            np.tile(self._block[0] if self._cells else self.even, (n, k // self.fmt.block_size))
        )

    # -- integer sums --------------------------------------------------------------------------------------------------

    def _summands(self, m: int, n: int, k: int) -> Iterator[tuple[Summand, ...]]:
        """Yield what may be the summands of 32 values. Raises NoOrder.

        A stored s is first tried as one summand with a minimum of its own, then as parts of the integer sums.
        """
        made = self._integer_sums(m, n, k, False)
        if (alone := next((of.values[0] for of in made if len(of.values) < 2), None)) is not None:
            changed = len(self._changed((m, n, k), (alone, alone ^ 1), range(_TRIES_OF_ONE), False))
            seen = "" if 2 * changed > n else f", or rows are faulty: outputs of {changed} of {n} rows show it"
            raise NoOrder(f"it adds products of single codes, not integer sums of several{seen}")
        if self._read.has_min and not self.term.reads_sum(self.fmt):
            yield made + self._integer_sums(m, n, k, True)
            return
        if self.term.reads_sum(self.fmt) and minimum_of(self.fmt) is not None:
            values = term_values(self._read)
            yield (*made, *(Summand(True, tuple(range(at, at + values))) for at in range(0, QK, values)))
        yield made

    def _integer_sums(self, m: int, n: int, k: int, of_minima: bool) -> tuple[Summand, ...]:
        sums, left = list[Summand](), list(range(QK))
        while left:
            first, *others = left
            if self.term.rounded(self._read) == "scales":  # the scales of groups are halves, not integers
                others = [v for v in others if v // self._read.group == first // self._read.group]
            same = self._together(m, n, k, first, others, of_minima)
            sums.append(Summand(of_minima, (first, *same)))
            left = [v for v in left[1:] if v not in same]
        return tuple(sums)

    def _together(self, m: int, n: int, k: int, first: int, others: Sequence[int], of_minima: bool) -> list[int]:
        """Return which values are in the integer sum of the first one: two tries for each, then all at once."""
        tries = range(_TRIES if is_half(self.fmt, "d") else _TRIES_OF_ONE)

        def kept(some: Sequence[int], numbers: Sequence[int]) -> list[int]:
            return [other for other in some if self._unchanged((m, n, k), (first, other), numbers, of_minima)]

        same = kept(others, tries[:2])
        whole = self._unchanged((m, n, k), (first, *same), tries, of_minima)
        return same if whole else kept(same, tries)

    def _unchanged(
        self, shape: tuple[int, int, int], values: Sequence[int], numbers: Sequence[int], of_minima: bool
    ) -> bool:
        """Return whether outputs keep all bits if codes are moved among some of 32 values.

        If few rows do not, their weights are tried in other rows; rows that alone show a change are left aside.

        Args:
            numbers: of the tries, which determine what else is in the row.
        """
        rows = self._changed(shape, values, numbers, of_minima)
        if not len(rows) or FAULTY * (len(rows) + len(self.aside)) > shape[1]:
            return not len(rows)
        order = self.exchanged(shape[1], rows)
        if not np.isin(self._changed(shape, values, numbers, of_minima, order), rows).all():
            return False
        self.aside.update(rows.tolist())
        return True

    def _changed(
        self, shape: tuple[int, int, int], values: Sequence[int], numbers: Sequence[int], of_minima: bool,
        order: Rows | None = None,
    ) -> Rows:  # fmt: skip
        """Return the rows, except those that are left aside, whose bits change if codes are moved: see `_unchanged`.

        Args:
            order: of the rows' weights; None: the usual one.
        """
        (m, n, k), rng = shape, np.random.default_rng((self.seed, *values))
        tokens, span = list[Floats](), (self.semantics.inside or self.semantics).encoding.values_per_scale // QK
        for number in numbers:
            b = number % 2 * (k // QK - 1)  # the first values of a row, or the last: a kernel may begin with either
            codes = rng.integers(-60, 61, QK)
            largest = next((v for v in range(QK) if v not in values), int(rng.integers(QK)))
            codes[largest] = 127
            scale = float(rng.integers(1025, 2048)) * 2.0**-20  # few bits: s, a half, is the same in both
            moved = codes.copy()
            mixed = [int(v) for v in rng.permutation(values) if v != largest]
            for more, less in zip(mixed[::2], mixed[1::2], strict=False):
                by = int(rng.integers(20, 60))
                moved[more] += by
                moved[less] -= by
            rest = rng.uniform(-1, 1, (k // QK, QK)) * 127 * scale * 2.0 ** (4 * (number // 2 % 4))
            for of in (codes, moved):
                x = rest.copy()  # the sums of other values: beside them, more is rounded
                x[b // span * span : b // span * span + span] = 0
                x[b] = of * scale if of_minima else of * self.signs[b % len(self.signs)] * scale
                tokens.append(x.astype(np.float32).reshape(k))
        blocks = np.tile(self.even, (n, k // self.fmt.block_size, 1))
        halves: npt.NDArray[np.float64] = rng.integers(1025, 2048, blocks.shape[:2]).astype(np.float64) * 2.0**-12
        for name, used in (("d", not of_minima), ("dmin", of_minima), ("m", of_minima)):
            if is_half(self.fmt, name):
                set_halves(self.fmt, blocks, name, halves if used else 0.0)
        w = np.ascontiguousarray((blocks if order is None else blocks[order]).reshape(n, -1))
        y = self.outputs(m, w, tokens).view(np.uint32).reshape(-1, 2, n)
        changed = (y[:, 0] != y[:, 1]).any(axis=0)
        changed[list(self.aside)] = False
        return np.flatnonzero(changed)


def _has_seconds(term: CodeTerm, fmt: BlockFormat) -> bool:
    """Return whether minima, or an offset, are multiplied by sums of activations."""
    return term.reads(fmt).has_min or term.reads_sum(fmt)
