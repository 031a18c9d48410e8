"""Probes of the order in which a kernel adds products of values: the summands are the products a·w.

All weights are ±c, and masks are activations: one call tries as many pairs as it has tokens (`semantics.summation`).
The products that one instruction of tensor cores adds are one summand: only the first of them is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.narrow import NARROW
from ...semantics.replay import Arithmetic, FoundOrder, ValueArithmetic, arithmetics_of_values
from ...semantics.summation import NoOrder, Tree, added_at_once, find, meeting
from ...semantics.sums import Floats
from ...semantics.terms.values import ValueTerm
from ..field_classes import numbers_of
from .order_probes import MOST, Bytes, Probes, of_most_rows, set_halves

#: The activations of masks and of the others, and the same as halves. A sum of the others is exact: c has at most this
#: many bits.
_MASKS, _HALF_MASKS, _BITS = (2.0**60, 1.0), (2.0**15, 2.0**-24), 10
#: The columns whose instructions are looked for; those of others repeat them.
_PERIOD = 64
#: Sizes of c.
_LEAST, _LARGEST = 2.0**-20, 2.0**20
#: The bits of 1 as a half.
_ONE_HALF = 0x3C00
#: Random pairs that are tried for long rows.
_PAIRS = 64
#: Numbers of consecutive values that kernels add in one lane.
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def uniform_blocks(fmt: BlockFormat) -> Bytes:
    """Return blocks uint8[n, block bytes]: all numbers of one are the same, or its low bits; d is 1 and minima 0."""
    numbers = numbers_of(fmt).values()
    width = max(len(members[0]) for members in numbers if len(members[0]) < 16)
    number, of_bits = np.arange(1 << width), np.zeros((1 << width, 8 * fmt.block_bytes), np.uint8)
    for members in numbers:
        for places in members:
            value = np.full(len(number), _ONE_HALF) if len(members) == 1 and len(places) == 16 else number
            for place, low in places:
                of_bits[:, place] = value >> low & 1
    blocks = np.packbits(of_bits, axis=1, bitorder="little")
    for field in fmt.fields:
        if field.dtype == "<f2":
            set_halves(fmt, blocks, field.name, float(field.name == "d"))
    return blocks


def blocks_of_one_size(fmt: BlockFormat, bits: int = _BITS) -> tuple[Bytes, npt.NDArray[np.float32]]:
    """Return blocks uint8[n, block bytes] whose values are all c or -c, of few bits, and these. Raises NoOrder."""
    blocks = uniform_blocks(fmt)
    with np.errstate(all="ignore"):
        values = fmt.decode(blocks).reshape(len(blocks), -1)
        size = np.abs(values.astype(np.float64))
        digits = np.frexp(size[:, 0])[0] * 2.0**bits
        fits = (size == size[:, :1]).all(axis=1) & (size[:, 0] >= _LEAST) & (size[:, 0] <= _LARGEST)
    fits &= digits == np.rint(digits)
    if not fits.any():
        raise NoOrder(f"no block of {fmt.name} was found whose values have one size")
    return blocks[fits], values[fits]


@dataclass(frozen=True)
class ValueProbes(Probes):
    """The probes of a definition that multiplies values.

    Args:
        term: of the definition.
        block: whose values are all c or -c, uint8[block bytes].
        values: its values, float32[block size].
        instructions: the columns, of each PERIOD, whose products one instruction adds; none before they are known.
    """

    term: ValueTerm
    block: Bytes
    values: npt.NDArray[np.float32]
    instructions: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls, kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int, term: ValueTerm
    ) -> ValueProbes:
        """Raises NoOrder."""
        blocks, values = blocks_of_one_size(fmt, 7 if term.weights in NARROW else _BITS)
        at = int(np.abs(np.log2(np.abs(values[:, 0]))).argmin())  # c close to 1: halves hold it
        return cls(kernel, semantics, fmt, rows, seed, term, blocks[at], values[at])

    @property
    def short(self) -> Iterable[int]:
        size = self.fmt.block_size
        return sorted({-(-of // size) * size for of in (64, 160, 384, 512)})

    def order(self, m: int, n: int, k: int) -> FoundOrder:
        few = self.few(n, k)
        length = min([*(of for of in self.short if self.kernel.domain.outside(few, of) is None), k])
        columns = list(range(min(_PERIOD, length)))
        found = added_at_once(len(columns), lambda pairs: self._counted(m, few, length, columns, pairs, None))
        return Probes.order(replace(self, instructions=tuple(map(tuple, sorted(found)))), m, n, k)

    def summands(self, m: int, n: int, k: int) -> int:
        return len(self._groups(k))

    def _groups(self, k: int) -> tuple[tuple[int, ...], ...]:
        """Return the columns of each summand."""
        moved = (tuple(start + c for c in of) for start in range(0, k, _PERIOD) for of in self.instructions)
        return tuple(of for columns in moved if (of := tuple(c for c in columns if c < k)))

    def proposed(self, m: int, n: int, k: int) -> Iterable[tuple[Tree, ValueArithmetic]]:
        groups = self._groups(k)
        firsts = [columns[0] for columns in groups]
        tree = find(len(firsts), lambda pairs: self._counted(m, n, k, firsts, pairs, None))
        return [(tree, arithmetic) for arithmetic in arithmetics_of_values(self.term, groups)]

    def at(self, arithmetic: Arithmetic, k: int) -> ValueArithmetic:
        assert isinstance(arithmetic, ValueArithmetic)
        return replace(arithmetic, groups=self._groups(k))

    def widths(self) -> Iterable[int]:
        return _WIDTHS

    def agrees(self, m: int, n: int, k: int, tree: Tree, at: tuple[int, int] | None = None) -> bool:
        firsts, rng = [columns[0] for columns in self._groups(k)], np.random.default_rng((self.seed, n, k))
        total, count = len(firsts), _PAIRS if at is None else _PAIRS // 8
        pairs = [(0, total - 1), *((int(i), int(j)) for i, j in (rng.choice(total, 2, False) for _ in range(count)))]
        counted = total - np.rint(self._counted(m, n, k, firsts, pairs, at))
        return bool((counted == meeting(tree, pairs)).all())

    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        assert isinstance(of.arithmetic, ValueArithmetic)
        probes = replace(self, instructions=tuple(c for c in of.arithmetic.groups if c[0] < _PERIOD))
        if probes.summands(m, n, k) <= MOST:
            firsts = [columns[0] for columns in of.arithmetic.groups]
            return find(len(firsts), lambda pairs: self._counted(m, n, k, firsts, pairs, (token, row)))
        if not probes.agrees(m, n, k, of.tree, (token, row)):
            raise NoOrder("this output is added in another order than others")
        return of.tree

    def _counted(
        self, m: int, n: int, k: int, columns: Sequence[int], pairs: Sequence[tuple[int, int]],
        at: tuple[int, int] | None,
    ) -> npt.NDArray[np.float64]:  # fmt: skip
        """Return how many summands are in the outputs of pairs: `summation.Counted`. Raises NoOrder.

        Args:
            columns: those of the summands; the others are 0.
            at: token and row of the output; None: any, and all rows must agree.
        """
        blocks = k // self.fmt.block_size
        w = np.ascontiguousarray(np.tile(self.block, (n, blocks)))
        signs, c = np.tile(np.sign(self.values), blocks), abs(float(self.values[0]))
        dtype = (self.semantics.inside or self.semantics).encoding.dtype
        mask, one = _HALF_MASKS if "float16" in (dtype, self.term.weights) else _MASKS
        ones = np.zeros(k, np.float32)
        ones[list(columns)] = one
        tokens = list[Floats]()
        for i, j in pairs:
            x = ones.copy()
            x[columns[i]], x[columns[j]] = mask, -mask
            tokens.append(x * signs)
        return of_most_rows(self.outputs(m, w, tokens, at)) / (c * one)
