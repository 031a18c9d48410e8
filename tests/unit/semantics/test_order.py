"""The declared order of a sum: what it may be, and that products are computed in it or refuse it."""

from __future__ import annotations

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.semantics.definitions.f32 import F32
from gguf_verify.semantics.elements import element_product
from gguf_verify.semantics.exact import product
from gguf_verify.semantics.order import ASCENDING, Order

Q4_0 = FORMATS["Q4_0"]


@pytest.mark.parametrize("part", [0, -32, 1, 33, True, 64.0])
def test_a_part_is_a_positive_multiple_of_32_values(part: int) -> None:
    with pytest.raises(ValueError, match="positive multiple of 32"):
        Order(part)


def test_words() -> None:
    assert [str(order) for order in (ASCENDING, Order(1024))] == ["ascending k", "ascending k, in parts of 1024"]


def test_terms_of_a_part() -> None:
    assert (ASCENDING.terms(7, 32), Order(64).terms(7, 32), Order(64).terms(7, 16)) == (7, 2, 4)


def test_no_definition_states_parts_of_values_that_are_not_quantized() -> None:
    x = np.ones((1, 64), np.float32)
    with pytest.raises(ValueError, match="in parts of 32"):
        product(F32, Q4_0, np.zeros((1, 36), np.uint8), x.view(np.uint8), Order(32))
    with pytest.raises(ValueError, match="in parts of 32 for F16"):
        element_product("F16", np.zeros((1, 128), np.uint8), x, Order(32))
