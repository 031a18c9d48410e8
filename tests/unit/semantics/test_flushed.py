"""Kernels that are compiled to flush float32 numbers below 2^-126 to zero: that is the definition's, not theirs."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.sums import Product

MXFP4 = FORMATS["MXFP4"]
M, N, BLOCKS = 5, 24, 8
F = np.float32


def ftz(values: np.ndarray) -> np.ndarray:
    """As -ftz=true has each operand and result."""
    values = np.asarray(values, F)
    return np.where(np.abs(values) < 2.0**-126, F(0), values)


def weights(exponents: tuple[int, int]) -> np.ndarray:
    """uint8[N, row bytes] whose scales have exponents in this range."""
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 256, (N, BLOCKS, MXFP4.block_bytes), np.uint8)
    rows[..., 0] = rng.integers(*exponents, (N, BLOCKS))
    return rows.reshape(N, -1)


def activations(size: float) -> np.ndarray:
    return (np.random.default_rng(4).standard_normal((M, 32 * BLOCKS)) * size).astype(F)


def scale(rows: np.ndarray) -> np.ndarray:
    """float32[N, blocks]."""
    blocks = rows.reshape(N, BLOCKS, -1)
    return MXFP4.scales(blocks)[..., 0].astype(F)


def by_codes(rows: np.ndarray, x: np.ndarray, low: int = 0) -> np.ndarray:
    """Integer sums of blocks, times both scales, one block after the other. Weights' exponents up to `low` count as
    zero, which is wrong."""
    q8 = SEMANTICS["q8_1"]
    a, blocks = q8.encoding.operands(q8.bytes_of(x), 32), rows.reshape(N, BLOCKS, -1)
    codes = MXFP4.codes(blocks).astype(np.float64)
    d = np.where(blocks[..., 0] < low, F(0), scale(rows))
    y = np.zeros((M, N), F)
    for b in range(BLOCKS):
        sums = (a.q[b].astype(np.float64) @ codes[:, b].T).astype(F)
        both = ftz(ftz(d[:, b])[None] * ftz(a.d[b].astype(F)))
        y = ftz(y + ftz(both * sums))
    return y


def by_values(rows: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Decoded weights times values, one after the other."""
    codes = MXFP4.codes(rows.reshape(N, BLOCKS, -1)).astype(F)
    w = ftz(ftz(scale(rows))[..., None] * codes).reshape(N, -1)
    y = np.zeros((M, N), F)
    for k in range(w.shape[1]):
        y = ftz(y + ftz(ftz(x[:, k])[:, None] * w[:, k]))
    return y


KERNELS = {"q8_1": by_codes, "f32": by_values}


def expected(name: str, rows: np.ndarray, x: np.ndarray) -> Product:
    semantics = SEMANTICS[name]
    return product(semantics, MXFP4, rows, semantics.bytes_of(x))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [2.0**-20, 1.0, 2.0**12])
@pytest.mark.parametrize("exponents", [(0, 1), (0, 2), (0, 20), (0, 255 - 80)])
def test_a_kernel_that_flushes_is_right(name: str, size: float, exponents: tuple[int, int]) -> None:
    rows, x = weights(exponents), activations(size)
    with np.errstate(all="ignore"):
        y = KERNELS[name](rows, x)
    assert judge(y, expected(name, rows, x)).passed


def test_what_is_flushed_would_be_wrong_by_rounding_alone() -> None:
    """So the tests above test something."""
    rows, x = weights((0, 1)), activations(1.0)
    for name, kernel in KERNELS.items():
        exact = expected(name, rows, x).exact
        assert (np.abs(kernel(rows, x) - exact) > 2.0**-20 * np.abs(exact)).all()


@pytest.mark.parametrize("size", [2.0**10, 2.0**14])
def test_an_error_in_the_least_scales_is_found_where_values_are_normal(size: float) -> None:
    """Scales of 2^-126 and 2^-125 that count as zero, with activations for which nothing is flushed."""
    rows, x = weights((2, 4)), activations(size)
    right = expected("q8_1", rows, x)
    assert judge(by_codes(rows, x), right).passed
    assert not judge(by_codes(rows, x, low=4), right).passed


@pytest.mark.parametrize("name", KERNELS)
def test_ordinary_scales_leave_no_room(name: str) -> None:
    rows, x = weights((110, 124)), activations(1.0)
    made, fmt = expected(name, rows, x), MXFP4
    larger = rows.copy()
    larger.reshape(N, BLOCKS, -1)[..., 0] += 100  # 2^100 times as much, of which nothing can be flushed
    other = expected(name, larger, x)
    assert fmt.block_size == 32
    np.testing.assert_array_equal(made.bound * 2.0**100, other.bound)
    np.testing.assert_array_equal(made.spread * 2.0**100, other.spread)


def test_zeros_stay_exact() -> None:
    """Where all codes are zero, so must the output be."""
    rows = weights((0, 1))
    rows.reshape(N, BLOCKS, -1)[..., 1:] = 0
    for name in KERNELS:
        made = expected(name, rows, activations(1.0))
        assert not made.bound.any()
        assert not made.spread.any()
