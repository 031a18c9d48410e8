"""Blocks and activations with each field at each class of its number format, and matrices in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify import Shape, kernel
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q4_0 import Q4_0
from gguf_verify.formats.q4_k import Q4_K
from gguf_verify.formats.q8_0 import Q8_0
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.kernels.domain import Domain, Extent
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.field_classes import (
    FINITE_HALVES,
    classes,
    elements_of_classes,
    every_class,
    every_half,
    halves_of,
    numbers_of,
    numbers_of_classes,
    values_of_classes,
)
from gguf_verify.rungs.generated_inputs import any_blocks
from gguf_verify.rungs.plan import BLOCK_CLASSES, CLASS_ROWS, ELEMENT_CLASSES, MOST_HALVES, VALUE_CLASSES, plan
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.verification import verify
from tests.rungs.rungs.test_envelope import ONE, product
from tests.support.tools import FIXTURES

HALVES = {0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF}


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
def test_each_bit_of_a_block_is_of_one_number(fmt: BlockFormat) -> None:
    places = [at for numbers in numbers_of(fmt).values() for number in numbers for at, _ in number]
    assert sorted(places) == list(range(8 * fmt.block_bytes))


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
def test_a_plan_has_room_for_the_classes_of_every_type(fmt: BlockFormat) -> None:
    assert len(every_class(fmt, any_blocks(fmt, 9, 1))) <= CLASS_ROWS


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=FORMATS.keys())
def test_each_half_of_a_type_is_at_each_class(fmt: BlockFormat) -> None:
    made = fmt.view(every_class(fmt, any_blocks(fmt, 9, 1)))
    for field in fmt.fields:
        if field.dtype == "<f2":
            found = set(np.ascontiguousarray(made[field.name]).view("<u2").tolist())
            assert found >= HALVES | {bits | 0x8000 for bits in HALVES}


def test_each_code_and_each_scale_of_a_superblock() -> None:
    made = every_class(Q4_K, np.full((1, Q4_K.block_bytes), 0x55, np.uint8))
    codes = Q4_K.codes(made)
    assert {int(c[0]) for c in codes if (c == c[0]).all()} == set(range(16))
    view, one = Q4_K.view(made), np.ones(len(made), np.float16)
    ones = Q4_K.pack(d=one, dmin=one, scales=view["scales"], qs=view["qs"])
    for values in (Q4_K.scales(ones), -Q4_K.minima(ones)):
        usual = np.median(values, axis=0)
        for group in range(Q4_K.groups):
            alone = (values != usual).sum(axis=1) == 1
            assert {0, 1, 63} <= {float(v[group]) for v in values[alone]}


def test_the_rest_of_a_block_stays() -> None:
    usual = any_blocks(Q4_0, 1, 1)
    made = every_class(Q4_0, usual)
    same = (made == usual).reshape(len(made), -1)
    assert (same[:, :2].all(axis=1) | same[:, 2:].all(axis=1)).all()


@pytest.mark.parametrize(("width", "least"), [(1, 2), (4, 16), (8, 256), (9, 7), (16, 12), (32, 12)])
def test_the_classes_of_a_width(width: int, least: int) -> None:
    assert len(classes(width, True)) == least
    assert {0, 1 << width - 1} <= {*classes(width, True).tolist()}


def test_activations_reach_the_classes_of_scale_and_sum() -> None:
    x = values_of_classes(64)
    assert len(x) == VALUE_CLASSES
    blocks = Q8_1.view(Q8_1_RAW.bytes_of(x).reshape(len(x), 2, Q8_1.block_bytes))
    d, s = (np.ascontiguousarray(blocks[name]).view("<u2") for name in ("d", "s"))
    assert set(d.reshape(-1).tolist()) >= HALVES
    assert set(s.reshape(-1).tolist()) >= {
        bits | sign for bits in (0x3FF, 0x400, 0x3C00, 0x7BFF) for sign in (0, 0x8000)
    }
    assert ((d == 0) & (s & 0x7FFF != 0)).any()


def test_numbers_that_are_not_encoded_are_at_each_class() -> None:
    """Throughout a token, and beside zeros only, of either sign; a type of weights with its own digits."""
    x = numbers_of_classes(64)
    assert len(x) == VALUE_CLASSES == ELEMENT_CLASSES
    halves = x.astype(np.float16)
    assert (halves == x).all()
    signed = HALVES | {bits | 0x8000 for bits in HALVES}
    bits = halves.view(np.uint16)
    throughout = {int(row[0]) for row in bits if (row == row[0]).all()}
    beside = {int(row.max()) for row in bits if np.count_nonzero(row) == 1}
    assert (throughout, beside) == (signed, signed - {0, 0x8000})
    powers = np.unique(np.abs(x[np.isin(np.abs(x), np.ldexp(1.0, np.arange(-14, 16)))]))
    assert len(powers) == 30
    assert [p.n for p in plan(Domain(), 32, False, 0) if p.blocks == "each class of each field"] == [ELEMENT_CLASSES]
    for fmt in ELEMENTS.values():
        rows = elements_of_classes(fmt, 64)
        assert np.array_equal(fmt.decode(rows).view(np.uint32), fmt.round(x).view(np.uint32))


ENCODINGS = {takes.name: takes for takes in (s.activations for s in SEMANTICS.values()) if takes is not None}


@pytest.mark.parametrize("takes", ENCODINGS.values(), ids=ENCODINGS.keys())
def test_each_encoding_of_activations_is_at_each_class(takes: BlockFormat) -> None:
    """Its codes and its scales; and integer sums are those of the codes."""
    made = every_class(takes, np.full((1, takes.block_bytes), 0x11, np.uint8))
    assert len(made) <= BLOCK_CLASSES
    codes = takes.codes(made).astype(int)
    assert {int(row[0]) for row in codes if (row == row[0]).all()} == set(range(-128, 128))
    view = takes.view(made)
    for field in takes.fields:
        if field.dtype in ("<f2", "<f4"):
            found = np.unique(np.abs(np.asarray(view[field.name], np.float32)))
            assert set(np.array(sorted(HALVES), np.uint16).view(np.float16).astype(np.float32)) <= {*found}
        if field.dtype == "<i2":
            assert (view[field.name] == codes.reshape(len(codes), field.count, -1).sum(axis=-1)).all()


def test_few_tokens_at_a_time() -> None:
    probes = [p for p in plan(Domain(m=Extent(1, 1)), 32, True, 0) if p.values == "classes of encoded fields"]
    assert 1 < len(probes) < BLOCK_CLASSES
    assert len({p.first for p in probes}) == len(probes)
    (whole,) = (p for p in plan(Domain(), 32, True, 0) if p.values == "classes of encoded fields")
    assert whole.tokens == (BLOCK_CLASSES,)


@pytest.mark.parametrize("fmt", [*FORMATS.values(), *ENCODINGS.values()], ids=[*FORMATS, *ENCODINGS])
def test_each_half_by_itself_has_every_finite_value(fmt: BlockFormat) -> None:
    own = any_blocks(fmt, 1, 1)[0] if fmt.name in FORMATS else np.full(fmt.block_bytes, 0x11, np.uint8)
    numbers = halves_of(fmt)
    assert len(numbers) <= MOST_HALVES
    for name, places in numbers.items():
        made = np.unpackbits(every_half(fmt, own, name), axis=1, bitorder="little")
        values = [
            {int(v) for v in made[:, [at for at, _ in of]] @ [1 << low for _, low in of]} for of in numbers.values()
        ]
        finite = {bits for bits in range(1 << 16) if bits & 0x7C00 != 0x7C00}
        assert values == [finite if of is places else {0} for of in numbers.values()]
        assert len(made) == FINITE_HALVES == len(finite)
        others = [i for i in range(made.shape[1]) if i not in {at for of in numbers.values() for at, _ in of}]
        assert (made[:, others] == np.unpackbits(own, bitorder="little")[others]).all()


def test_every_half_is_in_parts_where_few_rows_are_allowed() -> None:
    few = [p for p in plan(Domain(n=Extent(1, 4096)), 32, True, 0) if p.blocks == "every half of a field"]
    assert {p.n for p in few} == {4096}
    assert {i for p in few for i in range(p.first, p.first + p.n)} >= set(range(MOST_HALVES * FINITE_HALVES))
    whole = [p for p in plan(Domain(), 32, True, 0) if p.blocks == "every half of a field"]
    assert [(p.n, p.first) for p in whole] == [(FINITE_HALVES, i * FINITE_HALVES) for i in range(MOST_HALVES)]
    assert not [p for p in plan(Domain(), 32, False, 0) if "every half of a field" in (p.blocks, p.values)]


Wrong = Callable[[npt.NDArray[np.float32], npt.NDArray[Any], npt.NDArray[Any]], object]


def minus_zero(y: npt.NDArray[np.float32], w: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
    y[:, (w["d"].view("<u2") == 0x8000).any(axis=1)] += 1


def largest_scale(y: npt.NDArray[np.float32], w: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
    y[:, (w["d"] == 65504).any(axis=1)] *= np.float32(0.999)


def sum_without_scale(y: npt.NDArray[np.float32], w: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
    y[((x["d"] == 0) & (x["s"] != 0)).any(axis=1)] = 0


def equal_and_negative(y: npt.NDArray[np.float32], w: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
    alike = (x["qs"] == x["qs"][..., :1]).all(axis=-1) & (x["qs"][..., 0] < 0)
    y[alike.any(axis=1)] *= np.float32(0.999)


def nothing(y: npt.NDArray[np.float32], w: npt.NDArray[Any], x: npt.NDArray[Any]) -> None:
    pass


def verified(
    gemm: Callable[[Any, Any, Shape], Any], semantics: str = "q8_1", probes: Literal["brief", "full"] = "brief"
) -> Report:
    options = Options(prompt="Once", tensor=ONE, n_predict=1, threads=2, progress=False, probes=probes)
    tried = kernel(formats=["Q4_0"], semantics=semantics)(gemm)
    return verify(FIXTURES / "tiny-Q4_0.gguf", tried, "cpu", ["layers"], options)


@pytest.mark.parametrize("wrong", [minus_zero, largest_scale, sum_without_scale, equal_and_negative, nothing])
def test_a_kernel_that_is_wrong_in_one_class(wrong: Wrong) -> None:
    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        y = product(weights, activations, shape)
        rows = np.asarray(weights).reshape(shape.n, -1, Q4_0.block_bytes)
        wrong(y, Q4_0.view(rows), Q8_1.view(np.asarray(activations).reshape(shape.m, -1, Q8_1.block_bytes)))
        return y

    report = verified(gemm)
    assert report.exit_code == (0 if wrong is nothing else 1)
    assert set(report.culprits) == (set() if wrong is nothing else {"kernel"})


def by_a_table(name: str, pattern: int) -> Callable[[Any, Any, Shape], Any]:
    """A kernel that converts halves by a table of all patterns, with one entry that is the next half."""
    table = np.arange(1 << 16, dtype=np.uint16)
    table[pattern] = pattern + 1

    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        w, x = np.array(weights), np.array(activations)
        of = (w.reshape(shape.n, -1, Q4_0.block_bytes), x.reshape(shape.m, -1, Q8_1.block_bytes))
        view = {"w": Q4_0.view(of[0])["d"], "d": Q8_1.view(of[1])["d"], "s": Q8_1.view(of[1])["s"]}.get(name)
        if view is not None:
            view[...] = table[view.view(np.uint16)].view(np.float16)
        return product(w, x, shape)

    return gemm


@pytest.mark.parametrize(
    ("name", "pattern"), [("w", 0x2A37), ("w", 0x8005), ("d", 0x2B13), ("s", 0x8123), ("none", 0)]
)  # fmt: skip
def test_a_kernel_whose_table_of_halves_has_a_wrong_entry(name: str, pattern: int) -> None:
    report = verified(by_a_table(name, pattern), probes="full")
    assert report.exit_code == (0 if name == "none" else 1)
    assert set(report.culprits) == (set() if name == "none" else {"kernel"})


def of_numbers(name: str) -> Callable[[Any, Any, Shape], Any]:
    """A kernel of float32 activations: correct, or incorrect if an activation has a class."""

    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        w, x = Q4_0.decode(np.asarray(weights).reshape(shape.n, -1, Q4_0.block_bytes)), np.asarray(activations)
        y = x @ w.reshape(shape.n, -1).T
        y[(x == {"largest": 65504, "least": 2.0**-24}.get(name, np.nan)).any(axis=1)] *= np.float32(0.99)
        return y

    return gemm


def of_bytes(name: str) -> Callable[[Any, Any, Shape], Any]:
    """A kernel of Q8_0 activations: correct, or incorrect if a scale is negative or subnormal."""

    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        w = Q4_0.decode(np.asarray(weights).reshape(shape.n, -1, Q4_0.block_bytes)).reshape(shape.n, -1)
        blocks = np.array(activations).reshape(shape.m, -1, Q8_0.block_bytes)
        d = Q8_0.view(blocks)["d"]
        if name != "correct":
            d[d < 0 if name == "negative" else np.abs(d) < 2.0**-14] = 0
        x = Q8_0.decode(blocks).reshape(shape.m, -1)
        return (x.astype(np.float64) @ w.T).astype(np.float32)  # codes are summed without rounding

    return gemm


@pytest.mark.parametrize(
    ("gemm", "semantics", "correct"),
    [
        (of_numbers("correct"), "f32", True), (of_numbers("largest"), "f32", False),
        (of_numbers("least"), "f32", False), (of_bytes("correct"), "q8_0_cpu", True),
        (of_bytes("negative"), "q8_0_cpu", False), (of_bytes("subnormal"), "q8_0_cpu", False),
    ],
    ids=["numbers", "numbers-largest", "numbers-least", "bytes", "bytes-negative", "bytes-subnormal"],
)  # fmt: skip
def test_kernels_of_other_activations(gemm: Callable[[Any, Any, Shape], Any], semantics: str, correct: bool) -> None:
    report = verified(gemm, semantics)
    assert report.exit_code == (0 if correct else 1), report.failures
    assert set(report.culprits) == (set() if correct else {"kernel"})


def test_a_kernel_that_keeps_the_first_matrix_of_a_shape() -> None:
    kept: dict[tuple[int, int], Any] = {}

    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        if (shape.m, shape.n) == (5, 40):
            weights = kept.setdefault((shape.n, shape.k), np.array(weights))
        return product(weights, activations, shape)

    report = verified(gemm)
    assert report.exit_code == 1
    assert "the last of AB in turn" in report.rungs[0].failures[0].what
    assert report.rungs[0].diagnosis is not None
    assert [fault.id for fault in report.rungs[0].diagnosis.faults] == ["cached-by-shape"]
    assert "the weights are those of matrix A" in report.rungs[0].diagnosis.faults[0].words


@pytest.mark.parametrize("operand", ["weights", "activations"])
@pytest.mark.parametrize("key", ["ends", "sum"])
def test_a_kernel_that_keeps_operands_by_some_of_their_bytes(key: str, operand: str) -> None:
    kept: dict[Any, Any] = {}

    def keep(values: Any, shape: Shape) -> Any:
        raw = np.array(values).view(np.uint8).reshape(-1)
        part = int(raw.sum()) if key == "sum" else (raw[:16].tobytes(), raw[-16:].tobytes())
        if (shape, part) not in kept:
            kept.clear()
            kept[shape, part] = np.array(values)
        return kept[shape, part]

    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        if operand == "weights":
            return product(keep(weights, shape), activations, shape)
        return product(weights, keep(activations, shape), shape)

    report = verified(gemm)
    assert report.exit_code == 1
    assert "in turn" in report.rungs[0].failures[0].what
    assert report.rungs[0].diagnosis is not None
    (fault,) = report.rungs[0].diagnosis.faults
    assert fault.id == "cached-by-shape"
    assert f"the {operand} are those of matrix" in fault.words


def test_a_kernel_that_is_wrong_where_a_matrix_comes_back() -> None:
    seen: list[bytes] = []

    def gemm(weights: Any, activations: Any, shape: Shape) -> Any:
        y, this = product(weights, activations, shape), np.asarray(weights).tobytes()
        if this in seen[:-1] and this != seen[-1]:
            y *= np.float32(0.999)
        if shape.n in (33, 40) and shape.m > 4:
            seen.append(this)
        return y

    report = verified(gemm)
    assert report.exit_code == 1
    assert "in turn" in report.rungs[0].failures[0].what
    assert report.rungs[0].diagnosis is None or "cached-by-shape" not in {
        fault.id for fault in report.rungs[0].diagnosis.faults
    }
