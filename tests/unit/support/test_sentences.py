"""Names are no words: they keep their case at the beginning of a sentence."""

from __future__ import annotations

import pytest

from gguf_verify.support.text import sentence


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("the file ends", "The file ends"), ("llama.cpp reads it", "llama.cpp reads it"), ("", ""), ("x", "X"),
        ("general.file_type names a type", "general.file_type names a type"), ("all.", "All."),
        ("feed-forward tensors", "Feed-forward tensors"), ("d_min is not read", "d_min is not read"),
    ],
)  # fmt: skip
def test_sentences(words: str, made: str) -> None:
    assert sentence(words) == made
