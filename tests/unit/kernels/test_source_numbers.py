"""Integers in the text of a kernel that may be sizes."""

from __future__ import annotations

import pytest

from gguf_verify.kernels.foreign.source_numbers import numbers_in

#: A text → the values and periods found, those that are compared first.
TEXTS = {
    "if (M >= 1500 && M < 1600) x;": [(1500, 0), (1600, 0)],
    "if (1700u <= M) x; y = 1'048'576;": [(1700, 0), (1048576, 0)],
    "if (N % 192 == 64) x;": [(64, 192)],
    "if (N % 96) x;": [(0, 96)],
    "if ((N & 127) == 5) x; y = z & 0x3ff;": [(5, 128)],
    "if (M * N > 3000000) x;": [(3000000, 0)],
    "constexpr int WIDE = 4 << 10; if (K > WIDE) x;": [(4096, 0)],
    "#define LIMIT (3 * 1000)\nif (n >= LIMIT) x;": [(3000, 0)],
    "enum { TILE = 80 }; if (N % TILE == 3) x;": [(3, 80), (80, 0)],
    "__launch_bounds__(384) int k = K / 2048;": [(384, 0), (2048, 0)],
    "case 1234: break;": [(1234, 0)],
    'y = 1500.0f; s = 5; // 1700\n t = "1800"; u = 64; v = 256;': [],
    "x = 99999999999999999999999; if (": [],
    "if (M == 1500) x; if (M == 1500) y;": [(1500, 0)],
}


@pytest.mark.parametrize("text", TEXTS)
def test_numbers(text: str) -> None:
    found = dict.fromkeys((number.value, number.period) for number in numbers_in({"k.cu": text}))
    assert [*found] == TEXTS[text]


def test_places() -> None:
    (number,) = numbers_in({"a.cuh": "int x;", "k.cu": "\n\nif (M == 1500) x;"})
    assert number.place == "k.cu:3"
