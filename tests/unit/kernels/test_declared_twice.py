"""A function has one declaration: a second one would change what the first name stands for."""

from __future__ import annotations

from typing import Any

import pytest

from gguf_verify.kernels.foreign.api import kernel
from gguf_verify.support.errors import UsageError


def product(w: Any, x: Any, shape: Any) -> Any:
    return x


def test_a_second_declaration_that_differs_is_refused() -> None:
    declared = kernel(["Q4_0"], semantics="q8_1", takes="float32")(product)
    assert kernel(["Q4_0"], semantics="q8_1", takes="float32")(product) is declared
    with pytest.raises(UsageError, match=r"'product' already has another declaration: .*lambda \*given: product"):
        kernel(["Q4_0"], semantics="q8_1", takes="float16", output="float16")(product)
    assert getattr(declared, "takes", "") == "float32"
    other = kernel(["Q4_0"], semantics="q8_1", takes="float16", output="float16")(lambda *given: product(*given))
    assert getattr(other, "takes", "") == "float16"
