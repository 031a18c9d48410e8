"""A formula that has only the value, the magnitude and the roundings of a block's term."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import diagnose
from gguf_verify.diagnosis.fault import case_of
from gguf_verify.diagnosis.identify import identify
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_blocks, drawn, special
from gguf_verify.semantics.accumulation import IN_FLOAT16, SCORE_LIMIT, Accumulation
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import each_block, product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.result import exact_result
from gguf_verify.semantics.screen import bilinear
from gguf_verify.semantics.sums import Doubles, Product
from gguf_verify.semantics.term import Blocks, BlockTerm, Roundings
from gguf_verify.semantics.terms.codes import SUMS
from tests.support.exact_products import activations, real_weights
from tools.measure.inputs import Bytes, Floats


class _Formula(BlockTerm):
    """The three methods of `sums`."""

    def value(self, of: Blocks) -> tuple[Doubles, ...]:
        return SUMS.value(of)

    def magnitude(self, of: Blocks) -> Doubles:
        return SUMS.magnitude(of)

    def roundings(self, of: Blocks, accumulation: Accumulation) -> Roundings:
        return SUMS.roundings(of, accumulation)


FORMULA = replace(Q8_1_RAW, name="formula", term=_Formula(name="formula", title="as `sums`"))


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q4_K"])
@pytest.mark.parametrize("accumulation", [Q8_1_RAW.accumulation, IN_FLOAT16], ids=str)
def test_sum_bound_and_spread_follow_from_three_methods(kind: str, accumulation: Accumulation) -> None:
    fmt = FORMATS[kind]
    w, x = real_weights(fmt, 4, 512), activations(Q8_1_RAW, 3, 512)
    own, known = (replace(s, accumulation=accumulation) for s in (FORMULA, Q8_1_RAW))
    made, expected = product(own, fmt, w, x), product(known, fmt, w, x)
    for name in ("exact", "bound", "spread", "scale", "underflow"):
        assert np.array_equal(getattr(made, name), getattr(expected, name)), name
    assert np.array_equal(exact_result(own, fmt, w, x), made.exact)


def test_what_it_does_not_define_is_not_assumed() -> None:
    fmt = FORMATS["Q5_1"]
    w, x = real_weights(fmt, 4, 512), activations(Q8_1_RAW, 3, 512)
    made = product(FORMULA, fmt, w, x)
    assert (made.lanes, made.errors, made.limit) == (None, None, SCORE_LIMIT)
    assert not bilinear(FORMULA, fmt)
    assert case_of(FORMULA, fmt, w, x) is None
    with pytest.raises(ValueError, match="no definition states the order ascending k of terms of formula"):
        product(FORMULA, fmt, w, x, ASCENDING)


@pytest.mark.parametrize("name", ["value", "magnitude", "roundings"])
def test_each_of_the_three_is_needed(name: str) -> None:
    kept = {other: getattr(_Formula, other) for other in ("value", "magnitude", "roundings") if other != name}
    with pytest.raises(TypeError, match=name):
        type("Part", (BlockTerm,), kept)(name="part", title="a part of a formula")


# ---- each block ------------------------------------------------------------------------------------------------------
# The products of single blocks, computed together, are those of a call for each.


N, BLOCKS, M = 40, 5, 3
OF_BLOCKS = [name for name, s in SEMANTICS.items() if s.encoding.quantizes]


def same(made: Product, other: Product) -> None:
    for name in ("exact", "bound", "spread"):
        np.testing.assert_array_equal(getattr(made, name), getattr(other, name), name)
    if other.ordered is not None:
        assert made.ordered is not None
        np.testing.assert_array_equal(made.ordered.view(np.uint32), other.ordered.view(np.uint32))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", OF_BLOCKS)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ2_XXS", "MXFP4"])
def test_all_blocks_at_once(kind: str, name: str, ordered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt, semantics = FORMATS[kind], SEMANTICS[name]
    order = ASCENDING if ordered and semantics.order_known else None
    try:
        semantics.uses_sum(fmt)
    except ValueError:
        pytest.skip("not defined")
    w = any_blocks(fmt, N * BLOCKS, 1).reshape(N, -1)
    x = drawn((M, BLOCKS * fmt.unit), np.ones((1, 1), np.float32), 2)
    with np.errstate(all="ignore"):
        try:
            made = each_block(semantics, fmt, w, semantics.bytes_of(x), order, 2)
        except ValueError:
            pytest.skip("K is no multiple of the activations' blocks")
        if made is None:
            pytest.skip("its activations do not come by blocks of weights")
        assert len(made) == BLOCKS
        for b, of_block in enumerate(made):
            column = np.ascontiguousarray(w[:, b * fmt.block_bytes : (b + 1) * fmt.block_bytes])
            part = np.ascontiguousarray(x[:, b * fmt.unit : (b + 1) * fmt.unit])
            same(of_block, product(semantics, fmt, column, semantics.bytes_of(part), order))


# ---- minima apart ----------------------------------------------------------------------------------------------------
# `f32_apart`: what a kernel loses that multiplies offsets and minima by sums of activations, and what it must not.


APART = SEMANTICS["f32_apart"]
LIKE = np.ones((1, 32), np.float32)


def weights(fmt: BlockFormat, n: int, k: int) -> Bytes:
    """Any codes under scales of one size."""
    rng = np.random.default_rng(4)
    blocks = rng.integers(0, 256, (n * k // fmt.block_size, fmt.block_bytes), np.uint8)
    for field in fmt.fields:
        if field.dtype == "<f2":
            fmt.view(blocks)[field.name] = rng.uniform(0.01, 0.02, len(blocks)).astype(np.float16)
    return blocks.reshape(n, -1)


def apart(fmt: BlockFormat, rows: Bytes, x: Floats, late: bool = False) -> Floats:
    """Σ d·Σ q·a + m·Σ a in float32, value by value; `late`: the two sums of a row meet at its end."""
    blocks, size = rows.reshape(len(rows), -1, fmt.block_bytes), min(fmt.group, 32)
    q = fmt.codes(blocks).astype(np.float32).reshape(len(rows), -1, size)
    d, m = (np.repeat(v.reshape(len(rows), -1), fmt.group // size, axis=1).astype(np.float32)
            for v in (fmt.scales(blocks), fmt.minima(blocks)))  # fmt: skip
    y, of_minima = np.zeros((2, len(x), len(rows)), np.float32)
    for b, a in enumerate(np.split(x, x.shape[1] // size, axis=1)):
        products, total = np.zeros_like(y), np.zeros((len(x), 1), np.float32)
        for i in range(size):
            products, total = products + a[:, i, None] * q[:, b, i], total + a[:, i, None]
        if late:
            y, of_minima = y + d[:, b] * products, of_minima + m[:, b] * total
        else:
            y = y + (d[:, b] * products + m[:, b] * total)
    return np.asarray(y + of_minima, np.float32)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"])
def test_what_is_lost_is_within_its_bound_alone(name: str, late: bool) -> None:
    fmt = FORMATS[name]
    rows, x = weights(fmt, 48, 1024), special(1024, LIKE, 1e6)
    y = apart(fmt, rows, x, late)
    right = product(APART, fmt, rows, F32.bytes_of(x))
    f32 = product(F32, fmt, rows, F32.bytes_of(x))
    found = judge(y, right)
    assert found.passed
    assert 0 < found.utilisation < 0.2
    assert found.score < 4
    assert (np.abs(right.exact - f32.exact) <= right.bound * (1e-6 if fmt.offset or not fmt.has_min else 1)).all()
    if fmt.offset:  # it fails where an outlier meets the code that stands for zero
        assert not judge(y, f32).passed


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K"])
def test_one_wrong_code_fails(name: str) -> None:
    fmt = FORMATS[name]
    rows, x = weights(fmt, 16, 2048), drawn((4, 2048), LIKE, 3)
    wrong = rows.copy()
    wrong[5, fmt.block_bytes * 3 - 1] ^= 1  # in the last byte of a block, where codes are
    assert judge(apart(fmt, rows, x), product(APART, fmt, rows, F32.bytes_of(x))).passed
    assert (~judge(apart(fmt, wrong, x), product(APART, fmt, rows, F32.bytes_of(x))).bad.all(axis=0)).sum() == 15


def test_a_kernel_that_declares_f32_is_told() -> None:
    fmt = FORMATS["Q4_0"]
    rows, x = weights(fmt, 48, 1024), special(1024, LIKE, 1e6)
    y = apart(fmt, rows, x)
    assert identify(fmt, rows, x, y).names == ("f32_apart",)
    said = diagnose(y, fmt, F32, rows, x)
    assert said.verdict == "another definition"
    assert "declare f32_apart" in said.lines[0]
    # what fits the narrow bound is not called by the name of the wide one
    ordinary = drawn((4, 1024), LIKE, 3)
    exact = product(F32, fmt, rows, F32.bytes_of(ordinary)).exact.astype(np.float32)
    assert identify(fmt, rows, ordinary, exact).names == ("f32",)
