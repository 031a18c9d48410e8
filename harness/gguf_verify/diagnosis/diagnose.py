"""The search for the known fault that explains wrong outputs: each fault is replayed on the same inputs.

A fault explains the fraction 1 - Σ(y - f)²/Σ(y - o)² of the error, summed over the wrong outputs, where f is the
fault's prediction and o the exact product of the declared definition. The fault is named if every wrong output is
within the rounding bound of its prediction and it explains at least MOSTLY of the error. Its predictions for correct
outputs must hold, too, unless the wrong ones are whole rows, tokens or lanes, which a kernel may compute by other code.
The roundings of some accumulators cannot all be predicted; for these, a fault is also named if the fraction NEARLY of
the wrong outputs is within the bound, it explains at least EXPLAINED, and no other fault explains as much as RIVAL. If
several faults fit, those are named whose residual is at most CLOSE times the smallest one or the rounding of a float32:
they cannot be distinguished on these data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..hosts.memory import POISON
from ..results.diagnoses import FaultMatch, LocatedDiagnosis, NearestFault
from ..semantics.definition import Semantics
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.narrow import HALF, NARROW
from ..semantics.sums import UNIT_ROUNDOFF
from .fault import Case, Explanation, Fault, case_of, one_each
from .faults import FAULTS
from .fitted import fitted
from .fused import faults_of
from .identify import advice, expected, identify_kernel, nearest_of, value_by_value
from .observed import observed
from .operands import Bytes, Floats, Parts, Predicted
from .pattern import is_region, pattern
from .shared_data import shared_data

#: Thresholds: see the docstring of this module.
MOSTLY, EXPLAINED, NEARLY, RIVAL, CLOSE = 0.9999, 0.99, 0.95, 0.9, 10.0
#: A fault must predict this fraction of the wrong outputs: a fault that reads outside the arrays predicts nothing
#: there.
KNOWN = 0.25
#: Nothing is named if fewer outputs are wrong: one or two may fit by chance.
FEWEST = 4
#: Rows and tokens on which faults with many variants are tried first.
MOST_TRIED = 5
#: The most tokens, rows and weights that are replayed.
MOST_TOKENS, MOST_ROWS, MOST_WEIGHTS = 64, 256, 1 << 20


@dataclass(frozen=True)
class Diagnosis:
    """The diagnosis of wrong outputs.

    Args:
        wrong, outputs: the number of outputs that fail the gates, and of all.
        definitions: other definitions whose bound holds for all outputs.
        faults: the faults that explain them; several cannot be distinguished on these data.
        nearest: the fault that explains most of the error, if none is named.
        pattern: the places of the wrong outputs, in words.
        advice: what to do about `definitions`, in a sentence.
        places: which rows and tokens are wrong, in words, and what their data have in common.
        explanations: the variants of `faults` that explain the outputs, with their predictions for other products.
    """

    wrong: int
    outputs: int
    definitions: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    nearest: NearestFault | None = None
    pattern: tuple[str, ...] = field(default=())
    advice: str = ""
    places: tuple[str, ...] = ()
    explanations: tuple[Explanation, ...] = field(default=(), compare=False, repr=False)

    @property
    def verdict(self) -> str:
        """One of "right", "another definition", "known fault" and "unknown"."""
        if not self.wrong:
            return "right"
        if self.definitions:
            return "another definition"
        return "known fault" if self.faults else "unknown"

    @property
    def lines(self) -> list[str]:
        """The diagnosis in words; empty if the outputs are correct."""
        if not self.wrong:
            return []
        lines = []
        if self.definitions:
            lines.append(f"it {self.advice or 'computes ' + ' or '.join(self.definitions)}")
        meant = "if what is declared is meant: " if self.definitions else ""
        for f in self.faults:
            where = "" if f.everywhere else ", in part of the outputs"
            share = "" if np.isnan(f.explained) else f" (explains {_share(f.explained)} of the error)"
            lines.append(f"{meant}{f.words}{where}{share}. Fix: {f.fix}")
        if len({f.id for f in self.faults if not np.isnan(f.explained)}) > 1:
            lines.append("each of these faults predicts these outputs; the data cannot distinguish them")
        if not lines:
            near = ""
            if self.nearest is not None and self.nearest.explained >= RIVAL:  # a smaller fraction would mislead
                near = f" (nearest: {self.nearest.id}, {_share(self.nearest.explained)} of the error)"
            lines.append(f"unknown: no fault of the catalogue explains the outputs{near}")
        return [*lines, *self.pattern, *self.places]


def _share(share: float) -> str:
    return f"{int(share * 10000) / 100:g} %"  # truncated, so that only all of it is shown as 100 %


def most(fmt: WeightFormat, rows: Bytes) -> tuple[int, int]:
    """Return how many tokens, and rows of weights uint8[N, row bytes], are replayed: fewer of long ones."""
    k = max(1, rows.shape[1] // fmt.block_bytes * fmt.block_size)
    return max(1, min(MOST_TOKENS, int(MOST_WEIGHTS // k))), max(1, min(MOST_ROWS, int(MOST_WEIGHTS // k)))


def diagnose(
    y: Floats,
    fmt: WeightFormat,
    semantics: Semantics,
    rows: Bytes,
    x: npt.NDArray[Any],
    blocks: Sequence[int] = (),
    threads: int = 1,
) -> Diagnosis:
    """Diagnose outputs float32[M, N], if they are wrong.

    Args:
        semantics: the definition that the kernel declares. No fault is replayed for an author's oracle.
        rows: weights uint8[N, row bytes].
        x: float32[M, K] that the kernel quantized itself, or uint8[M, row bytes] as it got them.
        blocks: the first wrong blocks of K of some outputs, for the pattern.
        threads: for the exact products.

    Only the first MOST_TOKENS tokens and MOST_ROWS rows are examined, fewer if they are long. Raises ValueError for
    shapes that do not fit, and KernelFault if an author's oracle fails.
    """
    if y.shape != (len(x), len(rows)):
        raise ValueError(f"outputs of shape {y.shape} do not belong to {len(x)} tokens and {len(rows)} rows")
    if semantics.epilogue is not None and isinstance(fmt, BlockFormat):
        return _of_fused(y, fmt, semantics, rows, x, blocks, threads)
    values = x if x.dtype == np.float32 else None
    if values is None and semantics.activations is None and (semantics.inside or semantics.oracle):
        values = x = semantics.values_of(x)
    semantics = semantics.inside or semantics
    tokens, few = most(fmt, rows)
    if len(rows) > few or len(x) > tokens:
        keep = slice(tokens)
        return diagnose(np.ascontiguousarray(y[keep, :few]), fmt, semantics, rows[:few], x[keep], blocks, threads)
    if not y.size:
        return Diagnosis(0, 0)
    y = np.ascontiguousarray(y, np.float32)
    if isinstance(fmt, ElementFormat):
        assert values is not None or x.dtype == np.uint8
        given = np.ascontiguousarray(x).view(np.float32)
        right = expected(semantics, fmt, rows, given, threads)
        bad, exact, case = judge(y, right).bad, right.exact, None
    else:
        taken = semantics.bytes_of(values) if values is not None else x
        right = product(semantics, fmt, rows, taken, threads=threads)
        exact = right.exact
        bad = judge(y, right).bad & np.isfinite(exact)
        case = Case(semantics, fmt, rows, taken, values) if semantics.oracle is None else None
    wrong = int(bad.sum())
    if not wrong:
        return Diagnosis(0, y.size)
    definitions: tuple[str, ...] = ()
    explained, nearest = _at_a_glance(y, bad, exact), None
    if not explained and values is not None and wrong >= FEWEST:
        found = identify_kernel(semantics, fmt, rows, values, y, threads)
        definitions = nearest_of(semantics, found.names)
    if not explained and case is not None:
        explained, nearest = _search(y, case, bad, exact)
    by_value = None if definitions or explained or case is None else value_by_value(semantics)
    if case is not None and by_value is not None and judge(y, product(by_value, case.fmt, rows, case.x)).passed:
        definitions = (by_value.name,)
    said = advice(semantics, definitions, fmt) if definitions else ""
    faults = one_each(explained)
    explains_all = any(fault.everywhere for fault in faults)
    places = shared_data(case, bad) if case is not None and not (explains_all or definitions) else ()
    return Diagnosis(wrong, y.size, definitions, faults, nearest, tuple(pattern(bad, blocks)), said, places, explained)


def _of_fused(
    y: Floats,
    fmt: BlockFormat,
    semantics: Semantics,
    rows: Bytes,
    x: npt.NDArray[Any],
    blocks: Sequence[int],
    threads: int,
) -> Diagnosis:
    """Diagnose a kernel with an epilogue."""
    tokens, few = most(fmt, rows)
    y, rows, x = np.ascontiguousarray(y[:tokens, :few], np.float32), rows[:few], x[:tokens]
    if not y.size:
        return Diagnosis(0, 0)
    taken = semantics.bytes_of(x) if x.dtype == np.float32 else np.ascontiguousarray(x)
    right = product(semantics, fmt, rows, taken, threads=threads)
    bad = judge(y, right).bad & np.isfinite(right.exact)
    if not bad.any():
        return Diagnosis(0, y.size)
    glance = tuple(e.match for e in _at_a_glance(y, bad, right.exact))
    faults = glance or faults_of(y, fmt, semantics, rows, taken, threads)
    return Diagnosis(int(bad.sum()), y.size, (), faults, None, tuple(pattern(bad, blocks)), "")


def explains(
    found: LocatedDiagnosis,
    y: Floats,
    fmt: WeightFormat,
    semantics: Semantics,
    rows: Bytes,
    x: npt.NDArray[Any],
    threads: int = 1,
) -> bool | None:
    """Return whether the diagnosis of another product explains these outputs, too; None if none of them is wrong.

    Much cheaper than a diagnosis: only the faults and definitions that it names are tried, by the same thresholds, and
    what is read off the outputs must be the same.

    Args:
        y, fmt, semantics, rows, x: as for `diagnose`.
    """
    if semantics.epilogue is not None:
        fused = diagnose(y, fmt, semantics, rows, x, threads=threads)
        return bool({f.id for f in fused.faults} & {f.id for f in found.faults}) if fused.wrong else None
    case = case_of(semantics, fmt, rows, x)
    if case is None:
        return False
    right = product(case.semantics, fmt, rows, case.x, threads=threads)
    bad = judge(y, right).bad & np.isfinite(right.exact)
    if not bad.any():
        return None
    if found.definitions:
        known = () if case.values is None else identify_kernel(semantics, fmt, rows, case.values, y, threads).names
        return bool({*known} & {*found.definitions})
    named = {match.id: match.words for match in found.faults}
    if named.keys() & {"unwritten", "constant-output"}:
        return any(named.get(e.match.id) == e.match.words for e in _at_a_glance(y, bad, right.exact))
    if int(bad.sum()) < FEWEST:
        return False
    fits = (
        fit
        for fault in FAULTS
        if fault.id in named
        for fit in _of(fault, y, case, bad, right.exact, [_variant(fault, named[fault.id])] if fault.many else None)
    )
    apart = is_region(bad)
    if any(_named_alone(fit) and (apart or fit.contradicted <= 1 - NEARLY) for fit in fits):
        return True
    read_off = fitted(y, case, bad)
    return read_off is not None and named.get(read_off.match.id) == read_off.match.words


@dataclass(frozen=True)
class _Fit:
    """The fit of one variant of a fault to the wrong outputs."""

    fault: Fault
    match: FaultMatch
    residual: float
    within: float
    contradicted: float
    which: str

    def predict(self, case: Case) -> Predicted | None:
        """Predict another product by a kernel with the same variant; None if that product has no such variant."""
        found = next((made for _, made in self.fault.of(case, (self.which,))), None)
        return found.predicted() if isinstance(found, Parts) else found


def _at_a_glance(y: Floats, bad: npt.NDArray[np.bool_], exact: npt.NDArray[np.float64]) -> tuple[Explanation, ...]:
    """Return the fault that the outputs show without a replay: they were not written, or all hold one value.

    Results that a half would flush to zero, or not hold, may have become one value by a correct product's rounding:
    then the value is no evidence, and neither are infinities.
    """
    if (y[bad].view(np.uint32) == POISON).all():
        words = "outputs were never written"
        return (Explanation(observed("unwritten", words, explained=1.0, everywhere=bool(bad.all()))),)
    one, typical = y.flat[0], float(np.median(np.abs(exact[bad])))
    if y.size < FEWEST or not ((y == one).all() or np.isnan(y).all()) or np.isinf(one):
        return ()
    if not HALF.normal <= typical < HALF.overflows:
        return ()
    return (Explanation(observed("constant-output", f"every output is {one:.9g}, whatever the operands are")),)


def _search(
    y: Floats, case: Case, bad: npt.NDArray[np.bool_], exact: npt.NDArray[np.float64]
) -> tuple[tuple[Explanation, ...], NearestFault | None]:
    if int(bad.sum()) < FEWEST:
        return (), None
    plain = [_of(fault, y, case, bad, exact) for fault in FAULTS if not fault.many]
    fits = [fit for of_one in plain for fit in of_one]
    if not any(_named_alone(f) for f in fits):
        fits += _of_many(y, case, bad, exact)
    best: dict[str, float] = {}
    for f in fits:
        best[f.match.id] = max(best.get(f.match.id, -np.inf), f.match.explained)
    apart = is_region(bad)  # a fault may be limited to some rows, tokens or lanes
    named = [f for f in fits if _named_alone(f) and (apart or f.contradicted <= 1 - NEARLY)]
    if not named:
        named = [
            f
            for f in fits
            if (apart or f.contradicted <= 1 - NEARLY)
            and f.within >= NEARLY
            and f.match.explained >= EXPLAINED
            and not any(share >= RIVAL for other, share in best.items() if other != f.match.id)
        ]
    if not named:
        read_off = fitted(y, case, bad)
        if read_off is not None:
            return (read_off,), None
        if np.count_nonzero(y[bad]) < FEWEST:  # times almost nothing, every product is nearly zero
            return (), None
        top = max(best.items(), key=lambda pair: pair[1], default=None)
        return (), NearestFault(*top) if top is not None and top[1] > 0.5 else None
    finite = bad & np.isfinite(y)
    rounding = float(((UNIT_ROUNDOFF * y[finite].astype(np.float64)) ** 2).sum())
    limit = CLOSE * max(min(f.residual for f in named), rounding)
    named = sorted((f for f in named if f.residual <= limit), key=lambda f: (not f.match.everywhere, f.residual))
    if named[0].match.everywhere:  # a fault that also predicts the correct outputs is stronger evidence
        named = [f for f in named if f.match.everywhere]
    return tuple(Explanation(f.match, f.predict, None if f.match.everywhere else bad) for f in named), None


def _words(fault: Fault, which: str) -> str:
    return f"{fault.words} ({which})" if which else fault.words


def _variant(fault: Fault, words: str) -> str:
    """Return the variant that `_words` was called with."""
    return words.removeprefix(fault.words).removeprefix(" (").removesuffix(")")


def _named_alone(fit: _Fit) -> bool:
    return fit.within == 1 and fit.match.explained >= MOSTLY


def _of(
    fault: Fault,
    y: Floats,
    case: Case,
    bad: npt.NDArray[np.bool_],
    exact: npt.NDArray[np.float64],
    only: Collection[str] | None = None,
) -> Iterator[_Fit]:
    """Yield the fits of a fault's variants, or of some of them."""
    for which, made in fault.of(case, only):
        predicted = made if isinstance(made, Predicted) else made.predicted()
        fit = _fit(y, bad, exact, predicted, case.semantics.output)
        if fit is not None:
            residual, share, worst, within, everywhere, contradicted = fit
            match = FaultMatch(fault.id, _words(fault, which), fault.fix, share, worst, everywhere)
            yield _Fit(fault, match, residual, within, contradicted, which)


def _of_many(y: Floats, case: Case, bad: npt.NDArray[np.bool_], exact: npt.NDArray[np.float64]) -> Iterator[_Fit]:
    """Yield the fits of faults with many variants, of those variants that fit a few of the outputs."""
    rows, tokens = (np.sort(np.argsort(-bad.sum(axis=axis), kind="stable")[:MOST_TRIED]) for axis in (0, 1))
    at = np.ix_(tokens, rows)
    if int(bad[at].sum()) < FEWEST:
        return
    few = case.part(rows, tokens)
    for fault in FAULTS:
        if fault.many:
            tried = _of(fault, np.ascontiguousarray(y[at]), few, bad[at], exact[at])
            fitting = {fit.which for fit in tried if _named_alone(fit)}
            if fitting:
                yield from _of(fault, y, case, bad, exact, fitting)


def _fit(
    y: Floats, bad: npt.NDArray[np.bool_], exact: npt.NDArray[np.float64], predicted: Predicted, output: str
) -> tuple[float, float, float, float, bool, float] | None:
    """Return residual, fraction of the error, worst utilisation, and agreement with wrong and correct outputs.

    The last three are the fraction of wrong outputs within the bound, whether all outputs agree, and the fraction of
    correct outputs that do not. None if the fault predicts too little.
    """
    known = np.ones(bad.shape, bool) if predicted.known is None else predicted.known
    looked = bad & known
    if int(looked.sum()) < max(FEWEST, KNOWN * int(bad.sum())):
        return None
    with np.errstate(all="ignore"):
        held = np.abs(predicted.exact) <= np.finfo(np.float32).max
        finite, both_not = np.isfinite(y) & held, ~np.isfinite(y) & ~held
        if (looked & ~finite & ~both_not).any():
            return None
        difference = np.abs(y.astype(np.float64) - predicted.exact)
        # Allow one rounding of the result, in case everything else was exact.
        narrow = NARROW.get(output)
        rounding = UNIT_ROUNDOFF * np.abs(y) if narrow is None else narrow.half_ulp(np.abs(y.astype(np.float64)))
        agrees = both_not | (difference <= predicted.bound + rounding)
        at = looked & finite
        # Zeros, and infinities everywhere, fit too much: a fault that predicts nothing else is no evidence.
        everywhere = bool(agrees[known].all())
        telling = int(((known & finite if everywhere else at) & (np.abs(predicted.exact) > 0)).sum())
        if telling < FEWEST and not (both_not[looked].all() and finite[known].any() and agrees[known].all()):
            return None
        residual = float((difference[at] ** 2).sum())
        error = float(((y[at].astype(np.float64) - exact[at]) ** 2).sum())
        share = 1 - residual / error if error else 1.0
        ratio = difference[at] / np.maximum(predicted.bound[at], np.finfo(np.float64).tiny)
    worst = float(ratio.max()) if ratio.size else 0.0
    right = known & ~bad
    contradicted = 1 - float(agrees[right].mean()) if right.any() else 0.0
    return residual, share, worst, float(agrees[looked].mean()), everywhere, contradicted
