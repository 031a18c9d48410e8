"""Faults of a kernel's own quantizer of activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats.block import QK
from ...formats.c_arithmetic import round_half_away
from ..fault import Case, Variants, fault
from ..operands import Floats, Parts, Predicted


def _ratios(case: Case) -> tuple[Floats, Floats]:
    """Return x/d before rounding, float32[M, blocks, values], and d before it is rounded to half, [M, blocks]."""
    assert case.values is not None
    size = case.semantics.encoding.values_per_scale
    assert case.semantics.encoding.ratios is not None
    with np.errstate(all="ignore"):
        return case.semantics.encoding.ratios(case.values.reshape(len(case.values), -1, size))


def _codes(case: Case, q: npt.NDArray[np.floating]) -> Parts:
    """Return the operands with other codes of activations."""
    p = case.parts
    whole = np.clip(np.nan_to_num(q.astype(np.float64)), -128, 127)
    return replace(p, a=whole.reshape(p.a.shape)).with_sums()


def _scale(case: Case, p: Parts, d: npt.NDArray[np.floating]) -> Parts:
    """Return the operands with other scales [M, blocks] of activations."""
    wide = np.nan_to_num(d.astype(np.float64))
    return replace(p, e=np.repeat(wide, p.e.shape[1] // wide.shape[1], axis=1)).with_sums()


def _with_values(case: Case) -> bool:
    size = case.semantics.encoding.values_per_scale
    return case.quantized and case.values is not None and case.values.shape[1] % size == 0


@fault(
    "quantizer-ties",
    "the activation quantizer rounds ties to even",
    "round ties away from zero (roundf, not rintf)",
    applies=_with_values,
)
def quantizer_ties(case: Case) -> Variants:
    ratio, _ = _ratios(case)
    yield "", _codes(case, np.rint(ratio))


@fault(
    "quantizer-reciprocal",
    "the activation quantizer multiplies by a reciprocal",
    "divide by d: a product with its reciprocal rounds differently where x/d is near a tie",
    applies=_with_values,
)
def quantizer_reciprocal(case: Case) -> Variants:
    ratio, d = _ratios(case)
    assert case.values is not None
    blocks = case.values.reshape(ratio.shape)
    with np.errstate(all="ignore"):
        yield "x·(1/d)", _codes(case, round_half_away(blocks * (np.float32(1) / d)[..., None]))
        inverse = np.float32(127) / np.abs(blocks).max(axis=-1, keepdims=True)
        yield "x·(127/max)", _codes(case, round_half_away(blocks * inverse))
        half = (np.float32(1) / d).astype(np.float16).astype(np.float32)[..., None]
        if not np.isfinite(half).all():
            largest = np.clip(round_half_away(blocks * half), -127, 127)
            yield "1/d in a half, which overflows", _codes(case, largest)
            exact = np.where(np.isfinite(half), round_half_away(ratio), largest)
            yield "1/d overflows a half, and is exact where it does not", _codes(case, exact)


@fault(
    "zero-block",
    "an all-zero block of activations gives NaN: 0/0",
    "if max|x| is zero, store d = 0 and codes of 0",
)
def zero_block(case: Case) -> Variants:
    form, ways = case.semantics.activations, {}
    if form is not None:
        ways[""] = case.parts.e == 0
    if form is None or case.values is not None:
        values = case.parts.a if case.values is None else case.values
        size = QK if form is None else case.semantics.encoding.values_per_scale
        zero = (values.reshape(len(values), -1, size) == 0).all(axis=-1)
        ways["where all values are zero, not where d is too small"] = zero
    for which, zero in ways.items():
        everywhere = f"{which}, in all blocks of a token".removeprefix(", ")
        for whole, words in ((zero.any(axis=1), which), (zero.all(axis=1), everywhere)):
            if whole.any() and not whole.all():
                yield words, Predicted(np.where(whole[:, None], np.nan, case.right.exact), case.right.bound)


@fault(
    "quantizer-truncates",
    "the activation quantizer truncates",
    "round x/d to nearest, ties away from zero",
    applies=_with_values,
)
def quantizer_truncates(case: Case) -> Variants:
    ratio, d = _ratios(case)
    assert case.values is not None
    with np.errstate(all="ignore"):
        by_inverse = case.values.reshape(ratio.shape) * (np.float32(1) / d)[..., None]
    yield "toward zero", _codes(case, np.trunc(ratio))
    yield "x·(1/d) toward zero", _codes(case, np.trunc(by_inverse))
    yield "downward", _codes(case, np.floor(ratio))
    yield "x·(1/d) downward", _codes(case, np.floor(by_inverse))
    yield "x/d + 0.5 toward zero", _codes(case, np.trunc(ratio + np.float32(0.5)))


@fault(
    "scale-rounding",
    "the scale of activations is rounded to half at the wrong point",
    "quantize with d as a float32, then round it as the definition does",
    applies=_with_values,
)
def scale_rounding(case: Case) -> Variants:
    ratio, d = _ratios(case)
    assert case.values is not None
    with np.errstate(all="ignore"):
        half = d.astype(np.float16).astype(np.float32)
        if case.half_scale:
            yield "d_a kept as a float32", _scale(case, case.parts, d)
        else:
            yield "d_a rounded to half", _scale(case, case.parts, half)
        blocks = case.values.reshape(ratio.shape)
        rounded = _codes(case, round_half_away(blocks / half[..., None]))
        yield "codes from d_a after it was rounded to half", _scale(case, rounded, half)


@fault(
    "scale-by-128",
    "the scale of activations is max/128",
    "d = max/127",
    applies=_with_values,
)
def scale_by_128(case: Case) -> Variants:
    assert case.values is not None
    ratio, d = _ratios(case)
    with np.errstate(all="ignore"):
        other = d * np.float32(127) / np.float32(128)
        stored = other.astype(np.float16) if case.half_scale else other
        codes = round_half_away(case.values.reshape(ratio.shape) / other[..., None])
        yield "codes to match, at most 127", _scale(case, _codes(case, codes), stored)
        yield "codes as for max/127", _scale(case, case.parts, stored)
