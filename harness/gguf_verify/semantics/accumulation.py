"""Accumulations: the rounding of a definition's products and sums, from which its bound is derived.

`float32`: sums are float32, in any order; u = 2^-24. Products of codes are integers, which are exact. A sum of
magnitudes that may pass 2^128 may overflow in some order: then the definition has no finite value. A kernel may be
compiled so that float32 operands and results below 2^-126 are zero (`-ftz=true`, `--use_fast_math`): the loss, φ =
2^-126 a number, is not held against the kernel (`exact`, `values`).

`values`: the same, but each product of two values is rounded and added by itself, even for codes, as in a kernel that
dequantizes both factors. A product (d_w·q_w)·(d_a·q_a), or (d_w·d_a)·(q_w·q_a), has at most three roundings, a weight
d_w·q_w + m_w one more; K products, and nb terms of an s, need K + nb - 1 additions in any order. So a path to the
output has at most K + nb + 3 roundings, and one of the result: n = K + nb + 8 covers them, in the bound's sum per
element. The default's n = nb + 8 does not, since it assumes that a block's integer sum is exact.

`float16`: products and sums are halves (`__hmul2`, `__hadd2`, `__hfma2`), in any order; u = 2^-11. A result below 2^-14
loses up to η = 2^-25. A path to the output has n roundings, which multiply a term by (1 + θ) with |θ| ≤ (1 + u)^n - 1.
This holds for any n (γ_n needs n·u < 1, that is, rows of less than 2048 values). A sum of magnitudes that may pass
65520 may overflow in some order: then the definition has no finite value.

`tensor`: tensor cores multiply values of 16 bits exactly and add L products and the accumulator at a time. These L + 1
terms are aligned to the largest exponent and truncated to F fraction bits: the error of a step is at most (L +
1)·2^(1-F)·max|term| (Khattak and Mikaitis, arXiv 2512.07004). The result is then truncated to float32: at most 2^-23 of
it. No term, and no partial sum, is larger than the sum A of the magnitudes of all products times the growth in the
steps before. With e = (L + 1)·2^(1-F) + 2^-23 and n = K/L + 8 steps (the eight are float32 additions of parts, whose u
is smaller than e) the error is at most n·e/(1 - n·e)·A, in any order of the products. GPUs differ in L and F;
scripts/tensor_cores.py measures them. The published ones, for factors of 16 bits, are (4, 23) of the V100, (8, 24) of
the A100, A30, A2, L40S and RTX Ada, and (16, 25) of the H100 and the B200 (the same paper; Fasi et al., PeerJ Comput.
Sci. 7:e330; the script printed the same on an H100). `values.alignment_of_subnormals` has the additional error
of subnormal factors. A declaration outside these ranges is refused, since it would widen the bound. The default is that
of the V100, which has the largest bound of a row, K/L·e.

The score needs independent roundings. Those of a half that is added to a much larger sum are not independent: they all
have one sign, and truncation always has. Their spread is therefore at least 1/32 (SCORE_LIMIT) of the running-error
bound of a sum in ascending k, e·Σ_b r·(|S[b]| + 2·√L[b]) for r roundings a block: the gate then admits every error
within that bound. The 32 standard deviations leave room for such roundings; with this minimum in place, sums in half
get 8 instead: a half is so coarse that 32 of them would hide a wrong code even in one block. (Simulated correct sums
reach 2.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Score |y - o| / spread above which an output fails; a certain error included in a spread counts as this score.
SCORE_LIMIT = 32.0
#: The same if the spread only holds independent roundings, and lane orders judge outputs that fail by it (`lanes`).
LANES_LIMIT = 8.0
#: Roundings besides those of the terms: lanes are added, results converted.
EXTRA_ROUNDINGS = 8


@dataclass(frozen=True)
class Accumulation:
    """The arithmetic of a sum of products.

    Args:
        name: in a declaration: "float32", "values", "float16" or "tensor".
        unit: u, the largest relative error of one rounding; for `tensor` e.
        underflow: η, the largest loss of a result below the normal numbers.
        normal: the smallest normal number.
        flushed: φ, the limit below which operands and results may be flushed to zero; 0 if none may.
        overflows: the smallest sum that is infinite.
        products: L, products of one instruction; 1 if each is added by itself.
        fraction: F, for `tensor`; 0 for others.
        deviations: the most standard deviations of independent roundings in an output that passes.
    """

    name: str
    unit: float
    underflow: float
    normal: float
    overflows: float
    products: int = 1
    fraction: int = 0
    flushed: float = 2.0**-126
    deviations: float = SCORE_LIMIT

    @property
    def independent(self) -> bool:
        """Whether its roundings may be assumed to be independent."""
        return self.name in ("float32", "values")

    @property
    def by_value(self) -> bool:
        """Whether each product of two values is added by itself."""
        return self.name == "values"

    def growth(self, added: int) -> float:
        """Return the bound of `added` and `EXTRA_ROUNDINGS` additions, as a fraction of the sum of all magnitudes."""
        if self.name == "float16":
            return math.expm1((added + EXTRA_ROUNDINGS) * math.log1p(self.unit))
        n = -(-added // self.products) + EXTRA_ROUNDINGS
        return n * self.unit / (1 - n * self.unit) if n * self.unit < 1 else math.inf

    def __str__(self) -> str:
        if self.fraction:
            return f"tensor cores (L = {self.products}, F = {self.fraction})"
        return "float32, value by value" if self.name == "values" else self.name


#: The smallest number that rounds to infinity in float32.
OVERFLOWS = 2.0**128 * (1 - 2.0**-25)

IN_FLOAT32 = Accumulation("float32", 2.0**-24, 2.0**-150, 2.0**-126, OVERFLOWS)
BY_VALUE = Accumulation("values", 2.0**-24, 2.0**-150, 2.0**-126, OVERFLOWS)
IN_FLOAT16 = Accumulation("float16", 2.0**-11, 2.0**-25, 2.0**-14, 65520.0, flushed=0.0, deviations=8.0)


#: L and F of published GPUs, the minimum and maximum of each.
PUBLISHED = (4, 16), (23, 25)


def in_tensor_cores(products: int = 4, fraction: int = 23) -> Accumulation:
    """Return the accumulation of a GPU with this L and F. Raises ValueError for values outside the published ranges."""
    if not all(least <= value <= most for value, (least, most) in zip((products, fraction), PUBLISHED, strict=True)):
        (l_least, l_most), (f_least, f_most) = PUBLISHED
        raise ValueError(
            f"the tensor cores of published GPUs add L = {l_least} to {l_most} products with F = {f_least} to {f_most} "
            f"bits, not {products} and {fraction}"
        )
    unit = (products + 1) * 2.0 ** (1 - fraction) + 2.0**-23
    return Accumulation("tensor", unit, 2.0**-149, 2.0**-126, OVERFLOWS, products, fraction)


ACCUMULATIONS = ("float32", "values", "float16", "tensor")


def accumulation_of(said: str | Mapping[str, Any]) -> Accumulation:
    """Parse a declaration: a name, or a table of L and F of tensor cores. Raises ValueError."""
    if isinstance(said, Mapping):
        numbers = {key: said[key] for key in said if key in ("L", "F")}
        if len(numbers) != len(said) or not all(type(v) is int for v in numbers.values()):
            raise ValueError("accumulates, as a table, has the integers L and F of tensor cores: { L = 16, F = 25 }")
        return in_tensor_cores(numbers.get("L", 4), numbers.get("F", 23))
    if said == "tensor":
        return in_tensor_cores()
    for known in (IN_FLOAT32, BY_VALUE, IN_FLOAT16):
        if said == known.name:
            return known
    raise ValueError(f"accumulates {ascii(said)[:60]} is not one of {', '.join(ACCUMULATIONS)}, nor a table of L and F")
