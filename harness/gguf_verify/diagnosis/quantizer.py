"""The search for the known fault of a quantizer that gives some bytes: each field of its blocks is compared separately.

A variant is only named if it gives every byte of the field, in all blocks, so a name is never a guess. Codes are
searched among all combinations of the scalings and roundings listed here; a combination is named by its deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.c_arithmetic import round_half_away
from ..results.diagnoses import FaultMatch
from ..semantics.activations import Bytes, Floats, butterfly_sum, largest
from ..semantics.definition import Semantics
from .diagnose import FEWEST
from .pattern import pattern

_SMALLEST_HALF = 2.0**-14
#: The codes of infinities and NaN.
_OF_NAN = {-128, -127, -1, 0, 127}


@dataclass(frozen=True)
class _Deviation:
    """A deviation of a quantizer from the definition's."""

    id: str
    words: str
    fix: str


_TIES = _Deviation("quantizer-ties", "ties are rounded to even", "round ties away from zero")
_TRUNCATES = "quantizer-truncates"
_NEAREST = "round x/d to nearest, ties away from zero"
#: Conversions of a ratio to a code; the first one is the definition's.
_ROUNDINGS: tuple[tuple[_Deviation | None, Callable[[Floats], Floats]], ...] = (
    (None, round_half_away),
    (_TIES, lambda r: np.asarray(np.rint(r), np.float32)),
    (_Deviation(_TRUNCATES, "codes are rounded toward zero", _NEAREST), lambda r: np.asarray(np.trunc(r), np.float32)),
    (_Deviation(_TRUNCATES, "codes are rounded downward", _NEAREST), lambda r: np.asarray(np.floor(r), np.float32)),
    (
        _Deviation(_TRUNCATES, "0.5 is added to codes of both signs before they are rounded toward zero", _NEAREST),
        lambda r: np.asarray(np.trunc(r + np.float32(0.5)), np.float32),
    ),
    (
        _Deviation(_TRUNCATES, "0.5 is added to codes before they are rounded downward", _NEAREST),
        lambda r: np.asarray(np.floor(r + np.float32(0.5)), np.float32),
    ),
)
_RECIPROCAL = "quantizer-reciprocal"
_DIVIDE = "divide by d: a product with its reciprocal rounds differently where x/d is near a tie"
_BY_128 = _Deviation("scale-by-128", "the scale of activations is max/128", "d = max/127")
_FLUSHED = _Deviation(
    "subnormals-flushed", "half scales below 2^-14 are stored as zero", "convert to half exactly, without -ftz=true"
)
_STORED = _Deviation(
    "scale-rounding", "codes are computed from d after it was rounded to half", "quantize with d as a float32"
)
_SUM_OF_CODES = "s is the sum of the raw values, rounded to half"


def _ratios(blocks: Floats) -> Iterator[tuple[list[_Deviation], Floats]]:
    """Yield (deviations, x/d before rounding) in every known way, for float32[M, blocks, values]."""
    amax = largest(blocks)
    for steps in (127, 128):
        by = [] if steps == 127 else [_BY_128]
        d = amax / np.float32(steps)
        half = d.astype(np.float16).astype(np.float32)
        yield by, blocks / d[..., None]
        reciprocal = _Deviation(_RECIPROCAL, f"codes are x·({steps}/max), not x/d", _DIVIDE)
        yield [*by, reciprocal], blocks * (np.float32(steps) / amax)[..., None]
        reciprocal = _Deviation(_RECIPROCAL, "codes are x·(1/d), not x/d", _DIVIDE)
        yield [*by, reciprocal], blocks * (np.float32(1) / d)[..., None]
        yield [*by, _STORED], blocks / half[..., None]
        yield [*by, _STORED, reciprocal], blocks * (np.float32(1) / half)[..., None]


def _codes(blocks: Floats) -> Iterator[tuple[list[_Deviation], npt.NDArray[np.int8]]]:
    for by, ratio in _ratios(blocks):
        for deviation, rounded in _ROUNDINGS:
            q = rounded(ratio)
            wide = np.nan_to_num(q.astype(np.float64), posinf=127, neginf=-127)
            deviations = [*by, *([] if deviation is None else [deviation])]
            yield deviations, np.clip(wide, -127, 127).astype(np.int8)
            if (np.abs(wide) > 127).any():
                yield deviations, np.clip(wide, -128, 127).astype(np.int8)
                yield deviations, wide.astype(np.int64).astype(np.int8)


def _scales(blocks: Floats) -> Iterator[tuple[list[_Deviation], Floats]]:
    amax = largest(blocks)
    d = amax / np.float32(127)
    reciprocal = "scale-reciprocal"
    divide = "d = max/127, by a division"
    yield [], d
    yield [_BY_128], amax / np.float32(128)
    yield [_FLUSHED], np.where(d < _SMALLEST_HALF, np.float32(0), d)
    yield [_Deviation(reciprocal, "d is max·(1/127)", divide)], amax * np.float32(1 / 127)
    yield [_Deviation(reciprocal, "d is 1/(127/max)", divide)], np.float32(1) / (np.float32(127) / amax)
    exact = d.astype(np.float64)
    near = d.astype(np.float16)
    low = np.where(near.astype(np.float64) > exact, np.nextafter(near, np.float16(0)), near)
    cut = _Deviation("scale-rounding", "d is truncated to half, not rounded", "round d to the nearest half")
    yield [cut], low.astype(np.float32)
    bits = d.view(np.uint32)
    bfloat = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32)
    yield [_Deviation("scale-rounding", "d is rounded to bfloat16", "round d to half")], bfloat


def _sums(blocks: Floats, d: Floats, q: npt.NDArray[np.int8]) -> Iterator[tuple[list[_Deviation], Floats]]:
    """Yield sums of the values float32[M, blocks, 32], or of the stored scales and codes."""
    total = q.astype(np.float32).sum(axis=-1)
    yield [], butterfly_sum(blocks)
    codes = "sum-of-codes"
    yield [_Deviation(codes, "s is d_a·Σ q_a, not Σ x", _SUM_OF_CODES)], d * total
    unrounded = largest(blocks) / np.float32(127)
    yield [_Deviation(codes, "s is d_a·Σ q_a with d_a as a float32, not Σ x", _SUM_OF_CODES)], unrounded * total
    yield [_Deviation(codes, "s is Σ q_a without d_a, not Σ x", _SUM_OF_CODES)], total
    order = "sum-order"
    fix = "add lanes at distance 16, 8, 4, 2 and 1, in float32"
    ascending = np.cumsum(blocks, axis=-1, dtype=np.float32)[..., -1]
    yield [_Deviation(order, "the values of s are added in ascending order", fix)], ascending
    exact = blocks.astype(np.float64).sum(axis=-1).astype(np.float32)
    yield [_Deviation(order, "the values of s are added in float64", fix)], exact
    yield [_Deviation("sum-missing", "s is not stored: it is zero", _SUM_OF_CODES)], np.zeros_like(exact)
    size = np.abs(blocks).sum(axis=-1, dtype=np.float32)
    yield [_Deviation("sum-of-magnitudes", "s is Σ |x|", _SUM_OF_CODES)], size


@dataclass(frozen=True)
class QuantizerDiagnosis:
    """The diagnosis of a quantizer's bytes.

    Args:
        wrong, blocks: the number of blocks that differ from the definition's, and of all.
        faults: the known faults that give the bytes; several of one field cannot be distinguished on these data.
        lines: the diagnosis in words.
    """

    wrong: int
    blocks: int
    faults: tuple[FaultMatch, ...]
    lines: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One of "right", "known fault" and "unknown"."""
        return "right" if not self.wrong else "known fault" if self.faults else "unknown"


def diagnose_quantizer(semantics: Semantics, x: Floats, got: Bytes, expected: Bytes) -> QuantizerDiagnosis:
    """Find the known fault that gives the bytes `got` for activations float32[M, K].

    Args:
        semantics: the definition whose `encode` gives the bytes `expected`; both uint8[M, row bytes].

    Only for activations in blocks of 32 under a half scale.
    """
    form = semantics.activations
    shape = (len(x), -1, 4 if form is None else form.block_bytes)
    mine, right = got.reshape(shape), expected.reshape(shape)
    bad = np.asarray((mine != right).any(axis=-1))
    found: list[tuple[str, list[_Deviation]]] = []
    if (
        form is not None
        and form.block_size == 32
        and form.fields[0].dtype == "<f2"
        and semantics.encoding.ratios is not None
    ):
        with np.errstate(all="ignore"):
            found = _found(form, x.reshape(len(x), -1, 32), mine, right)
    lines = []
    for what, deviations in found:
        if deviations:
            either = " or ".join(dict.fromkeys(d.words for d in deviations))
            lines.append(f"the activation quantizer: {either}. Fix: {deviations[0].fix}")
        else:
            lines.append(f"the activation quantizer: unknown: no fault of the catalogue gives its {what}")
    if bad.any() and not found:
        lines.append("the activation quantizer: unknown: too few blocks are wrong, or of a different form")
    where = pattern(bad)
    lines += [line.replace("outputs", "blocks").replace("rows", "blocks of K") for line in where]
    faults = {d.id: d for _, deviations in found for d in deviations}
    matches = tuple(FaultMatch(d.id, d.words, d.fix, 1.0, 0.0, True) for d in faults.values())
    return QuantizerDiagnosis(int(bad.sum()), bad.size, matches, tuple(dict.fromkeys(lines)) if bad.any() else ())


def _found(form: BlockFormat, blocks: Floats, got: Bytes, expected: Bytes) -> list[tuple[str, list[_Deviation]]]:
    """Return (field, its possible deviations) for each wrong field."""
    mine, right = form.view(got), form.view(expected)
    zero = largest(blocks) / np.float32(127) == 0
    names: list[str] = [name for name in ("d", "s") if name in (mine.dtype.names or ())]
    bits, meant = ({n: np.ascontiguousarray(of[n]).view(np.uint16) for n in names} for of in (mine, right))
    wrong: dict[str, npt.NDArray[np.bool_]] = {name: bits[name] != meant[name] for name in names}
    wrong["qs"] = np.asarray((mine["qs"] != right["qs"]).any(axis=-1))
    stored = mine["d"].astype(np.float32)
    found: list[tuple[str, list[_Deviation]]] = []
    ways: dict[str, Callable[[], Iterator[tuple[list[_Deviation], npt.NDArray[np.bool_]]]]] = {
        "qs": lambda: ((by, (q == mine["qs"]).all(axis=-1)) for by, q in _codes(blocks)),
        "d": lambda: ((by, _half_bits(v) == bits["d"]) for by, v in _scales(blocks)),
        "s": lambda: ((by, _half_bits(v) == bits["s"]) for by, v in _sums(blocks, stored, mine["qs"])),
    }
    for name, what in (("qs", "codes"), ("d", "scales"), ("s", "sums")):
        looked = wrong.get(name, zero) & ~zero
        if looked.any():
            fitting = [by for by, same in ways[name]() if by and same[~zero].all()] if looked.sum() >= FEWEST else []
            fewest = min(map(len, fitting), default=0)
            found.append((what, [_together(by) for by in fitting if len(by) == fewest]))
    in_zeros = zero & np.logical_or.reduce(list(wrong.values()))
    if in_zeros.any() and all(deviations for _, deviations in found):
        codes = {int(q) for q in mine["qs"][in_zeros].ravel()}
        nan = bool(np.isnan(stored[in_zeros]).any())
        what = "a scale that is NaN" if nan else f"the codes {', '.join(map(str, sorted(codes)))}"
        words = f"a block whose d is zero gets {what}, as of a division by zero"
        by_zero = nan or codes <= _OF_NAN
        deviations = [_Deviation("zero-block", words, "if d is zero, store codes of 0")] if by_zero else []
        found.append(("blocks without a scale", deviations))
    return found


def _half_bits(values: Floats) -> npt.NDArray[np.uint16]:
    return values.astype(np.float16).view(np.uint16)


def _together(by: list[_Deviation]) -> _Deviation:
    return _Deviation(by[0].id, ", and ".join(d.words for d in by), by[0].fix)
