"""Probes of the order in which a kernel adds products of values: the summands are the products a·w.

All weights are ±c, and masks are activations: one call tries as many pairs as it has tokens (`semantics.summation`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.replay import OF_VALUES, Arithmetic, FoundOrder
from ...semantics.summation import NoOrder, Rule, Tree, find, meeting, recognised, rules
from ...semantics.sums import Floats
from ..field_classes import numbers_of
from .order_probes import MOST, Bytes, Probes, set_halves

#: The activations of masks. The others are 1, and a sum of them is exact: c has at most this many bits.
_MASKED, _BITS = 2.0**60, 10
#: Sizes of c.
_LEAST, _LARGEST = 2.0**-20, 2.0**20
#: The bits of 1 as a half.
_ONE_HALF = 0x3C00
#: Random pairs that are tried for long rows, and rules.
_PAIRS, _MOST_RULES = 64, 32
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
    """The probes of a definition that multiplies float32 values.

    Args:
        block: whose values are all c or -c, uint8[block bytes].
        values: its values, float32[block size].
    """

    block: Bytes
    values: npt.NDArray[np.float32]

    @classmethod
    def of(cls, kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int) -> ValueProbes:
        """Raises NoOrder."""
        blocks, values = blocks_of_one_size(fmt)
        return cls(kernel, semantics, fmt, rows, seed, blocks[0], values[0])

    @property
    def short(self) -> Iterable[int]:
        size = self.fmt.block_size
        return sorted({-(-of // size) * size for of in (64, 160, 384, 512)})

    def summands(self, m: int, n: int, k: int) -> int:
        return k

    def proposed(self, m: int, n: int, k: int) -> Iterable[tuple[Tree, Arithmetic]]:
        tree = find(k, lambda pairs: self._counted(m, n, k, pairs, None))
        return [(tree, arithmetic) for arithmetic in OF_VALUES]

    def rules(self, trees: Mapping[int, Tree]) -> Iterable[Rule]:
        return itertools.islice(recognised(trees, rules(_WIDTHS)), _MOST_RULES)

    def agrees(self, m: int, n: int, k: int, tree: Tree, at: tuple[int, int] | None = None) -> bool:
        rng = np.random.default_rng((self.seed, n, k))
        count = _PAIRS if at is None else _PAIRS // 8
        pairs = [(0, k - 1), *((int(i), int(j)) for i, j in (rng.choice(k, 2, False) for _ in range(count)))]
        counted = k - np.rint(self._counted(m, n, k, pairs, at))
        return bool((counted == meeting(tree, pairs)).all())

    def tree_in(self, m: int, n: int, k: int, of: FoundOrder, token: int, row: int) -> Tree:
        if k <= MOST:
            return find(k, lambda pairs: self._counted(m, n, k, pairs, (token, row)))
        if not self.agrees(m, n, k, of.tree, (token, row)):
            raise NoOrder("this output is added in another order than others")
        return of.tree

    def _counted(
        self, m: int, n: int, k: int, pairs: Sequence[tuple[int, int]], at: tuple[int, int] | None
    ) -> npt.NDArray[np.float64]:
        """Return how many summands are in the outputs of pairs: `summation.Counted`. Raises NoOrder.

        Args:
            at: token and row of the output; None: any, and all rows must agree.
        """
        blocks = k // self.fmt.block_size
        w = np.ascontiguousarray(np.tile(self.block, (n, blocks)))
        signs, c = np.tile(np.sign(self.values), blocks), abs(float(self.values[0]))
        tokens = list[Floats]()
        for i, j in pairs:
            x = np.ones(k, np.float32)
            x[i], x[j] = _MASKED, -_MASKED
            tokens.append(x * signs)
        y = self.outputs(m, w, tokens, at)
        if not (y == y[:, :1]).all():
            raise NoOrder("it adds the terms of rows in different orders")
        return y[:, 0].astype(np.float64) / c
