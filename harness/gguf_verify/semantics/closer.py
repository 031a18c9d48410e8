"""A closer judgement of products whose gates lack power (`power`): what correct kernels really lose, output by output.

The bound of sums in half holds for any order, so it grows as if all roundings went one way. Of values that are
multiplied and added in half, `half_sums` computes what the orders that kernels have lose: for an output a drift, which
is certain, and the deviation σ of roundings that are as good as independent. Weights that are decoded in narrow steps
(`values`) are off by e_w at most, in any direction. Four roundings, each with a root mean square of 1/√3 of its most,
come to 0.29 of e_w; the scale's is common to a block, so the parts of different blocks are taken for independent, and

    σ² = σ_sums² + 0.3²·Σ_blocks (Σ_k |a|·e_w)²

An output is then judged by its tolerance, drift + 8·σ. Where most outputs are weak even so, those of one token are
judged together. In units of σ, their errors are a vector of drifts and a normal vector of n independent parts, so

    ‖(y - o)/σ‖ ≤ ‖drift/σ‖ + √(n·x)        but with a probability of at most (x·e^(1-x))^(n/2)

(Chernoff's bound of χ²). x is chosen so that this is `MISSED`: a correct kernel fails that seldom, and errors e of a
token with ‖e/σ‖ more than twice the right side are missed that seldom. The outputs of such a token are weak where this
limit is at least ‖0.1·o/σ‖. Different outputs have different weights or activations, so their roundings are
independent.

Of large products only a sample of outputs is judged so; it depends on the outputs' bytes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ..support.arrays import get
from .power import FEW, SHARE, Power, power
from .sums import Doubles, Errors, Floats, Product

Index = npt.NDArray[np.intp]

#: The probability of either error of the judgement of a token.
MISSED = 1e-9
#: Terms of the outputs that are judged so, and tokens of a sample.
_TERMS, _TOKENS = 1 << 19, 4


@dataclass(frozen=True)
class Closer:
    """A product judged so.

    Args:
        judged: outputs that were.
        outputs: of the product.
        together: tokens' outputs were judged together.
        tokens, rows: which outputs.
        bad: which of them fail, bool[tokens, rows].
        power: of this judgement.
    """

    judged: int
    outputs: int
    together: bool
    tokens: Index
    rows: Index
    bad: npt.NDArray[np.bool_]
    power: Power


def judge_closer(y: Floats, p: Product) -> Closer | None:
    """Judge outputs float32[M, N] by what correct kernels lose; None where that is not known of the product."""
    if p.errors is None:
        return None
    tokens, rows = _sample(y, p.columns)
    at = np.ix_(tokens, rows)
    exact, given = get(p.exact)[at], get(y)[at].astype(np.float64)
    scale = None if p.scale is None else get(p.scale)[at]
    with np.errstate(all="ignore"):
        lost = p.errors(tokens, rows)
        off = np.abs(given - exact)
        bad = ~(off <= lost.tolerance) & np.isfinite(exact)
        found = power(Product(exact, lost.tolerance, lost.tolerance, None, scale=scale))
        together = found.lacking
        if together:
            more, found = _by_token(off, exact, lost)
            bad |= more.reshape(bad.shape)
    return Closer(exact.size, y.size, together, tokens, rows, bad, found)


def _by_token(off: Doubles, exact: Doubles, lost: Errors) -> tuple[npt.NDArray[np.bool_], Power]:
    """Which outputs [M, n] fail because those of their token do together, and the power of that."""
    known = (lost.deviation > 0) & np.isfinite(exact)
    if known.shape[1] < FEW:  # too few of each token: all are judged together
        off, exact, known = off.reshape(1, -1), exact.reshape(1, -1), known.reshape(1, -1)
        lost = Errors(*(of.reshape(1, -1) for of in (lost.tolerance, lost.drift, lost.deviation)))
    counts = known.sum(axis=1)

    def norm(values: Doubles) -> Doubles:
        """Of the known outputs of each token, in units of their deviation."""
        return np.asarray(np.linalg.norm(np.where(known, values / lost.deviation, 0.0), axis=1))

    limit = norm(lost.drift) + np.array([math.sqrt(n * factor(int(n))) for n in counts])
    fails = ~(norm(off) <= limit)
    weak = ~(limit < SHARE * norm(exact))
    counted = known & (exact != 0)
    bad = fails[:, None] & known & (off >= lost.deviation)
    return bad, Power(int(counted.sum()), int((counted & weak[:, None]).sum()))


@cache
def factor(n: int) -> float:
    """x with (x·e^(1-x))^(n/2) = MISSED."""
    low, high, goal = 1.0, 1e4, 2 * math.log(MISSED) / max(1, n)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.log(middle) + 1 - middle > goal else (low, middle)
    return high


def _sample(y: Floats, columns: int) -> tuple[Index, Index]:
    """Tokens and rows of the outputs [M, N] that are judged: all, or a sample."""
    m, n = y.shape
    most = max(1, _TERMS // max(1, columns))
    if m * n <= most:
        return np.arange(m), np.arange(n)
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(get(y).tobytes()).digest()[:8], "little"))
    tokens = min(m, max(_TOKENS, most // n))
    rows = max(1, min(n, most // tokens))
    return np.sort(rng.choice(m, tokens, replace=False)), np.sort(rng.choice(n, rows, replace=False))


__all__ = ["MISSED", "Closer", "factor", "judge_closer"]
