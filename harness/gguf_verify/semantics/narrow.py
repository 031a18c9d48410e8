"""Rounding to half and bfloat16: of weights before they are multiplied, and of a result before it is stored.

An output y of a type with p bits is the rounding of a value v of correct arithmetic, |v - o| ≤ bound. So

    |y - o| ≤ bound + r(|o| + e)

with r(v) half the spacing of the numbers of that type around v (half the smallest spacing if v is subnormal), and e the
largest distance of v from o: the smaller one of the bound and the product's limit times the spread, since v passes both
gates. r is certain, not a deviation, so the spread grows by r/limit: then the score admits r and everything it admitted
before.

If |o| + e reaches the middle between the largest number and the next one (65520 for half), y of a correct kernel may be
infinite: there is no finite value, and the definition is to blame (`overflow`). Its bits are those of the declared
order, rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..support.arrays import on_host
from .sums import Doubles, Floats, Product, loosened_errors


@dataclass(frozen=True)
class Narrow:
    """A floating-point type: its bits of significand p, the exponent of its smallest normal number, its overflow limit.

    Magnitudes from `overflows` on round to infinity.
    """

    name: str
    title: str
    bits: int
    least: int
    overflows: float

    @property
    def unit(self) -> float:
        """u, the largest relative rounding error."""
        return 2.0**-self.bits

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.least

    @property
    def underflow(self) -> float:
        """η, the largest rounding error of a result below the normal numbers."""
        return 2.0 ** (self.least - self.bits)

    def rounded(self, values: npt.NDArray[np.floating]) -> Doubles:
        """Round to nearest even, as float64."""
        if self.bits == 11 and on_host(values):  # CuPy's conversion to half may round twice
            with np.errstate(over="ignore", invalid="ignore"):
                return values.astype(np.float16).astype(np.float64)
        wide = values.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            power = np.maximum(np.frexp(wide)[1] - 1, self.least) - (self.bits - 1)
            near = np.ldexp(np.rint(np.ldexp(wide, -power)), power)
            return np.where(np.abs(wide) >= self.overflows, np.copysign(np.inf, wide), near)

    def half_ulp(self, sizes: Doubles) -> Doubles:
        """Return half the spacing of the numbers around |v|, for float64 magnitudes."""
        return np.asarray(np.ldexp(1.0, np.maximum(np.frexp(sizes)[1] - 1, self.least) - self.bits))


HALF = Narrow("float16", "half", 11, -14, 65520.0)
BFLOAT16 = Narrow("bfloat16", "bfloat16", 8, -126, (2 - 2.0**-8) * 2.0**127)
NARROW = {narrow.name: narrow for narrow in (HALF, BFLOAT16)}


def stored(p: Product, output: str) -> Product:
    """Return the product rounded to the type of the output; "float32": unchanged."""
    narrow = NARROW.get(output)
    if narrow is None:
        return p
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.minimum(p.bound, p.limit * p.spread)
        reach = np.abs(p.exact) + error if p.ordered is None else np.abs(p.ordered.astype(np.float64))
        step = narrow.half_ulp(np.where(np.isfinite(reach), reach, 0.0))
        exact = np.where(reach < narrow.overflows, p.exact, np.copysign(np.inf, p.exact))
        ordered: Floats | None = None
        if p.ordered is not None:
            ordered = narrow.rounded(p.ordered).astype(np.float32)
        return replace(
            p,
            exact=exact,
            bound=p.bound + step,
            spread=p.spread + step / p.limit,
            ordered=ordered,
            errors=loosened_errors(p.errors, step),
            underflow=p.underflow + narrow.underflow,
        )


def stored_value(exact: Doubles, output: str) -> Doubles:
    """Return an exact result rounded to the type of the output."""
    narrow = NARROW.get(output)
    return exact if narrow is None else narrow.rounded(exact)
