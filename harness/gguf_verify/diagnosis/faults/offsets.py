"""Faults of offsets, minima and sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..fault import Case, Fault, Variants


def _offset_twice(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if fmt.offset:
        yield "from the codes, and again", replace(p, q=p.q - fmt.offset)
        first = np.arange(p.q.shape[2]) < 16
        yield "again from the codes of the low nibbles", replace(p, q=p.q - fmt.offset * first)
        yield "again from the codes of the high nibbles", replace(p, q=p.q - fmt.offset * ~first)
        if p.m.any():
            yield "twice through the sum", replace(p, m=2 * p.m)
    else:
        yield "the zero point from the codes", replace(p, q=p.q - fmt.zero)


def _offset_missing(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if fmt.offset:
        yield "", replace(p, m=np.zeros_like(p.m)) if p.m.any() else replace(p, q=p.q + fmt.offset)
    else:
        yield "", replace(p, q=p.q + fmt.zero)


def _minimum_missing(case: Case) -> Variants:
    yield "", replace(case.parts, m=np.zeros_like(case.parts.m))


def _minimum_sign(case: Case) -> Variants:
    yield "", replace(case.parts, m=-case.parts.m)


def _sum_of_codes(case: Case) -> Variants:
    p = case.parts
    with np.errstate(all="ignore"):
        s = p.e * p.a.sum(axis=-1)
        yield "d_a·Σ q_a", replace(p, s=s)
        yield "half(d_a·Σ q_a)", replace(p, s=s.astype(np.float16).astype(np.float64))
        yield "Σ q_a without d_a", replace(p, s=p.a.sum(axis=-1))


def _scale_and_sum_exchanged(case: Case) -> Variants:
    yield "", replace(case.parts, e=case.parts.s, s=case.parts.e)


def _scale_and_minimum_exchanged(case: Case) -> Variants:
    yield "", replace(case.parts, d=case.parts.m, m=case.parts.d)


def _sum_overflow(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if not p.m.any():
        p = replace(p, q=p.q + fmt.offset, m=-fmt.offset * p.d)
    with np.errstate(all="ignore"):
        s = p.s.astype(np.float16).astype(np.float64)
        if np.isinf(s).any() and p.m.any():
            for which, kept in (("", s), ("and is not rounded elsewhere", np.where(np.isinf(s), s, p.s))):
                wrong = replace(p, s=kept).predicted()
                yield which, replace(wrong, exact=np.where(np.isfinite(wrong.exact), wrong.exact, np.inf))


OFFSET_TWICE = Fault(
    id="offset-twice",
    words="the codes' offset is applied twice",
    fix="subtract it from the codes or through the activations' sum, not both",
    applies=lambda c: bool(c.fmt.offset or c.fmt.zero),
    variants=_offset_twice,
)

OFFSET_MISSING = Fault(
    id="offset-missing",
    words="the codes' offset is not applied: the s term is missing",
    fix="add -offset·d_w·s, or subtract the offset from each code",
    applies=lambda c: bool(c.fmt.offset or c.fmt.zero),
    variants=_offset_missing,
)

MINIMUM_MISSING = Fault(
    id="minimum-missing",
    words="the m term is missing",
    fix="add m·s for each block, or m·d_a·Σ q_a in a superblock",
    applies=lambda c: c.fmt.has_min,
    variants=_minimum_missing,
)

MINIMUM_SIGN = Fault(
    id="minimum-sign",
    words="the m term has the wrong sign",
    fix="the minimum is added; in K-quants, dmin·min is subtracted",
    applies=lambda c: c.fmt.has_min,
    variants=_minimum_sign,
)

SUM_OF_CODES = Fault(
    id="sum-of-codes",
    words="s is computed from the activations' codes",
    fix="s is the sum of the raw values, rounded to half",
    applies=lambda c: c.meets_sum and c.semantics.raw_sum,
    variants=_sum_of_codes,
)

SCALE_AND_SUM_EXCHANGED = Fault(
    id="scale-and-sum-exchanged",
    words="d and s of the activations' blocks are exchanged",
    fix="in a block of Q8_1, bytes 0 and 1 are d, bytes 2 and 3 are s",
    applies=lambda c: c.meets_sum,
    variants=_scale_and_sum_exchanged,
)

SCALE_AND_MINIMUM_EXCHANGED = Fault(
    id="scale-and-minimum-exchanged",
    words="d and m of the weights' blocks are exchanged",
    fix="the scale comes first, then the minimum",
    applies=lambda c: c.fmt.has_min,
    variants=_scale_and_minimum_exchanged,
)

SUM_OVERFLOWS = Fault(
    id="sum-overflows",
    words="s overflows to infinity: it is kept in a half, at most 65504",
    fix="this definition has no half s: keep the sum in float32, or subtract the offset from the codes",
    applies=lambda c: not c.meets_sum,
    variants=_sum_overflow,
)
