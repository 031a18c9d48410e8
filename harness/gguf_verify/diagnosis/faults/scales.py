"""Faults of the scales of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..fault import Case, Variants, fault
from ..operands import Doubles, weight_parts

_SMALLEST_HALF, _SMALLEST_FLOAT = 2.0**-14, 2.0**-126


def _shifted(values: Doubles, by: int) -> Doubles:
    """Return values[i + by] of all rows in one sequence; 0 past its ends."""
    flat = np.zeros(values.size)
    if abs(by) < values.size:
        flat[max(0, -by) : values.size - max(0, by)] = values.ravel()[max(0, by) : values.size - max(0, -by)]
    return flat.reshape(values.shape)


def _within_rows(values: Doubles, by: int, wrap: bool) -> Doubles:
    """Return values[row, i + by]; at the row's ends the value at the end, or that of the other end."""
    terms = values.shape[1]
    at = np.arange(terms) + by
    return values[:, at % terms if wrap else np.where((at < 0) | (at >= terms), np.arange(terms), at)]


def _elsewhere(terms: int, group: int, block: int) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield (words, the term whose scale is used for each).

    It is that of the first of a few groups or blocks, or of the other of two, in terms.
    """
    at = np.arange(terms)
    for unit, size in {"block": block, "group": group}.items():
        index, within = at // size, at % size
        if terms // size < 2 or (unit == "group" and group == block):
            continue
        for few in (2, 4, 8, 16):
            if few <= terms // size:
                yield f"first of each {few} {unit}s", index // few * few * size + within
        other = (index ^ 1) * size + within
        yield f"other {unit} of each two", np.where(other < terms, other, at)


@fault(
    "power-of-two",
    "values of weights are off by a power of two",
    "check the table of values and the exponent of the scale: some tables hold doubled values",
)
def power_of_two(case: Case) -> Variants:
    p = case.parts
    for power in (-4, -3, -2, -1, 1, 2, 3, 4):
        by = 2.0**power
        yield f"{by:g} times", replace(p, d=by * p.d, m=by * p.m)


@fault(
    "neighbouring-scale",
    "the scale of a neighbouring block is used",
    "check the index of scales against that of codes",
)
def neighbouring_scale(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    steps = {1: "group", p.per_block: "block"} if fmt.groups > 1 else {p.per_block: "block"}

    def within(n: int, by: int) -> npt.NDArray[np.bool_]:
        return np.arange(n) < n - 1 if by > 0 else np.arange(n) > 0

    for step, unit in steps.items():
        for by, which in ((step, f"next {unit}"), (-step, f"{unit} before")):
            d, m, rows = _shifted(p.d, by), _shifted(p.m, by), within(len(p.d), by)
            yield f"scale of the {which} of weights", replace(p, d=d, m=m if fmt.offset else p.m).limited(rows)
            for wrap, ends in ((False, "itself at the row's end"), (True, "around the row's end")):
                d, m = _within_rows(p.d, by, wrap), _within_rows(p.m, by, wrap)
                yield f"scale of the {which} of weights, {ends}", replace(p, d=d, m=m if fmt.offset else p.m)
                if fmt.has_min:
                    yield f"scale and minimum of the {which} of weights, {ends}", replace(p, d=d, m=m)
            if fmt.has_min:
                d, m = _shifted(p.d, by), _shifted(p.m, by)
                yield f"scale and minimum of the {which} of weights", replace(p, d=d, m=m).limited(rows)
                yield f"minimum of the {which} of weights", replace(p, m=m).limited(rows)
    for which, at in _elsewhere(p.d.shape[1], p.per_block // fmt.groups, p.per_block):
        d, m = p.d[:, at], p.m[:, at]
        yield f"scale of the {which} of weights", replace(p, d=d, m=m if fmt.offset else p.m)
        if fmt.has_min:
            yield f"scale and minimum of the {which} of weights", replace(p, d=d, m=m)
            yield f"minimum of the {which} of weights", replace(p, m=m)
    if case.quantized and case.semantics.activations is not None:
        step = case.semantics.encoding.values_per_scale // p.q.shape[2]
        for by, which in ((step, "next block"), (-step, "block before")):
            e, tokens = _shifted(p.e, by), within(len(p.e), by)
            yield (
                f"scale of the {which} of activations in its row",
                replace(p, e=_within_rows(p.e, by, False)).with_sums(),
            )
            if len(p.e) == 1:  # with one token, the scales beyond its ends are not known
                continue
            yield f"scale of the {which} of activations", replace(p, e=e).with_sums().limited(tokens=tokens)
            if case.meets_sum:
                s = _shifted(p.s, by)
                yield f"scale and sum of the {which} of activations", replace(p, e=e, s=s).limited(tokens=tokens)
                yield f"sum of the {which} of activations", replace(p, s=s).limited(tokens=tokens)


@fault(
    "group-scales-ignored",
    "the scales of groups are not applied, only those of their block",
    "multiply d by the scale of the group, and dmin by its minimum",
    applies=lambda c: c.fmt.groups > 1 and any(f.name == "d" and f.dtype == "<f2" for f in c.fmt.fields),
)
def group_scales_ignored(case: Case) -> Variants:
    fmt, p = case.fmt, case.parts
    structs = fmt.view(case.rows.reshape(len(case.rows), -1, fmt.block_bytes))
    d = np.repeat(structs["d"].astype(np.float64), p.per_block, axis=1)
    yield "scales", replace(p, d=d)
    if fmt.has_min and "dmin" in (structs.dtype.names or ()):
        m = -np.repeat(structs["dmin"].astype(np.float64), p.per_block, axis=1)
        yield "scales and minima", replace(p, d=d, m=m)
        yield "minima", replace(p, m=m)


@fault(
    "subnormals-flushed",
    "subnormal scales are treated as zero",
    "convert halves exactly, and compile without -ftz=true",
)
def subnormals_flushed(case: Case) -> Variants:
    def flush(v: Doubles) -> Doubles:
        return np.where(np.abs(v) < _SMALLEST_HALF, 0.0, v)

    p, meets = case.parts, case.meets_sum
    if case.fmt.has_half_scale:
        m = flush(p.m) if case.fmt.has_min else np.where(flush(p.d) == 0, 0.0, p.m)
        yield "scales of weights", replace(p, d=flush(p.d), m=m)
    else:
        blocks = case.rows.reshape(-1, case.fmt.block_bytes).copy()
        structs = case.fmt.view(blocks)
        for field in case.fmt.fields:
            if field.dtype == "<f2":
                structs[field.name] = np.where(np.abs(structs[field.name]) < _SMALLEST_HALF, 0, structs[field.name])
        q, d, m = weight_parts(case.semantics, case.fmt, structs.view(np.uint8).reshape(case.rows.shape))
        normal = np.abs(d) >= _SMALLEST_FLOAT
        yield "scales of weights", replace(p, q=q, d=np.where(normal, d, 0.0), m=m)
        for twice in (1, 2):  # scales of E8M0 are half of their nominal value
            size = twice * np.abs(p.d)
            small = (size < _SMALLEST_HALF) & (size > 0)
            yield f"scales of weights in a half, {twice}·d", replace(p, d=np.where(small, 0.0, p.d))
            held = small & (size >= 2.0**-24)
            yield f"subnormal halves among scales of weights, {twice}·d", replace(p, d=np.where(held, 0.0, p.d))
    if case.half_scale:
        e, s = flush(p.e), flush(p.s) if meets else p.s
        yield "scales of activations", replace(p, e=e, s=s).with_sums()
        if case.fmt.has_half_scale:
            yield "scales of weights and activations", replace(p, d=flush(p.d), m=m, e=e, s=s).with_sums()
