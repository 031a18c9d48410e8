"""CUDA's functions of half, bfloat16 and bytes on the CPU host against exact arithmetic and NumPy: of all 65,536 words
those of one operand, of edges and random words the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cuda_functions import APPROXIMATE, TYPES, WHOLE, Case, OnCpu, Words, operands
from tests.support.exact_formats import (
    BFLOAT16,
    HALF,
    INTEGERS,
    MODES,
    NAN,
    Format,
    assert_same,
    bits_of,
    integers_of,
    of_nan,
    signed,
    values,
)

#: Letter of a number and of a pair, its name in functions, its format.
NARROW = [pytest.param("h", "H", "half", HALF, id="half"), pytest.param("b", "B", "bfloat16", BFLOAT16, id="bfloat16")]


def both_lanes(of: Callable[..., Words], *words: Words) -> Words:
    """A function of 16-bit words, of both lanes of 32-bit words."""
    low, high = (of(*(w >> np.uint64(s) & np.uint64(0xFFFF) for w in words)) for s in (0, 16))
    return low | high << np.uint64(16)


def exactly(format_: Format, operation: str, *words: Words) -> Words:
    """`+`, `-`, `*`, `/` or `fma` of 16-bit words, rounded once."""
    values = [format_.values(w) for w in words]
    with np.errstate(all="ignore"):
        a, b = values[:2]
        plain = {
            "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b,
            "fma": lambda: a * b + values[2],
        }[operation]()  # fmt: skip
    made = np.where(np.isnan(plain), np.uint64(NAN), np.uint64(format_.bits) | np.signbit(plain) * np.uint64(1 << 15))
    finite = np.isfinite(np.stack(values)).all(axis=0) & np.isfinite(plain)
    for i in np.flatnonzero(finite | np.isfinite(plain)):
        if not finite[i]:  # a number divided by infinity
            made[i] = int(np.signbit(plain[i])) << 15
            continue
        x = [Fraction(float(v[i])) for v in values]
        value = {
            "+": lambda x: x[0] + x[1], "-": lambda x: x[0] - x[1], "*": lambda x: x[0] * x[1],
            "/": lambda x: x[0] / x[1], "fma": lambda x: x[0] * x[1] + x[2],
        }[operation](x)  # fmt: skip
        made[i] = format_.encoded(value, "rn", int(np.signbit(plain[i])))
    return made


def clamped(words: Words, format_: Format) -> Words:
    x = format_.values(words)
    return format_.nearest(np.where(x > 0, np.minimum(x, 1), 0.0))


@pytest.mark.parametrize(("scalar", "pair", "name", "format_"), NARROW)
def test_arithmetic(cpu: OnCpu, scalar: str, pair: str, name: str, format_: Format) -> None:
    """Each rounds once: of a fused multiply-add, a float or a double would not do between."""
    a, b, c = operands(3 * scalar, 6000)
    signs = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
    for word, sign in signs.items():
        expected = exactly(format_, sign, a, b)
        names = [f"__h{word}(a, b)", f"a {sign} b", f"[=] {{ auto x = a; x {sign}= b; return x; }}()"]
        for text in [*names, *([f"__h{word}_rn(a, b)"] if word != "div" else [])]:
            assert_same(cpu(text, 2 * scalar, a, b), expected, text, a, b)
        if word != "div":
            text = f"__h{word}_sat(a, b)"
            assert_same(cpu(text, 2 * scalar, a, b), clamped(expected, format_), text, a, b)
    a, b, c = near_ties(format_, a, b, c)
    expected = exactly(format_, "fma", a, b, c)
    assert_same(cpu("__hfma(a, b, c)", 3 * scalar, a, b, c), expected, "__hfma", a, b, c)
    assert_same(cpu("__hfma_sat(a, b, c)", 3 * scalar, a, b, c), clamped(expected, format_), "__hfma_sat", a, b, c)
    relu = np.where(format_.values(expected) <= 0, expected * (expected < 1 << 15), expected)
    assert_same(cpu("__hfma_relu(a, b, c)", 3 * scalar, a, b, c), relu, "__hfma_relu", a, b, c)


def near_ties(format_: Format, a: Words, b: Words, c: Words) -> tuple[Words, Words, Words]:
    """Of a third, a·b lies on a midpoint of two numbers, and c is next to nothing: only an exact sum knows on which
    side of the midpoint it lies."""
    a, b, c = a.copy(), b.copy(), c.copy()
    unit = 1 << (format_.digits - 1)
    rng = np.random.default_rng(8)
    x, y = rng.integers(unit, 2 * unit, (2, 200_000))
    product = x * y
    dropped = np.where(product < 2 * unit * unit, unit, 2 * unit)  # a midpoint is half of that, odd
    ties = np.flatnonzero(product % dropped == dropped // 2)[: len(a) // 3]
    one = np.uint64(-format_.least << (format_.digits - 1))  # the exponent of 1, in place
    a[: len(ties)], b[: len(ties)] = (one + (v[ties] - unit).astype(np.uint64) for v in (x, y))
    c[: len(ties)] = rng.integers(1, unit, len(ties)) | rng.integers(0, 2, len(ties)) << 15
    assert len(ties) > 500
    return a, b, c


@pytest.mark.parametrize(("scalar", "pair", "name", "format_"), NARROW)
def test_pairs_are_two_numbers(cpu: OnCpu, scalar: str, pair: str, name: str, format_: Format) -> None:
    """Functions of pairs against those of one number."""
    a, b, c = operands(3 * pair, 3000)
    one, two, three = ("(a)", ""), ("(a, b)", "b"), ("(a, b, c)", "bc")
    functions = [
        *((f"__h{n}{{}}{r}", two) for n in ("add", "sub", "mul") for r in ("", "_rn", "_sat")),
        *((f"__h{n}{{}}", two) for n in ("max", "min")), *((f"__h{n}{{}}_nan", two) for n in ("max", "min")),
        *((f"__hfma{{}}{r}", three) for r in ("", "_sat", "_relu")), ("__hneg{}", one), ("__habs{}", one),
    ]  # fmt: skip
    names = [(f.format(""), f.format(2), how) for f, how in functions] + [("__hdiv", "__h2div", two)]
    names += [(f"h{n}", f"h2{n}", one) for n in (*WHOLE, *APPROXIMATE)]
    for of_one, of_two, (called, more) in names:
        given = [a, b, c][: 1 + len(more)]
        kinds = len(given)
        expected = both_lanes(lambda *w, f=of_one + called, k=kinds * scalar: cpu(f, k, *w), *given)
        assert_same(cpu(of_two + called, kinds * pair, *given), expected, of_two, *given)
    low, high = a & np.uint64(0xFFFF), a >> np.uint64(16)
    of_b = b & np.uint64(0xFFFF), b >> np.uint64(16)
    pairs = {
        "__lowhigh2highlow(a)": (high, low), f"__low2{name}2(a)": (low, low), f"__high2{name}2(a)": (high, high),
        f"__low2{name}(a)": (low, 0 * low), f"__high2{name}(a)": (high, 0 * low),
    }  # fmt: skip
    for text, (x, y) in pairs.items():
        assert_same(cpu(text, pair, a), x | y << np.uint64(16), text, a)
    for text, i in ((f"__lows2{name}2(a, b)", 0), (f"__highs2{name}2(a, b)", 1)):
        assert_same(cpu(text, 2 * pair, a, b), (low, high)[i] | of_b[i] << np.uint64(16), text, a, b)
    for text in (f"__halves2{name}2(a, b)", f"make_{name}2(a, b)"):
        assert_same(cpu(text, 2 * scalar, low, high), a, text, low, high)


@pytest.mark.parametrize(("scalar", "pair", "name", "format_"), NARROW)
def test_comparisons(cpu: OnCpu, scalar: str, pair: str, name: str, format_: Format) -> None:
    """Bits of 1 and of masks; of two zeros, -0 is the smaller; of a number and a NaN the number, or NaN."""
    a, b, _ = operands(2 * scalar, 6000)
    x, y = format_.values(a), format_.values(b)
    either = np.isnan(x) | np.isnan(y)
    one = format_.nearest(np.ones(1))[0]
    wide = a | b << np.uint64(16), b | a << np.uint64(16)
    for order, sign in {"eq": "==", "ne": "!=", "le": "<=", "ge": ">=", "lt": "<", "gt": ">"}.items():
        known = {"eq": x == y, "ne": x != y, "le": x <= y, "ge": x >= y, "lt": x < y, "gt": x > y}[order]
        back = {"eq": y == x, "ne": y != x, "le": y <= x, "ge": y >= x, "lt": y < x, "gt": y > x}[order]
        for unordered, suffix in ((False, ""), (True, "u")):
            expected, other = (known | either, back | either) if unordered else (known & ~either, back & ~either)
            text = f"__h{order}{suffix}"
            assert_same(cpu(f"{text}(a, b)", 2 * scalar, a, b), expected, text, a, b)
            low, high = expected.astype(np.uint64), other.astype(np.uint64) << np.uint64(16)
            assert_same(cpu(f"{text}2(a, b)", 2 * pair, *wide), one * (low | high), text, a, b)
            assert_same(cpu(f"{text}2_mask(a, b)", 2 * pair, *wide), np.uint64(0xFFFF) * (low | high), text, a, b)
            assert_same(cpu(f"__hb{order}{suffix}2(a, b)", 2 * pair, *wide), expected & other, text, a, b)
        by_sign = known | either if order == "ne" else known & ~either
        assert_same(cpu(f"(a {sign} b)", 2 * scalar, a, b), by_sign, sign, a, b)
    for text, best in (("min", np.minimum), ("max", np.maximum)):
        first = (best(x, y) == x) & ~((x == y) & (np.signbit(x) == (text == "max")))
        number = np.where(np.isnan(x), b, np.where(np.isnan(y), a, np.where(first, a, b)))
        number = np.where(np.isnan(x) & np.isnan(y), np.uint64(NAN), number)
        assert_same(cpu(f"__h{text}(a, b)", 2 * scalar, a, b), number, text, a, b)
        assert_same(cpu(f"__h{text}_nan(a, b)", 2 * scalar, a, b), np.where(either, NAN, number), text, a, b)
    a, x = operands(scalar, 0)[0], format_.values(operands(scalar, 0)[0])
    assert_same(cpu("__hisnan(a)", scalar, a), np.isnan(x), "__hisnan", a)
    assert_same(cpu("__hisinf(a)", scalar, a), (np.isposinf(x).astype(np.int64) - np.isneginf(x)), "__hisinf", a)


@pytest.mark.parametrize(("scalar", "pair", "name", "format_"), NARROW)
def test_functions_of_one_number(cpu: OnCpu, scalar: str, pair: str, name: str, format_: Format) -> None:
    """Of all numbers. Those that are approximate on a card are rounded once here."""
    a = operands(scalar, 0)[0]
    x = format_.values(a)
    functions: dict[str, Callable[[Any], Any]] = {
        "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor, "rint": np.rint, "sqrt": np.sqrt, "log": np.log,
        "log2": np.log2, "log10": np.log10, "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(10.0, x),
        "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
    }  # fmt: skip
    with np.errstate(all="ignore"):
        for text, function in functions.items():
            assert_same(cpu(f"h{text}(a)", scalar, a), format_.nearest(function(x)), text, a)
    negated, size = a ^ np.uint64(1 << 15), a & np.uint64(0x7FFF)
    for text, expected in (("__hneg(a)", negated), ("-a", negated), ("__habs(a)", size)):
        assert_same(cpu(text, scalar, a), np.where(np.isnan(x), NAN, expected), text, a)
    few = a[::97]
    ones = 0 * few + format_.nearest(np.ones(1))
    for sign in "+-":
        text = f"[=] {{ auto x = a; x{2 * sign}; return {2 * sign}x; }}()"
        assert_same(cpu(text, scalar, few), exactly(format_, sign, exactly(format_, sign, few, ones), ones), text, few)


@pytest.mark.parametrize(("scalar", "pair", "name", "format_"), NARROW)
def test_conversions(cpu: OnCpu, scalar: str, pair: str, name: str, format_: Format) -> None:
    """Of float, double and integers to halves and back, in each rounding."""
    floats, doubles = operands("f", 16000)[0], operands("d", 4000)[0]
    of_floats = values(floats, "f")
    nearest = format_.nearest(of_floats)
    for text in (f"__float2{name}(a)", f"__float2{name}_rn(a)", f"({TYPES[scalar][0]})a"):
        assert_same(cpu(text, "f", floats), nearest, text, floats)
    assert_same(cpu(f"__float2{name}2_rn(a)", "f", floats), nearest * np.uint64(0x10001), "float2", floats)
    few = slice(0, None, 8)
    for mode in MODES[1:]:
        expected = [NAN if math.isnan(v) else encoded(format_, v, mode) for v in of_floats[few].tolist()]
        assert_same(cpu(f"__float2{name}_{mode}(a)", "f", floats[few]), expected, mode, floats[few])
    # a NaN's sign and first bits, as a card has them (tests/gpu/test_gpu_functions.py)
    quiet = np.uint64(format_.bits | 1 << (format_.digits - 2))
    kept = (doubles >> np.uint64(53 - format_.digits)) & np.uint64((1 << (format_.digits - 1)) - 1)
    of_nans = doubles >> np.uint64(63) << np.uint64(15) | quiet | kept
    of_doubles = np.where(np.isnan(doubles.view(np.float64)), of_nans, format_.nearest(doubles.view(np.float64)))
    for text in (f"__double2{name}(a)", f"({TYPES[scalar][0]})a"):
        assert_same(cpu(text, "d", doubles), of_doubles, text, doubles)
    a = operands(scalar, 0)[0]
    x = format_.values(a)
    plain = np.where(np.isnan(x), 0x7FFFFFFF, bits_of(x))
    for text in (f"__{name}2float(a)", "(float)a"):
        assert_same(cpu(text, scalar, a), plain, text, a)
    text, of_nan_too = f"__float_as_uint(__{name}2float(a))", a << np.uint64(16)
    assert_same(cpu(text, scalar, a), of_nan_too if format_ == BFLOAT16 else plain, text, a)
    for integer, kind in INTEGERS.items():
        words = operands(kind, 400)[0]
        words = words[:: len(words) // 400]
        for mode in MODES:
            expected = [format_.encoded(Fraction(v), mode) for v in signed(words, kind)]
            text = f"__{integer}2{name}_{mode}(a)"
            assert_same(cpu(text, kind, words), expected, text, words)
            text = f"__{name}2{integer}_{mode}(a)"
            part = a[::29]
            assert_same(cpu(text, scalar, part), integers_of(x[::29], mode, kind, of_nan(kind)), text, part)
    for text, kind in ((f"__{name}2char_rz(a)", "c"), (f"__{name}2uchar_rz(a)", "U")):
        assert_same(cpu(text, scalar, a[::29]), integers_of(x[::29], "rz", kind, 0), text, a[::29])


def encoded(format_: Format, value: float, mode: str) -> int:
    if math.isinf(value):
        return format_.bits | (value < 0) << 15
    return format_.encoded(Fraction(value), mode, math.copysign(1, value) < 0)


def test_portable_halves(tmp_path: Path) -> None:
    """Without the processor's instructions for halves: the same bits."""
    cases = [Case("__half2float(a)", "h"), Case("__float2half(a)", "f")]
    on_cpu = OnCpu(tmp_path, cases, ["-DCUDA_ON_CPU_PORTABLE"])
    a, floats = operands("h", 0)[0], operands("f", 40_000)[0]
    x = HALF.values(a)
    expected = np.where(np.isnan(x), 0x7FFFFFFF, bits_of(x))
    assert_same(on_cpu("__half2float(a)", "h", a), expected, "__half2float", a)
    of_floats = values(floats, "f")
    assert_same(on_cpu("__float2half(a)", "f", floats), HALF.nearest(of_floats), "__float2half", floats)


@pytest.mark.parametrize(
    ("as_", "mantissa", "bias", "infinite"), [("__NV_E4M3", 3, 7, False), ("__NV_E5M2", 2, 15, True)]
)
def test_bytes(cpu: OnCpu, as_: str, mantissa: int, bias: int, infinite: bool) -> None:
    """e4m3 and e5m2: all 256 to halves; of all halves and of floats, the nearest of all 256, ties to even."""
    codes = np.arange(0x7F if not infinite else 0x7C)  # of finite numbers without sign
    exponent, rest = codes >> mantissa, codes & ((1 << mantissa) - 1)
    numbers = np.ldexp(rest + np.where(exponent > 0, 1 << mantissa, 0), np.maximum(exponent, 1) - bias - mantissa)
    all_ = np.arange(256, dtype=np.uint64)
    size = (all_ & np.uint64(0x7F)).astype(np.int64)
    x = np.where(size < len(codes), numbers[np.minimum(size, len(codes) - 1)], np.inf if infinite else np.nan)
    x = np.where(infinite & (size > len(codes)), np.nan, np.where(all_ >> np.uint64(7), -x, x))
    text = f"__half(__nv_cvt_fp8_to_halfraw((unsigned char)a, {as_}))"
    assert_same(cpu(text, "t", all_), HALF.nearest(x), text, all_)
    beyond = 2 * numbers[-1] - numbers[-2]  # the next one, were there any
    midpoints = (np.append(numbers, beyond)[1:] + numbers) / 2
    midpoints[-1] = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
    halves, floats = operands("h", 0)[0], operands("f", 8000)[0]
    exact = np.concatenate([midpoints, np.nextafter(midpoints, 0, dtype=np.float32), numbers]).astype(np.float32)
    floats = np.concatenate([floats, exact.view(np.uint32).astype(np.uint64)])
    for name, kind, words in (("halfraw", "h", halves), ("float", "f", floats)):
        x = HALF.values(words) if kind == "h" else values(words, "f")
        below = np.searchsorted(midpoints, abs(x), side="left")
        tie = midpoints[np.minimum(below, len(codes) - 1)] == abs(x)
        code = below + (tie & (below % 2 == 1))
        too_large = code >= len(codes)
        for saturation, largest in (("__NV_SATFINITE", len(codes) - 1), ("__NV_NOSAT", len(codes))):
            expected = np.where(too_large, largest, code) | np.signbit(x) << 7
            expected = np.where(np.isnan(x), 0x7F, expected)
            text = f"__nv_cvt_{name}_to_fp8(a, {saturation}, {as_})"
            assert_same(cpu(text, kind, words), expected, text, words)
