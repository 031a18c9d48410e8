"""Nouns that agree with their numbers."""

from __future__ import annotations

import pytest

from gguf_verify.support.text import counted


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("launches", "1 launch"),
        ("matrices that are not quantized", "1 matrix that are not quantized"),
        ("empty tensors", "1 empty tensor"),
        ("outputs at other shapes", "1 output at other shapes"),
        ("GEMMs grafted", "1 GEMM grafted"),
        ("waived", "1 waived"),
    ],
)
def test_a_noun_agrees_with_its_number(plural: str, one: str) -> None:
    assert counted(1, plural) == one
    assert counted(2000, plural) == f"2,000 {plural}"
