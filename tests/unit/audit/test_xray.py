"""X-rays: the text of a block, its bits and values."""

from __future__ import annotations

import json
import re
import struct

import numpy as np
import pytest

from gguf_verify.audit import block_reading
from gguf_verify.audit.places import grid
from gguf_verify.audit.xray import (
    XRay,
    to_dict,
    xray,
)
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.file import Tensor
from tests.support.blocks_by_hand import (
    ALL,
    ELEMENTS,
    FIFTH,
    HAND,
    HIGH,
    LOW,
    NIBBLES,
    QH,
    Make,
    f32,
    hand_built,
    shown,
    shown_pair,
)
from tests.support.tools import LEGACY

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


#: From the bytes to the first two rows of values: of a scale, of a minimum and fifth bits, of whole bytes.
GOLDEN = {
    "Q4_0": """\
64  00 38 10 32 54 76 98 ba dc fe 80 81 82 83 84 85 86 87
    └─d─┘ └─────────────────────qs──────────────────────┘

d     +0   half         0x3800 = 0.5                scale
qs    +2   uint8[16]    low nibbles: values 0..15, high nibbles: values 16..31
m          -8·d         -4                          what the offset of the codes adds

x = d·(q - 8)
half d               │ 15 … 0 │
bytes 0…1            │ scale  │
uint8 qs[j]          │ 7 6 5 4 │ 3 2 1 0 │
bytes 2…17, j 0…15   │ x[j+16] │  x[j]   │

 i qs  q        ours     llama.cpp │  i qs  q        ours     llama.cpp
 0 10  0          -4 =          -4 │ 16 10  1        -3.5 =        -3.5
 1 32  2          -3 =          -3 │ 17 32  3        -2.5 =        -2.5
""",
    "Q5_1": """\
64  00 38 00 c0 01 80 02 80 10 32 54 76 98 ba dc fe 80 81 82 83 84 85 86 87
    └─d─┘ └─m─┘ └───qh────┘ └─────────────────────qs──────────────────────┘

d     +0   half         0x3800 = 0.5                scale
m     +2   half         0xc000 = -2                 minimum
qh    +4   uint32       0x80028001                  fifth bits: bit j belongs to value j
                        10000000 00000010 10000000 00000001  bits 31 to 0
qs    +8   uint8[16]    low nibbles: values 0..15, high nibbles: values 16..31

x = d·q + m
half d               │ 15 … 0 │
bytes 0…1            │ scale  │
half m               │ 15 … 0  │
bytes 2…3            │ minimum │
uint32 qh            │  31   │  30   │ … │   1   │   0   │
bytes 4…7            │ x[31] │ x[30] │ … │ x[1]  │ x[0]  │
                     │ bit 4 │ bit 4 │ … │ bit 4 │ bit 4 │
uint8 qs[j]          │ 7 6 5 4  │ 3 2 1 0  │
bytes 8…23, j 0…15   │ x[j+16]  │   x[j]   │
                     │ bits 3…0 │ bits 3…0 │

 i qs hi lo  q        ours     llama.cpp │  i qs hi lo  q        ours     llama.cpp
 0 10  1  0 16           6 =           6 │ 16 10  0  1  1        -1.5 =        -1.5
 1 32  0  2  2          -1 =          -1 │ 17 32  1  3 19         7.5 =         7.5
""",
    "Q8_0": """\
64  00 38 80 81 82 83 84 85 86 87 88 89 8a 8b 8c 8d
    └─d─┘ └──────────────────qs────────────────────
80  8e 8f 70 71 72 73 74 75 76 77 78 79 7a 7b 7c 7d
    ──────────────────────qs───────────────────────
96  7e 7f
    ─qs─┘

d     +0   half         0x3800 = 0.5                scale
qs    +2   int8[32]     codes in order

x = d·q
half d               │ 15 … 0 │
bytes 0…1            │ scale  │
int8 qs[j]           │ 7 … 0 │
bytes 2…33, j 0…31   │ x[j]  │

 i qs    q        ours     llama.cpp │  i qs    q        ours     llama.cpp
 0 80 -128         -64 =         -64 │ 16 70  112          56 =          56
 1 81 -127       -63.5 =       -63.5 │ 17 71  113        56.5 =        56.5
""",
}


@pytest.mark.parametrize("name", HAND)
def test_hand_built_block(name: str, make: Make) -> None:
    raw, values = HAND[name]
    x = xray(hand_built(make, name), 0, 0, f32(*values))
    assert x.raw == raw
    assert x.ours == x.theirs == tuple(values)
    assert (x.differs, x.notes, x.scale) == ((), (), 0.5)
    assert (x.minimum, x.minimum_is) == {
        "Q4_0": (-4, "-8·d"), "Q5_0": (-8, "-16·d"), "Q8_0": (None, ""),
    }.get(name, (-2, "stored"))  # fmt: skip
    expected = [*range(-128, -112), *range(112, 128)] if name == "Q8_0" else LOW + HIGH
    if name.startswith("Q5"):
        high, low = x.parts
        assert (high.name, high.high, high.low, high.values) == ("qh", 4, 4, tuple(FIFTH))
        assert (low.name, low.high, low.low, low.values) == ("qs", 3, 0, tuple(LOW + HIGH))
        expected = [q + 16 * b for q, b in zip(LOW + HIGH, FIFTH, strict=True)]
    assert x.codes == tuple(expected)
    if name != "Q8_0":
        assert x.items == tuple(NIBBLES) * 2
    for field, nxt in zip(x.fields, [*x.fields[1:], None], strict=True):
        assert field.raw == raw[field.start : field.stop]
        assert field.offset == x.offset + field.start
        assert field.stop == (nxt.start if nxt else len(raw))
    assert "all 32 values have the bits of llama.cpp's" in shown(x)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, make: Make) -> None:
    assert GOLDEN[name] in shown(xray(hand_built(make, name), 0, 0, f32(*HAND[name][1])))


def test_golden_header(make: Make) -> None:
    data = bytes(range(18)) * 24
    x = xray(make(2, [64, 3, 4], data, file="some.gguf"), 7, 1, None, asked=0x60 + 15 * 18 + 5)
    assert (
        shown(x).split("\n\n")[0]
        == """\
tensor   a.weight
type     Q4_0, 64 × 3 × 4
file     some.gguf
row      7 of 0…11, at 1, 2 of 3 × 4
block    1 of 0…1 in the row, 15 in the tensor
values   32 to 63 of the row
bytes    366-384, 18 bytes
before   row 7 block 0, byte 348
after    row 8 block 0, byte 384
asked    byte 5 of the block, qs[3]: bits of x[3] and x[19]"""
    )


def test_elements(make: Make) -> None:
    """Two rows of 40: windows of 32 and of 8."""
    values = (np.arange(80) / 8 - 1).astype(np.float32)
    f16, b16 = values.astype("<f2").tobytes(), (values.view("<u4") >> 16).astype("<u2").tobytes()
    for name, data, mantissa in (("F32", values.tobytes(), 23), ("F16", f16, 10), ("BF16", b16, 7)):
        type_id, size = ELEMENTS[name]
        tensor = make(type_id, [40, 2], data)
        whole, rest = xray(tensor, 1, 0, values[40:72]), xray(tensor, 1, 1, values[72:])
        assert (whole.offset, whole.stop, rest.stop) == tuple(tensor.offset + i * size for i in (40, 72, 80))
        assert (whole.first, whole.n_values, rest.first, rest.n_values) == (0, 32, 32, 8)
        assert whole.previous == (0, 1, tensor.offset + 32 * size)
        assert whole.next == (1, 1, rest.offset)
        assert rest.next is None
        assert whole.ours == tuple(values[40:72])
        assert rest.ours == rest.theirs == tuple(values[72:])
        assert [(p.name, p.high - p.low + 1) for p in rest.parts] == [
            ("sign", 1), ("exponent", 8 * size - 1 - mantissa), ("mantissa", mantissa),
        ]  # fmt: skip
        bias = (1 << (8 * size - 2 - mantissa)) - 1
        # 8 = 1.0 · 2^3, and 8.125 = (1 + 1/64) · 2^3
        assert [p.values[:2] for p in rest.parts] == [(0, 0), (bias + 3,) * 2, (0, 1 << mantissa - 6)]
        text = shown(rest)
        assert "sign │ exponent │ mantissa" in text
        assert (
            f"window   1 of 0…1 in the row, 3 in the tensor\nvalues   32 to 39 of the row\nbytes    {rest.offset}-"
            in text
        )
        shown(whole)


def test_a_single_value(make: Make) -> None:
    x = xray(make(0, [], struct.pack("<f", -2)), 0, 0, None)
    assert (x.ours, x.codes, x.previous, x.next) == ((-2,), (0xC0000000,), None, None)
    assert "F32, a single value" in shown(x)


@pytest.mark.parametrize("name", LEGACY)
def test_one_ulp_is_seen(name: str, make: Make) -> None:
    tensor = hand_built(make, name)
    theirs = f32(*HAND[name][1])
    theirs[21] = np.nextafter(theirs[21], np.float32(np.inf))
    x = xray(tensor, 0, 0, theirs)
    assert x.differs == (21,)
    text = shown(x)
    assert text.count("≠") == 1
    assert text.count(" = ") >= 31
    ours, llamas = re.search(r"(\S+) ≠ +(\S+)", text).groups()
    assert np.float32(ours) == x.ours[21]
    assert np.float32(llamas) == theirs[21]
    assert "1 of 32 values differ from llama.cpp's" in text
    byte = "qs[21]" if name == "Q8_0" else "qs[5] bits 7…4"
    at = tensor.offset + FORMATS[name].field_offset("qs") + (21 if name == "Q8_0" else 5)
    assert f"x[21] is read from {byte} (byte {at})" in text
    if name.startswith("Q5"):
        assert f"qh bit 21 (byte {tensor.offset + FORMATS[name].field_offset('qh') + 2})" in text


def test_difference_is_one_of_bits(make: Make) -> None:
    nan, other = np.array([0x7FC00000, 0xFFC00001], "<u4").view("<f4")
    theirs = np.zeros(32, np.float32)
    theirs[[0, 1, 2]] = 0, -0.0, nan
    data = theirs.copy()
    data[[0, 1, 2]] = -0.0, -0.0, other
    x = xray(make(0, [32], data.tobytes()), 0, 0, theirs)
    assert x.differs == (0,)
    assert re.search(r"-0 ≠ +0", shown(x))


def test_many_differences_are_counted(make: Make) -> None:
    x = xray(hand_built(make, "Q4_0"), 0, 0, f32(*[99] * 32))
    text = shown(x)
    assert text.count("is read from") == 8
    assert text.endswith("… and 24 more\n")


def test_without_llama_nothing_is_claimed(make: Make) -> None:
    x = xray(hand_built(make, "Q4_0"), 0, 0, None)
    text = shown(x)
    assert x.theirs is None
    assert "note: llama.cpp's values are not available" in text
    assert "have the bits" not in text
    assert "≠" not in text
    f = xray(make(0, [32], bytes(128)), 0, 0, None)
    assert "llama.cpp has no conversion from F32 to compare with" in shown(f)


HOSTILE = [
    b"\x1b[2J\x1b]0;x\x07" * 5, "\u202e\u2066".encode() * 10, "漢".encode() * 21, "👩".encode() * 15, b"\xff\x80" * 31,
    b"\\" * 63, b"\n\r\t" * 21, "e\u0301".encode() * 21, b"n" * 63, b"\x7f" * 63, "\x85".encode() * 31,
]  # fmt: skip


def test_hostile_names(make: Make) -> None:
    for name in HOSTILE:
        tensor = make(2, [32], HAND["Q4_0"][0], name, file="漢\x1b[31m" * 20 + ".gguf")
        x = xray(tensor, 0, 0, None)
        assert shown_pair(x, x)
        assert "\x1b" not in shown(x)
        json.dumps(to_dict(x), allow_nan=False).encode()


SPECIAL = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7C00, 0xFC00, 0x7E01, 0xFFFF, 0x7BFF, 0x7D00]


@pytest.mark.parametrize("every", [9, 1])
@pytest.mark.parametrize("name", ALL)
def test_fits_100_columns_whatever_the_block(name: str, every: int, make: Make) -> None:
    """Of every ninth block, another for each format in turn; `make test-all` looks at all."""
    fmt, rng = ALL[name], np.random.default_rng(5)
    blocks = rng.integers(0, 256, (14, fmt.block_bytes), dtype=np.uint8)
    halves = [fmt.field_offset(f.name) for f in fmt.fields if f.dtype == "<f2"]
    for block, half in zip(blocks, SPECIAL, strict=False):
        for at in halves:
            block[at : at + 2] = np.array([half], "<u2").view(np.uint8)
    n = fmt.block_size
    tensor = make(fmt.type_id, [2 * n, 7], blocks.tobytes())
    for i in range(list(ALL).index(name) % every, 14 if n == 32 else 12, every):
        wild = rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
        wild[i % 5] = -1.17549435e-38
        for theirs in (None, wild) if n == 32 else (None if i % 2 else wild,):
            x = xray(tensor, i // 2, i % 2, theirs)
            text = shown(x)
            if name in LEGACY:
                stored = [f.values[0] for f in x.fields if f.field.dtype == "<f2"]
                assert ("not finite" in text) == any(not np.isfinite(half) for half in stored)
        if n == 32 or i > 9:
            assert shown_pair(x, xray(tensor, 0, 0, None))


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_fit_too(name: str, make: Make) -> None:
    type_id, size = ELEMENTS[name]
    data = np.random.default_rng(6).integers(0, 256, 40 * size * 9, dtype=np.uint8)
    tensor = make(type_id, [40, 9], data.tobytes())
    wild = np.random.default_rng(7).integers(0, 1 << 32, 32, dtype=np.uint32).view(np.float32)
    for row in range(9):
        for block, n in ((0, 32), (1, 8)):
            x = xray(tensor, row, block, wild[:n])
            shown(x)
            shown_pair(x, xray(tensor, 0, block, None))


def test_subnormal_and_infinite_scales_are_called_so(make: Make) -> None:
    for half, word in ((b"\x01\x00", "0x0001 = 5.96046e-08, subnormal"), (b"\x00\x7c", "0x7c00 = inf, not finite"),
                       (b"\x01\xfc", "0xfc01 = nan, not finite")):  # fmt: skip
        assert word in shown(xray(make(2, [32], half + NIBBLES), 0, 0, None))


def test_json(make: Make) -> None:
    x = xray(make(7, [32], b"\x00\x7c\x01\xfc" + QH + NIBBLES, b"\xff"), 0, 0, f32(*[np.nan] * 32), asked=0x40)
    plain = json.loads(json.dumps(to_dict(x), allow_nan=False))
    assert plain["scale"] == "Infinity"
    assert plain["minimum"] == "NaN"
    assert plain["ours"] == plain["theirs"] == ["NaN"] * 32
    assert plain["hex"] == x.raw.hex()
    assert plain["tensor"] == "\\udcff"
    assert plain["parts"][0] == {"name": "qh", "high": 4, "low": 4, "values": FIFTH}
    qh = plain["fields"][2]
    assert qh == {"name": "qh", "type": "uint32", "count": 1, "doc": x.fields[2].field.doc, "start": 4, "stop": 8,
                  "offset": 0x44, "hex": QH.hex(), "values": [0x80028001]}  # fmt: skip
    assert plain["previous"] is None


# ---- xray pairs ------------------------------------------------------------------------------------------------------
# X-rays of two blocks side by side.


# a user must not see NumPy's warnings either


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
