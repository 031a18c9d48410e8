"""The catalogue of known faults: what each is called, how it is mended, and what a kernel with it would compute.

A fault has variants (which way, which tile); each is a whole prediction of the outputs in float64. Nothing here looks
at what a kernel gave: see `diagnose`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..formats.c_arithmetic import round_half_away
from ..semantics import Semantics
from .operands import Bytes, Doubles, Floats, Parts, Predicted, activation_parts, parts_of, weight_parts

_QK = 32
_SMALLEST_HALF = 2.0**-14
#: Values of K that tiles have.
_TILES = (32, 64, 128, 256, 512)
Variants = Iterator[tuple[str, Parts | Predicted]]


@dataclass(frozen=True)
class Case:
    """One product that may be faulty.

    Args:
        semantics, fmt: the declared definition, and the weights' format.
        rows: weights uint8[N, row bytes].
        x: activations uint8[M, row bytes] as the semantics has them.
        values: float32[M, K] that the kernel quantized itself; None where it was given x.
    """

    semantics: Semantics
    fmt: BlockFormat
    rows: Bytes
    x: Bytes
    values: Floats | None

    @cached_property
    def parts(self) -> Parts:
        return parts_of(self.semantics, self.fmt, self.rows, self.x)

    @cached_property
    def right(self) -> Predicted:
        return self.parts.predicted()

    @property
    def quantized(self) -> bool:
        return self.semantics.activations is not None

    @property
    def meets_sum(self) -> bool:
        return self.quantized and self.semantics.uses_sum(self.fmt)


@dataclass(frozen=True)
class Fault:
    """A known fault.

    Args:
        id: stable, for JSON.
        words: what the kernel does, in plain words.
        fix: one line.
        applies: whether a product can have it.
        variants: (which way, the faulty product) of a case.
    """

    id: str
    words: str
    fix: str
    applies: Callable[[Case], bool]
    variants: Callable[[Case], Variants]

    def of(self, case: Case) -> Variants:
        """The variants, none where the fault does not apply."""
        if self.applies(case):
            yield from self.variants(case)


#: What the issue of known faults lists and this catalogue has not, with the reason.
LEFT_OUT = {
    "scale as max/7": "a choice of the quantizer of weights; a kernel that reads a file gets d from it, so no "
    "output of its product can show it",
}


# -- offsets, minima and sums -----------------------------------------------------------------------------------------


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
            wrong = replace(p, s=s).predicted()
            yield "", replace(wrong, exact=np.where(np.isfinite(wrong.exact), wrong.exact, np.inf))


# -- the order of codes ----------------------------------------------------------------------------------------------


def _by_32(codes: Doubles, order: npt.NDArray[np.intp]) -> Doubles:
    """Codes [rows, terms, values] with those of each `len(order)` in another order."""
    return np.asarray(codes.reshape(len(codes), -1, len(order))[..., order].reshape(codes.shape))


_INTERLEAVED = np.arange(32) // 2 + np.arange(32) % 2 * 16
_SEPARATED = np.argsort(_INTERLEAVED)
_EXCHANGED = (np.arange(32) + 16) % 32


def _activations_interleaved(case: Case) -> Variants:
    p = case.parts
    yield "code k of 32 read at k/2 + 16·(k mod 2)", replace(p, a=_by_32(p.a, _INTERLEAVED)).with_sums()
    yield "code k of 32 read at 2·(k mod 16) + k/16", replace(p, a=_by_32(p.a, _SEPARATED)).with_sums()


def _fifth_bits(case: Case) -> Variants:
    p = case.parts
    offset = case.fmt.offset if case.semantics.integer_offset(case.fmt) else 0
    q = (p.q + offset).astype(np.int64)
    low, high = q & 15, q >> 4
    j = np.arange(16)

    def read(first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]) -> Parts:
        order = np.concatenate([first, second])
        bits = np.where(order < 32, high[..., order % 32], 0)
        return replace(p, q=(low + 16 * bits - offset).astype(np.float64))

    yield "bits 2j and 2j + 1 for values j and j + 16", read(2 * j, 2 * j + 1)
    yield "bit 2j for value j", read(2 * j, j + 16)
    yield "bit 2(j + 16) for value j + 16", read(j, 2 * (j + 16))
    yield "bit j for both values", read(j, j)
    yield "the halves exchanged", read(j + 16, j)


def _fifth_bits_missing(case: Case) -> Variants:
    p = case.parts
    offset = case.fmt.offset if case.semantics.integer_offset(case.fmt) else 0
    low = np.mod(p.q + offset, 16) - offset
    yield "", replace(p, q=low)
    if _of_one_block_of_32(case):
        first = np.arange(_QK) < 16
        yield "of values 0 to 15", replace(p, q=np.where(first, low, p.q))
        yield "of values 16 to 31", replace(p, q=np.where(first, p.q, low))


def _nibbles_swapped(case: Case) -> Variants:
    p = case.parts
    step = case.fmt.nibble_distance or 0
    order = (np.arange(2 * step) + step) % (2 * step)
    yield "whole codes", replace(p, q=_by_32(p.q, order))
    if case.fmt.bits == 5:
        offset = case.fmt.offset if case.semantics.integer_offset(case.fmt) else 0
        low = np.mod(p.q + offset, 16)
        yield "the fifth bits as they should be", replace(p, q=p.q - low + _by_32(low, order))


def _nibbles_in_pairs(case: Case) -> Variants:
    p = case.parts
    if case.fmt.nibble_distance == 32:
        order = np.arange(64) // 2 + np.arange(64) % 2 * 32
        yield "low nibble j as value 2j, high as 2j + 1", replace(p, q=_by_32(p.q, order))
        return
    offset = case.fmt.offset if case.semantics.integer_offset(case.fmt) else 0
    yield "low nibble j as value 2j, high as 2j + 1", replace(p, q=_by_32(p.q, _INTERLEAVED))
    yield "high nibble j as value 2j, low as 2j + 1", replace(p, q=_by_32(_by_32(p.q, _EXCHANGED), _INTERLEAVED))
    if case.fmt.bits == 5:
        low = np.mod(p.q + offset, 16)
        rest = p.q - low
        yield "the same, with the fifth bits as they should be", replace(p, q=rest + _by_32(low, _INTERLEAVED))


def _signedness(case: Case) -> Variants:
    p, fmt = case.parts, case.fmt
    if fmt.low == 0:
        offset = fmt.offset if case.semantics.integer_offset(fmt) else 0
        stored = p.q + offset
        signed = np.where(stored >= 2.0 ** (fmt.bits - 1), stored - 2.0**fmt.bits, stored)
        yield "codes of weights as signed", replace(p, q=signed - offset)
    if fmt.bits == 8 and fmt.low < 0:
        yield "codes of weights as unsigned", replace(p, q=np.mod(p.q, 256))
    if case.quantized:
        yield "codes of activations as unsigned", replace(p, a=np.mod(p.a, 256)).with_sums()


# -- scales ----------------------------------------------------------------------------------------------------------


def _shifted(values: Doubles, by: int) -> Doubles:
    """values[i + by] of all rows in one sequence; 0 past its ends."""
    flat = np.zeros(values.size)
    if abs(by) < values.size:
        flat[max(0, -by) : values.size - max(0, by)] = values.ravel()[max(0, by) : values.size - max(0, -by)]
    return flat.reshape(values.shape)


def _within_rows(values: Doubles, by: int, wrap: bool) -> Doubles:
    """values[row, i + by], at the row's ends the value that is there, or that of the other end."""
    terms = values.shape[1]
    at = np.arange(terms) + by
    return values[:, at % terms if wrap else np.where((at < 0) | (at >= terms), np.arange(terms), at)]


def _neighbour(case: Case) -> Variants:
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
    if case.quantized and case.semantics.activations is not None:
        step = case.semantics.activations.block_size // p.q.shape[2]
        for by, which in ((step, "next block"), (-step, "block before")):
            e, tokens = _shifted(p.e, by), within(len(p.e), by)
            yield (
                f"scale of the {which} of activations in its row",
                replace(p, e=_within_rows(p.e, by, False)).with_sums(),
            )
            if len(p.e) == 1:  # one token: what lies beyond its ends counts for little, but is not known
                continue
            yield f"scale of the {which} of activations", replace(p, e=e).with_sums().limited(tokens=tokens)
            if case.meets_sum:
                s = _shifted(p.s, by)
                yield f"scale and sum of the {which} of activations", replace(p, e=e, s=s).limited(tokens=tokens)
                yield f"sum of the {which} of activations", replace(p, s=s).limited(tokens=tokens)


def _half_scale(case: Case) -> bool:
    """The scale of activations is a half."""
    return case.semantics.activations is not None and case.semantics.activations.fields[0].dtype == "<f2"


def _flushed(case: Case) -> Variants:
    def flush(v: Doubles) -> Doubles:
        return np.where(np.abs(v) < _SMALLEST_HALF, 0.0, v)

    p, meets = case.parts, case.meets_sum
    if case.fmt.has_half_scale:
        m = flush(p.m) if case.fmt.has_min else np.where(flush(p.d) == 0, 0.0, p.m)
        yield "scales of weights", replace(p, d=flush(p.d), m=m)
    if _half_scale(case):
        e, s = flush(p.e), flush(p.s) if meets else p.s
        yield "scales of activations", replace(p, e=e, s=s).with_sums()
        if case.fmt.has_half_scale:
            yield "scales of weights and activations", replace(p, d=flush(p.d), m=m, e=e, s=s).with_sums()


# -- the quantizer of activations ------------------------------------------------------------------------------------


def _ratios(case: Case) -> tuple[Floats, Floats]:
    """x/d before rounding, float32[M, blocks, values], and d before it is rounded to half, [M, blocks]."""
    assert case.values is not None
    assert case.semantics.activations is not None
    size = case.semantics.activations.block_size
    assert case.semantics.ratios is not None
    with np.errstate(all="ignore"):
        return case.semantics.ratios(case.values.reshape(len(case.values), -1, size))


def _codes(case: Case, q: npt.NDArray[np.floating]) -> Parts:
    """The parts with other codes of activations."""
    p = case.parts
    whole = np.clip(np.nan_to_num(q.astype(np.float64)), -128, 127)
    return replace(p, a=whole.reshape(p.a.shape)).with_sums()


def _scale(case: Case, p: Parts, d: npt.NDArray[np.floating]) -> Parts:
    """The parts with other scales [M, blocks] of activations."""
    wide = np.nan_to_num(d.astype(np.float64))
    return replace(p, e=np.repeat(wide, p.e.shape[1] // wide.shape[1], axis=1)).with_sums()


def _truncated(case: Case) -> Variants:
    ratio, d = _ratios(case)
    assert case.values is not None
    with np.errstate(all="ignore"):
        by_inverse = case.values.reshape(ratio.shape) * (np.float32(1) / d)[..., None]
    yield "toward zero", _codes(case, np.trunc(ratio))
    yield "x·(1/d) toward zero", _codes(case, np.trunc(by_inverse))
    yield "downward", _codes(case, np.floor(ratio))
    yield "x·(1/d) downward", _codes(case, np.floor(by_inverse))
    yield "x/d + 0.5 toward zero", _codes(case, np.trunc(ratio + np.float32(0.5)))


def _scale_rounding(case: Case) -> Variants:
    ratio, d = _ratios(case)
    assert case.values is not None
    with np.errstate(all="ignore"):
        half = d.astype(np.float16).astype(np.float32)
        if _half_scale(case):
            yield "d_a kept as a float32", _scale(case, case.parts, d)
        else:
            yield "d_a rounded to half", _scale(case, case.parts, half)
        blocks = case.values.reshape(ratio.shape)
        rounded = _codes(case, round_half_away(blocks / half[..., None]))
        yield "codes from d_a after it was rounded to half", _scale(case, rounded, half)


def _scale_by_128(case: Case) -> Variants:
    assert case.values is not None
    ratio, d = _ratios(case)
    with np.errstate(all="ignore"):
        other = d * np.float32(127) / np.float32(128)
        stored = other.astype(np.float16) if _half_scale(case) else other
        codes = round_half_away(case.values.reshape(ratio.shape) / other[..., None])
        yield "codes to match, at most 127", _scale(case, _codes(case, codes), stored)
        yield "codes as for max/127", _scale(case, case.parts, stored)


# -- strides and tiles -----------------------------------------------------------------------------------------------


def _gathered(raw: Bytes, stride: int) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Rows of the same length read so many bytes apart, and which of them lie within the array."""
    flat, (n, size) = raw.ravel(), raw.shape
    starts = np.arange(n) * stride
    inside = (starts >= 0) & (starts + size <= flat.size)
    return flat[np.where(inside, starts, 0)[:, None] + np.arange(size)], inside


def _with_weights(case: Case, rows: Bytes, known: npt.NDArray[np.bool_]) -> Predicted:
    q, d, m = weight_parts(case.semantics, case.fmt, rows)
    return replace(case.parts, q=q, d=d, m=m).limited(known)


def _row_stride(case: Case) -> Variants:
    size, block = case.rows.shape[1], case.fmt.block_bytes
    strides = {size + block: "a block more", size - block: "a block less"}
    for align in (16, 32, 64, 128, 256):
        strides.setdefault(-(-size // align) * align, f"a multiple of {align} bytes")
    strides.setdefault(0, "nothing: every row is row 0")
    for stride, which in strides.items():
        if stride != size and len(case.rows) > 1 and stride >= 0:
            yield f"rows of weights apart by {which}", _with_weights(case, *_gathered(case.rows, stride))
    form = case.semantics.activations
    unit = 4 * _QK if form is None else form.block_bytes
    size = case.x.shape[1]
    if len(case.x) > 1:
        for stride, which in ((size + unit, "a block more"), (size - unit, "a block less"), (0, "nothing")):
            x, known = _gathered(case.x, stride)
            a, e, s = activation_parts(case.semantics, case.fmt, x)
            wrong = replace(case.parts, a=a, e=e, s=s).limited(tokens=known)
            yield f"rows of activations apart by {which}", wrong


def _block_stride(case: Case) -> Variants:
    n, size, block = len(case.rows), case.rows.shape[1], case.fmt.block_bytes
    flat = case.rows.ravel()
    for align in (4, 8, 16):
        padded = -(-block // align) * align
        if padded == block:
            continue
        for whole, which in ((False, "rows where they are"), (True, "rows too")):
            at = np.arange(size // block) * padded
            row = np.arange(n) * (size // block * padded if whole else size)
            starts = row[:, None] + at
            known = (starts + block <= flat.size).all(axis=1)
            index = np.where(known[:, None], starts, 0)[..., None] + np.arange(block)
            yield f"blocks of {padded} bytes, {which}", _with_weights(case, flat[index].reshape(n, size), known)


def _transposed(case: Case) -> Variants:
    right = case.right
    shape = right.exact.shape
    yield "", Predicted(right.exact.T.reshape(shape), right.bound.T.reshape(shape))


def _tiles(case: Case) -> Iterator[tuple[int, int]]:
    """(values, terms) of tiles of K that fit more than once."""
    terms, values = case.parts.q.shape[1:]
    for tile in _TILES:
        if tile % values == 0 and 2 * tile <= terms * values:
            yield tile, tile // values


def _dropped(case: Case) -> Variants:
    p = case.parts
    terms, values = p.q.shape[1:]
    k, seen = terms * values, set()
    lengths = [(tile, f"the last {tile} of K") for tile, _ in _tiles(case)]
    lengths += [(k % tile, f"K mod {tile} = {k % tile} at the end") for tile in _TILES if k > tile]
    for length, which in lengths:
        count = length // values
        if 0 < count < terms and count not in seen:
            seen.add(count)
            kept = np.arange(terms) < terms - count
            yield which, replace(p, d=p.d * kept, m=p.m * kept)


def _stale(case: Case) -> Variants:
    p = case.parts
    for tile, count in _tiles(case):

        def old(v: Doubles, count: int = count) -> Doubles:
            return np.concatenate([v[:, :-count], v[:, -2 * count : -count]], axis=1)

        weights = replace(p, q=old(p.q), d=old(p.d), m=old(p.m))
        yield f"weights, of {tile}", weights
        yield f"codes of weights, of {tile}", replace(p, q=old(p.q))
        yield f"codes of activations, of {tile}", replace(p, a=old(p.a)).with_sums()
        for of, other in (("activations", p), ("both", weights)):
            yield f"{of}, of {tile}", replace(other, a=old(p.a), e=old(p.e), s=old(p.s))


# -- narrow accumulators ---------------------------------------------------------------------------------------------


def to_half(v: Doubles) -> Doubles:
    """Rounded to float32 and then to half."""
    with np.errstate(all="ignore"):
        return v.astype(np.float32).astype(np.float16).astype(np.float64)


def to_bfloat16(v: Doubles) -> Doubles:
    """Rounded to float32 and then to bfloat16, to nearest even."""
    with np.errstate(all="ignore"):
        bits = v.astype(np.float32).view(np.uint32)
        return (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _narrow(case: Case, narrow: Callable[[Doubles], Doubles]) -> Variants:
    right, p = case.right, case.parts
    # a result near a midpoint may go either way, which no bound forgives: see NEARLY in `diagnose`
    yield "rounded at the end", Predicted(narrow(right.exact), right.bound)
    if case.quantized:
        first, second = p.terms()
        total = np.zeros(right.exact.shape)
        for t, minimum in zip(first, second, strict=True):
            wide = total + (t + minimum)
            total = narrow(wide)
        yield "rounded after each block", Predicted(total, right.bound)
        yield "rounded after each block but the last", Predicted(wide, right.bound)
        if second.any():
            total = np.zeros(right.exact.shape)
            for t, minimum in zip(first, second, strict=True):
                total = narrow(narrow(total + t) + minimum)
            yield "rounded after each product", Predicted(total, right.bound)
    else:
        w = case.fmt.decode(case.rows.reshape(len(case.rows), -1, case.fmt.block_bytes)).reshape(len(case.rows), -1)
        a, values = p.a.reshape(len(p.a), -1), w.astype(np.float64)
        total = np.zeros(right.exact.shape)
        for i in range(values.shape[1]):
            total = narrow(total + np.multiply.outer(a[:, i], values[:, i]))
        yield "rounded after each value", Predicted(total, right.bound)


def _half_accumulator(case: Case) -> Variants:
    return _narrow(case, to_half)


def _bfloat16_accumulator(case: Case) -> Variants:
    return _narrow(case, to_bfloat16)


def _always(_: Case) -> bool:
    return True


def _with_values(case: Case) -> bool:
    return case.quantized and case.values is not None


def _has_fifth_bits(case: Case) -> bool:
    return case.fmt.has_fifth_bits


def _of_one_block_of_32(case: Case) -> bool:
    """The fifth bits are the bits of one word."""
    return case.fmt.has_fifth_bits and case.fmt.block_size == _QK


def _has_nibbles(case: Case) -> bool:
    """Two codes share a byte, and their values are 16 or 32 apart."""
    return case.fmt.nibble_distance in (16, 32)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "offset-twice", "the codes' offset is applied twice",
        "take it off the codes, or through the activations' sum, not both",
        lambda c: bool(c.fmt.offset or c.fmt.zero), _offset_twice,
    ),
    Fault(
        "offset-missing", "the codes' offset is not applied: the s term is missing",
        "add -offset·d_w·s, or subtract the offset from each code",
        lambda c: bool(c.fmt.offset or c.fmt.zero), _offset_missing,
    ),
    Fault(
        "minimum-missing", "the m term is missing", "add m·s for each block, or m·d_a·Σ q_a in a superblock",
        lambda c: c.fmt.has_min, _minimum_missing,
    ),
    Fault(
        "minimum-sign", "the m term has the wrong sign",
        "the minimum is added; of K-quants, dmin·min is subtracted", lambda c: c.fmt.has_min, _minimum_sign,
    ),
    Fault(
        "sum-of-codes", "s is made from the activations' codes", "s is the sum of the raw values, rounded to half",
        lambda c: c.meets_sum and c.semantics.raw_sum, _sum_of_codes,
    ),
    Fault(
        "scale-and-sum-exchanged", "d and s of the activations' blocks are exchanged",
        "of a block of Q8_1, bytes 0 and 1 are d, bytes 2 and 3 are s", lambda c: c.meets_sum, _scale_and_sum_exchanged,
    ),
    Fault(
        "scale-and-minimum-exchanged", "d and m of the weights' blocks are exchanged",
        "the scale comes first, then the minimum", lambda c: c.fmt.has_min, _scale_and_minimum_exchanged,
    ),
    Fault(
        "sum-overflows", "s overflows to infinity: it is kept in a half, at most 65504",
        "this definition has no half s: keep the sum in float32, or take the offset off the codes",
        lambda c: not c.meets_sum, _sum_overflow,
    ),
    Fault(
        "activations-interleaved", "the activations' codes are read in another order than that of the values",
        "the codes of Q8_1 are sequential: code k belongs to value k", _always, _activations_interleaved,
    ),
    Fault(
        "fifth-bits-interleaved", "the fifth bits go to the wrong codes",
        "bit j of qh belongs to value j, and bit j + 16 to value j + 16", _of_one_block_of_32, _fifth_bits,
    ),
    Fault(
        "fifth-bits-missing", "the fifth bits are not added", "add 16·(bit j of qh) to code j",
        _has_fifth_bits, _fifth_bits_missing,
    ),
    Fault(
        "nibbles-swapped", "low and high nibbles are exchanged",
        "the low nibbles are the first half of the values, the high nibbles the second",
        _has_nibbles, _nibbles_swapped,
    ),
    Fault(
        "nibbles-in-pairs", "the nibbles of a byte are taken for neighbouring values",
        "the low nibble of byte j is value j, its high nibble value j + 16 (K-quants: j + 32)",
        _has_nibbles, _nibbles_in_pairs,
    ),
    Fault(
        "signedness", "codes are read with the wrong sign",
        "weights' nibbles are unsigned; codes of Q8_0 and of activations are signed bytes", _always, _signedness,
    ),
    Fault(
        "neighbouring-scale", "the scale of a neighbouring block is used",
        "check the index of scales against that of codes", _always, _neighbour,
    ),
    Fault(
        "subnormals-flushed", "half scales below 2^-14 are taken for zero",
        "convert halves exactly, and compile without -ftz=true", _always, _flushed,
    ),
    Fault(
        "quantizer-truncates", "the quantizer of activations truncates", "round x/d to nearest, halves away from zero",
        _with_values, _truncated,
    ),
    Fault(
        "scale-rounding", "the scale of activations is rounded to half at the wrong place",
        "quantize with d as a float32, then store it as the definition has it", _with_values, _scale_rounding,
    ),
    Fault(
        "scale-by-128", "the scale of activations is max/128", "d = max/127", _with_values, _scale_by_128,
    ),
    Fault(
        "row-stride", "rows are read at the wrong stride", "a row has K/block size · block bytes", _always, _row_stride,
    ),
    Fault(
        "block-stride", "blocks are read as if the struct were padded",
        "blocks lie one after the other without padding: check sizeof and alignment", _always, _block_stride,
    ),
    Fault(
        "transposed", "the output is written transposed", "y[m, n] is at m·N + n",
        lambda c: min(c.right.exact.shape) > 1, _transposed,
    ),
    Fault("end-of-k-dropped", "the end of K is left out", "let the loop over K cover its last tile", _always, _dropped),
    Fault(
        "stale-tile", "the last tile of K is the one before it", "load (and synchronize) before the last tile is used",
        _always, _stale,
    ),
    Fault(
        "half-accumulator", "sums are rounded to half", "accumulate and store in float32", _always, _half_accumulator,
    ),
    Fault(
        "bfloat16-accumulator", "sums are rounded to bfloat16", "accumulate and store in float32", _always,
        _bfloat16_accumulator,
    ),
)  # fmt: skip
