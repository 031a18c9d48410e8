"""Sums in half in a known order: every bit of the output is determined, so no bound is needed.

Vulkan's mul_mm.comp without matrix cores (llama.cpp v0.5.0) adds the products of a row in ascending groups of values,
two for weights in blocks and four for halves, and within a group from the last to the first (dot_product_funcs.glsl):

    acc = fma(a.x, b.x, fma(a.y, b.y, acc))                  a, b, acc: halves

GLSL's `fma` may round the product to half before the addition (without `precise`) or round only once; the device
decides. Mesa's llvmpipe rounds twice. Both are tried. A sum of two halves is computed in float32 and rounded to half,
which equals a single rounding, because float32 has more than twice the bits of a half plus two (Figueroa, "When is
double rounding innocuous?", SIGNUM 30(3), 1995). A half and a product of two halves (22 bits) are added in float64:
where they span more than its 53 bits, the lost bits cannot change the rounding to half. The shader clamps sums that
overflow; these are excluded here.

Outputs have such an order if all of their bits agree. If a few outputs have other bits, they are wrong unless another
arithmetic may explain them (`told_apart`):

- they are fewer than an eighth of the outputs in which the two arithmetics differ, which are as close to each other as
  any two that round to the nearest half;
- none of them changes where the device flushes subnormal factors, products or sums to zero;
- none is in a row with a weight that a device may decode to the neighbouring half, because d·q + m is not a float32
  number and is so near the middle between two halves that its roundings decide. (d·q alone has at most 24 bits in every
  format.)

Otherwise, and for more outputs than can be added up in reasonable time, the bounds of sums in any order apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.llama.node import Bytes
from gguf_verify.semantics.accumulation import IN_FLOAT16
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.terms.values import ValueTerm
from gguf_verify.semantics.values import exact_weights

Floats = npt.NDArray[np.float32]

#: Largest number of products that are added one by one; larger matrices take seconds.
MOST_PRODUCTS = 1 << 27
#: An eighth, as above; and the error of four float32 roundings of a weight, relative to the size of its parts.
_SHARE, _DECODING = 8, 2.0**-22


@dataclass(frozen=True)
class Ordered:
    """The sums of a definition in their order.

    Args:
        semantics: rounds both factors to half.
        fmt: format of the weights.
        fused: whether a product is added without being rounded first.
    """

    semantics: Semantics
    fmt: WeightFormat
    fused: bool

    #: Which of factors, products and sums are flushed to zero where they are subnormal.
    FLUSHED: ClassVar[tuple[tuple[bool, bool, bool], ...]] = tuple(
        (factors, products, of_sums) for factors, products, of_sums in combinations((False, True), repeat=3)
    )[1:]

    @property
    def words(self) -> str:
        """Return the words that follow the definition's name."""
        return f"{'fused' if self.fused else 'multiplied and added'} in float16 in order"

    def bits(self, w: Bytes, x: Bytes, flushed: tuple[bool, bool, bool] = (False, False, False)) -> Floats:
        """Return the outputs float32[M, N] of weights uint8[N, row bytes] and activations uint8[M, row bytes]."""
        if isinstance(self.fmt, BlockFormat):
            assert isinstance(self.semantics.term, ValueTerm)
            values, group = self.semantics.term.values(self.fmt, w)[0], 2
        else:
            values, group = self.fmt.decode(w).astype(np.float64), 4
        return sums(self.semantics.values_of(x), values, group, self.fused, flushed)

    def uncertain(self, w: Bytes) -> npt.NDArray[np.bool_]:
        """Return which rows of weights uint8[N, row bytes] have a weight that may decode to either of two halves."""
        if not isinstance(self.fmt, BlockFormat):
            return np.zeros(len(w), bool)
        blocks = w.reshape(len(w), -1, self.fmt.block_bytes)
        exact = exact_weights(self.fmt, blocks)
        least = np.repeat(np.abs(self.fmt.minima(blocks).astype(np.float64)), self.fmt.group, axis=-1)
        off = np.where(exact.astype(np.float32) == exact, 0.0, _DECODING * (np.abs(exact) + 2 * least))
        below, above = ((exact + sign * off).astype(np.float16) for sign in (-1, 1))
        return np.asarray((below != above).reshape(len(w), -1).any(axis=1))


def affordable(rows: int, columns: int, k: int) -> bool:
    """Return whether an output of this size is small enough to be added up one by one."""
    return rows * columns * k <= MOST_PRODUCTS


def same_bits(y: Floats, bits: Floats) -> npt.NDArray[np.bool_]:
    """Return which outputs have the known bits. The sign of a zero does not count."""
    return np.asarray(y == bits)


def told_apart(
    wrong: npt.NDArray[np.bool_],
    bits: Floats,
    of_other: Sequence[Floats],
    of_flushed: Sequence[Floats],
    uncertain: npt.NDArray[np.bool_],
) -> bool:
    """Return whether no other arithmetic can explain the outputs with other bits.

    Args:
        wrong: which outputs have other bits.
        bits: the expected outputs.
        of_other: outputs of the other arithmetics.
        of_flushed: outputs of the same arithmetic with subnormal numbers flushed to zero.
        uncertain: outputs with a weight that may be decoded in two ways.
    """
    differ = min((int((~same_bits(bits, other)).sum()) for other in of_other), default=0)
    fragile = uncertain.copy()
    for flushed in of_flushed:
        fragile |= ~same_bits(bits, flushed)
    return int(wrong.sum()) * _SHARE < differ and not (wrong & fragile).any()


def sums(
    a: npt.NDArray[np.floating],
    b: npt.NDArray[np.floating],
    group: int,
    fused: bool,
    flushed: tuple[bool, bool, bool] = (False, False, False),
) -> Floats:
    """Return Σ_k a[M, k]·b[N, k] of factors that are rounded to half, summed in halves.

    The order is that of ascending groups, the last product first in each. The last group is padded with zeros.
    """
    of_factors, of_products, of_sums = flushed
    k = np.arange(a.shape[1] + -a.shape[1] % group).reshape(-1, group)[:, ::-1].ravel()
    filled = (np.pad(each, ((0, 0), (0, len(k) - each.shape[1]))) for each in (a, b))
    columns, rows = (_columns(each, of_factors)[k] for each in filled)
    acc = np.zeros((len(a), len(b)), np.float32)
    with np.errstate(all="ignore"):
        for of_a, of_b in zip(columns, rows, strict=True):
            exact = of_a[:, None] * of_b  # halves have 11 bits
            if fused:
                acc = _half(acc.astype(np.float64) + exact, of_sums)
            else:
                acc = _half(acc + _half(exact, of_products), of_sums)
    return acc


def _columns(values: npt.NDArray[np.floating], flushed: bool) -> Floats:
    """Return the values as [K, rows], rounded to half."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(_half(values, flushed).T)


def _half(values: npt.NDArray[np.floating], flushed: bool) -> Floats:
    made = values.astype(np.float16).astype(np.float32)
    return np.where(np.abs(made) < IN_FLOAT16.normal, np.float32(0), made) if flushed else made
