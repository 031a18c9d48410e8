"""Sizes, fields and diagrams of formats, and the meaning of each bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats import grids
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.diagram import bit_diagram
from gguf_verify.formats.layout import Bits, Field, Items, each
from gguf_verify.formats.tensor_types import ELEMENT_TYPES, FORMATS, decode_elements, tensor_type
from gguf_verify.llama.library import Llama
from tests.support.format_cases import ALL, E2M1, Bytes, Floats, Numbers, generator, members, places, written

# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


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
    """The loaded library lists its types."""
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


OF_SCALES, OF_MINIMA = "half, scale of the scales", "half, scale of the minima"


@dataclass(frozen=True)
class Meaning:
    """The meaning of a block, from the numbers that its layout names: `name → int64[blocks, members]`.

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


def entries(name: str) -> Callable[[Numbers], npt.NDArray]:
    """Entries of a grid under all eight signs, or under seven, and the eighth that makes their number even."""

    def codes(n: Numbers) -> npt.NDArray:
        seven = n["sign"] & 127
        bits = n["sign"] if name in ("IQ2_S", "IQ3_S") else seven | (np.bitwise_count(seven) & 1).astype(np.int64) << 7
        # [blocks, entries, values of an entry] and sign bytes [blocks, 32] → [blocks, 256].
        signs = 1 - 2 * (bits[..., None] >> np.arange(8) & 1)
        return (GRIDS[name].entries()[n["grid"]].reshape(signs.shape).astype(np.int64) * signs).reshape(len(bits), -1)

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


def random_numbers(fmt: BlockFormat, n: int) -> Numbers:
    rng = generator("numbers", fmt.name)
    numbers = {name: rng.integers(0, 1 << width, (n, count)) for name, (count, width) in members(fmt).items()}
    for name in {"scale", "minimum", OF_SCALES, OF_MINIMA, "d"} & set(numbers):
        if members(fmt)[name] == (1, 16):
            numbers[name] &= ~0x4000  # a finite half, the same with any other bit
    return numbers


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
    """Blocks hold the random numbers written to them; flipping a bit changes just the number that the layout names."""
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
