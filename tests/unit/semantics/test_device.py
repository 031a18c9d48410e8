"""Exact products on a device: the same functions as on NumPy's arrays, on a double that refuses what CuPy refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.mxfp4 import MXFP4
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.semantics.declared import DECLARABLE
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import each_block, product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.narrow import NARROW
from gguf_verify.semantics.order import ASCENDING, Order
from gguf_verify.semantics.result import exact_result
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product
from gguf_verify.support.arrays import get
from gguf_verify.support.errors import EnvironmentFault
from tests.support.strict_arrays import NAMES, CardArray, StrictDevice, StrictRounding
from tests.unit.semantics.test_screen import PAIRS, operands

X = np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32)
ORDERED = SEMANTICS["q8_1"]


def test_the_double_has_no_function_that_cupy_lacks() -> None:
    cupy = pytest.importorskip("cupy")
    assert [name for name in sorted(NAMES) if not hasattr(cupy, name)] == []


def test_the_double_refuses_what_cupy_refuses() -> None:
    card = CardArray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    with pytest.raises(TypeError):
        np.asarray(card)
    with pytest.raises(TypeError):
        card + np.ones(3, np.uint8)
    with pytest.raises(TypeError):
        np.ones(256)[card]
    with pytest.raises(TypeError):
        np.unwrap(card)
    with pytest.raises(ValueError, match="contiguous"):
        card[:, :2].view(np.float16)
    with pytest.raises(ValueError, match="multiples"):
        card.reshape(6)[1:5].view(np.float32)
    small = CardArray(np.array([2.0**-127, 1], np.float32))
    assert float((small * np.float32(1)).sum()) == 1.0


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
def test_blocks_are_read_as_by_numpy(fmt: BlockFormat) -> None:
    blocks = any_blocks(fmt, 60, 3).reshape(4, 15, fmt.block_bytes)
    card: Any = CardArray(blocks)
    with np.errstate(all="ignore"):
        for read in (fmt.codes, fmt.scales, fmt.minima, fmt.decode):
            there, here = get(read(card)), read(blocks)
            assert there.dtype == here.dtype
            if fmt is MXFP4 and read == fmt.decode:  # scales below the normal numbers: such rows are left to NumPy
                there, here = (of[np.abs(fmt.scales(blocks)[..., 0]) >= 2.0**-126] for of in (there, here))
            assert np.array_equal(there, here, equal_nan=here.dtype.kind == "f"), read


def same(there: Product, here: Product) -> None:
    """Within the rounding of float64, and the same bits."""
    assert isinstance(there.exact, CardArray)
    made = there.placed(get)
    for name in ("exact", "bound", "spread"):
        np.testing.assert_allclose(getattr(made, name), getattr(here, name), rtol=1e-9, atol=1e-300, err_msg=name)
    assert (made.ordered is None) == (here.ordered is None)
    if here.ordered is not None:
        assert made.ordered is not None
        np.testing.assert_array_equal(made.ordered, here.ordered)


@pytest.mark.parametrize(
    ("semantics", "formats"), [pair for pair in PAIRS if pair.values[0].inside or pair.values[0].name in DECLARABLE]
)
def test_products_are_those_of_numpy(semantics: Semantics, formats: list[BlockFormat]) -> None:
    inner = semantics.inside or semantics
    order = ASCENDING if inner.order_known else None
    for number, fmt in enumerate(formats):
        w, _ = operands(semantics, fmt)
        blocks = max(1, 256 // fmt.block_size)
        w, x = w[:5, : blocks * fmt.block_bytes], semantics.bytes_of(X[:, : blocks * fmt.block_size])
        of_parts = Order(64) if order is not None and inner.encoding.quantizes and number % 2 else order
        device = StrictDevice(rows_at_a_time=3)
        with np.errstate(all="ignore"):
            there, here = (
                screened(semantics, fmt, w, x, of_parts, device=device),
                product(semantics, fmt, w, x, of_parts),
            )
        same(product(semantics, fmt, w, x, of_parts, device=device), here)
        y = (here.exact if here.ordered is None else here.ordered).astype(np.float32)
        finite = np.isfinite(here.exact).all(axis=0)
        judged = judge(y, there)
        assert not judged.bad[:, finite].any(), fmt.name
        assert isinstance(judged.bad, np.ndarray)
        with np.errstate(all="ignore"):
            y[1, 2] += 2.5 * here.bound[1, 2]
        if np.isfinite(y[1, 2]) and number % 8 == 0:
            wrong = judge(y, there)
            assert wrong.bad[1, 2], fmt.name
            assert isinstance(wrong.product.exact, np.ndarray)  # for those who look at it


@pytest.mark.parametrize("name", ["q8_1", "q8_1_half", "mmq"])
def test_products_of_each_block_are_those_of_numpy(name: str) -> None:
    semantics, blocks = SEMANTICS[name], 4
    order = ASCENDING if semantics.order_known else None
    for fmt in (FORMATS[kind] for kind in ("Q4_0", "Q5_1", "Q4_K", "Q6_K")):
        w = any_blocks(fmt, 5 * blocks, 4).reshape(5, -1)
        x = np.random.default_rng(2).standard_normal((3, blocks * fmt.block_size)).astype(np.float32)
        there, here = (
            each_block(semantics, fmt, w, semantics.bytes_of(x), order, 1, device)
            for device in (StrictDevice(rows_at_a_time=2), None)
        )
        assert (there is None) == (here is None)
        for got, expected in zip(there or (), here or (), strict=True):
            for field in ("exact", "bound", "spread"):
                np.testing.assert_allclose(getattr(got, field), getattr(expected, field), rtol=1e-9, atol=1e-300)
            if expected.ordered is not None:
                np.testing.assert_array_equal(got.ordered, expected.ordered)


def test_weights_are_read_once() -> None:
    """For any number of products, by definitions that read codes with their offset or without it."""
    fmt, device = FORMATS["Q4_0"], StrictDevice(rows_at_a_time=3)
    w, _ = operands(ORDERED, fmt)
    w, read = w[:7, : 4 * fmt.block_bytes], list[int]()
    for name in ("q8_1", "q8_0_cpu"):
        semantics = SEMANTICS[name]
        x = semantics.bytes_of(X[:, :128])
        same(product(semantics, fmt, w, x, device=device), product(semantics, fmt, w, x))
        np.testing.assert_allclose(
            exact_result(semantics, fmt, w, x, device=device), product(semantics, fmt, w, x).exact, rtol=1e-9
        )
        read.append(device.read)
    assert read == [1, 1]


def test_a_judgement_is_numpys() -> None:
    fmt = FORMATS["Q4_K"]
    w, x = operands(ORDERED, fmt)
    here, there = product(ORDERED, fmt, w, x), screened(ORDERED, fmt, w, x, device=StrictDevice())
    y = here.exact.astype(np.float32)
    y[0, 3] = np.nan
    y[1, 4] = np.inf
    y[2, 5] += 3 * here.bound[2, 5]
    one, other = judge(y, here), judge(y, there)
    assert (one.bad == other.bad).all()
    assert one.worst[1] in (3, 4)
    assert one.nmse == pytest.approx(other.nmse, nan_ok=True)
    y = (here.exact + 3 * here.bound).astype(np.float32)
    assert judge(y, there).bad.all()
    assert not judge(y, there, slack=4 * here.bound).bad.any()


def test_scales_below_the_normal_numbers_are_left_to_numpy() -> None:
    w = any_blocks(MXFP4, 6 * 32, 1).reshape(6, -1)
    w.reshape(6, -1, MXFP4.block_bytes)[4, :, 0] = 1  # d = 2^-127
    x = SEMANTICS["q8_1"].bytes_of(np.random.default_rng(0).standard_normal((2, 32 * 32)).astype(np.float32))
    there = product(ORDERED, MXFP4, w, x, ASCENDING, device=StrictDevice(rows_at_a_time=1))
    same(there, product(ORDERED, MXFP4, w, x, ASCENDING))
    assert get(there.exact)[:, 4].any()


@pytest.mark.parametrize("narrow", NARROW.values(), ids=list(NARROW))
def test_numbers_are_rounded_once(narrow) -> None:
    ulp = 2.0 ** (1 - narrow.bits)
    values = np.array(
        [1 + ulp / 2 + 2.0**-40, 1 + ulp / 2, 1 + 1.5 * ulp, 2.0**narrow.least * ulp * 0.75, 0, -3, 7e4, np.inf]
    )
    np.testing.assert_array_equal(get(narrow.rounded(CardArray(values))), narrow.rounded(values))


def broken(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card computes something else."""
    ufunc_of = CardArray.__array_ufunc__

    def other(self, ufunc, method, *inputs, **kwargs):
        if ufunc is np.matmul and what in ("float32", "half"):
            kind = np.float32 if what == "float32" else np.float16
            fewer = np.matmul(*(of.held.astype(kind) for of in inputs))
            return CardArray(fewer.astype(inputs[0].dtype))
        made = ufunc_of(self, ufunc, method, *inputs, **kwargs)
        if ufunc is np.bitwise_and and what == "codes" and made.dtype == np.uint8:
            made.held.reshape(-1)[0] ^= 1
        return made

    def summed(self, streams, start):
        return CardArray(sum(s.held.sum(axis=0) for s in streams).astype(np.float32) + start.held)

    monkeypatch.setattr(CardArray, "__array_ufunc__", other)
    if what == "order":
        monkeypatch.setattr(StrictRounding, "chain", summed)


@pytest.mark.parametrize(
    ("what", "said"),
    [("codes", "codes of Q4_K"), ("float32", "products in float64"), ("half", "products in float64"),
     ("order", "sums in a declared order of Q4_K by the definition q8_1")],
)  # fmt: skip
def test_a_device_that_computes_otherwise_ends_the_run(what: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fmt = FORMATS["Q4_K"]
    w, x = operands(ORDERED, fmt)
    screened(ORDERED, fmt, w, x, ASCENDING, device=StrictDevice())
    broken(what, monkeypatch)
    with pytest.raises(EnvironmentFault, match=f"the GPU computes other numbers than NumPy: {said}"):
        screened(ORDERED, fmt, w, x, ASCENDING, device=StrictDevice(sampled=8))
