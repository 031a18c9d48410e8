"""Words of reports: nouns that agree with their numbers, sentences, and names that print as one harmless line."""

from __future__ import annotations

import pytest

from gguf_verify.support.text import counted, printable, sentence


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


@pytest.mark.parametrize(
    ("words", "made"),
    [
        ("the file ends", "The file ends"),
        ("", ""),
        ("x", "X"),
        ("all.", "All."),
        ("feed-forward tensors", "Feed-forward tensors"),
        ("llama.cpp reads it", "llama.cpp reads it"),
        ("general.file_type names a type", "general.file_type names a type"),
        ("d_min is not read", "d_min is not read"),
    ],
)
def test_a_sentence_begins_with_a_capital_but_names_keep_their_case(words: str, made: str) -> None:
    assert sentence(words) == made


def test_printable() -> None:
    assert printable("blk.0.attn_q.weight") == "blk.0.attn_q.weight"
    assert printable("\x1b[31m\n\0") == "\\x1b[31m\\x0a\\x00"
    assert printable("\u202eevil\u2028\ufeff\U000e0041") == "\\u202eevil\\u2028\\ufeff\\U000e0041"
    assert printable(b"\xff".decode("utf-8", "surrogateescape")) == "\\xff"
    assert printable("\\xff") == "\\\\xff"
    assert printable("né 模型") == "né 模型"
    assert printable("abc", 3) == "abc"
    assert printable("abcd", 3) == "abc…"
    assert printable("\x1b" * 10**7, 8) == "\\x1b\\x1b…"
