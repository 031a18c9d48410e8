"""X-rays of two blocks side by side."""

from __future__ import annotations

import re

import pytest

from gguf_verify.audit import block_reading
from gguf_verify.audit.places import grid
from gguf_verify.audit.xray import XRay, xray
from gguf_verify.gguf.file import Tensor
from tests.support.blocks_by_hand import Make, f32, hand_built, shown_pair

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


def altered(tensor: Tensor, *changes: tuple[int, int]) -> XRay:
    raw = bytearray(tensor.raw[: grid(tensor).nbytes].tobytes())
    for at, bits in changes:
        raw[at] ^= bits
    return xray(tensor, 0, 0, None, raw=bytes(raw))


def test_pair_of_codes_that_differ(make: Make) -> None:
    tensor = hand_built(make, "Q5_0")
    a, b = xray(tensor, 0, 0, None), altered(tensor, (2, 2), (6 + 15, 0x30))
    text = shown_pair(a, b)
    assert "2 of 22 bytes, 2 of 32 codes, 2 of 32 values differ" in text
    ours, theirs, under = text.split("\n\n")[1].split("\n")[:3]
    assert [i for i in range(0, 66, 3) if under[15 + i : 17 + i] == "^^"] == [6, 63]
    assert (ours[15 + 63 : 17 + 63], theirs[15 + 63 : 17 + 63]) == ("87", "b7")
    assert text.split("\n\n")[3].split("\n")[1:] == [
        " 1  2 ≠ 18          -7 ≠           1",
        "31 24 ≠ 27           4 ≠         5.5",
    ]
    assert "made for this place" in text
    # the high bits, with the one that differs marked
    one, two, mark = text.split("\n\n")[2].split("\n")[2:5]
    assert (one.strip(), two.strip()) == ("10000000 00000010 10000000 00000001", "10000000 00000010 10000000 00000011")
    assert mark.index("^") == len(mark) - 1 == len(one) - 2


def test_pair_of_scales_that_differ(make: Make) -> None:
    tensor = hand_built(make, "Q4_1")
    text = shown_pair(xray(tensor, 0, 0, None), altered(tensor, (1, 4)))
    assert "0x3800 = 0.5" in text
    assert "≠ 0x3c00 = 1" in text
    assert "1 of 20 bytes, 0 of 32 codes, 30 of 32 values differ" in text  # 0·d + m is the same
    assert re.search(r"(?m)16 +1 = +1 +-1.5 ≠ +-1 │", text)


def test_pair_without_a_difference(make: Make) -> None:
    tensor = hand_built(make, "Q4_0")
    text = shown_pair(xray(tensor, 0, 0, None), altered(tensor))
    assert "0 of 18 bytes, 0 of 32 codes, 0 of 32 values differ" in text
    assert "^" not in text
    assert "≠" not in text


def test_pair_of_a_type_that_is_not_covered(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(block_reading._COVERED, "Q4_K")
    tensor = make(12, [256], bytes(144))
    a = xray(tensor, 0, 0, f32(*[0] * 256))
    b = xray(tensor, 0, 0, f32(*[0] * 200, *[1] * 56), raw=bytes(100) + b"\x99" + bytes(43))
    text = shown_pair(a, b)
    assert "1 of 144 bytes, 56 of 256 values differ" in text
    assert re.search(r"200 +0 ≠ +1", text)
    assert "1 of 144 bytes differ" in shown_pair(altered(tensor), altered(tensor, (3, 1)))
