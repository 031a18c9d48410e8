"""The encoders of activations against llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gguf_verify.llama.library import Llama
from gguf_verify.semantics.definitions.q8_0_cpu import encode_q8_0_cpu
from gguf_verify.semantics.definitions.q8_1_cpu import encode_q8_1_cpu
from gguf_verify.semantics.definitions.q8_k_cpu import encode_q8_k
from tests.support.exact_products import ACTIVATIONS, SUPERBLOCKS, Bytes, Floats, assert_same_blocks, generator

# a user must not see NumPy's warnings
pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize("case", ACTIVATIONS)
@pytest.mark.parametrize(("type_id", "size", "encode"), [(8, 34, encode_q8_0_cpu), (9, 36, encode_q8_1_cpu)])
def test_cpu_encoders_are_llama_cpps(
    type_id: int, size: int, encode: Callable[[Floats], Bytes], case: Callable[[np.random.Generator], Floats],
    llama: Llama,
) -> None:  # fmt: skip
    """NaN is left out: which operand maxps keeps depends on its lane."""
    if "AVX" not in llama.versions()["system"]:
        pytest.skip("the encoders restate the x86 SIMD code of llama.cpp, which this build does not run")
    x = case(generator(case.__name__))
    assert_same_blocks(encode(x), llama.from_float(type_id, x), x, size)


@pytest.mark.parametrize("case", SUPERBLOCKS)
def test_q8_k_encoder_is_llama_cpps(case: Callable[[np.random.Generator], Floats], llama: Llama) -> None:
    x = case(generator("q8_k", case.__name__))
    assert_same_blocks(encode_q8_k(x), llama.from_float(15, x), x, 292)
