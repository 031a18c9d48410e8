"""Blocks whose bytes were written by hand, and how an x-ray of one looks."""

from __future__ import annotations

import re
import struct
import unicodedata
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gguf_verify.audit.xray import (
    XRay,
)
from gguf_verify.formats.tensor_types import ACTIVATION_FORMATS, FORMATS
from gguf_verify.gguf.file import Tensor
from gguf_verify.report.terminal.console import rendered
from gguf_verify.report.terminal.xray import pair_lines, render
from gguf_verify.report.writer import Form

ALL = FORMATS | ACTIVATION_FORMATS


ELEMENTS = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2)}


ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


Make = Callable[..., Tensor]


def columns(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def assert_presentable(text: str) -> None:
    """Lines of at most 100 columns of characters that print as themselves, and no more than that."""
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        assert line.isprintable(), line
        assert columns(line) <= 100, line
        assert line == line.rstrip()


def shown(x: XRay) -> str:
    """The rendering without colour; with colour it must say the same."""
    plain, coloured = render(x, Form()), render(x, Form(colour=True))
    assert ESCAPES.sub("", coloured) == plain
    assert coloured != plain
    assert_presentable(plain)
    return plain


def shown_pair(a: XRay, b: XRay) -> str:
    plain = rendered(pair_lines(a, b), Form())
    assert ESCAPES.sub("", rendered(pair_lines(a, b), Form(colour=True))) == plain
    assert_presentable(plain)
    return plain


def f32(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


HALF, ONE, MINUS_TWO = b"\x00\x38", b"\x00\x3c", b"\x00\xc0"


NIBBLES = bytes([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE, *range(0x80, 0x88)])


LOW = [0, 2, 4, 6, 8, 10, 12, 14, 0, 1, 2, 3, 4, 5, 6, 7]


HIGH = [1, 3, 5, 7, 9, 11, 13, 15, 8, 8, 8, 8, 8, 8, 8, 8]


QH = b"\x01\x80\x02\x80"  # the fifth bits of the values 0, 15, 17 and 31


FIFTH = [int(i in (0, 15, 17, 31)) for i in range(32)]


BYTES = struct.pack("<32b", *range(-128, -112), *range(112, 128))


HAND = {
    "Q4_0": (HALF + NIBBLES, [0.5 * (q - 8) for q in LOW + HIGH]),
    "Q4_1": (HALF + MINUS_TWO + NIBBLES, [0.5 * q - 2 for q in LOW + HIGH]),
    "Q5_0": (HALF + QH + NIBBLES, [0.5 * (q + 16 * b - 16) for q, b in zip(LOW + HIGH, FIFTH, strict=True)]),
    "Q5_1": (HALF + MINUS_TWO + QH + NIBBLES, [0.5 * (q + 16 * b) - 2 for q, b in zip(LOW + HIGH, FIFTH, strict=True)]),
    "Q8_0": (HALF + BYTES, [0.5 * q for q in (*range(-128, -112), *range(112, 128))]),
}


def hand_built(make: Make, name: str) -> Tensor:
    return make(FORMATS[name].type_id, [32], HAND[name][0])
