"""The block formats: the vectorised and the scalar implementation run the same test bodies against llama.cpp.

Equal means bit for bit; any NaN equals any NaN. Left out of every comparison of encoders with llama.cpp, because C
leaves the result open (a float that does not fit is cast to an integer): NaN and infinite values; a scale so small that
1/d overflows, so |d| ≤ 2^-128; for the affine formats a block whose max - min overflows.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats import (
    ACTIVATION_FORMATS,
    ELEMENT_TYPES,
    FORMATS,
    BlockFormat,
    Field,
    decode_elements,
    grids,
    tensor_type,
)
from gguf_verify.formats.diagram import bit_diagram
from gguf_verify.formats.layout import Bits, Items, each
from gguf_verify.llama import Llama

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

ALL = FORMATS | ACTIVATION_FORMATS
QK = 32
SCALAR_BYTES = 4096 * 18  # at most so many bytes of blocks (values: half of it) a case for the slow one, evenly spread
CHUNK = 1 << 22  # values that are compared at once

ENCODED = [name for name, fmt in FORMATS.items() if fmt.encode_values]
TINY, FLT_MAX = np.float32(2.0**-149), np.finfo(np.float32).max

# GCC contracts x·id + 8.5 to one fused operation where the baseline of the machine has it: not on x86-64
bit_equal_encoders = pytest.mark.needs("x86-64")

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


# ---- the two implementations under one interface ---------------------------------------------------------------------


def vectorised_decode(fmt: BlockFormat, blocks: Bytes) -> Floats:
    return fmt.decode(blocks)


def scalar_decode(fmt: BlockFormat, blocks: Bytes) -> Floats:
    return np.array([fmt.slow_decode(b.tobytes()) for b in blocks], np.float32)


def vectorised_encode(fmt: BlockFormat, x: Floats) -> Bytes:
    return fmt.encode(x)


def scalar_encode(fmt: BlockFormat, x: Floats) -> Bytes:
    assert fmt.slow_encode is not None
    return np.array([list(fmt.slow_encode(row.tolist())) for row in x], np.uint8)


def sample(cases: npt.NDArray, implementation: Callable) -> npt.NDArray:
    most = SCALAR_BYTES // cases.shape[1] if implementation is scalar_decode else 4096
    if implementation in (scalar_decode, scalar_encode) and len(cases) > most:
        return cases[np.linspace(0, len(cases) - 1, most).astype(int)]
    return cases


def generator(*names: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("/".join(names).encode()))


def assert_same_values(got: Floats, expected: Floats, blocks: Bytes) -> None:
    """`inputs => observed expected` of the first value that differs."""
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    if not same.all():
        b, i = np.argwhere(~same)[0]
        count = (~same).sum()
        pytest.fail(f"{count} values differ; {blocks[b].tobytes().hex()} [{i}] => {got[b, i]!r} {expected[b, i]!r}")


def assert_same_blocks(got: Bytes, expected: Bytes, x: Floats) -> None:
    differing = np.flatnonzero((got != expected).any(axis=1))
    if len(differing):
        b = differing[0]
        pytest.fail(
            f"{len(differing)} of {len(x)} blocks differ; {[v.hex() for v in x[b].tolist()]} => "
            f"{got[b].tobytes().hex()} {expected[b].tobytes().hex()}"
        )


# ---- sizes, fields, lookups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_sizes_are_those_of_ggml(name: str, llama: Llama) -> None:
    fmt = ALL[name]
    ggml = llama.versions()["types"][fmt.type_id]
    assert (fmt.name.lower(), fmt.block_size, fmt.block_bytes) == (
        ggml["name"].lower(),
        ggml["block_size"],
        ggml["block_bytes"],
    )
    assert fmt.dtype.itemsize == fmt.block_bytes
    if name not in gguf.GGMLQuantizationType.__members__:
        assert name == "Q2_0", "only this one is newer than gguf 0.19"
        return
    listed = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(fmt.type_id)]
    if name == "Q8_1":
        # its two float32 became halves; the table of gguf 0.19 still has the old struct's 40 bytes
        assert listed in ((32, 36), (32, 40)), "gguf has yet another size for Q8_1"
    else:
        assert listed == (fmt.block_size, fmt.block_bytes)


def test_every_type_of_ggml_is_known_by_its_size(llama: Llama) -> None:
    for type_id, ggml in llama.versions()["types"].items():
        known = tensor_type(type_id)
        assert known is not None, ggml
        assert (known.name.lower(), known.block_size, known.block_bytes, known.quantized) == (
            ggml["name"].lower(), ggml["block_size"], ggml["block_bytes"], ggml["quantized"],
        )  # fmt: skip
        assert known.format is FORMATS.get(known.name)


#: Types of llama.cpp that are known to be missing here.
UNCOVERED: set[str] = set()


def test_every_type_of_ggml_is_covered_or_known_to_be_missing(llama: Llama) -> None:
    """The loaded library says which there are."""
    types = {ggml["name"].upper() for ggml in llama.versions()["types"].values()}
    assert types == {*ALL, *ELEMENT_TYPES} | UNCOVERED


@pytest.mark.parametrize("name", ALL)
def test_fields_tile_the_block(name: str) -> None:
    fmt = ALL[name]
    at = 0
    for field in fmt.fields:
        assert fmt.field_offset(field.name) == at == fmt.dtype.fields[field.name][1]
        at += field.nbytes
    assert at == fmt.block_bytes


#: The grids of the gguf package, by the type that it files them under.
GRIDS = {
    name: grids.Grid(name, count, size)
    for name, count, size in (
        ("IQ1_S", 2048, 8), ("IQ2_XXS", 256, 8), ("IQ2_XS", 512, 8), ("IQ2_S", 1024, 8), ("IQ3_XXS", 256, 4),
        ("IQ3_S", 512, 4),
    )
}  # fmt: skip

# ---- what the bits mean ----------------------------------------------------------------------------------------------

Numbers = dict[str, npt.NDArray[np.int64]]
#: Values of a float of 4 bits, in halves: sign, two bits of exponent, one of mantissa.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
OF_SCALES, OF_MINIMA = "half, scale of the scales", "half, scale of the minima"


@dataclass(frozen=True)
class Meaning:
    """What a block says, from the numbers that its layout names: `name → int64[blocks, members]`.

    Args:
        codes: numbers → [blocks, block_size].
        scales, minima: numbers → [blocks, groups], multiplied out.
    """

    codes: Callable[[Numbers], npt.NDArray]
    scales: Callable[[Numbers], npt.NDArray]
    minima: Callable[[Numbers], npt.NDArray] | None = None


def half(bits: npt.NDArray) -> Floats:
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def x_less(zero: int) -> Callable[[Numbers], npt.NDArray]:
    return lambda n: n["x"] - zero


def one_scale(n: Numbers) -> npt.NDArray:
    return half(n["scale"])


def product_of(d: str, name: str, less: int = 0) -> Callable[[Numbers], npt.NDArray]:
    return lambda n: half(n[d]) * (n[name] - less)


def int8(bits: npt.NDArray) -> npt.NDArray:
    return bits.astype(np.uint8).view(np.int8)


def trits(n: Numbers) -> npt.NDArray:
    """The words of this layout name the values that a byte holds: digits of byte/256 in base 3, cut off."""
    codes = np.full((len(n[SCALE]), 256), 99)
    for name, items in n.items():
        for k, first in enumerate(re.findall(r"x\[j(?:\+(\d+))?\]", name)):
            at = int(first or 0)
            codes[:, at : at + items.shape[1]] = 3 * (items * 3**k % 256) // 256 - 1
    return codes


def under_signs(magnitudes: npt.NDArray, bits: npt.NDArray) -> npt.NDArray:
    """[blocks, entries, values of an entry] and sign bytes [blocks, 32] → [blocks, 256]."""
    signs = 1 - 2 * (bits[..., None] >> np.arange(8) & 1)
    return (magnitudes.reshape(signs.shape).astype(np.int64) * signs).reshape(len(bits), -1)


def entries(name: str) -> Callable[[Numbers], npt.NDArray]:
    """Entries of a grid under all eight signs, or under seven, and the eighth that makes their number even."""

    def codes(n: Numbers) -> npt.NDArray:
        seven = n["sign"] & 127
        bits = n["sign"] if name in ("IQ2_S", "IQ3_S") else seven | (np.bitwise_count(seven) & 1).astype(np.int64) << 7
        return under_signs(GRIDS[name].entries()[n["grid"]], bits)

    return codes


def eighths(n: Numbers) -> npt.NDArray:
    """One delta may be of more than one entry."""
    delta = np.repeat(n["delta"], 32 // n["delta"].shape[1], axis=1)
    return (8 * GRIDS["IQ1_S"].entries()[n["grid"]] + (1 - 2 * delta)[..., None]).reshape(len(delta), -1)


def odd(d: str, divisor: int) -> Callable[[Numbers], npt.NDArray]:
    return lambda n: half(n[d]) * ((2 * n[SCALE] + 1) / divisor)


SCALE = "scale"
K_SCALES, K_MINIMA = product_of(OF_SCALES, SCALE), lambda n: -product_of(OF_MINIMA, "min")(n)

MEANINGS = {
    "Q4_0": Meaning(x_less(0), one_scale, lambda n: -8 * one_scale(n)),
    "Q4_1": Meaning(x_less(0), one_scale, lambda n: half(n["minimum"])),
    "Q5_0": Meaning(x_less(0), one_scale, lambda n: -16 * one_scale(n)),
    "Q5_1": Meaning(x_less(0), one_scale, lambda n: half(n["minimum"])),
    "Q8_0": Meaning(lambda n: int8(n["x"]), one_scale),
    "Q8_1": Meaning(lambda n: int8(n["x"]), one_scale),
    "Q8_K": Meaning(lambda n: int8(n["x"]), lambda n: n["float, scale"].astype(np.uint32).view(np.float32)),
    "Q2_K": Meaning(x_less(0), K_SCALES, K_MINIMA),
    "Q3_K": Meaning(x_less(4), product_of(OF_SCALES, SCALE, 32)),
    "Q4_K": Meaning(x_less(0), K_SCALES, K_MINIMA),
    "Q5_K": Meaning(x_less(0), K_SCALES, K_MINIMA),
    "Q6_K": Meaning(x_less(32), lambda n: half(n[OF_SCALES]) * int8(n[SCALE])),
    "IQ1_S": Meaning(eighths, odd(OF_SCALES, 8)),
    "IQ1_M": Meaning(eighths, odd("d", 8)),
    "IQ2_XXS": Meaning(entries("IQ2_XXS"), odd(OF_SCALES, 8)),
    "IQ2_XS": Meaning(entries("IQ2_XS"), odd(OF_SCALES, 8)),
    "IQ2_S": Meaning(entries("IQ2_S"), odd(OF_SCALES, 8)),
    "IQ3_XXS": Meaning(entries("IQ3_XXS"), odd(OF_SCALES, 4)),
    "IQ3_S": Meaning(entries("IQ3_S"), odd(OF_SCALES, 1)),
    "IQ4_NL": Meaning(lambda n: grids.kvalues()[n["x"]], one_scale),
    "IQ4_XS": Meaning(lambda n: grids.kvalues()[n["x"]], product_of(OF_SCALES, SCALE, 32)),
    "TQ1_0": Meaning(trits, one_scale),
    "TQ2_0": Meaning(x_less(1), one_scale),
    "Q1_0": Meaning(lambda n: 2 * n["x"] - 1, one_scale),
    "Q2_0": Meaning(x_less(1), one_scale),
    "MXFP4": Meaning(lambda n: E2M1[n["x"]], lambda n: 2.0 ** (n["exponent of the scale"] - 128)),
    "NVFP4": Meaning(
        lambda n: E2M1[n["x"]],
        lambda n: np.where(
            (n["exponent"] == 15) & (n["mantissa"] == 7) & (n["unused"] == 0),  # NaN, decoded as zero
            0,
            np.where(
                n["exponent"] > 0, (8 + n["mantissa"]) * 2.0 ** (n["exponent"] - 11), n["mantissa"] * 2.0**-10
            ),
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where bits of a block belong: bits `low` up to `low + width` of `name[member]`."""

    bit: int
    width: int
    name: str
    member: int
    low: int


def places(fmt: BlockFormat) -> list[Place]:
    """The layout of a block as one list. Where words stand for many items alike, each item is a member."""
    out: list[Place] = []
    for field in fmt.fields:
        pieces = list(field.pieces())
        alike = Counter((p.name, p.low) for p in pieces if p.index is None)
        start: dict[str, int] = {}
        for p in pieces:
            member = p.index or 0
            if p.index is None and alike[p.name, p.low] > 1:
                member = p.item - start.setdefault(p.name, p.item)
            at = 8 * fmt.field_offset(field.name) + field.item_bits * p.item + p.shift
            out.append(Place(at, p.width, p.name, member, p.low))
    return out


def members(fmt: BlockFormat) -> dict[str, tuple[int, int]]:
    """name → (how many members, bits of each). Each bit of each must have just one place."""
    bits: dict[str, list[tuple[int, int]]] = {}
    for p in places(fmt):
        bits.setdefault(p.name, []).extend((p.member, p.low + k) for k in range(p.width))
    out = {}
    for name, found in bits.items():
        count, width = (max(b[i] for b in found) + 1 for i in (0, 1))
        assert sorted(found) == [(i, k) for i in range(count) for k in range(width)], (fmt.name, name)
        out[name] = count, width
    return out


def random_numbers(fmt: BlockFormat, n: int) -> Numbers:
    rng = generator("numbers", fmt.name)
    numbers = {name: rng.integers(0, 1 << width, (n, count)) for name, (count, width) in members(fmt).items()}
    for name in {"scale", "minimum", OF_SCALES, OF_MINIMA, "d"} & set(numbers):
        if members(fmt)[name] == (1, 16):
            numbers[name] &= ~0x4000  # a finite half, the same with any other bit
    return numbers


def written(fmt: BlockFormat, numbers: Numbers) -> Bytes:
    """Blocks that hold these numbers, put together by the layout."""
    n = len(next(iter(numbers.values())))
    bits = np.zeros((n, 8 * fmt.block_bytes), np.uint8)
    for p in places(fmt):
        for k in range(p.width):
            bits[:, p.bit + k] = numbers[p.name][:, p.member] >> (p.low + k) & 1
    return np.packbits(bits, axis=1, bitorder="little")


def assert_means(fmt: BlockFormat, blocks: Bytes, numbers: Numbers, what: object) -> None:
    meaning = MEANINGS[fmt.name]
    n = len(blocks)
    assert (fmt.codes(blocks).reshape(n, -1) == meaning.codes(numbers)).all(), (fmt.name, what)
    with np.errstate(invalid="ignore"):
        scales, minima = meaning.scales(numbers), (meaning.minima or (lambda _n: np.zeros((n, 1))))(numbers)
        got_scales, got_minima = fmt.scales(blocks), fmt.minima(blocks)
    assert ((got_scales == scales) | (np.isnan(got_scales) & np.isnan(scales))).all(), (fmt.name, what)
    unused = ~np.isfinite(got_scales) & (meaning.minima is None)
    assert ((got_minima == minima) | (np.isnan(got_minima) & np.isnan(minima)) | unused).all(), (fmt.name, what)


@pytest.mark.parametrize("name", ALL)
def test_each_bit_means_what_the_layout_says(name: str) -> None:
    """Blocks of random numbers say those; and with any bit flipped just the number that the layout names is another."""
    fmt = ALL[name]
    numbers = random_numbers(fmt, 4)
    blocks = written(fmt, numbers)
    assert_means(fmt, blocks, numbers, "as written")
    seen = set()
    for p in places(fmt):
        for k in range(p.width):
            bit = p.bit + k
            flipped, others = blocks.copy(), numbers | {p.name: numbers[p.name].copy()}
            flipped[:, bit // 8] ^= 1 << bit % 8
            others[p.name][:, p.member] ^= 1 << p.low + k
            assert_means(fmt, flipped, others, p)
            seen.add(bit)
    assert seen == set(range(8 * fmt.block_bytes))


@pytest.mark.parametrize("name", ALL)
def test_every_value_has_its_code(name: str) -> None:
    """As many codes as values, of as many bits; sizes that are no guess."""
    fmt = ALL[name]
    counted = members(fmt)
    if "x" in counted:
        assert counted["x"][0] == fmt.block_size
        used = sum(count * width for count, width in counted.values())
        assert used == 8 * fmt.block_bytes
    for field in (SCALE, "exponent"):
        if field in counted and fmt.groups > 1:
            assert counted[field][0] == fmt.groups


def test_layout_must_give_every_bit_one_meaning() -> None:
    nibble, whole = Bits(4, "x", 0), Bits(8, "x", 0)
    for layout in (
        each(16, nibble), each(16, nibble, whole), each(15, whole), each(17, whole), (), each(16),
        (*each(8, whole), Items(range(7, 16), (whole,))), (*each(8, whole), Items(range(9, 16), (whole,))),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="the layout of qs is not one of"):
            Field("qs", "u1", 16, "", layout)
    Field("qs", "u1", 16, "", (Items(range(1, 16, 2), (nibble, nibble)), Items(range(0, 16, 2), (whole,))))


def drawn(*fields: Field) -> list[str]:
    return [line.rstrip() for _, lines in bit_diagram(fields) for line in lines]


def test_diagram_of_codes_in_two_fields() -> None:
    assert drawn(*ALL["Q5_0"].fields) == [
        "half d               │ 15 … 0 │",
        "bytes 0…1            │ scale  │",
        "uint32 qh            │  31   │  30   │ … │   1   │   0   │",
        "bytes 2…5            │ x[31] │ x[30] │ … │ x[1]  │ x[0]  │",
        "                     │ bit 4 │ bit 4 │ … │ bit 4 │ bit 4 │",
        "uint8 qs[j]          │ 7 6 5 4  │ 3 2 1 0  │",
        "bytes 6…21, j 0…15   │ x[j+16]  │   x[j]   │",
        "                     │ bits 3…0 │ bits 3…0 │",
    ]


def test_diagram_of_groups_of_items() -> None:
    """The twelve bytes in which K-quants pack eight scales and eight minima of 6 bits."""
    scales = Field("scales", "u1", 12, "", (
        Items(range(4), (Bits(2, "sc", 4, low=4), Bits(6, "sc", 0))),
        Items(range(4, 8), (Bits(2, "m", 4, low=4), Bits(6, "m", 0))),
        Items(range(8, 12), (Bits(4, "m", 4), Bits(4, "sc", 4))),
    ))  # fmt: skip
    bits = [(p.name, p.index, p.low + k) for p in scales.pieces() for k in range(p.width)]
    assert sorted(bits) == [(name, i, k) for name in ("m", "sc") for i in range(8) for k in range(6)]
    assert drawn(scales) == [
        "uint8 scales[j]     │   7 6    │  5 … 0   │",
        "bytes 0…3, j 0…3    │ sc[j+4]  │  sc[j]   │",
        "                    │ bits 5…4 │ bits 5…0 │",
        "uint8 scales[j+4]   │   7 6    │  5 … 0   │",
        "bytes 4…7, j 0…3    │  m[j+4]  │   m[j]   │",
        "                    │ bits 5…4 │ bits 5…0 │",
        "uint8 scales[j+8]   │ 7 6 5 4  │ 3 2 1 0  │",
        "bytes 8…11, j 0…3   │  m[j+4]  │ sc[j+4]  │",
        "                    │ bits 3…0 │ bits 3…0 │",
    ]


def test_diagram_of_items_that_alternate() -> None:
    """As formats with a grid do it: a word of grid indices, a word of signs and a scale."""
    words = Field("qs", "<u4", 4, "", (
        Items(range(0, 4, 2), tuple(Bits(8, "grid", k, step=4) for k in (3, 2, 1, 0))),
        Items(range(1, 4, 2), (Bits(4, "scale", 0), Bits(28, "signs", 0, step=2))),
    ))  # fmt: skip
    assert [(p.item, p.shift, p.index) for p in words.pieces() if p.name == "grid"] == [
        (0, 24, 3), (0, 16, 2), (0, 8, 1), (0, 0, 0), (2, 24, 7), (2, 16, 6), (2, 8, 5), (2, 0, 4),
    ]  # fmt: skip
    assert drawn(words) == [
        "uint32 qs[2j]       │  31 … 24   │  23 … 16   │   15 … 8   │  7 … 0   │",
        "bytes 0…11, j 0…1   │ grid[4j+3] │ grid[4j+2] │ grid[4j+1] │ grid[4j] │",
        "uint32 qs[2j+1]     │ 31 30 29 28 │  27 … 0   │",
        "bytes 4…15, j 0…1   │  scale[j]   │ signs[2j] │",
    ]


@pytest.mark.parametrize("name", ALL)
def test_pack_is_the_inverse_of_view(name: str) -> None:
    fmt = ALL[name]
    blocks = generator("pack", name).integers(0, 256, (500, fmt.block_bytes), dtype=np.uint8)
    view = fmt.view(blocks)
    assert (fmt.pack(**{f.name: view[f.name] for f in fmt.fields}) == blocks).all()


@pytest.mark.parametrize("name", ALL)
def test_rows_are_whole_blocks(name: str) -> None:
    fmt = ALL[name]
    assert fmt.row_bytes(0) == 0
    assert fmt.row_bytes(3 * fmt.block_size) == 3 * fmt.block_bytes
    for k in (1, fmt.block_size - 1, fmt.block_size + 1, 172):
        with pytest.raises(ValueError, match=f"a row of {k} values is not a whole number of {name} blocks"):
            fmt.row_bytes(k)


def test_unknown_names_are_errors() -> None:
    with pytest.raises(KeyError):
        ALL["Q4_0"].field_offset("m")
    with pytest.raises(KeyError):
        decode_elements("I8", np.zeros(4, np.uint8))
    assert tensor_type(4) is None  # Q4_2, removed
    assert tensor_type(10**6) is None
    assert tensor_type(-1) is None


# ---- decoding --------------------------------------------------------------------------------------------------------

SPECIAL_HALVES = np.array(
    [0, 1, 2, 0x3FF, 0x400, 0x401, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF], np.uint16
)  # zero, subnormals, the least normal, one, the largest, infinity, NaNs (signalling and quiet)
SPECIAL_HALVES = np.concatenate([SPECIAL_HALVES, SPECIAL_HALVES | 0x8000])


def random_blocks(fmt: BlockFormat, n: int) -> Bytes:
    return generator("random", fmt.name).integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)


def half_fields(fmt: BlockFormat) -> list[str]:
    """Names of the members that are scales and the like of their own, the scale first; of IQ1_M the half that is spread
    over four words."""
    names = [name for name in ("d", "m", "s", "dmin") if name in fmt.dtype.names]
    halves = [name for name in names if fmt.dtype[name] == np.dtype("<f2")]
    return halves or [name for name, size in members(fmt).items() if (name, size) == ("d", (1, 16))]


def with_halves(fmt: BlockFormat, **halves: npt.NDArray[np.uint16]) -> Bytes:
    """Random blocks, the named half fields of which are set."""
    blocks = random_blocks(fmt, len(next(iter(halves.values()))))
    for name, bits in halves.items():
        blocks = with_half(fmt, blocks, name, bits)
    return blocks


def with_half(fmt: BlockFormat, blocks: Bytes, name: str, bits: npt.NDArray) -> Bytes:
    """The blocks with a half, `[blocks]`: a field, or of IQ1_M a number that the layout names."""
    if name not in fmt.dtype.names:
        return with_number(fmt, blocks, name, 0, bits)
    at = fmt.field_offset(name)
    blocks = blocks.copy()
    blocks[:, at : at + 2] = bits.astype("<u2").view(np.uint8).reshape(-1, 2)
    return blocks


def with_number(fmt: BlockFormat, blocks: Bytes, name: str, member: int, number: npt.NDArray) -> Bytes:
    """The blocks with a number that the layout names, `[blocks]`."""
    bits = np.unpackbits(blocks, axis=1, bitorder="little")
    for p in by_member(fmt.name)[name, member]:
        for k in range(p.width):
            bits[:, p.bit + k] = number.astype(np.uint32) >> (p.low + k) & 1
    return np.packbits(bits, axis=1, bitorder="little")


def every_scale(fmt: BlockFormat) -> Bytes:
    """Every half, the second one too, which may have to be without effect. Scales of bytes: see every_number."""
    every = np.arange(65536, dtype=np.uint16)
    return np.concatenate([random_blocks(fmt, 1), *(with_halves(fmt, **{name: every}) for name in half_fields(fmt))])


def special_pairs(fmt: BlockFormat) -> Bytes:
    d, second = (a.ravel() for a in np.meshgrid(SPECIAL_HALVES, SPECIAL_HALVES))
    pair = dict(zip(half_fields(fmt), (d, second), strict=False))
    return np.concatenate([random_blocks(fmt, 1), *(with_halves(fmt, **pair) for _ in range(4) if pair)])


def every_number_in_every_position(fmt: BlockFormat) -> Bytes:
    """Codes, packed scales and minima, scales of a byte: one set among zeros, and the same among random others, under a
    scale and a minimum of one."""
    rng = generator("positions", fmt.name)
    out = []
    for start in (np.zeros(fmt.block_bytes, np.uint8), rng.integers(0, 256, fmt.block_bytes, np.uint8)):
        start = in_ones(fmt, start[None])[0]
        for name, (count, width) in members(fmt).items():
            if width > 11:  # the halves; the widest others are indices of a grid
                continue
            every = np.arange(1 << width, dtype=np.uint32)
            for member in range(count):
                out.append(with_number(fmt, np.repeat(start[None], len(every), axis=0), name, member, every))
    return np.concatenate(out)


@cache
def by_member(name: str) -> dict[tuple[str, int], list[Place]]:
    found: dict[tuple[str, int], list[Place]] = {}
    for p in places(ALL[name]):
        found.setdefault((p.name, p.member), []).append(p)
    return found


def in_ones(fmt: BlockFormat, blocks: Bytes) -> Bytes:
    """The same under scales, and minima, of one."""
    blocks = blocks.copy()
    for name in half_fields(fmt):
        blocks = with_half(fmt, blocks, name, np.array([0x3C00]))
    if fmt.name == "Q8_K":
        blocks[:, 0:4] = (0, 0, 0x80, 0x3F)
    return blocks


def single_bits(fmt: BlockFormat) -> Bytes:
    """Every bit of the block alone, so every bit of qh too, and every bit alone absent; then under scales of one."""
    bits = np.unpackbits(np.zeros((8 * fmt.block_bytes, fmt.block_bytes), np.uint8), axis=1)
    np.fill_diagonal(bits, 1)
    alone = np.concatenate([np.packbits(bits, axis=1), np.packbits(1 - bits, axis=1)])
    return np.concatenate([alone, in_ones(fmt, alone)])


def constant_blocks(fmt: BlockFormat) -> Bytes:
    return np.repeat(np.arange(256, dtype=np.uint8)[:, None], fmt.block_bytes, axis=1)


DECODE_CASES: dict[str, Callable[[BlockFormat], Bytes]] = {
    "random bytes": lambda fmt: random_blocks(fmt, 120_000),
    "every half as scale and minimum": every_scale,
    "special scales and minima": special_pairs,
    "every number in every position": every_number_in_every_position,
    "single bits": single_bits,
    "zero and constant blocks": constant_blocks,
}


def expected_values(fmt: BlockFormat, blocks: Bytes, llama: Llama) -> Floats:
    if fmt.name in FORMATS:
        return llama.to_float(fmt.type_id, blocks, len(blocks) * fmt.block_size).reshape(-1, fmt.block_size)
    if fmt.name == "Q8_K":  # no to_float either: one product of two floats
        d, q = blocks[:, 0:4].copy().view("<f4"), blocks[:, 4:260].view(np.int8)
        with np.errstate(all="ignore"):
            return d * q.astype(np.float32)
    # llama.cpp has no to_float for Q8_1: without its s it is a Q8_0 block
    q8_0 = np.concatenate([blocks[:, 0:2], blocks[:, 4:36]], axis=1)
    return llama.to_float(ALL["Q8_0"].type_id, q8_0, len(blocks) * QK).reshape(-1, QK)


@pytest.mark.parametrize("decode", [vectorised_decode, scalar_decode])
@pytest.mark.parametrize("case", DECODE_CASES)
@pytest.mark.parametrize("name", ALL)
def test_decode(name: str, case: str, decode: Callable[[BlockFormat, Bytes], Floats], llama: Llama) -> None:
    fmt = ALL[name]
    blocks = sample(DECODE_CASES[case](fmt), decode)
    step = CHUNK // fmt.block_size
    for part in (blocks[start : start + step] for start in range(0, len(blocks), step)):
        assert_same_values(decode(fmt, part), expected_values(fmt, part, llama), part)


@pytest.mark.parametrize("name", ALL)
def test_decode_takes_any_shape(name: str) -> None:
    fmt = ALL[name]
    blocks = random_blocks(fmt, 24)
    flat = fmt.decode(blocks)
    assert fmt.decode(blocks.reshape(2, 3, 4, -1)).tobytes() == flat.tobytes()
    strided = np.zeros((24, 2 * fmt.block_bytes), np.uint8)
    strided[:, : fmt.block_bytes] = blocks
    assert fmt.decode(strided[:, : fmt.block_bytes]).tobytes() == flat.tobytes()
    assert fmt.decode(blocks[:0]).shape == (0, fmt.block_size)


#: Codes that occur, where those are not all that the bits can hold.
CODES = {"TQ1_0": {-1, 0, 1}, "Q1_0": {-1, 1}, "MXFP4": set(E2M1.tolist()), "NVFP4": set(E2M1.tolist())}
CODES |= {name: {-9, -7, -1, 1, 7, 9} for name in ("IQ1_S", "IQ1_M")}
CODES |= {name: {s * v for s in (-1, 1) for v in (8, 25, 43)} for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S")}
CODES |= {"IQ3_XXS": {s * v for s in (-1, 1) for v in (4, 12, 20, 28, 36, 44, 52, 62)}}
CODES |= {"IQ3_S": {s * v for s in (-1, 1) for v in range(1, 16, 2)}}
CODES |= {name: set(grids.kvalues().tolist()) for name in ("IQ4_NL", "IQ4_XS")}


@pytest.mark.parametrize("name", ALL)
def test_codes_scale_and_minimum_make_the_value(name: str) -> None:
    fmt = ALL[name]
    blocks = random_blocks(fmt, 20_000 * QK // fmt.block_size)
    blocks = blocks[fmt.finite(blocks)]
    assert len(blocks) > 1000
    q = fmt.codes(blocks)
    d, m = (np.repeat(a(blocks).astype(np.float64), fmt.group, axis=1) for a in (fmt.scales, fmt.minima))
    assert q.dtype == (np.int8 if fmt.low else np.uint8)
    assert set(np.unique(q).tolist()) == CODES.get(name, set(range(fmt.low, fmt.low + (1 << fmt.bits))))
    assert min(CODES.get(name, {fmt.low})) >= fmt.low
    assert max(CODES.get(name, {fmt.low})) < fmt.low + (1 << fmt.bits)
    # d·q + m is exact in float64, so one rounding gives the value
    with np.errstate(over="ignore"):  # MXFP4
        assert ((d * q + m).astype(np.float32) == fmt.decode(blocks)).all()


WITH_GRID = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]


@pytest.mark.parametrize("name", WITH_GRID)
def test_every_entry_of_a_grid_under_every_sign(name: str, llama: Llama) -> None:
    """The tables are gguf's; here llama.cpp's stand against them, all of them: under a scale of one."""
    fmt = FORMATS[name]
    counted = members(fmt)
    other = "delta" if name.startswith("IQ1") else "sign"
    index, bits = (a.ravel() for a in np.meshgrid(*(np.arange(1 << counted[m][1]) for m in ("grid", other))))
    n = len(index) // 32
    numbers = {m: np.zeros((n, count), np.int64) for m, (count, _) in counted.items()}
    numbers["grid"][:] = np.repeat(index.reshape(n, 32), counted["grid"][0] // 32, axis=1)
    # IQ1_S has one delta for four entries: theirs are neighbours in the list, and equal
    numbers[other][:] = bits.reshape(n, counted[other][0], -1)[..., 0]
    blocks = in_ones(fmt, written(fmt, numbers))
    expected = expected_values(fmt, blocks, llama)
    assert_same_values(fmt.decode(blocks), expected, blocks)
    assert len(np.unique(np.abs(fmt.codes(blocks)).reshape(-1, 4 if name.startswith("IQ3") else 8), axis=0)) > 200


# ---- elements that are not quantized ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")  # a signalling NaN may say so
@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_decode_every_two_byte_element(name: str, llama: Llama) -> None:
    raw = np.arange(65536, dtype="<u2").view(np.uint8)
    type_id = int(gguf.GGMLQuantizationType[name])
    got = decode_elements(name, raw)
    assert_same_values(got[:, None], llama.to_float(type_id, raw, 65536)[:, None], raw.reshape(-1, 2))


def test_decode_f32_keeps_every_bit() -> None:
    bits = generator("f32").integers(0, 1 << 32, 100_000, dtype=np.uint32)
    bits[:8] = [0, 0x80000000, 1, 0x007FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001]
    assert (decode_elements("F32", bits.view(np.uint8)).view(np.uint32) == bits).all()


def test_element_types_are_not_quantized() -> None:
    for type_id in (*gguf.GGML_QUANT_SIZES, FORMATS["Q2_0"].type_id):
        known = tensor_type(int(type_id))
        assert known is not None
        assert known.quantized == (known.name not in ELEMENT_TYPES) == (known.block_size > 1)


# ---- encoding --------------------------------------------------------------------------------------------------------


def steps(fmt: BlockFormat) -> tuple[int, int]:
    """Range of (x - m)/d, or x/d, that the codes of a block span."""
    if fmt.bits == 8:
        return -127, 127
    top = 1 << fmt.bits
    return (0, top - 1) if fmt.has_min else (-top // 2, top // 2)


def powers(rng: np.random.Generator, n: int, low: int, high: int) -> npt.NDArray[np.float64]:
    return 2.0 ** rng.integers(low, high + 1, (n, 1))


def gaussians(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    return (rng.normal(size=(20_000, QK)) * powers(rng, 20_000, -30, 20)).astype(np.float32)


def shifted(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Values of one sign, far from zero: x - min cancels."""
    return (rng.normal(size=(4000, QK)) + rng.choice([-100, -3, 3, 100], (4000, 1))).astype(np.float32)


def constants(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    value = np.concatenate([rng.normal(size=200), 2.0 ** np.arange(-120, 120), -(2.0 ** np.arange(-120, 120))])
    return np.repeat(value.astype(np.float32)[:, None], QK, axis=1)


def one_outlier(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(4000, QK)).astype(np.float32)
    x[np.arange(4000), rng.integers(0, QK, 4000)] *= powers(rng, 4000, 3, 20)[:, 0].astype(np.float32)
    return x


def zeros(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """+0 and -0 in every mixture, alone and below positive or above negative values: the first of equals counts."""
    x = np.where(rng.random((600, QK)) < 0.5, np.float32(0), np.float32(-0.0))
    x[0], x[1] = 0.0, -0.0
    some = rng.random((600, QK)) < 0.2
    some[:200] = False
    sign = np.where(np.arange(600) < 400, 1, -1)[:, None]
    return np.where(some, np.abs(rng.normal(size=(600, QK))) * sign, x).astype(np.float32)


def one_negative_zero(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    x = np.zeros((2 * QK, QK), np.float32)
    x[QK:] = -0.0
    at = np.arange(QK)
    x[at, at], x[QK + at, at] = -0.0, 0.0
    return x


def ties(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Values half-way between two codes, and up to two ulps beside; exactly half-way where d is a power of two."""
    n, (low, high) = 6000, steps(fmt)
    d = np.where(rng.random((n, 1)) < 0.5, powers(rng, n, -12, 12), rng.normal(size=(n, 1)))
    m = np.where(rng.random((n, 1)) < 0.5, 0, rng.integers(-64, 64, (n, 1)) * d) if fmt.has_min else 0
    x = ((rng.integers(low, high, (n, QK)) + 0.5) * d + m).astype(np.float32)
    x = (x.view(np.int32) + rng.integers(-2, 3, x.shape, np.int32) * (rng.random(x.shape) < 0.5)).view(np.float32)
    x[:, 0:1], x[:, 1:2] = low * d + m, high * d + m
    return x


def huge(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Up to the largest float32: half scales overflow. Of one sign for the affine formats (see the module's head)."""
    x = (rng.uniform(-1, 1, (2000, QK)) * float(FLT_MAX) * powers(rng, 2000, -110, 0)).astype(np.float32)
    x[::7, 5] = FLT_MAX
    x[3::7, 6] = -FLT_MAX
    if fmt.has_min:
        x = np.abs(x) * np.where(np.arange(2000) % 2, 1, -1).astype(np.float32)[:, None]
    return x


def half_boundaries(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Scales at the edges of the halves: ties between two of them, the least subnormal, overflow at 65520."""
    halves = np.arange(0, 0x7C00, 97, dtype=np.uint16).view(np.float16).astype(np.float64)
    after = np.append(halves[1:], 65536.0)
    d = np.concatenate([halves[1:], (halves + after) / 2, [65519, 65520, 65521, 2.0**-25, 2.0**-25 * 1.01]])
    d = np.concatenate([d, -d])[:, None]
    low, high = steps(fmt)
    x = (rng.uniform(low, high, (len(d), QK)) * d).astype(np.float32)
    x[:, 0:1], x[:, 1:2] = low * d, high * d
    return x


def denormal_scales(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """d is a subnormal float32 of which 1/d is still finite."""
    n, (low, high) = 3000, steps(fmt)
    d = rng.uniform(1.001 * 2.0**-128, 2.0**-126, (n, 1)) * rng.choice([-1, 1], (n, 1))
    x = (rng.uniform(low, high, (n, QK)) * d).astype(np.float32)
    x[:, 0:1], x[:, 1:2] = low * d, high * d
    return x


def subnormals(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """Subnormal values below a normal maximum: products that underflow."""
    x = (rng.integers(-1000, 1000, (2000, QK)) * float(TINY)).astype(np.float32)
    x[np.arange(2000), rng.integers(0, QK, 2000)] = (
        rng.choice([-1, 1], 2000) * powers(rng, 2000, -115, 3)[:, 0]
    ).astype(np.float32)
    return x


def scales_that_round_to_zero(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """max/8 and the like round to zero: no inverse is taken."""
    return (rng.integers(-3, 4, (500, QK)) * float(TINY)).astype(np.float32)


def alternating_maxima(fmt: BlockFormat, rng: np.random.Generator) -> Floats:
    """+a and -a are both the greatest magnitude: the first decides the sign of d."""
    a = np.where(np.arange(QK) % 2, 1, -1) * rng.uniform(0.1, 9, (400, 1))
    a[::2] *= -1
    a = np.where(rng.random((400, QK)) < rng.choice([0.1, 0.5, 1], (400, 1)), a, rng.uniform(-0.1, 0.1, (400, QK)))
    return a.astype(np.float32)


ENCODE_CASES: dict[str, Callable[[BlockFormat, np.random.Generator], Floats]] = {
    f.__name__: f
    for f in (
        gaussians, shifted, constants, one_outlier, zeros, one_negative_zero, ties, huge, half_boundaries,
        denormal_scales, subnormals, scales_that_round_to_zero, alternating_maxima,
    )
}  # fmt: skip

# quantize_row_q8_1_ref is no type that ggml_quantize_chunk takes; it is reached through the table of types
_Q8_1_REF = """
import sys
import numpy as np
from gguf_verify.llama import ggml
x = np.frombuffer(sys.stdin.buffer.read(), np.float32).copy()
out = np.zeros(len(x) // 32 * 36, np.uint8)
ggml.ggml_get_type_traits(9).contents.from_float_ref(ggml.pointer(x), ggml.pointer(out), len(x))
sys.stdout.buffer.write(out.tobytes())
"""


def expected_blocks(fmt: BlockFormat, x: Floats, llama: Llama) -> Bytes:
    if fmt.name in FORMATS:
        return llama.quantize(fmt.type_id, x)
    run = subprocess.run(
        [sys.executable, "-c", _Q8_1_REF], input=x.tobytes(), capture_output=True, check=True,
        cwd=Path(__file__).resolve().parents[3],
    )  # fmt: skip
    return np.frombuffer(run.stdout, np.uint8).reshape(len(x), -1)


def has_finite_inverse(fmt: BlockFormat, x: Floats) -> npt.NDArray[np.bool_]:
    """Blocks for which C defines every cast of the quantizer."""
    wide = x.astype(np.float64)
    span = np.ptp(wide, axis=1) if fmt.has_min else np.abs(wide).max(axis=1)
    divisor = 127 if fmt.bits == 8 else (1 << fmt.bits) - 1 if fmt.has_min else 1 << (fmt.bits - 1)
    d = (span / divisor).astype(np.float32)
    return (span <= FLT_MAX) & ((d == 0) | (d > 2.0**-128))


@bit_equal_encoders
@pytest.mark.parametrize("encode", [vectorised_encode, scalar_encode])
@pytest.mark.parametrize("case", ENCODE_CASES)
@pytest.mark.parametrize("name", ENCODED)
def test_encode(name: str, case: str, encode: Callable[[BlockFormat, Floats], Bytes], llama: Llama) -> None:
    fmt = FORMATS[name]
    x = sample(ENCODE_CASES[case](fmt, generator(case, name)), encode)
    defined = has_finite_inverse(fmt, x)
    assert defined.mean() > 0.7  # the case is about something else
    x = x[defined]
    assert_same_blocks(encode(fmt, x), expected_blocks(fmt, x, llama), x)


@bit_equal_encoders
@pytest.mark.parametrize("encode", [vectorised_encode, scalar_encode])
def test_encode_q8_1(encode: Callable[[BlockFormat, Floats], Bytes], llama: Llama) -> None:
    """All cases at once, since each call starts a process."""
    fmt = ALL["Q8_1"]
    x = np.concatenate([sample(case(fmt, generator(name, "Q8_1")), encode) for name, case in ENCODE_CASES.items()])
    x = x[has_finite_inverse(fmt, x)]
    assert_same_blocks(encode(fmt, x), expected_blocks(fmt, x, llama), x)


@pytest.mark.parametrize("name", [*ENCODED, "Q8_1"])
def test_encoders_agree_where_c_leaves_the_cast_open(name: str) -> None:
    """1/d overflows; max - min overflows. Both follow x86, where such a cast gives INT_MIN."""
    fmt, rng = ALL[name], generator("open", name)
    tiny = (rng.normal(size=(1000, QK)) * 2.0 ** rng.uniform(-149, -125, (1000, 1))).astype(np.float32)
    wide = (rng.uniform(-1, 1, (1000, QK)) * float(FLT_MAX)).astype(np.float32)
    x = np.concatenate([tiny, wide])
    assert_same_blocks(vectorised_encode(fmt, x), scalar_encode(fmt, x), x)


@pytest.mark.parametrize("encode", [vectorised_encode, scalar_encode])
@pytest.mark.parametrize("name", [*ENCODED, "Q8_1"])
def test_what_is_encoded_comes_back_within_half_a_step(
    name: str, encode: Callable[[BlockFormat, Floats], Bytes]
) -> None:
    fmt = ALL[name]
    rng = generator("bounds", name)
    x = np.concatenate([case(fmt, rng)[:1500] for case in (gaussians, shifted, one_outlier, alternating_maxima)])
    # halves are subnormal below 2^-14, and then their error is not relative
    x = x[(np.ptp(x, axis=1) > 2.0**-6) & (np.abs(x).max(axis=1) < 60000)]
    assert len(x) > 2000
    wide = x.astype(np.float64)
    if fmt.has_min:
        span, divisor = np.ptp(wide, axis=1), (1 << fmt.bits) - 1
        half_errors = span + np.abs(wide.min(axis=1))
    else:
        span, divisor = np.abs(wide).max(axis=1), 127 if fmt.bits == 8 else 1 << (fmt.bits - 1)
        half_errors = span
    # half a step, and the roundings of d and m to a half (2^-11) and of the arithmetic
    bound = span / divisor / 2 + half_errors * 1.001 * 2.0**-11
    if fmt.offset:
        # codes end one step short of +extreme: -8…7
        x_abs = np.abs(wide)
        opposite = (wide * np.take_along_axis(wide, x_abs.argmax(axis=1)[:, None], axis=1)) < 0
        limit = np.where(opposite & (x_abs > (span * (1 - 1.5 / divisor))[:, None]), span[:, None] / divisor, 0)
        bound = np.maximum(bound[:, None], limit + half_errors[:, None] * 1.001 * 2.0**-11)
    else:
        bound = bound[:, None]
    error = np.abs(vectorised_decode(fmt, encode(fmt, x)).astype(np.float64) - wide)
    worst = (error / bound).max()
    assert worst <= 1
    assert worst > 0.9  # the bound says something


@pytest.mark.parametrize("name", sorted(set(ALL) - {*ENCODED, "Q8_1"}))
def test_others_are_quantized_by_llama_cpp_only(name: str) -> None:
    with pytest.raises(ValueError, match=f"only llama.cpp quantizes to {name}"):
        ALL[name].encode(np.zeros((1, ALL[name].block_size), np.float32))
    assert ALL[name].slow_encode is None


@pytest.mark.parametrize("name", ENCODED)
def test_what_was_decoded_encodes_to_the_same_values(name: str) -> None:
    """Codes on a grid that spans the whole range are fixed points, where d and m are exact."""
    fmt, rng = FORMATS[name], generator("fixed points", name)
    low, high = steps(fmt)
    high -= bool(fmt.offset)
    q = rng.integers(low, high + 1, (500, QK))
    q[:, 3], q[:, 4] = low, high
    x = (q * powers(rng, 500, -8, 8)).astype(np.float32)
    assert (fmt.decode(fmt.encode(x)) == x).all()
