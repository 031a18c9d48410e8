"""Float32 sums that overflow: no kernel is to blame, and nothing passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.overflow import range_problem
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product
from tests.support.exact_products import Bytes, Floats

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")

Q8_0 = FORMATS["Q8_0"]


def cancelling(m: int, k: int) -> Floats:
    """Two values per row whose products pass the largest float32 and cancel."""
    x = np.zeros((m, k), np.float32)
    x[:, 0], x[:, 1] = 3e38, -3e38
    return x


def twos(n: int, k: int) -> Bytes:
    return Q8_0.encode(np.full((n, k // 32, 32), 2, np.float32)).reshape(n, -1)


def test_a_partial_sum_that_may_overflow_has_no_finite_value() -> None:
    w = twos(1, 64)
    x = cancelling(1, 64).view(np.uint8)
    p = product(F32, Q8_0, w, x)
    assert not np.isfinite(p.exact).any()
    for y in (0.0, np.inf, np.nan, -np.inf):
        assert not judge(np.full((1, 1), y, np.float32), p).passed
    problem = range_problem(F32, Q8_0, w[0], x[0])
    assert problem is not None
    assert (problem.what, problem.to_blame) == ("sum", "definition")
    assert "float32" in problem.words


def test_a_result_that_overflows_has_no_finite_value() -> None:
    w = twos(4, 64)
    x = np.full((1, 64), 3e38, np.float32).view(np.uint8)
    p = product(F32, Q8_0, w, x)
    assert not judge(np.full((1, 4), np.inf, np.float32), p).passed


def test_other_outputs_of_the_product_are_judged() -> None:
    w = twos(4, 64)
    x = np.concatenate([np.full((1, 64), 3e38, np.float32), np.ones((1, 64), np.float32)])
    p = product(F32, Q8_0, w, x.view(np.uint8))
    y = p.exact.astype(np.float32)
    assert judge(y, p).bad.tolist() == [[True] * 4, [False] * 4]


def test_weights_that_are_not_quantized() -> None:
    w = np.full((1, 64), 2, np.float32).view(np.uint8)
    p = product(F32, ELEMENTS["F32"], w, cancelling(1, 64).view(np.uint8))
    assert not np.isfinite(p.exact).any()


def test_a_screen_says_the_same() -> None:
    w = twos(256, 4096)
    x = np.zeros((64, 4096), np.float32)
    x[:32, :2], x[32:] = (3e38, -3e38), 1.0
    whole, screen = (of(F32, Q8_0, w, x.view(np.uint8)) for of in (product, screened))
    assert screen.of_rows is not None
    assert (np.isfinite(screen.exact) == np.isfinite(whole.exact)).all()


@pytest.mark.parametrize("of", [product, screened])
def test_a_declared_order_that_does_not_overflow_is_judged(of: Callable[..., Product]) -> None:
    """2·3e38 - 2·1.5e38 - … never passes the largest float32 in ascending order, whatever another order does."""
    x = np.zeros((64, 4096), np.float32)
    x[:, 0], x[:, 1], x[:, 2] = 1.5e38, -1.5e38, 1.5e38
    p = of(F32, Q8_0, twos(256, 4096), x.view(np.uint8), ASCENDING)
    assert p.ordered is not None
    assert np.isfinite(p.exact).all()
    assert judge(p.ordered, p).passed


def test_a_declared_order_that_overflows_is_not() -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :3] = 1.5e38, 1.5e38, -1.5e38
    p = product(F32, Q8_0, twos(1, 64), x.view(np.uint8), ASCENDING)
    assert not np.isfinite(p.exact).any()
