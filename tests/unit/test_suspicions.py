"""An output that only its score fails: another product settles it, and without one it is not verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from gguf_verify.captured import judge_captured
from gguf_verify.gguf.file import Tensor
from gguf_verify.gguf.model import open_model
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.judging import KERNEL, Output, judge_output
from gguf_verify.rungs.remade import Remade
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.sums import Product
from tests.support.exact_products import Bytes, Floats
from tests.support.tools import FIXTURES

MODEL, TENSOR, M, N, K = FIXTURES / "tiny-Q4_0.gguf", "blk.0.attn_q.weight", 5, 256, 256
AT = (3, 200)


@dataclass(frozen=True)
class Suspected:
    """A tensor, activations, and outputs of which one is a suspicion."""

    tensor: Tensor
    rows: Bytes
    x: Floats
    y: Floats
    expected: Product

    def remade(self, factor: float) -> Remade:
        """By a kernel whose row of the suspicion is wrong by a factor."""

        def make(x: Floats) -> tuple[Floats, Bytes]:
            encoded = Q8_1_RAW.bytes_of(x)
            y = product(Q8_1_RAW, self.tensor.type.weights, self.rows, encoded).exact
            y[:, AT[1]] *= factor
            return y.astype(np.float32), encoded

        fmt = self.tensor.type.weights
        assert fmt is not None
        return Remade(Q8_1_RAW, fmt, self.rows, make, (M, K))

    def judged(self, again: Remade | None) -> tuple[RungResult, bool]:
        result = RungResult(name="layers")
        encoded = Q8_1_RAW.bytes_of(self.x)
        rows = np.arange(self.y.shape[1])
        output = Output(KERNEL, self.tensor, rows, self.y, self.expected, Q8_1_RAW, encoded, self.x, again=again)
        return result, judge_output(result, output).passed


@pytest.fixture(scope="module")
def case() -> Iterator[Suspected]:
    with open_model(MODEL) as model:
        tensor = model.tensors[TENSOR]
        rows = np.array(tensor.raw.reshape(tensor.n_rows, -1))
        x = np.random.default_rng(3).standard_normal((M, K)).astype(np.float32)
        fmt = tensor.type.weights
        assert fmt is not None
        expected = product(Q8_1_RAW, fmt, rows, Q8_1_RAW.bytes_of(x))
        for deviations in range(16, 60, 2):
            y = expected.exact.astype(np.float32)
            y[AT] = expected.exact[AT] + deviations * expected.spread[AT]
            if judge(y, expected).unsettled:
                yield Suspected(tensor, rows, x, y, expected)
                return
    raise AssertionError("no error of this output is a suspicion")


def test_it_is_not_verified_where_the_product_cannot_be_made_again(case: Suspected) -> None:
    result, passed = case.judged(None)
    assert passed  # it is no failure, but
    (left,) = result.unverified
    assert "cannot be made again" in left.why
    assert result.n_failures == 0


def test_a_product_that_is_right_clears_it(case: Suspected) -> None:
    result, passed = case.judged(case.remade(1.0))
    assert passed
    assert not result.unverified
    assert result.n_failures == 0


def test_a_product_that_is_wrong_confirms_it(case: Suspected) -> None:
    result, passed = case.judged(case.remade(1.0001))
    assert not passed
    assert result.n_failures == 1
    assert "standard deviation" in result.failures[0].what


def test_other_rows_of_that_product_are_ignored(case: Suspected) -> None:
    """Only the rows of suspicions are judged again."""
    right = case.remade(1.0)

    def make(x: Floats) -> tuple[Floats, Bytes]:
        y, encoded = right.make(x)
        y[:, 7] = 0
        return y, encoded

    assert case.judged(Remade(Q8_1_RAW, right.fmt, case.rows, make, (M, K)))[1]


def test_a_captured_product_is_not_verified(case: Suspected) -> None:
    judged = judge_captured(MODEL, TENSOR, case.x, case.y, "q8_1", threads=1)
    assert (judged.exit_code, judged.wrong) == (5, 0)
    assert any("independent roundings" in why for why in judged.left)
