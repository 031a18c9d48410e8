"""Checks of a quantizer of activations: the bytes of an encoding, with the differences that are equally correct.

Every byte must be that of the encoding's `encode`, with these exceptions:

- A sum s of raw values may be of another order of float32 additions, unless the author declares that order. Each order
  is within γ_n·Σ|x| of the exact sum of n values (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed.,
  §4.2), so s must lie between the halves next to the two ends.
- With fast math, a code whose unrounded value lies within `fast_math.WINDOW` of a half may be one step away, and a
  scale may be that far from its own. Numbers derived from codes (Σq, d·Σq) must then be those of the kernel's codes.
- Some codes are not defined: those of values over a scale that is zero or infinite, and codes past 127, which only
  occur with subnormal scales: C leaves the conversion undefined. With fast math, neither are codes under any subnormal
  scale, or of values from 2^126 on. Blocks with NaN or infinities are not judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..formats.c_arithmetic import to_half
from .activations import Bytes, Floats
from .definitions import ENCODINGS
from .encoding import Encoding
from .fast_math import WINDOW
from .sums import gamma

Bools = npt.NDArray[np.bool_]
Structs = npt.NDArray[np.void]

#: The largest float32, and the smallest normal one.
_MOST, _SMALLEST = float(np.finfo(np.float32).max), 2.0**-126


def encoding(name: str) -> Encoding:
    """Return the encoding of this name, which quantizes. Raises KeyError."""
    found = ENCODINGS[name]
    if not found.quantizes:
        raise KeyError(name)
    return found


def encodings() -> tuple[str, ...]:
    """Return the names of all encodings that quantize."""
    return tuple(name for name, e in ENCODINGS.items() if e.quantizes)


def unit_of(made: Encoding) -> int:
    """Return the values of which a row of activations is a whole multiple."""
    if made.rearranges is not None:
        return unit_of(made.rearranges[0])
    assert made.format is not None
    return made.format.block_size


@dataclass(frozen=True)
class WrongBlock:
    """A wrong block of activations: its token m, its number, the fault in words, and the numbers."""

    m: int
    block: int
    what: str
    got: float
    expected: float


@dataclass
class QuantizerCheck:
    """The results of a comparison of a quantizer's bytes.

    Args:
        blocks, codes: judged blocks and codes.
        unjudged: blocks with NaN or infinities, for which nothing is defined.
        undefined: codes that no definition gives.
        ambiguous: codes that fast math may move.
        moved, scales_moved: codes and scales that it moved.
        other_sums: sums in another order than the encoder's.
        wrong: the first wrong blocks; `n_wrong` counts all.
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
    made: Encoding, x: Floats, theirs: Bytes, ordered: bool = False, fast_math: bool = False, most: int = 20
) -> QuantizerCheck:
    """Judge activations float32[M, K] as a kernel quantized them, uint8[M, row bytes].

    Args:
        made: the encoding.
        ordered: the author declares the encoder's order of sums.
        fast_math: the author declares approximate division.
        most: most wrong blocks that are recorded one by one.

    Raises ValueError if the bytes do not have the type or shape of such rows.
    """
    fmt = made.format
    if fmt is None:
        raise ValueError(f"{made.name} quantizes no activations")
    if theirs.dtype != np.uint8 or theirs.shape != (len(x), made.row_bytes(x.shape[1])):
        raise ValueError(f"{theirs.dtype}{list(theirs.shape)} are not {len(x)} rows of {x.shape[1]} values")
    whole = np.pad(np.ascontiguousarray(x, np.float32), ((0, 0), (0, -x.shape[1] % fmt.block_size)))
    blocks = whole.reshape(len(x), -1, fmt.block_size)
    finite = np.asarray(np.isfinite(blocks).all(axis=-1))
    expected = made.encode(x).reshape(*blocks.shape[:2], fmt.block_bytes)
    got = theirs.reshape(expected.shape)
    check = QuantizerCheck(blocks=int(finite.sum()), unjudged=int((~finite).sum()))
    known, ambiguous = _codes_known(made, blocks, fast_math)
    check.codes = int((known & finite[..., None]).sum())
    check.undefined = int((~known & finite[..., None]).sum())
    if fast_math:
        check.ambiguous = int((ambiguous & known & finite[..., None]).sum())
    at = np.nonzero((got != expected).any(axis=-1) & finite)
    if len(at[0]):
        _compare(
            made, check, at, blocks[at], got[at], expected[at], (known[at], ambiguous[at]), ordered, fast_math, most
        )
    return check


def only_defined(made: Encoding, x: Floats, fast_math: bool = False) -> Floats:
    """Return activations float32[M, K], with zeros for each block with an undefined code or a non-finite value."""
    assert made.format is not None
    blocks = np.pad(x, ((0, 0), (0, -x.shape[1] % made.format.block_size))).reshape(len(x), -1, made.format.block_size)
    known, _ = _codes_known(made, blocks, fast_math)
    whole = (known & np.isfinite(blocks)).all(axis=-1, keepdims=True)
    return np.where(whole, blocks, np.float32(0)).reshape(len(x), -1)[:, : x.shape[1]]


def _codes_known(made: Encoding, blocks: Floats, fast_math: bool) -> tuple[Bools, Bools]:
    """Return which values have a defined code, and which may have either of two with fast math, as bool[...]."""
    assert made.ratios is not None
    groups = blocks.reshape(*blocks.shape[:2], -1, made.values_per_scale)
    with np.errstate(all="ignore"):
        ratio, _ = made.ratios(groups)
        known = np.abs(ratio).astype(np.float64) < 127.5
        largest = np.abs(groups).max(axis=-1, keepdims=True)
        known |= largest == 0  # zeros have the code zero
        if fast_math:  # subnormal scales are flushed, and approximate division is not defined above 2^126
            known &= (largest == 0) | ((largest > 127 * _SMALLEST * (1 + WINDOW)) & (largest < 2.0**126))
        # Computed in float64, whose own error is negligible here.
        exact = 127 * np.abs(groups.astype(np.float64)) / np.where(largest > 0, largest, 1).astype(np.float64)
        return known.reshape(blocks.shape), (np.abs(exact % 1 - 0.5) <= WINDOW * exact).reshape(blocks.shape)


def _roles(made: Encoding) -> list[tuple[str, npt.NDArray[np.intp], bool, int]]:
    """Return name, members, whether they are scales, and the values of each member, for all fields but the codes."""
    fmt, out = made.format, []
    assert fmt is not None
    for item in fmt.fields:
        every = np.arange(item.count)
        if item.name == "d":
            out.append((item.name, every, True, made.values_per_scale))
        elif item.name == "ds":  # scales and sums: `read_sums` tells which members are sums
            assert made.read_sums is not None
            numbered = np.zeros((), fmt.dtype)
            numbered["ds"] = every + 1
            read = made.read_sums(numbered)
            sums = np.sort(read[~np.isnan(read)].astype(int) - 1)
            out.append((item.name, np.setdiff1d(every, sums), True, made.values_per_scale))
            out.append((item.name, sums, False, made.values_per_sum))
        elif item.name != "qs":
            out.append((item.name, every, False, fmt.block_size // item.count))
    return out


def _compare(
    made: Encoding,
    check: QuantizerCheck,
    at: tuple[npt.NDArray[np.intp], ...],
    x: Floats,
    got: Bytes,
    expected: Bytes,
    of_codes: tuple[Bools, Bools],
    ordered: bool,
    fast_math: bool,
    most: int,
) -> None:
    """Compare blocks that differ: x[n, values], bytes[n, block bytes]."""
    assert made.format is not None
    ours, theirs = made.format.view(expected), made.format.view(got)
    known, ambiguous = of_codes
    step = np.where(known, theirs["qs"].astype(int) - ours["qs"], 0)
    may = (ambiguous & (np.abs(step) == 1)) if fast_math else np.zeros_like(known)
    check.moved += int(((step != 0) & may).sum())
    bad: list[tuple[str, npt.NDArray[np.intp], Bools]] = [("qs", np.arange(x.shape[1]), (step != 0) & ~may)]
    for name, members, is_scale, values in _roles(made):
        a, b = (np.ascontiguousarray(np.asarray(of[name]).reshape(len(x), -1)[:, members]) for of in (theirs, ours))
        same = a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")
        part = x[:, : len(members) * values].reshape(len(x), len(members), values)
        if is_scale:
            allowed = _scales(part, a, b) if fast_math else np.zeros_like(same)
            check.scales_moved += int((allowed & ~same).sum())
        elif made.raw_sum and not ordered:
            allowed = _sums(part, a)
            check.other_sums += int((allowed & ~same).sum())
        elif not made.raw_sum and (fast_math or not known.all()):
            codes = np.asarray(theirs["qs"])[:, : len(members) * values].reshape(part.shape)
            allowed = _of_codes(made, part, codes, a)
        else:
            allowed = np.zeros_like(same)
        bad.append((name, members, ~(same | allowed)))
    wrong = np.logical_or.reduce([part.any(axis=-1) for _, _, part in bad])
    check.n_wrong += int(wrong.sum())
    for i in np.flatnonzero(wrong)[: max(0, most - len(check.wrong))]:
        check.wrong.append(WrongBlock(int(at[0][i]), int(at[1][i]), *_told(x[i], theirs[i], ours[i], bad, int(i))))


def _scales(x: Floats, got: npt.NDArray[np.floating], ours: npt.NDArray[np.floating]) -> Bools:
    """Return which scales of x[n, scales, values] fast math may give.

    They are within WINDOW of max/127, or, for halves, the neighbour of ours at a midpoint; or zero if ours is subnormal
    in float32.
    """
    exact = np.abs(x.astype(np.float64)).max(axis=-1) / 127
    with np.errstate(all="ignore"):
        a, b = np.abs(got.astype(np.float64)), np.abs(ours.astype(np.float64))
        near = np.abs(a - exact) <= WINDOW * exact
        if got.dtype.itemsize == 2:  # two halves at equal distance are neighbours
            near |= np.abs(np.abs(a - exact) - np.abs(b - exact)) <= 2 * WINDOW * exact
        near &= np.signbit(got) == np.signbit(ours)
        return np.asarray(near | ((a == 0) & (exact <= _SMALLEST * (1 + WINDOW))))


def _sums(x: Floats, got: npt.NDArray[np.floating]) -> Bools:
    """Return which sums of x[n, sums, values] some order of float32 additions gives."""
    values = x.astype(np.float64)
    total, size = values.sum(axis=-1), np.abs(values).sum(axis=-1)
    error = gamma(values.shape[-1]) * size
    with np.errstate(all="ignore"):
        low, high = ((total + sign * error).astype(got.dtype).astype(np.float64) for sign in (-1, 1))
        s = got.astype(np.float64)
        return np.asarray(((low <= s) & (s <= high)) | (size + error >= _MOST))


def _of_codes(made: Encoding, x: Floats, codes: npt.NDArray[np.int8], got: npt.NDArray[np.generic]) -> Bools:
    """Return which numbers are those of the kernel's own codes[n, sums, values]: their sums, or d times their sum."""
    sums = codes.astype(np.int64).sum(axis=-1)
    if np.issubdtype(got.dtype, np.integer):
        return np.asarray(got == sums)
    assert made.ratios is not None
    with np.errstate(all="ignore"):
        _, d = made.ratios(x)
        product = d.astype(np.float64) * sums
        ends = [to_half((product * (1 + sign * 2 * WINDOW)).astype(np.float32)).astype(np.float64) for sign in (-1, 1)]
        s = got.astype(np.float64)
        return np.asarray((np.minimum(*ends) <= s) & (s <= np.maximum(*ends)))


def _told(
    x: Floats, theirs: np.void, ours: np.void, bad: list[tuple[str, npt.NDArray[np.intp], Bools]], i: int
) -> tuple[str, float, float]:
    """Return the first fault in a block, in words, with the numbers got and expected."""
    for name, members, part in bad:
        if not part[i].any():
            continue
        j = int(members[part[i].argmax()])
        got, expected = (float(np.asarray(s[name]).reshape(-1)[j]) for s in (theirs, ours))
        n = int(part[i].sum())
        if name == "qs":
            more = f", and {n - 1} further codes of the block differ" if n > 1 else ""
            return f"code {j} of x = {x[j]:.9g} is {got:g}, expected {expected:g}{more}", got, expected
        which = f"{name}[{j}]" if np.asarray(ours[name]).size > 1 else name
        return f"{which} is {got:.9g}, expected {expected:.9g}", got, expected
    raise AssertionError("the block is wrong")
