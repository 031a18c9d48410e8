"""What a quantizer of activations should give: an encoding's bytes, and where other bytes are as right.

Every byte is that of the encoding's `encode`, but for these:

- A sum s of raw values may be of another order of float32 additions, unless the author declares that order. Each order
  is within γ_n·Σ|x| of the exact sum of n values (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed.,
  §4.2), so s must lie between the halves next to the two ends.
- With fast math, a code whose unrounded value lies within `fast_math.WINDOW` of a half may be one step away, and a
  scale that far from its own. What is made of codes (Σq, d·Σq) is then that of the kernel's codes.
- Codes of values over a scale that is zero or infinite, and codes past 127, which only subnormal scales can make, are
  nobody's definition: C leaves the conversion undefined. With fast math, nor are codes under any subnormal scale, or of
  values from 2^126 on. Nothing is known of a block with NaN or infinities in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..formats.c_arithmetic import to_half
from .activations import Bytes, Floats
from .definition import Semantics
from .definitions import SEMANTICS
from .fast_math import WINDOW
from .sums import gamma

Bools = npt.NDArray[np.bool_]
Structs = npt.NDArray[np.void]

#: The largest float32, and the smallest that is no subnormal.
_MOST, _SMALLEST = float(np.finfo(np.float32).max), 2.0**-126


def encoding(name: str) -> Semantics:
    """The encoding of this name: what has `activations`, `encode`, `ratios` and `raw_sum`. Raises KeyError."""
    found = SEMANTICS[name]
    if found.encode is None:
        raise KeyError(name)
    return found


def encodings() -> tuple[str, ...]:
    """The names of all encodings."""
    return tuple(name for name, s in SEMANTICS.items() if s.encode is not None and s.activations is not None)


@dataclass(frozen=True)
class WrongBlock:
    """A block of activations that is wrong: of token m, the block, what is wrong in words, and the numbers."""

    m: int
    block: int
    what: str
    got: float
    expected: float


@dataclass
class QuantizerCheck:
    """What was compared of a quantizer's bytes.

    Args:
        blocks, codes: that were judged.
        unjudged: blocks with NaN or infinities, of which nothing is known.
        undefined: codes of no definition.
        ambiguous: codes that fast math may move.
        moved, scales_moved: codes and scales that it moved.
        other_sums: sums of another order than the encoder's.
        wrong: the first blocks that are wrong; `n_wrong` counts all.
    """

    blocks: int = 0
    codes: int = 0
    unjudged: int = 0
    undefined: int = 0
    ambiguous: int = 0
    moved: int = 0
    scales_moved: int = 0
    other_sums: int = 0
    n_wrong: int = 0
    wrong: list[WrongBlock] = field(default_factory=list)


def check_bytes(
    semantics: Semantics, x: Floats, theirs: Bytes, ordered: bool = False, fast_math: bool = False, most: int = 20
) -> QuantizerCheck:
    """Judge activations float32[M, K] as a kernel quantized them, uint8[M, row bytes].

    Args:
        semantics: the encoding.
        ordered: the author declares the encoder's order of sums.
        fast_math: the author declares approximate division.
        most: wrong blocks that are recorded one by one.

    Raises ValueError where the bytes are not those of such a row.
    """
    fmt = semantics.activations
    if fmt is None or semantics.encode is None:
        raise ValueError(f"{semantics.name} quantizes no activations")
    blocks = np.ascontiguousarray(x, np.float32).reshape(len(x), -1, fmt.block_size)
    if theirs.dtype != np.uint8 or theirs.shape != (len(x), blocks.shape[1] * fmt.block_bytes):
        raise ValueError(f"{theirs.dtype}{list(theirs.shape)} are not {len(x)} rows of {x.shape[1]} values")
    finite = np.asarray(np.isfinite(blocks).all(axis=-1))
    expected = semantics.encode(x).reshape(*blocks.shape[:2], fmt.block_bytes)
    got = theirs.reshape(expected.shape)
    check = QuantizerCheck(blocks=int(finite.sum()), unjudged=int((~finite).sum()))
    known, ambiguous = _codes_known(semantics, blocks, fast_math)
    check.codes = int((known & finite[..., None]).sum())
    check.undefined = int((~known & finite[..., None]).sum())
    if fast_math:
        check.ambiguous = int((ambiguous & known & finite[..., None]).sum())
    at = np.nonzero((got != expected).any(axis=-1) & finite)
    if len(at[0]):
        _compare(semantics, fmt, check, at, blocks[at], got[at], expected[at], (known[at], ambiguous[at]),
                 ordered, fast_math, most)  # fmt: skip
    return check


def _codes_known(semantics: Semantics, blocks: Floats, fast_math: bool) -> tuple[Bools, Bools]:
    """Which values have a code, and which may have either of two with fast math, bool like the blocks."""
    assert semantics.ratios is not None
    with np.errstate(all="ignore"):
        ratio, _ = semantics.ratios(blocks)
        size = np.abs(ratio).astype(np.float64)
        known = size < 127.5
        largest = np.abs(blocks).max(axis=-1, keepdims=True)
        known |= largest == 0  # zeros have the code zero
        if fast_math:  # subnormal scales are flushed, and approximate division is not defined above 2^126
            known &= (largest == 0) | ((largest > 127 * _SMALLEST * (1 + WINDOW)) & (largest < 2.0**126))
        # in float64, whose own error is negligible here
        exact = 127 * np.abs(blocks.astype(np.float64)) / np.where(largest > 0, largest, 1).astype(np.float64)
        return known, np.abs(exact % 1 - 0.5) <= WINDOW * exact


def _compare(
    semantics: Semantics, fmt: BlockFormat, check: QuantizerCheck, at: tuple[npt.NDArray[np.intp], ...],
    x: Floats, got: Bytes, expected: Bytes, of_codes: tuple[Bools, Bools], ordered: bool, fast_math: bool, most: int,
) -> None:  # fmt: skip
    """Compare blocks that differ: x[n, values], bytes[n, block bytes]."""
    ours, theirs = fmt.view(expected), fmt.view(got)
    known, ambiguous = of_codes
    step = np.where(known, theirs["qs"].astype(int) - ours["qs"], 0)
    may = (ambiguous & (np.abs(step) == 1)) if fast_math else np.zeros_like(known)
    bad_codes = (step != 0) & ~may
    check.moved += int(((step != 0) & may).sum())
    bad: list[tuple[str, Bools]] = [("qs", bad_codes)]
    for item in fmt.fields:
        if item.name == "qs":
            continue
        a = np.asarray(theirs[item.name]).reshape(len(x), -1)
        b = np.asarray(ours[item.name]).reshape(len(x), -1)
        same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
        if item.name.startswith("d"):
            allowed = _scales(x, a, b) if fast_math else np.zeros_like(same)
            check.scales_moved += int((allowed & ~same).sum())
        elif semantics.raw_sum and not ordered:
            allowed = _sums(x, a)
            check.other_sums += int((allowed & ~same).sum())
        elif fast_math or not known.all():
            allowed = _of_codes(semantics, x, theirs, a)
        else:
            allowed = np.zeros_like(same)
        bad.append((item.name, ~(same | allowed)))
    wrong = np.logical_or.reduce([part.any(axis=-1) for _, part in bad])
    check.n_wrong += int(wrong.sum())
    for i in np.flatnonzero(wrong)[: max(0, most - len(check.wrong))]:
        check.wrong.append(WrongBlock(int(at[0][i]), int(at[1][i]), *_told(x[i], theirs[i], ours[i], bad, int(i))))


def _scales(x: Floats, got: npt.NDArray[np.floating], ours: npt.NDArray[np.floating]) -> Bools:
    """Which scales fast math may give: within WINDOW of max/127, as halves the neighbour of ours at a midpoint; and
    zero where ours is subnormal in float32."""
    exact = np.abs(x.astype(np.float64)).max(axis=-1, keepdims=True) / 127
    with np.errstate(all="ignore"):
        a, b = np.abs(got.astype(np.float64)), np.abs(ours.astype(np.float64))
        near = np.abs(a - exact) <= WINDOW * exact
        if got.dtype.itemsize == 2:  # two halves equally far away are neighbours
            near |= np.abs(np.abs(a - exact) - np.abs(b - exact)) <= 2 * WINDOW * exact
        near &= np.signbit(got) == np.signbit(ours)
        return np.asarray(near | ((a == 0) & (exact <= _SMALLEST * (1 + WINDOW))))


def _sums(x: Floats, got: npt.NDArray[np.floating]) -> Bools:
    """Which sums some order of float32 additions gives; each is of as many values as the field has members for."""
    values = x.astype(np.float64).reshape(len(x), got.shape[1], -1)
    total, size = values.sum(axis=-1), np.abs(values).sum(axis=-1)
    error = gamma(values.shape[-1]) * size
    with np.errstate(all="ignore"):
        low, high = ((total + sign * error).astype(got.dtype).astype(np.float64) for sign in (-1, 1))
        s = got.astype(np.float64)
        return np.asarray(((low <= s) & (s <= high)) | (size + error >= _MOST))


def _of_codes(semantics: Semantics, x: Floats, theirs: Structs, got: npt.NDArray[np.generic]) -> Bools:
    """Which numbers are made of the kernel's own codes: their sums, or d times their sum."""
    codes = np.asarray(theirs["qs"]).astype(np.int64).reshape(len(x), got.shape[1], -1).sum(axis=-1)
    if np.issubdtype(got.dtype, np.integer):
        return np.asarray(got == codes)
    assert semantics.ratios is not None
    with np.errstate(all="ignore"):
        _, d = semantics.ratios(x)
        product = d.astype(np.float64)[:, None] * codes
        ends = [to_half((product * (1 + sign * 2 * WINDOW)).astype(np.float32)).astype(np.float64) for sign in (-1, 1)]
        s = got.astype(np.float64)
        return np.asarray((np.minimum(*ends) <= s) & (s <= np.maximum(*ends)))


def _told(
    x: Floats, theirs: np.void, ours: np.void, bad: list[tuple[str, Bools]], i: int
) -> tuple[str, float, float]:  # fmt: skip
    """What is wrong first in a block, got and expected."""
    for name, part in bad:
        if not part[i].any():
            continue
        j = int(part[i].argmax())
        got, expected = (float(np.asarray(s[name]).reshape(-1)[j]) for s in (theirs, ours))
        n = int(part[i].sum())
        if name == "qs":
            more = f", and {n - 1} further codes of the block differ" if n > 1 else ""
            return f"code {j} of x = {x[j]:.9g} is {got:g}, expected {expected:g}{more}", got, expected
        which = f"{name}[{j}]" if part.shape[1] > 1 else name
        return f"{which} is {got:.9g}, expected {expected:.9g}", got, expected
    raise AssertionError("the block is wrong")


__all__ = ["QuantizerCheck", "WrongBlock", "check_bytes", "encoding", "encodings"]
