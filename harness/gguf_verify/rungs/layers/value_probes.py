"""Probes of the order in which a kernel adds products of values: the summands are the products a·w.

All weights are ±c, and masks are activations: one call tries as many pairs as it has tokens (`semantics.summation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...kernels.interface import Kernel
from ...semantics.definition import Semantics
from ...semantics.replay import Arithmetic, arithmetics_of_values
from ...semantics.summation import NoOrder, Rule, rules
from ..field_classes import numbers_of
from .order_probes import Bytes, PairProbes, set_halves

#: The activations of masks. The others are 1, and a sum of them is exact: c has at most this many bits.
_MASKED, _BITS = 2.0**60, 10
#: Sizes of c.
_LEAST, _LARGEST = 2.0**-20, 2.0**20
#: The bits of 1 as a half.
_ONE_HALF = 0x3C00
#: Numbers of consecutive values that kernels add in one lane.
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def blocks_of_one_size(fmt: BlockFormat, bits: int = _BITS) -> tuple[Bytes, npt.NDArray[np.float32]]:
    """Return blocks uint8[n, block bytes] whose values are all c or -c, of few bits, and these. Raises NoOrder.

    All numbers of such a block are one number, or the low bits of it.
    """
    number, of_bits = np.arange(256), np.zeros((256, 8 * fmt.block_bytes), np.uint8)
    for members in numbers_of(fmt).values():
        for places in members:
            value = np.full(256, _ONE_HALF) if len(members) == 1 and len(places) == 16 else number
            for place, low in places:
                of_bits[:, place] = value >> low & 1
    blocks = np.packbits(of_bits, axis=1, bitorder="little")
    for field in fmt.fields:  # the scale is 1, and minima are 0
        if field.dtype == "<f2":
            set_halves(fmt, blocks, field.name, np.full(256, float(field.name == "d")))
    with np.errstate(all="ignore"):
        values = fmt.decode(blocks).reshape(256, -1)
        size = np.abs(values.astype(np.float64))
        digits = np.frexp(size[:, 0])[0] * 2.0**bits
        fits = (size == size[:, :1]).all(axis=1) & (size[:, 0] >= _LEAST) & (size[:, 0] <= _LARGEST)
    fits &= digits == np.rint(digits)
    if not fits.any():
        raise NoOrder(f"no block of {fmt.name} was found whose values have one size")
    return blocks[fits], values[fits]


@dataclass(frozen=True)
class ValueProbes(PairProbes):
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

    @property
    def arithmetics(self) -> Iterable[Arithmetic]:
        return arithmetics_of_values()

    def rules(self) -> Iterable[Rule]:
        return rules(widths=_WIDTHS)

    def summands(self, k: int) -> int:
        return k

    def check(self, m: int, n: int, k: int) -> None:
        """Each value is a summand: products with pairs of them show whether they are."""

    def counted(
        self, m: int, n: int, k: int, pairs: Sequence[tuple[int, int]], at: tuple[int, int] | None
    ) -> npt.NDArray[np.float64]:
        blocks = k // self.fmt.block_size
        w = np.ascontiguousarray(np.tile(self.block, (n, blocks)))
        signs, c = np.tile(np.sign(self.values), blocks), abs(float(self.values[0]))
        step, found = (m if at is None else 1), list[float]()
        for start in range(0, len(pairs), step):
            some = pairs[start : start + step]
            tokens = range(len(some)) if at is None else [at[0]]
            x = np.ones((m, k), np.float32)
            for token, (i, j) in zip(tokens, some, strict=True):
                x[token, i], x[token, j] = _MASKED, -_MASKED
            y = self.product(w, x * signs)
            if at is None and not (y == y[:, :1]).all():
                raise NoOrder("it adds the terms of rows in different orders")
            found += [float(value) / c for value in y[list(tokens), 0 if at is None else at[1]].astype(np.float64)]
        return np.array(found)
