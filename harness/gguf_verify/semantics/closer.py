"""A closer judgement of products whose gates lack power (`power`), from the errors of correct kernels at each output.

The bound of sums in half holds for any order, so it grows as if all roundings had one sign. `half_sums` (values that
are multiplied and added in half) and `lanes` (block sums) compute the errors in the orders of real kernels: for each
output a drift, which is certain, and the deviation σ of roundings that are practically independent. Weights that are
decoded in narrow steps (`values`) have errors of at most e_w, in any direction. Four roundings, each with a root mean
square of 1/√3 of its maximum, amount to 0.29 of e_w; the scale's is common to a block, so the parts of different blocks
are assumed to be independent, and

    σ² = σ_sums² + 0.3²·Σ_blocks (Σ_k |a|·e_w)²

An output is then judged by its tolerance, drift + 8·σ. If most outputs are still weak, those of one token are judged
together and, if that does not suffice, those of all tokens. In units of σ, the n errors are a vector of drifts, with λ
= ‖drift/σ‖², and a normal vector of independent parts, so ‖(y - o)/σ‖² has a noncentral χ² distribution:

    ‖(y - o)/σ‖² ≤ n + λ + 2·√((n + 2λ)·t) + 2t        except with a probability of at most e^-t

(Birgé, "An alternative point of view on Lepski's method", 2001, Lemma 8.1). t is chosen so that this is `MISSED`: a
correct kernel fails with this probability, and errors e with ‖e/σ‖² more than four times the right side are missed with
it. Such outputs are weak if this limit is at least ‖0.1·o/σ‖².

The roundings of outputs are independent if these have different weights or activations. Equal rows and equal tokens,
and ones that differ by a power of two, have the same drift/σ (or |o|/σ, if there is no drift). For outputs that share
it the mean of (y - o)²/σ² stands for one part of the n: for any s, the expected value of e^(s·mean) is at most that of
one of these squares, since the exponential function is convex.

Of large products only a sample of outputs is judged this way; it depends on the outputs' bytes. If a small sample has
no power, a larger one is judged.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..support.arrays import get
from .power import FEW, SHARE, Power, power, share_of_block
from .sums import Doubles, Errors, ErrorsOf, Floats, Product

Index = npt.NDArray[np.intp]

#: The probability of either error of the judgement of a token.
MISSED = 1e-9
#: Terms of the outputs that are judged this way: at first, and if that has no power; and tokens of a sample.
_TERMS, _TOKENS = (1 << 19, 1 << 22), 4


@dataclass(frozen=True)
class Closer:
    """A closer judgement of a product.

    Args:
        judged: outputs that were judged.
        outputs: outputs of the product.
        together: whether outputs of a token, or of all, were judged together.
        tokens, rows: the judged outputs.
        bad: which of them fail, bool[tokens, rows].
        power: the power of this judgement.
    """

    judged: int
    outputs: int
    together: bool
    tokens: Index
    rows: Index
    bad: npt.NDArray[np.bool_]
    power: Power


def judge_closer(y: Floats, p: Product) -> Closer | None:
    """Judge outputs float32[M, N] by the errors of correct kernels; None if these are not known for the product."""
    if p.errors is None:
        return None
    found = None
    for terms in _TERMS:
        tokens, rows = _sample(y, max(1, terms // max(1, p.columns)))
        if found is None or len(tokens) * len(rows) > found.judged:
            found = _judged(y, p, p.errors, tokens, rows)
        if not found.power.lacking:
            break
    return found


def _judged(y: Floats, p: Product, errors: ErrorsOf, tokens: Index, rows: Index) -> Closer:
    """Judge the outputs of these tokens and rows."""
    at = np.ix_(tokens, rows)
    exact, given = get(p.exact)[at], get(y)[at].astype(np.float64)
    scale = None if p.scale is None else get(p.scale)[at]
    with np.errstate(all="ignore"):
        lost = errors(tokens, rows)
        off = np.abs(given - exact)
        bad = ~(off <= lost.tolerance) & np.isfinite(exact)
        underflow = p.underflow if isinstance(p.underflow, float) else get(p.underflow)[at]
        alone = Product(
            exact, lost.tolerance, lost.tolerance, None, scale=scale, columns=p.columns, underflow=underflow
        )
        found = power(alone)
        together = found.lacking
        if together:
            more, found = _together(off, alone, lost)
            bad |= more
    return Closer(exact.size, y.size, together, tokens, rows, bad, found)


def _together(off: Doubles, p: Product, lost: Errors) -> tuple[npt.NDArray[np.bool_], Power]:
    """Judge the outputs [M, n] of each token together, or those of all tokens; return which fail, and the power."""
    known = (lost.deviation > 0) & np.isfinite(p.exact)
    tokens = [known & (np.arange(len(known))[:, None] == m) for m in range(len(known))]
    groups = [token for token in tokens if token.sum() >= FEW]
    bad, found = _by_group(off, p, lost, groups)
    if len(groups) < len(tokens) or found.lacking:
        more, found = _by_group(off, p, lost, [known])
        bad |= more
    return bad & (off >= lost.deviation), found


def _by_group(
    off: Doubles, p: Product, lost: Errors, groups: list[npt.NDArray[np.bool_]]
) -> tuple[npt.NDArray[np.bool_], Power]:
    bad, found, exact = np.zeros(off.shape, bool), Power(0, 0), p.exact
    of_block = np.broadcast_to(share_of_block(p), off.shape)
    for group in filter(np.any, groups):
        deviation = lost.deviation[group]
        drift = lost.drift[group] / deviation
        kind = np.where(drift > 0, drift, np.abs(exact[group]) / deviation).astype(np.float32)
        _, alike, counts = np.unique(kind, return_inverse=True, return_counts=True)

        def square(values: Doubles, alike: Index = alike, counts: Index = counts) -> float:
            """Return the sum of squares, where outputs that are alike count once."""
            return float((np.bincount(alike, values**2) / counts).sum())

        allowed = limit(len(counts), square(drift))
        bad |= group & (not square(off[group] / deviation) <= allowed)
        counted = int((exact[group] != 0).sum())
        weak = not allowed < square(SHARE * exact[group] / deviation)
        hidden = not 4 * allowed < square(of_block[group] / deviation)
        found = found.joined(Power(counted, counted * weak, hidden=counted * hidden))
    return bad, found


def limit(n: int, noncentral: float = 0.0) -> float:
    """Return the limit that a noncentral χ² of n parts exceeds with a probability of at most MISSED."""
    t = -math.log(MISSED)
    return n + noncentral + 2 * math.sqrt((n + 2 * noncentral) * t) + 2 * t


def _sample(y: Floats, most: int) -> tuple[Index, Index]:
    """Return tokens and rows of the outputs [M, N] to judge: all, or a sample of about `most`."""
    m, n = y.shape
    if m * n <= most:
        return np.arange(m), np.arange(n)
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(get(y).tobytes()).digest()[:8], "little"))
    tokens = min(m, max(_TOKENS, most // n))
    rows = max(1, min(n, most // tokens))
    return np.sort(rng.choice(m, tokens, replace=False)), np.sort(rng.choice(n, rows, replace=False))
