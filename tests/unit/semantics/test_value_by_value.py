"""Kernels of quantized activations that add each product of two values by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import diagnose
from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.semantics.declared import declaration, declared
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.order import ASCENDING
from gguf_verify.semantics.overflow import range_problem
from gguf_verify.semantics.screen import screened
from gguf_verify.semantics.sums import Product
from gguf_verify.semantics.values import exact_weights
from tests.support.exact_products import Bytes, Floats, activations, real_weights

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")

Q8_0 = FORMATS["Q8_0"]
BY_VALUE = declared("q8_1", accumulates="values")


def value_by_value(fmt: BlockFormat, w: Bytes, x: Bytes) -> Floats:
    """Both factors dequantized to float32, multiplied and added in ascending k: float32[M, N]."""
    blocks = w.reshape(len(w), -1, fmt.block_bytes)
    weights = exact_weights(fmt, blocks).reshape(len(w), -1).astype(np.float32)
    values = Q8_1_RAW.values_of(x)
    terms = values.T[:, :, None] * weights.T[:, None, :]
    return np.ascontiguousarray(np.add.accumulate(terms, axis=0, dtype=np.float32)[-1])


def with_outlier(m: int, k: int) -> Floats:
    x = activations(F32, m, k).view(np.float32).copy()
    x[:, 0] = 1000
    return x


@pytest.mark.parametrize("k", [64, 256, 1024])
def test_they_pass_by_their_own_bound(k: int) -> None:
    w, x = real_weights(Q8_0, 64, k), Q8_1_RAW.bytes_of(with_outlier(8, k))
    judgement = judge(value_by_value(Q8_0, w, x), product(BY_VALUE, Q8_0, w, x))
    assert judgement.passed
    assert judgement.utilisation < 0.2


def test_they_may_exceed_the_bound_of_exact_blocks() -> None:
    """One rounding for each value, where that bound counts one for each block."""
    w, x = real_weights(Q8_0, 256, 256), Q8_1_RAW.bytes_of(with_outlier(16, 256))
    assert judge(value_by_value(Q8_0, w, x), product(Q8_1_RAW, Q8_0, w, x)).utilisation > 1


@pytest.mark.parametrize("k", [256, 4096])
def test_one_wrong_code_fails(k: int) -> None:
    w, x = real_weights(Q8_0, 4, k), activations(Q8_1_RAW, 4, k)
    wrong = w.copy()
    wrong[2, Q8_0.block_bytes + 9] ^= 8
    judgement = judge(value_by_value(Q8_0, wrong, x), product(BY_VALUE, Q8_0, w, x))
    assert np.flatnonzero(judgement.bad.any(axis=0)).tolist() == [2]


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q6_K", "Q4_K"])
def test_the_bound_is_wider_by_the_roundings_of_values(name: str) -> None:
    fmt = FORMATS[name]
    w, x = real_weights(fmt, 4, 1024), activations(Q8_1_RAW, 2, 1024)
    of_blocks, of_values = (product(of, fmt, w, x) for of in (Q8_1_RAW, BY_VALUE))
    assert (of_values.exact == of_blocks.exact).all()
    values = min(fmt.group, 32)
    nb = 1024 // values
    parts = 2 if Q8_1_RAW.uses_sum(fmt) or fmt.has_min else 1
    ratio = (1024 + (parts - 1) * nb + 8) / (parts * nb + 8)
    np.testing.assert_allclose(of_values.bound / of_blocks.bound, ratio, rtol=1e-3)


def test_the_diagnosis_names_it() -> None:
    x = with_outlier(8, 256)
    w = real_weights(Q8_0, 64, 256)
    y = value_by_value(Q8_0, w, Q8_1_RAW.bytes_of(x))
    said = diagnose(y, Q8_0, Q8_1_RAW, w, x)
    assert said.definitions == ("q8_1, added in values",)
    assert 'semantics = "q8_1", accumulates = "values"' in "\n".join(said.lines)


def test_a_declaration_names_it_back() -> None:
    assert declaration(BY_VALUE) == 'semantics = "q8_1", accumulates = "values"'


@pytest.mark.parametrize("semantics", ["f32", "f16"])
def test_definitions_of_values_refuse_it(semantics: str) -> None:
    with pytest.raises(ValueError, match="multiplies values"):
        declared(semantics, accumulates="values")


# ---- float32 range ---------------------------------------------------------------------------------------------------
# Float32 sums that overflow: no kernel is to blame, and nothing passes.


# a user must not see NumPy's warnings


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
