"""Sums that are rounded once: the fused multiply-add of the declared order."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.semantics.rounding import add_rounded
from tests.support.exact_products import FLT_MAX, Floats, bits, generator, nearest_float32

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


def with_bits(rng: np.random.Generator, n: int, count: int) -> npt.NDArray[np.float64]:
    """n doubles in ±[1, 2) of so many significant bits: what a product of two floats can be."""
    return rng.choice([-1, 1], n) * (1 + np.floor(rng.random(n) * 2.0 ** (count - 1)) * 2.0 ** (1 - count))


def fma_random(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    acc = rng.normal(size=n) * 2.0 ** rng.integers(-10, 10, n)
    return with_bits(rng, n, 48) * 2.0 ** rng.integers(-40, 20, n), acc.astype(np.float32)


def fma_midpoints_off_by_the_accumulator(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """A product half-way between two floats, and an accumulator too small for float64 to see."""
    odd = with_bits(rng, n, 24) + rng.choice([-1, 1], n) * 2.0**-24
    return odd, (with_bits(rng, n, 24) * 2.0 ** rng.integers(-100, -45, n)).astype(np.float32)


def fma_midpoints_off_by_the_product(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """Half an ulp of the accumulator and a little more or less; sometimes exactly half: a tie."""
    acc = with_bits(rng, n, 24)
    off = rng.choice([-1, 0, 1], n) * 2.0 ** -rng.integers(25, 50, n)
    return rng.choice([-1, 1], n) * 2.0**-24 * (1 + off), acc.astype(np.float32)


def fma_subnormal_results(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """Around halves of the least subnormal, 2^-149, and around the least normal."""
    acc = rng.integers(-(2**24), 2**24, n) * 2.0**-149
    acc[::2] = rng.integers(-3, 4, len(acc[::2])) * 2.0**-149
    steps = rng.integers(-8, 8, n) + rng.choice([0, 0.5], n)
    return steps * 2.0**-149 * (1 + rng.choice([-1, 0, 1], n) * 2.0 ** -rng.integers(5, 48, n)), acc.astype(np.float32)


def fma_double_rounding_below_normal(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """Products of 53 bits at 2^-130 and accumulators far below: the float64 sum itself is inexact."""
    half_way = (rng.integers(1, 2**18, n) + 0.5) * 2.0**-149
    off = 2.0**-149 * 2.0 ** -rng.integers(30, 34, n) * rng.choice([-1, 1], n)
    return half_way + off, (rng.integers(-2, 3, n) * 2.0**-149).astype(np.float32)


def fma_cancellation(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    exact = with_bits(rng, n, 48) * 2.0 ** rng.integers(-140, 60, n)
    return exact, (-exact).astype(np.float32)


def fma_overflow(rng: np.random.Generator, n: int) -> tuple[npt.NDArray[np.float64], Floats]:
    """The largest float and half its ulp, a little less, a little more."""
    sign = rng.choice([-1, 1], n)
    acc = np.where(rng.random(n) < 0.7, FLT_MAX, FLT_MAX / 2) * sign
    off = rng.choice([-1, 0, 1], n) * 2.0 ** -rng.integers(1, 50, n)
    return sign * 2.0**103 * (1 + off) * rng.choice([1, 1, 2.0**24], n), acc.astype(np.float32)


@pytest.mark.parametrize(
    "case",
    [
        fma_random, fma_midpoints_off_by_the_accumulator, fma_midpoints_off_by_the_product, fma_subnormal_results,
        fma_double_rounding_below_normal, fma_cancellation, fma_overflow,
    ],
)  # fmt: skip
def test_add_rounded_rounds_once(case: Callable[..., tuple[npt.NDArray[np.float64], Floats]]) -> None:
    a, acc = case(generator(case.__name__), 6000)
    with np.errstate(over="ignore"):  # as its callers have it
        got = add_rounded(a, acc)
    for p, c, y in zip(a.tolist(), acc.tolist(), got, strict=True):
        exact = Fraction(p) + Fraction(c)
        if exact == 0:
            assert y == 0
            continue
        expected = nearest_float32(exact)
        assert bits(y) == bits(expected), f"{p.hex()} + {c.hex()} => {float(y).hex()} {expected.hex()}"


def test_the_cases_tell_one_rounding_from_two() -> None:
    """float64 and then float32, which add_rounded would be without its care, must err on these."""
    for case in (fma_midpoints_off_by_the_accumulator, fma_midpoints_off_by_the_product):
        a, acc = case(generator(case.__name__), 6000)
        twice = (a + acc).astype(np.float32)
        assert (twice != add_rounded(a, acc)).mean() > 0.1


def test_add_rounded_zeros_and_infinities() -> None:
    a = np.array([0.0, -0.0, 0.0, -0.0, 1.5, np.inf, -np.inf, np.inf, np.nan, 1.0, -np.inf])
    acc = np.array([0.0, -0.0, -0.0, 0.0, -1.5, 1.0, 1.0, -np.inf, 1.0, np.nan, -np.inf], np.float32)
    expected = np.array([0.0, -0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, np.nan, np.nan, np.nan, -np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        got = add_rounded(a, acc)
    assert (np.isnan(got) == np.isnan(expected)).all()
    assert (bits(got) == bits(expected))[~np.isnan(expected)].all()
