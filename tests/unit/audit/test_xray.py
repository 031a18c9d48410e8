"""The x-ray of a block: which block is meant, what it says, and how it looks at the terminal."""

from __future__ import annotations

import json
import re
import struct
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.audit import xray as xray_module
from gguf_verify.audit.xray import (
    NO_TO_FLOAT,
    WINDOW,
    XRay,
    describe_byte,
    find_block,
    grid,
    llama_values,
    parse_offset,
    to_dict,
    xray,
)
from gguf_verify.formats import ACTIVATION_FORMATS, FORMATS, tensor_type
from gguf_verify.gguf import Model, Tensor, open_model
from gguf_verify.llama import Llama, LlamaRefused
from gguf_verify.report.xray_text import pair, render
from gguf_verify.support.errors import UsageError
from tests.support import corpus
from tests.support.tools import FIXTURES, LEGACY

ALL = FORMATS | ACTIVATION_FORMATS
ELEMENTS = {"F32": (0, 4), "F16": (1, 2), "BF16": (30, 2)}
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")

Make = Callable[..., Tensor]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Writes a file with one tensor of that content, and opens it."""
    models: list[Model] = []

    def tensor(
        type_id: int, shape: list[int], data: bytes, name: str | bytes = "a.weight", file: str = "m.gguf"
    ) -> Tensor:
        path = tmp_path / file
        path.write_bytes(corpus.gguf([], [corpus.info(name, shape, type_id, 0)], [data, bytes(-len(data) % 32)]).data)
        models.append(open_model(path))
        return next(iter(models[-1].tensors.values()))

    yield tensor
    for model in models:
        model.close()


@pytest.fixture
def tiny() -> Iterator[Model]:
    with open_model(FIXTURES / "tiny-Q5_1.gguf") as model:
        yield model


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
    plain, coloured = render(x, False), render(x, True)
    assert ESCAPES.sub("", coloured) == plain
    assert coloured != plain
    assert_presentable(plain)
    return plain


def shown_pair(a: XRay, b: XRay) -> str:
    plain = pair(a, b, False)
    assert ESCAPES.sub("", pair(a, b, True)) == plain
    assert_presentable(plain)
    return plain


def f32(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


# ---- hand-built blocks -----------------------------------------------------------------------------------------------

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

#: From the bytes to the first two rows of values.
GOLDEN = {
    "Q4_0": """\
0x40  00 38 10 32 54 76 98 ba dc fe 80 81 82 83 84 85 86 87
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
    "Q4_1": """\
0x40  00 38 00 c0 10 32 54 76 98 ba dc fe 80 81 82 83 84 85 86 87
      └─d─┘ └─m─┘ └─────────────────────qs──────────────────────┘

d     +0   half         0x3800 = 0.5                scale
m     +2   half         0xc000 = -2                 minimum
qs    +4   uint8[16]    low nibbles: values 0..15, high nibbles: values 16..31

x = d·q + m
half d               │ 15 … 0 │
bytes 0…1            │ scale  │
half m               │ 15 … 0  │
bytes 2…3            │ minimum │
uint8 qs[j]          │ 7 6 5 4 │ 3 2 1 0 │
bytes 4…19, j 0…15   │ x[j+16] │  x[j]   │

 i qs  q        ours     llama.cpp │  i qs  q        ours     llama.cpp
 0 10  0          -2 =          -2 │ 16 10  1        -1.5 =        -1.5
 1 32  2          -1 =          -1 │ 17 32  3        -0.5 =        -0.5
""",
    "Q5_0": """\
0x40  00 38 01 80 02 80 10 32 54 76 98 ba dc fe 80 81 82 83 84 85 86 87
      └─d─┘ └───qh────┘ └─────────────────────qs──────────────────────┘

d     +0   half         0x3800 = 0.5                scale
qh    +2   uint32       0x80028001                  fifth bits: bit j belongs to value j
                        10000000 00000010 10000000 00000001  bits 31 to 0
qs    +6   uint8[16]    low nibbles: values 0..15, high nibbles: values 16..31
m          -16·d        -8                          what the offset of the codes adds

x = d·(q - 16)
half d               │ 15 … 0 │
bytes 0…1            │ scale  │
uint32 qh            │  31   │  30   │ … │   1   │   0   │
bytes 2…5            │ x[31] │ x[30] │ … │ x[1]  │ x[0]  │
                     │ bit 4 │ bit 4 │ … │ bit 4 │ bit 4 │
uint8 qs[j]          │ 7 6 5 4  │ 3 2 1 0  │
bytes 6…21, j 0…15   │ x[j+16]  │   x[j]   │
                     │ bits 3…0 │ bits 3…0 │

 i qs hi lo  q        ours     llama.cpp │  i qs hi lo  q        ours     llama.cpp
 0 10  1  0 16           0 =           0 │ 16 10  0  1  1        -7.5 =        -7.5
 1 32  0  2  2          -7 =          -7 │ 17 32  1  3 19         1.5 =         1.5
""",
    "Q5_1": """\
0x40  00 38 00 c0 01 80 02 80 10 32 54 76 98 ba dc fe 80 81 82 83 84 85 86 87
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
0x40  00 38 80 81 82 83 84 85 86 87 88 89 8a 8b 8c 8d
      └─d─┘ └──────────────────qs────────────────────
0x50  8e 8f 70 71 72 73 74 75 76 77 78 79 7a 7b 7c 7d
      ──────────────────────qs───────────────────────
0x60  7e 7f
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


def hand_built(make: Make, name: str) -> Tensor:
    return make(FORMATS[name].type_id, [32], HAND[name][0])


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


@pytest.mark.parametrize("name", HAND)
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
bytes    0x16e = 366 to 0x17f = 383, 18 bytes
before   row 7 block 0, byte 0x15c = 348
after    row 8 block 0, byte 0x180 = 384
asked    byte 5 of the block, qs[3]: bits of x[3] and x[19]"""
    )


def test_elements(make: Make) -> None:
    """Two rows of 40: windows of 32 and of 8."""
    values = np.arange(80, dtype=np.float32) / 8 - 1
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
            f"window   1 of 0…1 in the row, 3 in the tensor\nvalues   32 to 39 of the row\nbytes    {rest.offset:#x}"
            in text
        )
        shown(whole)


def test_a_single_value(make: Make) -> None:
    x = xray(make(0, [], struct.pack("<f", -2)), 0, 0, None)
    assert (x.ours, x.codes, x.previous, x.next) == ((-2,), (0xC0000000,), None, None)
    assert "F32, a single value" in shown(x)


# ---- beside llama.cpp ------------------------------------------------------------------------------------------------


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
    assert f"x[21] is read from {byte} (byte {at:#x})" in text
    if name.startswith("Q5"):
        assert f"qh bit 21 (byte {tensor.offset + FORMATS[name].field_offset('qh') + 2:#x})" in text


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
    assert "note: llama.cpp's values are not at hand" in text
    assert "have the bits" not in text
    assert "≠" not in text
    f = xray(make(0, [32], bytes(128)), 0, 0, None)
    assert "llama.cpp has no conversion from F32 to compare with" in shown(f)


@pytest.mark.parametrize("file", ["tiny-Q5_1.gguf", "tiny-Q4_0.gguf", "tiny-F16.gguf"])
def test_real_blocks(file: str, llama: Llama) -> None:
    with open_model(FIXTURES / file) as model:
        raw = (FIXTURES / file).read_bytes()
        for at in range(0, model.size, 99_991):
            try:
                tensor, row, block = find_block(model, offset=at)
            except UsageError:
                continue
            x = xray(tensor, row, block, llama_values(llama, tensor, row, block), asked=at)
            assert x.offset <= at < x.stop
            assert x.raw == raw[x.offset : x.stop]
            assert x.differs == ()
            assert (x.theirs is None) == (tensor.type.name == "F32")
            shown(x)


def test_llama_converts_what_it_is_said_to(llama: Llama, make: Make) -> None:
    """And refuses where it is asked for a conversion that it does not have: calling it would kill the process."""
    types = llama.versions()["types"]
    assert set(NO_TO_FLOAT) <= {tensor_type(t).name for t in types}
    for type_id in types:
        kind = tensor_type(type_id)
        n = kind.block_size if kind.quantized else WINDOW
        data = bytes(kind.block_bytes * n // kind.block_size)
        tensor = make(type_id, [n], data)
        values = llama_values(llama, tensor, 0, 0)
        x = xray(tensor, 0, 0, values)
        text = shown(x)
        if kind.name in NO_TO_FLOAT:
            assert values is None
            with pytest.raises(LlamaRefused, match="no conversion"):
                llama.to_float(type_id, np.frombuffer(data, np.uint8), n)
            assert f"no conversion from {kind.name}" in text
        else:
            assert values.shape == (n,)
            assert x.theirs == tuple(values.tolist())
        if kind.name in ALL or kind.name in ELEMENTS:
            assert len(x.ours) == n
        else:
            assert x.ours is None
            assert f"our decode does not cover {kind.name}" in text
            assert "00 00 00" in text
        if x.theirs is not None:
            assert f" {n - 1} " in text


# ---- how it looks ----------------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", ALL)
def test_fits_100_columns_whatever_the_block(name: str, make: Make) -> None:
    fmt, rng = ALL[name], np.random.default_rng(5)
    blocks = rng.integers(0, 256, (60, fmt.block_bytes), dtype=np.uint8)
    halves = [fmt.field_offset(f.name) for f in fmt.fields if f.dtype == "<f2"]
    for i, block in enumerate(blocks[:40]):
        for at in halves:
            block[at : at + 2] = np.array([rng.choice(SPECIAL) if i > 9 else SPECIAL[i]], "<u2").view(np.uint8)
    n = fmt.block_size
    tensor = make(fmt.type_id, [2 * n, 30], blocks.tobytes())
    for i in range(60 if n == 32 else 12):
        wild = rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)
        wild[i % 5] = -1.17549435e-38
        for theirs in (None, wild):
            x = xray(tensor, i // 2, i % 2, theirs)
            text = shown(x)
            if name in LEGACY:
                stored = [f.values[0] for f in x.fields if f.field.dtype == "<f2"]
                assert ("not finite" in text) == any(not np.isfinite(half) for half in stored)
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


def test_256_values_fit(llama: Llama, make: Make) -> None:
    data = np.random.default_rng(8).integers(0, 256, 210, dtype=np.uint8).tobytes()
    tensor = make(14, [256], data)
    text = shown(xray(tensor, 0, 0, llama_values(llama, tensor, 0, 0)))
    for i in range(256):
        assert re.search(rf"(?m)(^|│) *{i} +\S+", text), i


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


# ---- which block -----------------------------------------------------------------------------------------------------


def refusal(model: Model, *args: object, **kwargs: object) -> str:
    with pytest.raises(UsageError) as caught:
        find_block(model, *args, **kwargs)  # type: ignore[arg-type]
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 500
    return line


def test_by_tensor_row_and_block(tiny: Model) -> None:
    name = "blk.0.ffn_down.weight"  # 256 rows of 24 blocks
    tensor = tiny.tensors[name]
    for args, place in (
        ((), (0, 0)), ((0, 0), (0, 0)), ((255, 23), (255, 23)), ((3,), (3, 0)), ((7, 5), (7, 5)),
        ((None, 0), (0, 0)), ((None, 23), (0, 23)), ((None, 24), (1, 0)), ((None, 6143), (255, 23)),
    ):  # fmt: skip
        assert find_block(tiny, name, *args) == (tensor, *place)
    for args, words in (
        ((256,), "no row 256 in 'blk.0.ffn_down.weight', which has rows 0 to 255"),
        ((-1, 0), "no row -1 in 'blk.0.ffn_down.weight', which has rows 0 to 255"),
        ((0, 24), "no block 24 in row 0 of 'blk.0.ffn_down.weight', which has blocks 0 to 23"),
        ((0, -1), "no block -1 in row 0 of 'blk.0.ffn_down.weight', which has blocks 0 to 23"),
        ((None, 6144), "no block 6144 in 'blk.0.ffn_down.weight', which has blocks 0 to 6143"),
        ((None, -1), "no block -1 in 'blk.0.ffn_down.weight', which has blocks 0 to 6143"),
    ):
        assert words in refusal(tiny, name, *args)
    assert "no window 8 in 'output_norm.weight', which has windows 0 to 7" in refusal(
        tiny, "output_norm.weight", None, 8
    )
    assert "row 0 only" in refusal(tiny, "output_norm.weight", 1)


def test_by_name(tiny: Model, make: Make) -> None:
    line = refusal(tiny, "blk.0.attn_p.weight")
    assert "there is no tensor 'blk.0.attn_p.weight': did you mean 'blk.0." in line
    assert "'blk.0.attn_q.weight'" in line
    assert "'blk.0.ffn_gate.weight' or 'blk.1.ffn_gate.weight' or 'blk.2" in refusal(tiny, "FFN_GATE")
    assert "did you mean 'blk.1.attn_q.weight'?" in refusal(tiny, "blk.1.attn_q")
    line = refusal(tiny, "\x1b[2J" * 50)
    assert "did you mean" not in line
    assert f"the file has {len(tiny.tensors)}" in line
    assert "which block?" in refusal(tiny)
    assert "which block?" in refusal(tiny, None, 1, 2)
    # a name as it was shown
    tensor = make(2, [32], HAND["Q4_0"][0], b"a\x1b\xff\\")
    with open_model(tensor.mapped.path) as model:
        assert find_block(model, "a\\x1b\\xff\\\\")[0].name == tensor.name
        assert "'a\\x1b\\xff\\\\'" in refusal(model, "a\\x1b\\xff\\")


def test_empty_tensors_have_no_block(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([], [corpus.info("e", [32, 0], 2, 0), corpus.info("f", [0], 0, 0)], []).data)
    with open_model(path) as model:
        for name in "ef":
            assert f"'{name}' holds no values" in refusal(model, name)
    path.write_bytes(corpus.gguf([], [], []).data)
    with open_model(path) as model:
        assert "there is no tensor 'e': the file has none" in refusal(model, "e")


def test_every_byte_has_a_block_or_a_reason(tmp_path: Path) -> None:
    """The first and the last byte of every range of many a crafted file."""
    kinds = set()
    for entry in [*corpus.GOOD, *corpus.WARNINGS, *corpus.ERRORS]:
        path = tmp_path / entry.file_name
        path.write_bytes(entry.build().data)
        with open_model(path) as model:
            (file,) = model.parts
            for owned in file.byte_map:
                kinds.add(owned.kind)
                for at in {owned.start, owned.stop - 1}:
                    if owned.kind == "data":
                        tensor, row, block = find_block(model, offset=at)
                        x = xray(tensor, row, block, None, asked=at)
                        assert x.tensor == owned.owner
                        assert x.offset <= at < x.stop
                        assert (x.previous is None) == (x.offset == owned.start)
                        assert (x.next is None) == (x.stop == owned.stop)
                    else:
                        line = refusal(model, offset=at)
                        assert line == f"byte {at} is {describe_byte(file, at)}, not a tensor's data"
                        assert f"(bytes {owned.start} to {owned.stop - 1})" in line
                        if owned.kind not in ("key", "tensor name", "gap", "trailing", "padding"):
                            assert f"the {owned.kind} " in line
            assert f"outside {path.name}, which has bytes 0 to {file.size - 1}" in refusal(model, offset=file.size)
            assert "byte -1 is outside" in refusal(model, offset=-1)
            for at in (-1, file.size):
                with pytest.raises(IndexError):
                    describe_byte(file, at)
    assert len(kinds) >= 15


def test_bytes_are_named_after_their_owner(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf().data)
    with open_model(path) as model:
        at = model.parts[0].value_ranges["general.name"].start
        assert refusal(model, offset=at + 3) == (
            f"byte {at + 3} is the value of key 'general.name' (bytes {at} to {at + 14}), not a tensor's data"
        )
        assert "byte 5 is the version in the file's header (bytes 4 to 7)" in refusal(model, offset=5)
        named = model.tensors["b.weight"].described[0]
        assert f"byte {named.start} is the name of tensor 'b.weight'" in refusal(model, offset=named.start)
        start = model.tensors["a.weight"].offset
        assert "is padding after the header" in refusal(model, offset=start - 1)
        assert "is padding after the data of tensor 'b.weight'" in refusal(model, offset=model.size - 1)


def test_offset_of_every_byte_of_some_blocks(tiny: Model, make: Make) -> None:
    tensor = tiny.tensors["blk.1.attn_k.weight"]
    for flat in (0, 1, 7, 8, 1023):
        for byte in range(24):
            where = divmod(flat, 8)
            at = tensor.offset + 24 * flat + byte
            assert find_block(tiny, offset=at) == (tensor, *where)
            x = xray(tensor, *where, None, asked=at)
            assert x.flat == flat
            field = next(f for f in x.fields if f.start <= byte < f.stop)
            assert x.asked.startswith(f"byte {byte} of the block, {field.field.name}")
            assert (x.previous is None, x.next is None) == (flat == 0, flat == 1023)
    assert xray(tensor, 0, 0, None, asked=tensor.offset + 6).asked.endswith("qh byte 2: bits of x[16] to x[23]")
    assert xray(tensor, 0, 0, None, asked=tensor.offset + 23).asked.endswith("qs[15]: bits of x[15] and x[31]")
    q8 = make(8, [32], HAND["Q8_0"][0])
    assert xray(q8, 0, 0, None, asked=q8.offset + 33).asked == "byte 33 of the block, qs[31]: bits of x[31]"
    floats = make(0, [40], bytes(160))
    assert xray(floats, 0, 1, None, asked=floats.offset + 135).asked == "byte 7 of the window, x[1] byte 3"
    assert xray(tensor, 0, 0, None, asked=tensor.offset + 1).asked.endswith("of the block, d byte 1")


def test_offset_excludes_the_rest(tiny: Model) -> None:
    for rest in ({"tensor_name": "output.weight"}, {"row": 0}, {"block": 0}):
        assert "leave out --tensor" in refusal(tiny, offset=500_000, **rest)


def test_split_model(tmp_path: Path) -> None:
    for name, content in corpus.SPLITS[0].files.items():
        (tmp_path / name).write_bytes(content)
    with open_model(tmp_path / corpus.SPLITS[0].opened) as model:
        at = model.tensors["blk.1.w"].offset
        assert find_block(model, offset=at)[0].name == "blk.0.w"
        tensor, row, block = find_block(model, offset=at, part=1)
        assert tensor.name == "blk.1.w"
        text = shown(xray(tensor, row, block, None))
        assert f"file     {corpus.TWO}, part 2" in text
        for part in (2, -1):
            assert f"there is no part {part + 1}: the model has 2" in refusal(model, offset=at, part=part)


@pytest.mark.parametrize(("text", "offset"), [("0", 0), ("107184", 107184), ("0x1a2b0", 107184), ("0X1A2B0", 107184)])
def test_offsets_are_decimal_or_hexadecimal(text: str, offset: int) -> None:
    assert parse_offset(text) == offset


@pytest.mark.parametrize(
    "text", ["", "x", "0x", "-1", "1.5", "1_0", " 1", "1\n", "٣", "1a2b0", "0b1", "9" * 5000, "\x1b[2J"]
)
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--offset must be a byte of the file") as caught:
        parse_offset(text)
    assert str(caught.value).isprintable()


def test_what_only_a_caller_can_get_wrong(make: Make) -> None:
    tensor = make(2, [64, 2], HAND["Q4_0"][0] * 4)
    for row, block in ((2, 0), (-1, 0), (0, 2), (0, -1)):
        with pytest.raises(IndexError):
            xray(tensor, row, block, None)
    with pytest.raises(ValueError, match="values of shape"):
        xray(tensor, 0, 0, np.zeros(31, np.float32))
    with pytest.raises(ValueError, match="17 bytes for a block of 18"):
        xray(tensor, 0, 0, None, raw=bytes(17))
    with pytest.raises(ValueError, match="not in the block"):
        xray(tensor, 0, 1, None, asked=tensor.offset + 17)
    with pytest.raises(ValueError, match="beside"):
        pair(xray(tensor, 0, 0, None), xray(make(3, [32], bytes(20)), 0, 0, None), False)
    assert grid(tensor) == (32, 18, 2)


# ---- two x-rays ------------------------------------------------------------------------------------------------------


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
    monkeypatch.delitem(xray_module._COVERED, "Q4_K")
    tensor = make(12, [256], bytes(144))
    a = xray(tensor, 0, 0, f32(*[0] * 256))
    b = xray(tensor, 0, 0, f32(*[0] * 200, *[1] * 56), raw=bytes(100) + b"\x99" + bytes(43))
    text = shown_pair(a, b)
    assert "1 of 144 bytes, 56 of 256 values differ" in text
    assert re.search(r"200 +0 ≠ +1", text)
    assert "1 of 144 bytes differ" in shown_pair(altered(tensor), altered(tensor, (3, 1)))
