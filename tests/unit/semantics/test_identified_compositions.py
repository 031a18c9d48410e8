"""Which encoding and term gave outputs is identified, and the declaration to paste is proposed."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.diagnosis.diagnose import diagnose
from gguf_verify.diagnosis.identify import (
    advice,
    composed_definitions,
    definition_named,
    identify,
    identify_kernel,
    known_inputs,
    nearest_of,
)
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.definitions import SEMANTICS
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.gates import judge
from gguf_verify.semantics.terms.values import ValueTerm
from tests.support.exact_products import real_weights
from tests.support.narrow_sums import in_pairs, in_tensor_cores


@pytest.mark.parametrize(
    ("fmt", "activations", "term"),
    [("Q4_0", "q8_1", "integers"), ("Q4_K", "q8_1", "superblock_sums"), ("Q2_K", "mmq_d2s6", "mmq"),
     ("Q5_0", "mmq_ds4", "mmq"), ("Q6_K", "float16", "half_values")],
)  # fmt: skip
def test_a_pair_that_no_list_names_is_identified(fmt: str, activations: str, term: str) -> None:
    semantics, form = declared(activations=activations, term=term), FORMATS[fmt]
    w, x = real_weights(form, 16, 512), known_inputs(4, 512)
    y = product(semantics, form, w, semantics.bytes_of(x)).exact.astype(np.float32)
    found = identify(form, w, x, y)
    assert found.names[0] == semantics.name
    assert definition_named(found.names[0]) == semantics
    said = advice(SEMANTICS["q8_1"], found.names[:1], form)
    pasted = semantics.name if semantics.name in SEMANTICS else f'"{activations}", term = "{term}"'
    assert pasted in said or 'semantics = "f16"' in said
    assert identify(form, w, x, y * np.float32(1.001)).names == ()


def test_outputs_are_compared_as_the_kernel_stores_them() -> None:
    form, stored = FORMATS["Q4_1"], declared("q8_1", output="float16")
    w, x = real_weights(form, 16, 512), known_inputs(4, 512)
    half = SEMANTICS["q8_1_half"]
    exact = product(half, form, w, half.bytes_of(x)).exact
    y = exact.astype(np.float16).astype(np.float32)
    found = identify_kernel(stored, form, w, x, y, own=stored)
    assert found.names == ("q8_1_half",)
    assert advice(stored, found.names, form).endswith(
        'declare semantics = "q8_1_half", output = "float16", or compare it with llama.cpp CUDA MMVQ on GPUs with fast '
        "half"
    )


def test_sums_are_identified_of_kernels_that_have_halves_alone() -> None:
    """A bound of sums in half holds much that is wrong: who declares float32 alone is not told of it."""
    form, says = FORMATS["Q4_0"], declared("f16")
    w, x = real_weights(form, 16, 256), known_inputs(4, 256)
    assert isinstance(says.term, ValueTerm)
    a, b = says.values_of(says.bytes_of(x)).astype(np.float64), says.term.values(form, w)[0]
    y = in_pairs(a, b).astype(np.float32)
    assert not judge(y, product(says, form, w, says.bytes_of(x))).passed
    found = identify_kernel(says, form, w, x, y, own=says)
    assert "f16, added in float16" in found.names
    sums_alone = 'adds sums in float16, not in float32 as declared: add them in float32, or declare semantics = "f16", '
    assert advice(says, ("f16, added in float16",), form) == f'{sums_alone}accumulates = "float16"'
    others = ("bfloat16 × half_values, added in float16", "f16, added in float16", "f16, added in tensor")
    assert nearest_of(says, others) == ("f16, added in float16",)
    stored = declared("f16", output="float16")
    said = f'it {sums_alone}accumulates = "float16", output = "float16"'
    assert diagnose(y.astype(np.float16).astype(np.float32), form, stored, w, x).lines[0] == said
    assert nearest_of(says, ("f16", *others[:1])) == others[:1]
    by_card = in_tensor_cores(a, b, 4, 12).astype(np.float32)
    assert identify(form, w, x, y, own=SEMANTICS["q8_1"]).names == ()
    assert not judge(by_card, product(declared("f16", accumulates="tensor"), form, w, says.bytes_of(x))).passed


def test_activations_of_16_bits_are_quantized_from_what_is_handed_over() -> None:
    form, says = FORMATS["Q4_0"], declared("q8_1", takes="bfloat16")
    w, x = real_weights(form, 16, 256), known_inputs(4, 256)
    given = says.values_of(says.bytes_of(x))
    mmq = SEMANTICS["mmq"]
    y = product(mmq, form, w, mmq.bytes_of(given)).exact.astype(np.float32)
    assert identify_kernel(says, form, w, x, y, own=says).names == ("mmq",)


def test_pairs_are_distinct() -> None:
    for name in ("Q4_0", "Q8_0", "Q4_K"):
        names = [s.name for s in composed_definitions(FORMATS[name])]
        assert len(names) == len(set(names)) > 10
