"""Faults of offsets, minima and sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..fault import Case, Variants, fault


@fault(
    "offset-twice",
    "the codes' offset is applied twice",
    "subtract it from the codes or through the activations' sum, not both",
    applies=lambda c: bool(c.fmt.offset or c.fmt.zero),
)
def offset_twice(case: Case) -> Variants:
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


@fault(
    "offset-missing",
    "the codes' offset is not applied: the s term is missing",
    "add -offset·d_w·s, or subtract the offset from each code",
    applies=lambda c: bool(c.fmt.offset or c.fmt.zero),
)
def offset_missing(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if fmt.offset:
        yield "", replace(p, m=np.zeros_like(p.m)) if p.m.any() else replace(p, q=p.q + fmt.offset)
    else:
        yield "", replace(p, q=p.q + fmt.zero)


@fault(
    "minimum-missing",
    "the m term is missing",
    "add m·s for each block, or m·d_a·Σ q_a in a superblock",
    applies=lambda c: c.fmt.has_min,
)
def minimum_missing(case: Case) -> Variants:
    yield "", replace(case.parts, m=np.zeros_like(case.parts.m))


@fault(
    "minimum-sign",
    "the m term has the wrong sign",
    "the minimum is added; in K-quants, dmin·min is subtracted",
    applies=lambda c: c.fmt.has_min,
)
def minimum_sign(case: Case) -> Variants:
    yield "", replace(case.parts, m=-case.parts.m)


@fault(
    "sum-of-codes",
    "s is computed from the activations' codes",
    "s is the sum of the raw values, rounded to half",
    applies=lambda c: c.meets_sum and c.semantics.raw_sum,
)
def sum_of_codes(case: Case) -> Variants:
    p = case.parts
    with np.errstate(all="ignore"):
        s = p.e * p.a.sum(axis=-1)
        yield "d_a·Σ q_a", replace(p, s=s)
        yield "half(d_a·Σ q_a)", replace(p, s=s.astype(np.float16).astype(np.float64))
        yield "Σ q_a without d_a", replace(p, s=p.a.sum(axis=-1))


@fault(
    "scale-and-sum-exchanged",
    "d and s of the activations' blocks are exchanged",
    "in a block of Q8_1, bytes 0 and 1 are d, bytes 2 and 3 are s",
    applies=lambda c: c.meets_sum,
)
def scale_and_sum_exchanged(case: Case) -> Variants:
    yield "", replace(case.parts, e=case.parts.s, s=case.parts.e)


@fault(
    "scale-and-minimum-exchanged",
    "d and m of the weights' blocks are exchanged",
    "the scale comes first, then the minimum",
    applies=lambda c: c.fmt.has_min,
)
def scale_and_minimum_exchanged(case: Case) -> Variants:
    yield "", replace(case.parts, d=case.parts.m, m=case.parts.d)


@fault(
    "sum-overflows",
    "s overflows to infinity: it is kept in a half, at most 65504",
    "this definition has no half s: keep the sum in float32, or subtract the offset from the codes",
    applies=lambda c: not c.meets_sum,
)
def sum_overflows(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if not p.m.any():
        p = replace(p, q=p.q + fmt.offset, m=-fmt.offset * p.d)
    with np.errstate(all="ignore"):
        s = p.s.astype(np.float16).astype(np.float64)
        if np.isinf(s).any() and p.m.any():
            for which, kept in (("", s), ("and is not rounded elsewhere", np.where(np.isinf(s), s, p.s))):
                wrong = replace(p, s=kept).predicted()
                yield which, replace(wrong, exact=np.where(np.isfinite(wrong.exact), wrong.exact, np.inf))
