"""Exact arithmetic of binary formats: what a rounding or a conversion must give, word by word."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.support.cuda_functions import Words

NAN = 0x7FFF
MODES = ("rn", "rz", "ru", "rd")


@dataclass(frozen=True)
class Format:
    """A binary format: bits of its significand, and exponents of its least and its largest normal numbers."""

    digits: int
    least: int

    @property
    def bits(self) -> int:
        """Of infinity."""
        return (3 - 2 * self.least) << (self.digits - 1)

    def encoded(self, value: Fraction, mode: str, zero: int = 0) -> int:
        """Bits of an exact value rounded; of `zero` where that is 0: sign bit of the result."""
        width = 15 if self.bits < 1 << 16 else 31 if self.bits < 1 << 32 else 63
        if not value:
            return zero << width
        over, under, sign = abs(value.numerator), value.denominator, value < 0
        exponent = over.bit_length() - under.bit_length()
        exponent -= over << max(-exponent, 0) < under << max(exponent, 0)
        quantum = max(exponent, self.least) - self.digits + 1
        under <<= max(quantum, 0)
        kept, rest = divmod(over << max(-quantum, 0), under)
        away = mode == ("rd" if sign else "ru")
        kept += (2 * rest > under or (2 * rest == under and kept % 2)) if mode == "rn" else bool(away and rest)
        made = kept + ((quantum + self.digits - 1 - self.least) << (self.digits - 1))
        if made >= self.bits:
            made = self.bits - (mode != "rn" and not away)
        return made | sign << width

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """uint64 bits of float64, the rounding done by np.rint. NaN is `NAN`."""
        finite = np.where(np.isfinite(x), x, 0)
        exponent = np.where(finite == 0, self.least, np.maximum(np.frexp(finite)[1] - 1, self.least))
        kept = np.rint(np.ldexp(np.abs(finite), self.digits - 1 - exponent)).astype(np.uint64)
        made = kept + ((exponent - self.least).astype(np.uint64) << np.uint64(self.digits - 1))
        made = np.where((made > self.bits) | np.isinf(x), np.uint64(self.bits), made)
        return np.where(np.isnan(x), np.uint64(NAN), made | np.signbit(x).astype(np.uint64) << np.uint64(15))

    def values(self, bits: Words) -> np.ndarray:
        """float64 of 16-bit words."""
        if self != HALF:
            return values(bits << np.uint64(16), "f")
        with np.errstate(invalid="ignore"):  # NaN that signal
            return bits.astype(np.uint16).view(np.float16).astype(np.float64)


def values(words: Words, kind: str) -> np.ndarray:
    """float64 of words of float ("f") or double."""
    if kind != "f":
        return words.view(np.float64)
    with np.errstate(invalid="ignore"):
        return words.astype(np.uint32).view(np.float32).astype(np.float64)


def bits_of(x: np.ndarray) -> Words:
    """Words of float64 that are floats."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32).view(np.uint32).astype(np.uint64)


HALF, BFLOAT16, FLOAT, DOUBLE = Format(11, -14), Format(8, -126), Format(24, -126), Format(53, -1022)


def assert_same(got: Words, expected: Any, what: str, *given: Words) -> None:
    """Fails with the first word that is another one, and what was given there."""
    expected = np.array(expected, np.uint64)
    wrong = np.flatnonzero(got != expected)
    if len(wrong):
        i = wrong[0]
        said = ", ".join(hex(int(words[i])) for words in given)
        pytest.fail(f"{what}({said}) is {int(got[i]):#x}, not {int(expected[i]):#x}; {len(wrong)} of {len(got)} differ")


def integer_of(x: float, mode: str, kind: str) -> int:
    """As PTX's cvt makes it, as a word: the nearest of the type where x lies outside."""
    unsigned, bits = kind in "tuqU", {"s": 16, "t": 16, "i": 32, "u": 32, "l": 64, "q": 64, "c": 8, "U": 8}[kind]
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    if math.isinf(x):
        return (high if x > 0 else low) & (1 << 64) - 1
    whole = int({"rn": np.rint, "rz": np.trunc, "ru": np.ceil, "rd": np.floor}[mode](x))
    return min(max(whole, low), high) & (1 << 64) - 1


def integers_of(x: np.ndarray, mode: str, kind: str, of_nan: int) -> Words:
    """`integer_of` each of float64, and this of a NaN."""
    return np.array([of_nan if math.isnan(v) else integer_of(v, mode, kind) for v in x.tolist()], np.uint64)


def signed(words: Words, kind: str) -> list[int]:
    """Integers of words."""
    type_ = {"s": np.int16, "t": np.uint16, "i": np.int32, "u": np.uint32, "l": np.int64, "q": np.uint64}[kind]
    return [int(v) for v in words.astype(type_)]


INTEGERS = {"short": "s", "ushort": "t", "int": "i", "uint": "u", "ll": "l", "ull": "q"}


def of_nan(kind: str) -> int:
    """What a conversion of at most 32 bits makes of a NaN."""
    return {"l": 1 << 63, "q": 1 << 63}.get(kind, 0)
