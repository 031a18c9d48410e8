"""Both decoders against llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats import grids
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ELEMENT_TYPES, FORMATS, decode_elements, tensor_type
from gguf_verify.llama.library import Llama
from tests.support.format_cases import (
    ALL,
    E2M1,
    QK,
    Bytes,
    Floats,
    Place,
    generator,
    members,
    places,
    sample,
    scalar_decode,
    scalar_decode_of_more,
    vectorised_decode,
    written,
)

CHUNK = 1 << 22  # values that are compared at once


# a user must not see NumPy's warnings either
pytestmark = pytest.mark.filterwarnings("error")


def assert_same_values(got: Floats, expected: Floats, blocks: Bytes) -> None:
    """`inputs => observed expected` of the first value that differs."""
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    if not same.all():
        b, i = np.argwhere(~same)[0]
        count = (~same).sum()
        pytest.fail(f"{count} values differ; {blocks[b].tobytes().hex()} [{i}] => {got[b, i]!r} {expected[b, i]!r}")


SPECIAL_HALVES = np.array(
    [0, 1, 2, 0x3FF, 0x400, 0x401, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF], np.uint16
)  # zero, subnormals, the least normal, one, the largest, infinity, NaNs (signalling and quiet)


SPECIAL_HALVES = np.concatenate([SPECIAL_HALVES, SPECIAL_HALVES | 0x8000])


def random_blocks(fmt: BlockFormat, n: int) -> Bytes:
    return generator("random", fmt.name).integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)


def half_fields(fmt: BlockFormat) -> list[str]:
    """Names of the members that are scales and the like of their own, the scale first; of IQ1_M the half that is spread
    over four words."""
    names: list[str] = [name for name in ("d", "m", "s", "dmin") if name in fmt.dtype.names]
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
    "random bytes": lambda fmt: random_blocks(fmt, 120_000 * QK // fmt.block_size),
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


@pytest.mark.parametrize("decode", [vectorised_decode, scalar_decode, scalar_decode_of_more])
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
