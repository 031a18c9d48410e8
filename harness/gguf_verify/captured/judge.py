"""Judging captured outputs by the claimed definition, or by all definitions if none is claimed.

The exact product of a definition says what y should be, and its bound how far correct float32 arithmetic may be from
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..diagnosis.diagnose import MOST_ROWS, MOST_TOKENS, diagnose
from ..diagnosis.identify import Candidate, composed_definitions, definitions, expected, wider
from ..formats.block import QK, BlockFormat
from ..formats.tensor_types import WeightFormat
from ..results.diagnoses import FaultMatch
from ..semantics.definition import Output, Semantics
from ..semantics.fast_math import ambiguous_codes
from ..semantics.gates import judge
from ..semantics.narrow import stored
from ..semantics.power import Power
from ..support.array_types import Bytes, Floats
from ..support.text import counted
from .records import AUTO

#: Reasons for which outputs that pass are not verified: the bound cannot fail.
UNDERFLOWS = "all outputs that are not zero are too small for their type to tell them from zero: they underflow"
MISSES_BLOCKS = "the loss of a single block of a row would not show in most outputs"
WEAK = "the bound would accept zero, or 0.9 times the exact output, for most outputs: it could not have failed"
#: Outputs that are judged at a time; tokens and rows with which definitions are compared first.
_CHUNK, _SOME_TOKENS, _SOME_ROWS = 1 << 20, 32, 256


@dataclass(frozen=True)
class Sample:
    """A captured product and its weights.

    x float32 or float16[M, K], y[M, N], rows uint8[N, row bytes]; output: the type in which the engine stored y
    ("float32", "float16", "bfloat16"); taken uint8[M, row bytes]: the kernel's activation blocks, if known.
    """

    fmt: WeightFormat
    rows: Bytes
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    output: Output = "float32"
    taken: Bytes | None = None

    def part(self, tokens: npt.NDArray[np.intp], rows: npt.NDArray[np.intp]) -> Sample:
        """These tokens and rows."""
        taken = None if self.taken is None else self.taken[tokens]
        return Sample(self.fmt, self.rows[rows], self.x[tokens], self.y[np.ix_(tokens, rows)], self.output, taken)

    def window(self, at: tuple[int, int, float, float, float] | None) -> Sample:
        """As many tokens and rows as a diagnosis examines, with output `at` among them."""
        first = (0, 0) if at is None else (at[0] // MOST_TOKENS * MOST_TOKENS, at[1] // MOST_ROWS * MOST_ROWS)
        m, n = self.y.shape
        return self.part(
            np.arange(first[0], min(first[0] + MOST_TOKENS, m)), np.arange(first[1], min(first[1] + MOST_ROWS, n))
        )

    def some(self) -> Sample:
        """A sample of evenly spaced rows and tokens."""
        (m, n), at = self.y.shape, np.linspace
        return self.part(
            np.unique(at(0, m - 1, min(m, _SOME_TOKENS)).astype(int)),
            np.unique(at(0, n - 1, min(n, _SOME_ROWS)).astype(int)),
        )


@dataclass
class _Found:
    """The findings of one definition. `suspected`: outputs that only their score fails, and no lane order
    explains; they are not among the wrong ones, since a captured product cannot be made again. `typical`: the median
    square of an error, of the first part of the outputs: some that are far off, such as two exchanged rows, say nothing
    about the definition that the others were made by, and their squares are all that a mean shows."""

    wrong: int = 0
    suspected: int = 0
    utilisation: float = 0.0
    score: float = 0.0
    error: float = 0.0
    typical: float = math.inf
    energy: float = 0.0
    ambiguous: int = 0
    first: tuple[int, int, float, float, float] | None = None
    power: Power = field(default_factory=lambda: Power(0, 0))

    @property
    def verified(self) -> bool:
        """Whether no output is wrong, and the bound could have detected errors in most of them."""
        return not self.wrong and not self.power.says_nothing

    @property
    def nmse(self) -> float:
        return self.error / self.energy if self.energy else (0.0 if self.error == 0 else math.inf)


def judge_sample(
    sample: Sample, names: dict[str, Semantics], claimed: str, threads: int, fast_math: bool
) -> dict[str, Any]:
    """The fields of `Judged` that depend on the numbers; "at": the first wrong output."""
    nothing: dict[str, Any] = {
        "definition": claimed, "candidates": (), "wrong": 0, "outputs": 0, "utilisation": 0.0, "score": 0.0,
        "nmse": 0.0,
    }  # fmt: skip
    if not len(sample.x):
        return nothing | {"left": ("x has no token",)}
    finite = np.concatenate([np.isfinite(part).all(axis=1) for part in _parts(sample.x)])
    left: list[str] = []
    if not finite.all():
        left.append(f"x has values that are not finite in {int((~finite).sum()):,} of {counted(len(finite), 'tokens')}")
        if not finite.any():
            return nothing | {"left": tuple(left)}
        sample = sample.part(np.flatnonzero(finite), np.arange(len(sample.rows)))
    number = np.flatnonzero(finite)
    some = sample.some()
    first = {s.name: s for s in [*definitions(sample.fmt), *wider(sample.fmt)]}
    tried = first if claimed == AUTO else {claimed: names[claimed]}
    tries: list[tuple[Candidate, float]] = []
    # no one declares anything here, so the wide bounds of weights decoded in steps would admit what is wrong
    pairs = [s for s in names.values() if s.name not in first and not s.term.wide]
    for semantics in [*tried.values(), *pairs] if claimed == AUTO else tried.values():
        if semantics.name not in tried and any(c.within for c, _ in tries):
            break  # other pairs of an encoding and a term are only tried if no known definition fits
        found = _by(some, semantics, threads, fast_math)
        within = found.verified and found.energy > 0  # every definition gives zeros for zeros
        tries.append((Candidate(semantics.name, found.utilisation, found.score, found.nmse, within), found.typical))
    candidates = [c for c, _ in sorted(tries, key=lambda t: (not t[0].within, t[1]))]
    fits = [c.name for c in candidates if c.within]
    results = {}
    for name in fits or [candidates[0].name]:
        results[name] = _by(sample, names[name], threads, fast_math)
        if not results[name].wrong:
            break
    best = min(results, key=lambda name: results[name].wrong)
    found = results[best]
    if found.suspected and not found.wrong:
        left.append(
            f"{found.suspected:,} outputs are within the bound, but further off than independent roundings explain. "
            "The cause may be structured data or a fault; capture a product of other activations"
        )
    if not found.energy:
        left.append("the exact product is zero everywhere, for every definition")
    elif found.power.lacking:
        left.append(WEAK)
    elif found.power.empty:
        left.append(UNDERFLOWS)
    elif found.power.misses_blocks:
        left.append(MISSES_BLOCKS)
    at = found.first
    lines: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    if found.wrong:
        lines, faults = _explained(sample.window(at), names[best], threads)
        for name in tried if not fits else ():  # if no definition is near, try the faults of each
            if not faults and name != best:
                others = _explained(sample.window(at), names[name], threads)
                if others[1]:
                    best, (lines, faults), found = name, others, _by(sample, names[name], threads, fast_math)
                    at = found.first
    return nothing | {
        "definition": best, "candidates": tuple(candidates), "wrong": found.wrong,
        "outputs": sample.y.size if found.energy or found.wrong else 0, "utilisation": found.utilisation,
        "score": found.score, "nmse": found.nmse, "left": tuple(left), "ambiguous": found.ambiguous, "lines": lines,
        "faults": faults, "at": None if at is None else (int(number[at[0]]), *at[1:]),
    }  # fmt: skip


def claimable(fmt: WeightFormat) -> dict[str, Semantics]:
    """The definitions that may be claimed, by name: those that are tried, and all others that a kernel may declare."""
    return {s.name: s for s in [*definitions(fmt), *wider(fmt), *composed_definitions(fmt)]}


def _explained(sample: Sample, semantics: Semantics, threads: int) -> tuple[tuple[str, ...], tuple[FaultMatch, ...]]:
    given: npt.NDArray[Any] = np.ascontiguousarray(sample.x, np.float32) if sample.taken is None else sample.taken
    with np.errstate(all="ignore"):
        y = np.ascontiguousarray(sample.y, np.float32)
    semantics = replace(semantics, output=sample.output)
    told = diagnose(y, sample.fmt, semantics, sample.rows, given, threads=threads)
    return tuple(told.lines), told.faults


def _parts(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Split an array into groups of rows with about 2^22 values each."""
    step = max(1, (1 << 22) // max(1, array.shape[1]))
    for start in range(0, len(array), step):
        yield array[start : start + step]


def _by(sample: Sample, semantics: Semantics, threads: int, fast_math: bool) -> _Found:
    """Judge by one definition, some tokens and rows at a time."""
    found, fmt = _Found(), sample.fmt
    m, n = sample.y.shape
    tokens = max(1, min(m, _CHUNK // 256))
    step = max(1, _CHUNK // tokens)
    for first in range(0, m, tokens):
        part = slice(first, first + tokens)
        x = np.ascontiguousarray(sample.x[part], np.float32)
        taken = None if sample.taken is None else np.ascontiguousarray(sample.taken[part])
        for start in range(0, n, step):
            rows = np.ascontiguousarray(sample.rows[start : start + step])
            got = sample.y[part, start : start + step]
            p = expected(semantics, fmt, rows, x, threads, taken)
            p = stored(p, sample.output)
            with np.errstate(all="ignore"):
                slack = np.zeros(p.exact.shape)
                if fast_math and semantics.activations is not None and isinstance(fmt, BlockFormat):
                    more, codes = _ambiguous(semantics, fmt, rows, x)
                    slack += more
                    found.ambiguous += codes if not start else 0
                y = np.ascontiguousarray(got, np.float32)
                judgement = judge(y, p, slack)
                difference = (y.astype(np.float64) - p.exact) ** 2
                found.error += float(difference.sum()) if np.isfinite(difference).all() else math.inf
                if not first and not start and np.isfinite(middle := np.median(difference)):
                    found.typical = float(middle)
                found.energy += float(np.where(np.isfinite(p.exact), p.exact**2, 0).sum())
            hard = judgement.bad & ~judgement.suspected
            found.wrong += int(hard.sum())
            found.suspected += int(judgement.suspected.sum())
            found.power = found.power.joined(judgement.power)
            found.utilisation = max(found.utilisation, judgement.utilisation)
            found.score = max(found.score, judgement.score)
            if hard.any() and found.first is None:
                a, b = (int(i) for i in np.argwhere(hard)[0])
                bound = float(p.bound[a, b] + slack[a, b])
                found.first = first + a, start + b, float(y[a, b]), float(p.exact[a, b]), bound
    return found


def _ambiguous(semantics: Semantics, fmt: BlockFormat, rows: Bytes, x: Floats) -> tuple[npt.NDArray[np.float64], int]:
    """Return the possible change of each output, [M, N], by a step of every ambiguous code, and the number of codes.

    A step changes an output by |w|·d_a. If offsets and minima are multiplied by the sum s, which is independent of the
    codes, the change is |d_w|·q_w·d_a.
    """
    may = ambiguous_codes(x)
    if not may.any():
        return np.zeros((len(x), len(rows))), 0
    step = np.repeat(np.abs(x.reshape(len(x), -1, QK)).max(axis=-1) / 127, QK, axis=1)
    blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
    w = fmt.decode(blocks).reshape(len(rows), -1).astype(np.float64)
    if (semantics.inside or semantics).uses_sum(fmt):
        scales = fmt.scales(blocks).astype(np.float64).reshape(len(rows), -1)
        codes = fmt.codes(blocks).astype(np.float64).reshape(len(rows), -1)
        w = codes * np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)
    w = np.abs(w)
    return (may * step.astype(np.float64)) @ w.T, int(may.sum())
