"""Expected results of a dequantizer: the values w = d·s·q + m of a block, by the arithmetic that its author declares.

d is the block's scale, s the integer factors of the scale in superblocks (else 1), q the code c minus its offset, m the
minimum or 0. Each product and sum of these is exact in float64: a half has 11 bits, s, q and the factor of m at most 9
each, and with an m, all are multiples of 2^-24. So each arithmetic below is known bit by bit: it is float64 with the
roundings stated, to nearest even.

    once                the exact value, rounded once to the output's type
    float32             as llama.cpp's `to_float`: products are exact, the sum with m is rounded; then to the output
    float32_float16     the same, rounded to float16 and then to the output's type
    T_mul_add           T(T(S·q) + M) with S = T(T(d)·s), M = T(m): each step is rounded to T, float16 or bfloat16
    T_fma               T(S·q + M)
    T_min_fma           T(T(S·q) + m), where m is a product that a fused multiply-add does not round
    T_int_mul_add       T(T(T(d)·T(s·q)) + M): the integers are multiplied first; so too T_int_fma, T_int_min_fma
    T_offset_mul_add    T(T(S·c) - T(offset·S)), of a code before its offset is subtracted; so too T_offset_fma; T may
                        be float32 here, which gives another sign of zero than `float32`
    float16, bfloat16   any of those without `offset`: values are judged by a bound

The bound of the last two: the product d·s·q is rounded to T a times on its way to the result: d if T may not hold it,
d·s or s·q in superblocks, the product, and the sum if there is an m. m is rounded b times: its factor if T may not hold
it, m itself, the sum. One more rounding, to the output, is to another type than T. With the unit roundoffs u of T and v
of the output (0 if it is T or wider), e(n) = (1 + u)^n·(1 + v) - 1, and η the loss of a subnormal result of either
type, |y - w| ≤ e(a)·|d·s·q| + e(b)·|m| + η·(|q| + 4), since the loss in S is multiplied by q (Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., §2.2 and §3.1). If a magnitude may pass the largest number of a type, the
value is not judged.

All NaN are alike: their bits are not judged. Zeros have signs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import ELEMENTS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

ONCE = "once"
#: Output types of a dequantizer.
OUTPUTS = ("float32", "float16", "bfloat16")
#: Type → unit roundoff, half of the smallest subnormal number, the largest number.
_TYPES = {
    "float32": (2.0**-24, 2.0**-150, float(np.finfo(np.float32).max)),
    "float16": (2.0**-11, 2.0**-25, 65504.0),
    "bfloat16": (2.0**-8, 2.0**-134, (2 - 2.0**-7) * 2.0**127),
}
_SMALLEST_NORMAL = 2.0**-126


def rounded(values: Doubles, kind: str) -> Floats:
    """Round float64 once, to nearest even, to a type; the result is held as float32."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if kind == "float16":
            return values.astype(np.float16).astype(np.float32)
        nearest = values.astype(np.float32)
        if kind == "float32":
            return nearest
        # Round to odd first: then the second rounding cannot err (Boldo and Melquiond, 2008).
        back = nearest.astype(np.float64)
        even = (nearest.view(np.uint32) & 1) == 0
        toward = np.where(values > back, np.float32(np.inf), np.float32(-np.inf))
        inexact = (back != values) & ~np.isnan(values)
        return ELEMENTS["BF16"].round(np.where(inexact & even, np.nextafter(nearest, toward), nearest))


@dataclass(frozen=True)
class _Parts:
    """The numbers of blocks, float64[..., groups, 1] and [..., groups, group]."""

    d: Doubles
    s: Doubles
    q: Doubles
    m: Doubles
    offset: int
    has_min: bool

    @classmethod
    def of(cls, fmt: BlockFormat, blocks: Bytes) -> _Parts:
        codes = fmt.codes(blocks).astype(np.float64).reshape(*blocks.shape[:-1], fmt.groups, fmt.group)
        with np.errstate(all="ignore"):  # signalling NaN
            scales = fmt.scales(blocks).astype(np.float64)[..., None]
            minima = fmt.minima(blocks).astype(np.float64)[..., None] if fmt.has_min else np.zeros_like(scales)
            d, s = scales, np.ones_like(scales)
            if _has_integers(fmt):
                one = np.asarray(fmt.view(blocks)["d"]).astype(np.float64)[..., None, None]
                sign = np.copysign(1.0, scales) * np.copysign(1.0, one)
                known = np.isfinite(one) & (one != 0)
                s = np.where(known, scales / np.where(known, one, 1.0), np.where(np.isnan(scales), 0.0, sign))
                d = np.broadcast_to(one, scales.shape)
        return cls(d, s, codes - fmt.offset, minima, fmt.offset, fmt.has_min)


def _has_integers(fmt: BlockFormat) -> bool:
    """Return whether the scales of a superblock are one half times integers."""
    return fmt.read_scales is not None and any(f.name == "d" and f.dtype == "<f2" for f in fmt.fields)


Rule = Callable[[_Parts, str], Doubles]


def _sum(p: _Parts, kind: str, product: Doubles, add: str) -> Doubles:
    """Return the product plus the minimum: "mul_add", "fma" or "min_fma"."""
    if add != "fma":
        product = _to(product, kind)
    if not p.has_min:
        return _to(product, kind)
    return _to(product + (p.m if add == "min_fma" else _to(p.m, kind)), kind)


def _to(values: Doubles, kind: str) -> Doubles:
    return rounded(values, kind).astype(np.float64)


def _scaled(add: str) -> Rule:
    return lambda p, kind: _sum(p, kind, _to(_to(p.d, kind) * p.s, kind) * p.q, add)


def _integers(add: str) -> Rule:
    return lambda p, kind: _sum(p, kind, _to(p.d, kind) * _to(p.s * p.q, kind), add)


def _offset(add: str) -> Rule:
    def rule(p: _Parts, kind: str) -> Doubles:
        scale = _to(_to(p.d, kind) * p.s, kind)
        product = scale * (p.q + p.offset)
        if add == "mul_add":
            product = _to(product, kind)
        return _to(product - (_to(p.offset * scale, kind)), kind)

    return rule


#: The part of the name after the working type → the rule.
_STEPS: dict[str, Rule] = {
    **{add: _scaled(add) for add in ("mul_add", "fma", "min_fma")},
    **{f"int_{add}": _integers(add) for add in ("mul_add", "fma", "min_fma")},
    **{f"offset_{add}": _offset(add) for add in ("mul_add", "fma")},
}
#: Arithmetics that are judged by a bound.
BOUNDED = ("float16", "bfloat16")
ARITHMETICS = (
    ONCE, "float32", "float32_float16", *(f"{kind}_{steps}" for kind in BOUNDED for steps in _STEPS),
    *(f"float32_{steps}" for steps in _STEPS if steps.startswith("offset")), *BOUNDED,
)  # fmt: skip


def applies(arithmetic: str, fmt: BlockFormat) -> bool:
    """Return whether a type has the offset, the minimum or the integers in a superblock that an arithmetic needs."""
    return not (
        ("offset" in arithmetic and (fmt.offset == 0 or fmt.has_min))
        or ("min_" in arithmetic and not fmt.has_min)
        or ("int_" in arithmetic and not _has_integers(fmt))
    )


@dataclass(frozen=True)
class Expected:
    """Expected values of some blocks, `[..., values]` each.

    Args:
        values: float32, which hold the output's type exactly; with a bound, the exact ones rounded.
        bound: the largest distance from float64 `exact`; None: the bits must be equal.
        exact: float64, with a bound.
        free: elements that are not judged.
    """

    values: Floats
    bound: Doubles | None = None
    exact: Doubles | None = None
    free: Bools | None = None

    def wrong(self, got: Floats) -> Bools:
        """Return which of the values `got`, float32 that hold the output's type, are wrong."""
        if self.bound is None or self.exact is None:
            same = (got.view(np.uint32) == self.values.view(np.uint32)) | (np.isnan(got) & np.isnan(self.values))
        else:
            with np.errstate(invalid="ignore"):
                same = np.abs(got.astype(np.float64) - self.exact) <= self.bound
        return np.asarray(~same if self.free is None else ~(same | self.free))

    def utilisation(self, got: Floats) -> float | None:
        """Return the largest |y - w| / bound of the judged values; None if bits are compared."""
        if self.bound is None or self.exact is None:
            return None
        with np.errstate(all="ignore"):
            share = np.abs(got.astype(np.float64) - self.exact) / self.bound
        judged = share if self.free is None else share[~self.free]
        return float(np.nan_to_num(judged, nan=np.inf).max(initial=0.0))


def expected_values(
    fmt: BlockFormat, blocks: Bytes, output: str = "float32", arithmetic: str = ONCE, flushes: bool = False
) -> Expected:
    """Return the expected values of blocks uint8[..., block_bytes].

    Args:
        output: one of OUTPUTS.
        arithmetic: one of ARITHMETICS that `applies`.
        flushes: built with fast math: subnormal float32 scales and values may be replaced by zero.
    """
    if arithmetic in BOUNDED:
        return _bounded(fmt, blocks, output, arithmetic)
    with np.errstate(all="ignore"):
        values = _exact_bits(fmt, blocks, output, arithmetic)
    free = None
    if flushes:
        with np.errstate(all="ignore"):
            scale = np.abs(np.repeat(fmt.scales(blocks), fmt.group, axis=-1))
            size = np.abs(values)
            small = ((scale > 0) & (scale < _SMALLEST_NORMAL)) | ((size > 0) & (size < _SMALLEST_NORMAL))
        free = small.reshape(values.shape) if small.any() else None
    return Expected(values, free=free)


def _exact_bits(fmt: BlockFormat, blocks: Bytes, output: str, arithmetic: str) -> Floats:
    once_is_float32 = output == "float32" or not fmt.has_min  # d·s·q is exact in float32
    if arithmetic == "float32" or (arithmetic == ONCE and once_is_float32):
        return rounded_float32(fmt.decode(blocks), output)
    if arithmetic == "float32_float16":
        return rounded_float32(rounded_float32(fmt.decode(blocks), "float16"), output)
    parts = _Parts.of(fmt, blocks)
    if arithmetic == ONCE:
        made = parts.d * parts.s * parts.q + parts.m
    else:
        kind, _, steps = arithmetic.partition("_")
        made = _STEPS[steps](parts, kind)
    return rounded(made.reshape(*blocks.shape[:-1], -1), output)


def rounded_float32(values: Floats, kind: str) -> Floats:
    """Round float32 to a type, held as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "float16":
            return values.astype(np.float16).astype(np.float32)
        return values if kind == "float32" else ELEMENTS["BF16"].round(values)


def _bounded(fmt: BlockFormat, blocks: Bytes, output: str, kind: str) -> Expected:
    p = _Parts.of(fmt, blocks)
    (u, eta, most), (v, eta_out, most_out) = _TYPES[kind], _TYPES[output]
    if output in (kind, "float32"):
        v, eta_out = 0.0, 0.0
    inexact = int(kind == "bfloat16" or not any(f.name == "d" and f.dtype == "<f2" for f in fmt.fields))
    of_product = inexact + int(fmt.read_scales is not None) + 1 + int(fmt.has_min)
    of_minimum = inexact + 2
    with np.errstate(all="ignore"):
        product = np.abs(p.d * p.s * p.q)
        exact = p.d * p.s * p.q + p.m
        bound = ((1 + u) ** of_product * (1 + v) - 1) * product + ((1 + u) ** of_minimum * (1 + v) - 1) * np.abs(p.m)
        bound = bound + max(eta, eta_out) * (np.abs(p.q) + 4)
        sizes = (product + np.abs(p.m), np.abs(p.d * p.s), np.abs(p.d), np.abs(p.s * p.q))
        largest = np.maximum.reduce(np.broadcast_arrays(*sizes))
        free = ~(largest * (1 + u) ** 5 <= min(most, most_out))
    flat = (*blocks.shape[:-1], -1)
    exact, bound = exact.reshape(flat), bound.reshape(flat)
    return Expected(rounded(exact, output), bound, exact, free.reshape(flat))


def fitting(fmt: BlockFormat, blocks: Bytes, got: Floats, output: str) -> tuple[str, ...]:
    """Return the arithmetics that give the bits of these values, float32 [..., values], the simplest first.

    The values hold the output's type. If no arithmetic gives their bits, those whose bound holds.
    """
    known = [name for name in ARITHMETICS if applies(name, fmt)]
    for bounded in (False, True):
        names = [name for name in known if (name in BOUNDED) is bounded]
        if found := tuple(n for n in names if not expected_values(fmt, blocks, output, n).wrong(got).any()):
            return found
    return ()
