"""How tensor cores align products of halves, on the GPU itself: the model that the bound of `tensor` rests on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.choice import make_host
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.kernels.shipped import ShippedKernel
from gguf_verify.rungs.layers.orders import probes_of
from gguf_verify.semantics.declared import IN_TENSOR_CORES
from gguf_verify.semantics.narrow import NARROW
from scripts.tensor_cores import SOURCE, Multiply, instruction, probed
from tests.support.exact_products import real_weights
from tests.support.narrow_sums import in_tensor_cores

pytestmark = pytest.mark.needs("gpu")
TYPES = {"float16": "mma_f16", "bfloat16": "mma_bf16"}


def multiply_in(kind: str) -> Multiply:
    import cupy

    return instruction(cupy.RawModule(code=SOURCE.read_text(), backend="nvrtc"), cupy, TYPES[kind], kind)


def factors(what: str, kind: str, shape: tuple[int, int], seed: int) -> npt.NDArray[np.float64]:
    rng, narrow = np.random.default_rng(seed), NARROW[kind]
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)
    if what == "subnormal":
        values = rng.integers(1, 4, shape) * narrow.normal * 2.0 ** (1 - narrow.bits)
    elif what == "zeros":
        values *= rng.random(shape) < 0.5
    return np.asarray(narrow.rounded(values))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("of_a", ["normal", "zeros"])
@pytest.mark.parametrize("of_w", ["normal", "subnormal", "zeros"])
def test_products_are_aligned_by_the_exponents_of_their_factors(kind: str, of_a: str, of_w: str) -> None:
    """Every bit of 25,600 outputs. Subnormal factors have the exponent of the smallest normal number."""
    multiply, least = multiply_in(kind), NARROW[kind].least
    products, fraction = probed(multiply)
    raised = 2.0**30 if kind == "bfloat16" else 1.0  # results are normal numbers
    for seed in range(200):
        a, w = raised * factors(of_a, kind, (16, 16), seed), factors(of_w, kind, (8, 16), 1000 + seed)
        got = multiply(a.astype(np.float32), w.astype(np.float32), np.zeros((16, 8), np.float32))
        expected = in_tensor_cores(a, w, products, fraction, least).astype(np.float32)
        assert np.array_equal(got, expected), seed


@pytest.mark.parametrize("kind", TYPES)
def test_a_factor_of_zero_has_no_exponent(kind: str) -> None:
    """With that of the smallest normal half, 2^-26 would be cut off beside it: 2^(15 - 14 - F)."""
    multiply, nothing = multiply_in(kind), np.zeros((16, 8), np.float32)
    a, w = np.zeros((16, 16), np.float32), np.zeros((8, 16), np.float32)
    a[:, 0] = 2.0**15
    a[:, 1], w[:, 1] = 2.0**-13, 2.0**-13
    assert (multiply(a, w, nothing) == 2.0**-26).all()
    a[:, 0], w[:, 0] = 0, 2.0**15
    assert (multiply(a, w, nothing) == 2.0**-26).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K"])
def test_the_order_of_a_kernel_is_found(kind: str) -> None:
    """The products of an instruction are one term, whose bits are those of the model above."""
    kernel, fmt = ShippedKernel(KERNELS["f16_mma"], make_host("gpu", 0)), FORMATS[kind]
    assert isinstance(fmt, BlockFormat)
    found = probes_of(kernel, IN_TENSOR_CORES, fmt, real_weights(fmt, 64, 512), 1).order(8, 64, 512)
    assert str(found.rule) == "ascending k"
    assert "products of an instruction, cut off at F = " in found.arithmetic.words
