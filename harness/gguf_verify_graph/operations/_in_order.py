"""Sums in half whose order is known: every bit of the output is known, so no bound is needed.

Vulkan's mul_mm.comp without matrix cores (llama.cpp v0.5.0) adds the products of a row in ascending groups of values,
two of weights in blocks and four of halves, and within a group from the last to the first (dot_product_funcs.glsl):

    acc = fma(a.x, b.x, fma(a.y, b.y, acc))                  a, b, acc: halves

GLSL's `fma` may round the product to half before it is added (without `precise`), or once, as the device does: Mesa's
llvmpipe does the former. Both are tried. A sum of two halves is made in float32 and rounded to half, which is rounding
once: float32 has twice the bits of a half and two more (Figueroa, "When is double rounding innocuous?", SIGNUM 30(3),
1995). A half and a product of two, of 22 bits, are added in float64: where they reach further apart than its 53 bits,
no bit that is lost decides how a half is rounded. Sums that overflow are clamped by the shader; they are left alone.

The outputs have such an order where all of their bits are its bits. Where a few outputs have other bits, they are wrong
if that cannot be another arithmetic's doing (`told_apart`):

- they are less than an eighth of those in which the two arithmetics differ, which are as near to each other as any two
  that round to the nearest half;
- none of them is changed where the device takes subnormal factors, products or sums for zero;
- none is of a row with a weight that a device may decode to the neighbouring half, because d·q + m is no float32 and so
  near the middle between two halves that its roundings decide. (d·q alone has 24 bits at most in every format.)

Otherwise, and of outputs that are too many to be added up, the bounds of sums in any order judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gguf_verify.formats import BlockFormat, WeightFormat
from gguf_verify.llama.node import Bytes
from gguf_verify.semantics.accumulation import IN_FLOAT16
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.values import exact_weights, weights_of

Floats = npt.NDArray[np.float32]

#: Products of larger matrices are not added one by one, which takes seconds from here on.
MOST_PRODUCTS = 1 << 27
#: See above; and what four roundings to float32 take of a weight, relative to the sizes of its parts.
_SHARE, _DECODING = 8, 2.0**-22


@dataclass(frozen=True)
class Ordered:
    """A definition's sums in their order.

    Args:
        semantics: rounds both factors to half.
        fmt: of the weights.
        fused: a product is not rounded before it is added.
    """

    semantics: Semantics
    fmt: WeightFormat
    fused: bool

    #: Which of factors, products and sums are taken for zero where they are subnormal.
    FLUSHED: ClassVar[tuple[tuple[bool, bool, bool], ...]] = tuple(
        (factors, products, of_sums) for factors, products, of_sums in combinations((False, True), repeat=3)
    )[1:]

    @property
    def words(self) -> str:
        """Behind the definition's name."""
        return f"{'fused' if self.fused else 'multiplied and added'} in float16 in order"

    def bits(self, w: Bytes, x: Bytes, flushed: tuple[bool, bool, bool] = (False, False, False)) -> Floats:
        """The outputs float32[M, N] of weights uint8[N, row bytes] and activations uint8[M, row bytes]."""
        if isinstance(self.fmt, BlockFormat):
            values, group = weights_of(self.semantics.term, self.fmt, w)[0], 2
        else:
            values, group = self.fmt.decode(w).astype(np.float64), 4
        return sums(self.semantics.values_of(x), values, group, self.fused, flushed)

    def uncertain(self, w: Bytes) -> npt.NDArray[np.bool_]:
        """Which rows of weights uint8[N, row bytes] have a weight that may be decoded to either of two halves."""
        if not isinstance(self.fmt, BlockFormat):
            return np.zeros(len(w), bool)
        blocks = w.reshape(len(w), -1, self.fmt.block_bytes)
        exact = exact_weights(self.fmt, blocks)
        least = np.repeat(np.abs(self.fmt.minima(blocks).astype(np.float64)), self.fmt.group, axis=-1)
        off = np.where(exact.astype(np.float32) == exact, 0.0, _DECODING * (np.abs(exact) + 2 * least))
        below, above = ((exact + sign * off).astype(np.float16) for sign in (-1, 1))
        return np.asarray((below != above).reshape(len(w), -1).any(axis=1))


def affordable(rows: int, columns: int, k: int) -> bool:
    """Whether so many outputs of so many products are added up."""
    return rows * columns * k <= MOST_PRODUCTS


def same_bits(y: Floats, bits: Floats) -> npt.NDArray[np.bool_]:
    """Which outputs are as they are known to be. The sign of a zero does not count."""
    return np.asarray(y == bits)


def told_apart(
    wrong: npt.NDArray[np.bool_], bits: Floats, of_other: Sequence[Floats], of_flushed: Sequence[Floats],
    uncertain: npt.NDArray[np.bool_],
) -> bool:  # fmt: skip
    """Whether outputs with other bits can be no other arithmetic's doing.

    Args:
        wrong: which have other bits.
        bits: as they should be.
        of_other: of the other arithmetics.
        of_flushed: of the same one, with subnormal numbers taken for zero.
        uncertain: of which a weight may be decoded in two ways.
    """
    differ = min((int((~same_bits(bits, other)).sum()) for other in of_other), default=0)
    fragile = uncertain.copy()
    for flushed in of_flushed:
        fragile |= ~same_bits(bits, flushed)
    return int(wrong.sum()) * _SHARE < differ and not (wrong & fragile).any()


def sums(
    a: npt.NDArray[np.floating], b: npt.NDArray[np.floating], group: int, fused: bool,
    flushed: tuple[bool, bool, bool] = (False, False, False),
) -> Floats:  # fmt: skip
    """Σ_k a[M, k]·b[N, k] of factors that are rounded to half, in halves: in ascending groups, and in each the last
    product first. What fills up the last group is zero."""
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
    """[K, rows], rounded to half."""
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(_half(values, flushed).T)


def _half(values: npt.NDArray[np.floating], flushed: bool) -> Floats:
    made = values.astype(np.float16).astype(np.float32)
    return np.where(np.abs(made) < IN_FLOAT16.normal, np.float32(0), made) if flushed else made
