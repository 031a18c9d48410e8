"""L and F of a card's tensor cores, from planted values: how many products an instruction adds at a time, and to how many
fraction bits it aligns them. `accumulation` says what the bound makes of them; Khattak and Mikaitis (arXiv 2512.07004)
and Fasi et al. (PeerJ Comput. Sci. 7:e330) describe such tests.

F. The accumulator holds 1 and one product is 2^-j, which is cut off where j > F. Float32 shows no bits below 2^-23, so
the product comes twice: an instruction that keeps 2^-j adds 2^(1-j). With j = 24, 25, … 2^(j-23) copies of it, all in one
group of L, give 1 + 2^-23·(…) while they are kept, and 1 when they are not. As a group holds few copies, larger j are
seen by cancellation instead: products 1 and -1 beside 2^-j leave 2^-j where it was kept, exactly, and 0 where it was not.

L. Products 1 at place 0, -1 at place i and 2^-(F+1) at place 1 (2 where i is 1): added in one group, the small one is cut
off, and the result is 0. Where place i is of a later group, the small one was added to 1 in the first one and cut off
there, too; so the small one is put beside -1, at place i + 1 or i - 1 of its group, and 1 at place 0: in one group it is
cut off; in a later group the accumulator of 1 is aligned with it, and it is cut off again. What differs is a small value
alone in its group: 1 and -1 at places 0 and 1, and 2^-(F+1) at place i, is cut off where i is in their group, and kept
where 1 and -1 have cancelled before. L is the first i where it is kept. Were parts of an instruction added in another
order, L is the first place that is not added with place 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
#: a[M, K] and w[N, K], values that the operands' type holds, and c[M, N] → a·wᵀ + c by one instruction: float32[M, N].
Multiply = Callable[[Floats, Floats, Floats], Floats]
_MOST_FRACTION = 40


def probed(multiply: Multiply, m: int = 16, n: int = 8, k: int = 16) -> tuple[int, int]:
    """L and F of tensor cores that multiply values of 16 bits.

    Args:
        multiply: one instruction of m tokens, n rows and k columns (mma.sync.m16n8k16), every product of which is exact.

    L is at most k: more cannot be seen in one instruction. Raises ValueError where the outputs are those of no such
    unit: not the same at every output, or never cut off.
    """

    def result(row: Floats, accumulator: float = 0.0) -> float:
        a, w = np.tile(_halves(row)[0], (m, 1)), np.tile(_halves(row)[1], (n, 1))
        y = np.asarray(multiply(a, w, np.full((m, n), accumulator, np.float32)), np.float32)
        if y.shape != (m, n) or not (y == y[0, 0]).all():
            raise ValueError("equal rows and columns give different outputs: that is no matrix product")
        return float(y[0, 0])

    fraction = 0
    for bits in range(1, _MOST_FRACTION + 1):
        row = np.zeros(k)
        row[:3] = 1, -1, 2.0**-bits
        if result(row) != 2.0**-bits:
            break
        fraction = bits
    else:
        raise ValueError(f"nothing is cut off down to 2^-{_MOST_FRACTION}: that adds in another way")
    for place in range(2, k):
        row = np.zeros(k)
        row[0], row[1], row[place] = 1, -1, 2.0 ** -(fraction + 1)
        if result(row) != 0:
            return place, fraction
    return k, fraction


def _halves(products: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
    """Factors of ±2^-j, as values that a half holds."""
    exponent = np.where(products == 0, 0, np.frexp(products)[1] - 1)
    left = exponent // 2
    a = np.where(products == 0, 0.0, np.ldexp(np.sign(products), left))
    return a.astype(np.float32), np.where(products == 0, 0.0, np.ldexp(1.0, exponent - left)).astype(np.float32)


__all__ = ["Multiply", "probed"]
