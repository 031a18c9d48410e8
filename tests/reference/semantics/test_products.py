"""llama.cpp's products pass as the definition that it computes, and fail as any other."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.llama.library import Llama
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.definitions.q8_0_cpu import Q8_0_CPU
from gguf_verify.semantics.definitions.q8_1 import Q8_1_RAW
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from tests.support.exact_products import QK_K, Floats, activations, generator, random_weights, real_weights, whole_row

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_llama_cpp_passes_and_the_other_definition_fails(fmt: BlockFormat, llama: Llama) -> None:
    """llama.cpp's own product of each block meets its declared semantics, and no other."""
    semantics = llama_cpu_semantics(fmt)
    size = fmt.block_size
    k = whole_row(fmt, 256) if size < QK_K else 2 * QK_K
    w = real_weights(fmt, 16, k)
    x = activations(F32, 4, k).view(np.float32)
    y = llama.block_products(fmt.type_id, w, x)
    assert y.shape == (k // size, 4, 16)
    # without an offset or minimum, these differ only where a code was rounded the other way
    near = Q8_1_RAW if semantics is Q8_0_CPU and not fmt.offset else None
    for b in range(k // size):
        block = slice(b * fmt.block_bytes, (b + 1) * fmt.block_bytes)
        part = np.ascontiguousarray(x[:, b * size : (b + 1) * size])
        for other in (semantics, Q8_1_RAW, F32):
            encoded = part.view(np.uint8) if other.encode is None else other.encode(part)
            judgement = judge(y[b], product(other, fmt, np.ascontiguousarray(w[:, block]), encoded))
            if other is semantics:
                assert judgement.passed
            elif other is not near:
                assert not judgement.passed


def mostly_zero(rng: np.random.Generator, n: int, k: int) -> Floats:
    x = rng.normal(size=(n, k)) * 0.02
    x[rng.random((n, k)) < 0.97] = 0
    return x.astype(np.float32)


def one_large(rng: np.random.Generator, n: int, k: int) -> Floats:
    """One weight of each 256 a thousand times the others, whose codes become zero."""
    x = rng.normal(size=(n, k)) * 1e-3
    x[:, rng.integers(0, QK_K) :: QK_K] = 1
    return x.astype(np.float32)


def few_outliers(rng: np.random.Generator, m: int, k: int) -> Floats:
    x = rng.normal(size=(m, k))
    x[rng.random((m, k)) < 0.005] *= 3000
    return x.astype(np.float32)


def all_alike(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Every code near 127: zero points multiplied apart are as large as they can be."""
    return (rng.uniform(0.98, 1, (m, k)) * rng.choice([-1, 1], (m, 1))).astype(np.float32)


def alternating(rng: np.random.Generator, m: int, k: int) -> Floats:
    """Signs that cancel between neighbours, or between the halves of 32."""
    period = rng.choice([1, 8, 16], (m, 1))
    return (rng.uniform(0.9, 1, (m, k)) * np.where(np.arange(k) // period % 2, -1, 1)).astype(np.float32)


def one_block(rng: np.random.Generator, m: int, k: int) -> Floats:
    """All in the first 256 values, and next to nothing after them."""
    return (rng.normal(size=(m, k)) * np.where(np.arange(k) < QK_K, 1000, 1e-3)).astype(np.float32)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_llama_cpp_passes_on_adversarial_values(fmt: BlockFormat, llama: Llama) -> None:
    """What llama.cpp adds up apart and cancels late is in the bound and the spread, for all of its types."""
    semantics = llama_cpu_semantics(fmt)
    assert semantics.encode is not None
    rng = generator("adversarial", fmt.name)
    n, k = 16, 1024
    alike = real_weights(fmt, n, k, "alike")
    structs = fmt.view(alike.reshape(-1, fmt.block_bytes))
    structs["qs" if "qs" in fmt.dtype.names else "ql"] = 0
    weights = {"random": real_weights(fmt, n, k), "wild": random_weights(fmt, n, k), "alike": alike}
    # the grids of IQ1 and IQ2 take llama.cpp many seconds to search, and have no zero to be found
    for values in () if fmt.name.startswith(("IQ1", "IQ2")) else (mostly_zero, one_large):
        x = values(rng, n, k)
        weights[values.__name__] = llama.quantize(fmt.type_id, x, np.ones(k, np.float32))
    for given in (few_outliers, all_alike, alternating, one_block):
        x = given(rng, 16, k)
        for name, w in weights.items():
            p = product(semantics, fmt, w, semantics.encode(x))
            for y in (llama.multiply(fmt.type_id, w, x), llama.block_products(fmt.type_id, w, x).sum(axis=0)):
                judgement = judge(y, p)
                said = f"{name}, {given.__name__}: utilisation {judgement.utilisation:.3g}, score {judgement.score:.3g}"
                assert judgement.passed, said
                assert judgement.utilisation < 0.5, said
