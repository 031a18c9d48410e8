"""Faults of factors: a part of the product has a wrong weight.

The correct product is a sum of parts, each with its factor in the definition:

    y = Σ_i c_i·T_i

It is split in several ways: the products of codes, the offset and the minimum; the bits of the codes; the values of the
codes; the bits of the codes and each two that are both set; the positions in a term; the groups of a block; the blocks
of K. A kernel that weights parts wrongly computes the same sum with other factors. For each split the factors are
fitted to the outputs by least squares and rounded to simple numbers. A fault is named if few factors differ from the
definition's and all outputs, including the correct ones, are within the bound of that sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..results.diagnoses import FaultMatch
from .classes import CLASSES, Bools
from .fault import Case
from .faults.tiles import end_of_k_dropped
from .observed import OBSERVED, observed
from .operands import Floats, Predicted
from .splits import MOST_PARTS, SPLITS, Part, Split, splits_of

#: Most tokens and rows to which factors are fitted; all others check them.
_TOKENS, _ROWS = 24, 64
#: Least number of outputs for each factor: fewer could be fitted by chance.
_OUTPUTS_EACH = 2
#: Least number of outputs that are not zero.
_FEWEST = 8
#: The uncertainty of a fitted factor, in standard deviations.
_DEVIATIONS = 6.0
#: In addition, the rounding of the fit itself: of a factor, and of the largest one.
_OF_FACTOR, _OF_FIT = 1e-7, 1e-9
#: The fraction of the squared error that the fit may leave: errors within the bound have passed no test of size.
_LEFT = 0.05
#: The factors of bits that are lost, moved or subtracted.
_POWERS = frozenset(2.0**i for i in range(-8, 9))
#: Denominators of simple factors, and the most wrong factors that are listed.
_DENOMINATORS, _LISTED = (1, 2, 3, 4, 8, 16, 32, 64), 6


@dataclass(frozen=True)
class Weighed:
    """A split with the factors of a kernel's parts, by key, if they differ from the definition's."""

    split: Split
    factors: Mapping[str, float]

    def predicted(self, case: Case) -> Predicted:
        """Return the outputs of a product with these factors."""
        total, growth = case.right.exact.copy(), 1.0
        for part in self.split.parts(case):
            factor = self.factors.get(part.key, part.meant)
            total += (factor - part.meant) * part.values
            growth = max(growth, abs(factor / part.meant) if part.meant else 1.0)
        return Predicted(total, growth * case.right.bound)

    def words(self, case: Case) -> str:
        """Describe the wrong factors."""
        wrong = list(self._clauses(self.split.parts(case)))
        more = f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        return "; ".join(wrong[:_LISTED]) + more

    def _clauses(self, parts: Sequence[Part]) -> Iterator[str]:
        for factor, run in groupby(parts, lambda part: self.factors.get(part.key)):
            some = list(run)
            if factor is None:
                continue
            if len(some) > 1 and some[0].many is not None:
                yield some[0].many(f"{some[0].key} to {some[-1].key}", factor)
            else:
                yield from (part.words(factor) for part in some)

    def match(self, case: Case, share: float, worst: float) -> FaultMatch:
        """Return the fault: the end of K is dropped if only its last parts are missing, else that of the split.

        Args:
            share: the fraction of the error that the factors explain.
            worst: |y - f| / bound.
        """
        parts = [part for part in self.split.parts(case) if part.many is not None]
        factors = [self.factors.get(part.key) for part in parts]
        kept = factors.index(0.0) if 0.0 in factors else len(factors)
        dropped = self.split.along_k and kept > 0 and set(factors[:kept]) == {None} and set(factors[kept:]) == {0.0}
        fault = end_of_k_dropped if dropped and len(self.factors) == len(parts) - kept else OBSERVED[self.split.id]
        return observed(fault.id, self.words(case), fault.fix, share, worst)


def weighed(y: Floats, case: Case, bad: Bools) -> tuple[Weighed, FaultMatch] | None:
    """Return the first split whose factors explain y float32[M, N], of which those of `bad` are wrong."""
    if case.parts.half_products or not np.isfinite(y).all() or not np.isfinite(case.right.exact).all():
        return None
    if np.count_nonzero(y) < _FEWEST:  # zeros fit any split with factors of zero
        return None
    tokens, rows = (
        np.sort(np.argsort(-bad.sum(axis=axis), kind="stable")[:most]) for axis, most in ((1, _TOKENS), (0, _ROWS))
    )
    few, few_y = case.part(rows, tokens), np.ascontiguousarray(y[np.ix_(tokens, rows)])
    for split in SPLITS:
        found = _by(split, few_y, few, y, case)
        if found is not None:
            return found
    return _by_class(few_y, few, y, case)


def _by(split: Split, few_y: Floats, few: Case, y: Floats, case: Case) -> tuple[Weighed, FaultMatch] | None:
    """Return the factors of one split, fitted to a few outputs, if they explain all."""
    found = Weighed(split, _fitted(few_y, few, split.parts(few)))
    if split.simple and not all(c == 0 or abs(c) in _POWERS for c in found.factors.values()):
        return None
    explained = _explained(y, case, found) if found.factors else None
    return None if explained is None else (found, found.match(few, *explained))


def _by_class(few_y: Floats, few: Case, y: Floats, case: Case) -> tuple[Weighed, FaultMatch] | None:
    """Return the factors of the blocks of a class; None if different classes explain the outputs."""
    found: dict[bytes, tuple[Weighed, FaultMatch]] = {}
    for of in CLASSES:
        for split in splits_of(of):
            explained = _by(split, few_y, few, y, case)
            if explained is not None:
                found.setdefault(of.holds(case.parts).tobytes(), explained)
                break
    return next(iter(found.values())) if len(found) == 1 else None


def _fitted(y: Floats, case: Case, parts: Sequence[Part]) -> dict[str, float]:
    """Return the factors that differ from the definition's, rounded to simple numbers.

    None if the outputs do not determine the factors.
    """
    at = [part for part in parts if part.values.any()]
    bound = case.right.bound
    looked = bound > 0
    if not 2 <= len(at) <= MOST_PARTS or looked.sum() < _OUTPUTS_EACH * len(at) or min(y.shape) < 2:
        return {}
    if not (np.abs(sum(p.meant * p.values for p in parts) - case.right.exact) <= bound).all():
        return {}  # the definition rounds between the parts
    columns = np.stack([part.values[looked] / bound[looked] for part in at], axis=1)
    outputs = y[looked].astype(np.float64) / bound[looked]
    size = np.sqrt((columns**2).sum(axis=0))
    columns /= size
    fit, _, rank, _ = np.linalg.lstsq(columns, outputs, rcond=1e-9)
    if rank < len(at):
        return {}
    variance = float(((outputs - columns @ fit) ** 2).sum()) / (len(outputs) - len(at))
    deviations = np.sqrt(variance * np.diag(np.linalg.inv(columns.T @ columns)))
    found = {}
    for part, c, deviation in zip(at, fit / size, deviations / size, strict=True):
        factor = _simple(float(c), part.meant, _DEVIATIONS * float(deviation) + _OF_FACTOR * abs(float(c)) + _OF_FIT)
        if factor != part.meant:
            found[part.key] = factor
    return found


def _simple(factor: float, meant: float, within: float) -> float:
    """Return the simplest number near a factor: the definition's, a multiple of it by a simple fraction, or itself."""
    if abs(factor - meant) <= within:
        return meant
    unit = abs(meant) or 1.0
    for denominator in _DENOMINATORS:
        near = round(factor / unit * denominator) / denominator * unit
        if abs(near - factor) <= within:
            return near
    return factor


def _explained(y: Floats, case: Case, found: Weighed) -> tuple[float, float] | None:
    """Return the fraction of the error that factors explain, and the worst |y - f| / bound.

    None unless all outputs are within the bound.
    """
    predicted, right = found.predicted(case), case.right
    difference = np.abs(y.astype(np.float64) - predicted.exact)
    if not (difference <= predicted.bound).all():
        return None
    error = float(((y.astype(np.float64) - right.exact) ** 2).sum())
    share = 1 - float((difference**2).sum()) / error if error else 0.0
    if not share >= 1 - _LEFT:
        return None
    return share, float((difference / np.maximum(predicted.bound, np.finfo(np.float64).tiny)).max())
