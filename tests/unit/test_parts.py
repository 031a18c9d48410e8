"""Sums in half over long rows hide the loss of a block, so each part of the rows is judged by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import open_model
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.judging import KERNEL, Output, judge_output
from gguf_verify.rungs.remade import PART, Remade
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.sums import Product
from tests.support.exact_products import Bytes, Floats, generator, real_weights
from tests.support.tools import FIXTURES

IN_HALF = {name: declared(name, accumulates="float16") for name in ("f16", "q8_1")}
DEFINITIONS = pytest.mark.parametrize("semantics", IN_HALF.values(), ids=list(IN_HALF))


@dataclass(frozen=True)
class Case:
    """A kernel whose outputs are exact, but for a block of the rows that it leaves out."""

    semantics: Semantics
    tensor: Tensor
    m: int
    k: int
    n: int = 24

    @property
    def fmt(self) -> BlockFormat:
        return FORMATS["Q4_0"]

    @cached_property
    def rows(self) -> Bytes:
        return real_weights(self.fmt, self.n, self.k)

    @cached_property
    def x(self) -> Floats:
        return generator("parts", str(self.k)).standard_normal((self.m, self.k)).astype(np.float32)

    def made(self, x: Floats, dropped: int | None) -> tuple[Floats, Bytes]:
        taken = x.copy()
        if dropped is not None:
            taken[:, 32 * dropped : 32 * dropped + 32] = 0
        y = product(self.semantics, self.fmt, self.rows, self.semantics.bytes_of(taken)).exact
        return y.astype(np.float32), self.semantics.bytes_of(x)

    def again(self, dropped: int | None) -> Remade:
        return Remade(self.semantics, self.fmt, self.rows, lambda x: self.made(x, dropped), (self.m, self.k))

    def judged(self, dropped: int | None, made_again: bool = True) -> tuple[RungResult, bool]:
        """By a call without that block."""
        result, (y, given) = RungResult(name="layers"), self.made(self.x, dropped)
        expected = product(self.semantics, self.fmt, self.rows, given)
        again = self.again(dropped) if made_again else None
        return result, judge_output(result, self.output(y, expected, given, again)).passed

    def output(self, y: Floats, expected: Product, given: Bytes, again: Remade | None) -> Output:
        return Output(KERNEL, self.tensor, np.arange(self.n), y, expected, self.semantics, given, again=again)


@pytest.fixture(scope="module")
def tensor() -> Iterator[Tensor]:
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as model:
        yield model.tensors["blk.0.attn_q.weight"]


@DEFINITIONS
@pytest.mark.parametrize("m", [1, 50])
@pytest.mark.parametrize("dropped", [0, 259])
def test_the_loss_of_any_block_is_found_in_its_part(semantics: Semantics, m: int, dropped: int, tensor: Tensor) -> None:
    """Also of the last one, in a part that is shorter."""
    case, wrong = Case(semantics, tensor, m, 8320), set()
    for part in case.again(dropped).parts(1.0):
        found = judge(part.y, part.expected)
        assert found.shows_blocks
        if not found.passed:
            wrong.add(part.columns.start // PART)
    assert wrong == {32 * dropped // PART}


@DEFINITIONS
def test_parts_of_a_correct_kernel_are_the_whole_row(semantics: Semantics, tensor: Tensor) -> None:
    case = Case(semantics, tensor, 5, 8320)
    parts = list(case.again(None).parts(1.0))
    assert [column for part in parts for column in part.columns] == list(range(case.k))
    assert all(judge(part.y, part.expected).passed for part in parts)
    others = [part.y.tobytes() for part in case.again(None).parts(1.0, 1)]
    assert not {*others} & {part.y.tobytes() for part in parts}


@DEFINITIONS
def test_a_long_product_that_lacks_a_block_is_a_mismatch(semantics: Semantics, tensor: Tensor) -> None:
    """By its own outputs it passes: the statistic of 24 of them cannot tell."""
    case = Case(semantics, tensor, 1, 16384)
    y, given = case.made(case.x, 511)
    alone = judge(y, product(semantics, case.fmt, case.rows, given))
    assert alone.passed
    assert not alone.shows_blocks
    result, passed = case.judged(511)
    assert not passed
    assert result.n_failures > 5
    assert "activations zero outside of columns 16,128 to 16,383" in result.failures[0].what


@DEFINITIONS
def test_a_part_that_is_not_a_number_is_a_mismatch(semantics: Semantics, tensor: Tensor) -> None:
    case = Case(semantics, tensor, 1, 16384)
    y, given = case.made(case.x, None)
    right = case.again(None)

    def make(x: Floats) -> tuple[Floats, Bytes]:
        y, encoded = right.make(x)
        return np.where(x[:, 512:513] != 0, np.float32(np.nan), y), encoded

    result = RungResult(name="layers")
    expected = product(semantics, case.fmt, case.rows, given)
    again = Remade(semantics, case.fmt, case.rows, make, (case.m, case.k))
    assert not judge_output(result, case.output(y, expected, given, again)).passed
    assert "is NaN" in result.failures[0].what
    assert result.n_failures == case.n


@DEFINITIONS
def test_a_long_product_is_verified_by_its_parts(semantics: Semantics, tensor: Tensor) -> None:
    case = Case(semantics, tensor, 1, 16384)
    result, passed = case.judged(None)
    assert passed
    assert not result.unverified
    assert result.n_failures == 0
    assert any("each such part of its rows" in note for note in result.notes)


@DEFINITIONS
def test_one_that_cannot_be_made_again_is_not_verified(semantics: Semantics, tensor: Tensor) -> None:
    result, passed = Case(semantics, tensor, 1, 16384).judged(None, made_again=False)
    assert passed
    (left,) = result.unverified
    assert left.products == 1
    assert "the loss of a single block of a row would not show" in left.why


def test_sums_in_float32_need_no_parts(tensor: Tensor) -> None:
    for name in ("f32", "q8_1"):
        case = Case(declared(name), tensor, 1, 32768, 3)
        y, given = case.made(case.x, None)
        assert judge(y, product(case.semantics, case.fmt, case.rows, given)).shows_blocks
