"""Activations and weights that are generated, for faults that would hide in those of the model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.q8_1 import Q8_1
from ..formats.tensor_types import ELEMENTS, WeightFormat
from ..semantics.definition import Semantics

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: The largest size: above it, the sum of a block of equal activations is not a finite half.
_MOST = 2000.0
#: The largest half, and the largest weight of random bits of which sums are halves: 2^15 of them times ordinary
#: activations stay below 65504.
_LARGEST_HALF, _LARGEST_WEIGHT = 65504.0, 0.25


def drawn(shape: tuple[int, int], like: Floats, seed: int) -> Floats:
    """float32[M, K] of the size of `like`, with magnitudes within a factor of ten, so that none gets the code zero."""
    rng = np.random.default_rng(seed)
    size = min(float(np.sqrt(np.mean(like.astype(np.float64) ** 2))), _MOST) or 1.0
    values = rng.uniform(0.2, 2.0, shape) * rng.choice([-1.0, 1.0], shape) * size
    return np.asarray(values, np.float32)


#: Odd integers d such that d/2, multiplied by 1/d in float32, is less than a half.
_UNEVEN = np.array([41, 47, 55, 61, 83, 97, 107, 109], np.float32)


def ties_of_codes(k: int) -> Floats:
    """float32[1, K] of which, over d = max|x|/127, four values of 32 are halves and the others integers.

    A half shows in which way a quantizer rounds ties. Multiplied by 1/d, it is less than a half, so a quantizer that
    multiplies instead of dividing gives another code, too. The sums s stay finite halves.
    """
    at = np.arange(k)
    codes = np.where(at % 32 == 0, 127, at * 7 % 127 - 63).astype(np.float32)
    codes[1::4] = np.where(at[1::4] % 8 == 1, 0.5, -0.5)
    codes[17::32], codes[21::32], codes[25::32], codes[29::32] = 3, -5, 7, -9  # one of eight, in each lane of ours
    return np.asarray(codes * _UNEVEN[at // 32 % 8] / np.float32(64))[None]


#: Sizes of blocks: powers of two from the smallest subnormal.
_SIZES, _LEAST = 271, -149


def every_size(k: int) -> Floats:
    """float32[M, K] whose blocks of 32 are of all sizes from the smallest subnormal to 2^121.

    The rows are: ordinary ones; as many on ties, with the largest code positive and negative in turn, among zeros of
    both signs; some whose values cancel, of sizes from 1 to 2^12, so that s, a half, shows in which order they are
    added; and as many so small that d, a subnormal, falls short of max|x|/127 and codes of both signs are cut at 127.
    """
    rng = np.random.default_rng(k)
    blocks = -(-k // 32)
    n, some = max(4, -(-_SIZES // blocks)), max(4, -(-24 // blocks))
    ordinary = rng.standard_normal((n, k))
    ties = np.concatenate([ties_of_codes(k)] * n) / 64
    ties[:, 5::9] = np.array([[0.0], [-0.0], [0.0], [-0.0]])[np.arange(n) % 4]
    ties[1::2] *= -1
    halves = rng.standard_normal((2 * some, blocks, 16))
    cancelling = np.concatenate([halves, -rng.permuted(halves, axis=-1)], axis=-1).reshape(2 * some, -1)[:, :k]
    steps = np.arange(n * blocks) * 37 % _SIZES + _LEAST
    few = np.arange(some * blocks)
    exponents = np.concatenate([steps, steps, few % 13, _LEAST + 2 + few % 12])
    with np.errstate(under="ignore"):
        rows = np.concatenate([ordinary, ties, cancelling])
        values = np.ldexp(rows, np.repeat(exponents.reshape(-1, blocks), 32, axis=1)[:, :k])
        return np.asarray(values, np.float32)


def on_ties(kind: str, like: Floats) -> Floats:
    """float32[1, K] about as large as the largest of `like`, each midway between two F16 or BF16 values, of which the
    even one is above and below in turn. Rounding in another way, or not rounding, shows in every product."""
    low = ELEMENTS[kind].missing_bits if kind in ELEMENTS else 0
    values = largest_codes(like)
    if low:
        bits = values.view(np.uint32) >> low << low | np.uint32(1 << low - 1)
        values = (bits & ~np.uint32(1 << low) | np.arange(like.shape[1], dtype=np.uint32) % 2 << low).view(np.float32)
    return values


def largest_codes(like: Floats) -> Floats:
    """float32[1, K] of one value, so that every code is 127, and integer sums and s are as large as they can be."""
    size = min(float(np.abs(like).max()), _MOST) or 1.0
    return np.full((1, like.shape[1]), size, np.float32)


def any_blocks(fmt: BlockFormat, n: int, seed: int) -> Bytes:
    """uint8[n, block bytes] of random bytes under finite scales of every size: codes and scales that a type can hold,
    and that no quantizer need ever write."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)
    structs = fmt.view(blocks)
    for item in fmt.fields:
        if item.dtype == "<f2":
            usual, any_size, subnormal, large = (0x1000, 0x2C00), (0, 0x7C00), (0, 0x0400), (0x7000, 0x7C00)
            low, high = np.array([usual, any_size, subnormal, large])[rng.integers(0, 4, n)].T
            bits = rng.integers(low, high) | rng.integers(0, 2, n) << 15
            structs[item.name] = bits.astype("<u2").view("<f2")
    if fmt.make_finite is not None:
        fmt.make_finite(structs, rng)
    return blocks


def held_by(
    semantics: Semantics, fmt: BlockFormat, blocks: Bytes, alone: bool = False
) -> npt.NDArray[np.bool_]:  # fmt: skip
    """Whether the numbers that a definition has can hold the weights of blocks uint8[n, block bytes] and ordinary
    products with them: bool[n]. Numbers that do not fit a half are no kernel's fault.

    Args:
        alone: each block is a row of its own. Then a weight may be as large as its type allows; elsewhere the errors of
            others would be lost beside it, where halves are all that there is.
    """
    with np.errstate(all="ignore"):
        term = (semantics.inside or semantics).term
        held = term.finite_scales(fmt, blocks)
        if semantics.range_of_halves(fmt):
            ends = semantics.sums_in_halves(fmt) or term.in_parts  # where d·q alone may end as a half
            most = _LARGEST_HALF if alone and not ends else _LARGEST_WEIGHT
            held &= np.abs(fmt.decode(blocks)).max(axis=-1) <= most
    return held


def special(k: int, like: Floats, outlier: float = 1e4) -> Floats:
    """float32[8, K] of values that ordinary activations seldom have.

    The tokens are: zeros; zero blocks beside ordinary ones; zeros of both signs; values below 0.0019, so small that a
    block's d is a subnormal half and 127/max overflows one, and so small that d is zero; one `outlier`; and pairs of
    ±10^6 and of ±8·10^6 in one block, whose sum s stays a finite half.
    """
    ordinary = drawn((1, k), like, 7)[0]
    at = np.arange(k)
    rows = np.stack([ordinary] * 8)
    rows[0] = 0.0
    rows[1, at // 32 % 2 == 0] = 0.0
    rows[2] = np.where(at % 2, -0.0, np.float32(0.0))
    rows[3] *= np.float32(2.0**-11 / max(float(np.abs(ordinary).max()), 1e-30))
    rows[4] *= np.float32(1e-30)
    rows[5, k // 2] = outlier
    for row, size in ((6, 1e6), (7, 8e6)):
        first = k // 64 * 32
        rows[row, first + 1], rows[row, first + 30] = size, -size
    return rows


def with_least_codes(encoded: Bytes) -> Bytes:
    """Blocks of Q8_1 with some codes of -128, which no quantizer writes and a block can hold."""
    blocks = encoded.reshape(len(encoded), -1, Q8_1.block_bytes).copy()
    blocks[:, :, 4 + 1 :: 3] = 0x80
    return blocks.reshape(encoded.shape)


# ---- blocks with every half as a scale, and every code under each of them, if a block can hold them ------------------

#: Numbers that a half can be.
HALVES = 1 << 16
#: The most values of a block whose codes are chosen; those of superblocks are random.
_MOST_VALUES = 64
#: Values of the blocks that are made at a time.
_AT_A_TIME = 1 << 22


def any_bits(fmt: BlockFormat, n: int, seed: int) -> Bytes:
    """uint8[n, block bytes]: random bytes, also of scales that are NaN and infinite."""
    return np.random.default_rng((seed, 1)).integers(0, 256, (n, fmt.block_bytes), dtype=np.uint8)


def every_scale(fmt: BlockFormat, seed: int, brief: bool = False) -> Iterator[Bytes]:
    """Blocks uint8[n, block bytes], some at a time, in which every scale of 16 bits takes each of its values, and every
    scale of 8 bits, too; the other bits are random. Where codes are bits of their own, each code occurs under each
    scale, if a block has as many values as there are codes; else under some, or, unless `brief`, also under each.

    Args:
        brief: one of 16 scales.
    """
    bits = fmt.stored_bits if fmt.block_size <= _MOST_VALUES and all(map(len, _code_bits(fmt))) else 0
    rounds = 1 if brief or not bits else max(1, (1 << bits) // fmt.block_size)
    step = 16 if brief else 1
    size = max(1, _AT_A_TIME // fmt.block_size)
    for number in range(rounds):
        for start in range(0, HALVES // step, size):
            which = np.arange(start, min(start + size, HALVES // step)) * step + (seed % step)
            yield _blocks(fmt, which, number, bits, seed)


def _blocks(fmt: BlockFormat, which: npt.NDArray[np.intp], number: int, bits: int, seed: int) -> Bytes:
    rng = np.random.default_rng((seed, 2, number, int(which[0])))
    blocks = rng.integers(0, 256, (len(which), fmt.block_bytes), dtype=np.uint8)
    if bits:
        at = np.arange(fmt.block_size)
        codes = (at * max(1, (1 << bits) // fmt.block_size) + which[:, None] + number) % (1 << bits)
        _write_codes(fmt, blocks, codes)
    structs = fmt.view(blocks)
    for i, item in enumerate(fmt.fields):
        pattern = (which * (1 if i == 0 else 40503 + 2 * i) + i) % HALVES
        if item.dtype == "<f2" and item.count == 1:
            structs[item.name] = pattern.astype("<u2").view("<f2")
        elif item.dtype == "u1" and item.count == 1:
            structs[item.name] = pattern % 256
    return blocks


def _code_bits(fmt: BlockFormat) -> list[list[tuple[int, int]]]:
    """For each value of a block, (its bit in the block, the bit of its code) of every bit that the block stores."""
    places: list[list[tuple[int, int]]] = [[] for _ in range(fmt.block_size)]
    start = 0
    for item in fmt.fields:
        for piece in item.pieces():
            if piece.name == "x" and piece.index is not None:
                at = 8 * start + item.item_bits * piece.item + piece.shift
                places[piece.index] += [(at + t, piece.low + t) for t in range(piece.width)]
        start += item.nbytes
    return places


def _write_codes(fmt: BlockFormat, blocks: Bytes, codes: npt.NDArray[np.integer]) -> None:
    """Write codes[n, values] into the bits that blocks uint8[n, block bytes] store for them."""
    bits = np.unpackbits(blocks, axis=1, bitorder="little")
    for value, places in enumerate(_code_bits(fmt)):
        for at, bit in places:
            bits[:, at] = codes[:, value] >> bit & 1
    blocks[...] = np.packbits(bits, axis=1, bitorder="little")


# ---- activations whose products a kernel's outputs can hold: others would overflow a half ----------------------------

#: A quarter of the largest half: offsets and minima that are multiplied apart, and what is fused, may add to a product.
_MOST_SUM = 2.0**14
_DECODED = 1 << 22


def representable(semantics: Semantics, fmt: WeightFormat, rows: Bytes, x: Floats) -> Floats:
    """Tokens float32[M, K], some of them multiplied by powers of two, whose outputs and partial sums with weights
    uint8[N, row bytes] are finite in the type of the definition's outputs and sums: |Σ w·a| ≤ max_k |a|·Σ |w|."""
    narrow = "float16" in (semantics.output, semantics.accumulation.name)
    if not narrow or not isinstance(fmt, BlockFormat) or not x.size or not rows.size:
        return x
    step, most = max(1, _DECODED // x.shape[1]), 0.0
    for start in range(0, len(rows), step):
        blocks = rows[start : start + step].reshape(-1, rows.shape[1] // fmt.block_bytes, fmt.block_bytes)
        size = np.abs(fmt.decode(blocks).astype(np.float64)).reshape(len(blocks), -1).sum(axis=1)
        most = max(most, float(size[np.isfinite(size)].max(initial=0.0)))
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(_MOST_SUM / (most * np.abs(x.astype(np.float64)).max(axis=1))))
    less = np.where(np.isfinite(exponent), np.minimum(exponent, 0), 0).astype(np.int32)
    with np.errstate(under="ignore"):
        return np.ldexp(x, less[:, None])
