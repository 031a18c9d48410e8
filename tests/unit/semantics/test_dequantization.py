"""What dequantizers should give: against llama.cpp's decoder in plain Python, exact fractions, and each other."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_bits, every_scale
from gguf_verify.semantics.dequantization import (
    ARITHMETICS,
    BOUNDED,
    OUTPUTS,
    applies,
    expected_values,
    fitting,
    rounded,
)

BITS = {"float32": 24, "float16": 11, "bfloat16": 8}
LEAST = {"float32": -149, "float16": -24, "bfloat16": -133}
MOST = {"float32": 128, "float16": 16, "bfloat16": 128}


def slowly_rounded(value: float, kind: str) -> float:
    """To nearest even, in fractions."""
    if value == 0 or not np.isfinite(value):
        return value
    exact = Fraction(value)
    exponent = max(LEAST[kind], int(np.frexp(value)[1]) - BITS[kind])
    unit = Fraction(2) ** exponent
    whole = float(round(exact / unit) * unit)
    return float(np.copysign(whole if abs(whole) < 2.0 ** MOST[kind] else np.inf, value))


@pytest.mark.parametrize("kind", OUTPUTS)
def test_rounds_once(kind: str) -> None:
    """Also where a rounding to float32 in between would be another value."""
    rng = np.random.default_rng(2)
    ties = 1 + 2.0**-11 + np.array([0, 2.0**-40, -(2.0**-40)])
    bf = 1 + 2.0**-8 + np.array([0, 2.0**-40, -(2.0**-40)])
    sizes = 2.0 ** rng.integers(-150, 128, 2000) * rng.standard_normal(2000)
    values = np.concatenate([ties, bf, sizes, [0.0, -0.0, np.inf, -np.inf, 65519.9, 65520.0, 3.4e38, 3.4029e38]])
    expected = np.array([slowly_rounded(float(v), kind) for v in values], np.float32)
    got = rounded(values, kind)
    assert (got.view(np.uint32) == expected.view(np.uint32)).all()
    assert np.isnan(rounded(np.array([np.nan]), kind)).all()


def blocks_of(fmt: BlockFormat, n: int = 60) -> np.ndarray:
    """Blocks of any bits, and of every 64th half as a scale."""
    return np.concatenate([any_bits(fmt, n, 3), next(iter(every_scale(fmt, 0, brief=True)))[::64]])


@pytest.mark.parametrize("name", FORMATS)
def test_once_is_to_float(name: str) -> None:
    fmt = FORMATS[name]
    blocks = any_bits(fmt, 40, 3)
    slow = np.array([fmt.slow_decode(block.tobytes()) for block in blocks], np.float32)
    assert not expected_values(fmt, blocks).wrong(slow).any()
    other = slow.copy()
    at = tuple(np.argwhere(np.isfinite(slow) & (slow != 0))[0])
    other[at] = np.nextafter(slow[at], np.float32(0))
    assert np.argwhere(expected_values(fmt, blocks).wrong(other)).tolist() == [list(at)]
    other[at] = np.nan
    assert expected_values(fmt, blocks).wrong(other).sum() == 1


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ2_S", "MXFP4"])
def test_bounds_hold_for_every_order(name: str) -> None:
    """All arithmetics whose bits are known are within the bound of those that need not be, and a code off by one is
    not, where a code is more than the last bits of a half."""
    fmt = FORMATS[name]
    blocks = blocks_of(fmt)
    for output in OUTPUTS:
        for bounded in BOUNDED:
            bound = expected_values(fmt, blocks, output, bounded)
            for arithmetic in ARITHMETICS:
                inside = arithmetic.startswith(bounded + "_") or arithmetic == "once"
                if inside and "offset" not in arithmetic and applies(arithmetic, fmt):
                    made = expected_values(fmt, blocks, output, arithmetic).values
                    assert not bound.wrong(made).any(), (output, arithmetic)
    bound = expected_values(fmt, blocks, "float16", "float16")
    with np.errstate(all="ignore"):
        scales = np.repeat(fmt.scales(blocks), fmt.group, axis=-1).astype(np.float64)
        off = rounded(expected_values(fmt, blocks).values.astype(np.float64) + scales, "float16")
        large = (np.abs(scales) > 1e-3) & (np.abs(scales) < 1e2)
    large &= np.abs(fmt.codes(blocks).astype(int) - fmt.offset) < 64
    large &= ~bound.free if bound.free is not None else True
    if not fmt.has_min:
        assert bound.wrong(off)[large].all()


def test_arithmetics_differ() -> None:
    """Each can be told from the others on some type, but where it is the same by its roundings."""
    for name, same in (
        ("Q4_1", {("once", "float16_fma"), ("float16_mul_add", "float16_min_fma")}),
        ("Q4_K", set()),
        ("Q2_K", set()),
    ):
        fmt = FORMATS[name]
        blocks = blocks_of(fmt, 400)
        known = [a for a in ARITHMETICS if applies(a, fmt) and a not in BOUNDED and "bfloat16" not in a]
        known = [a for a in known if a != "float32_float16"]  # of outputs that are no float16
        for i, a in enumerate(known):
            for b in known[i + 1 :]:
                made = expected_values(fmt, blocks, "float16", a).values
                differ = expected_values(fmt, blocks, "float16", b).wrong(made).any()
                assert differ or (a, b) in same, (name, a, b)


def test_names_the_arithmetic() -> None:
    fmt = FORMATS["Q4_K"]
    blocks = blocks_of(fmt)
    made = expected_values(fmt, blocks, "float16", "float16_int_fma").values
    assert fitting(fmt, blocks, made, "float16") == ("float16_int_fma",)
    assert fitting(fmt, blocks, made * np.float32(1.25), "float16") == ()


def test_by_hand() -> None:
    """Q4_0, code 6 under a d with a last bit: (6 - 8)·d, and an engine that multiplies the offset."""
    d = -np.array([0x2C01], np.uint16).view(np.float16)[0]
    block = np.zeros((1, 18), np.uint8)
    block[0, :2] = np.array([d]).view(np.uint8)
    block[0, 2:] = 0x66
    fmt = FORMATS["Q4_0"]
    assert (expected_values(fmt, block, "float16").values == np.float16(-2) * d).all()
    apart = np.float16(np.float16(np.float16(6) * d) - np.float16(np.float16(8) * d))
    assert (expected_values(fmt, block, "float16", "float16_offset_mul_add").values == apart).all()
    assert apart != np.float16(-2) * d
    zero = block.copy()
    zero[0, 2:] = 0x88
    assert np.signbit(expected_values(fmt, zero).values).all()  # 0·d, as to_float has it
    assert not np.signbit(expected_values(fmt, zero, "float32", "float32_offset_fma").values).any()


def test_flushed_numbers() -> None:
    """With fast math a subnormal scale of MXFP4 may be zero; else it may not."""
    fmt = FORMATS["MXFP4"]
    block = np.full((1, 17), 0x11, np.uint8)
    block[0, 0] = 1
    zeros = np.zeros((1, 32), np.float32)
    assert expected_values(fmt, block).wrong(zeros).all()
    assert not expected_values(fmt, block, flushes=True).wrong(zeros).any()


def test_every_half_meets_every_code() -> None:
    fmt = FORMATS["Q5_0"]
    seen = np.zeros((1 << 16, 32), bool)
    for blocks in every_scale(fmt, 0):
        scales = np.ascontiguousarray(fmt.view(blocks)["d"]).view(np.uint16)
        seen[scales[:, None], fmt.codes(blocks)] = True
    assert seen.all()
