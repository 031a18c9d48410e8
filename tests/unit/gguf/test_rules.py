"""The registry of rules, and those of vocabularies and chat templates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gguf_verify
from gguf_verify.gguf.records import Finding
from gguf_verify.gguf.rules import RULES, Rule
from tests.unit.gguf.gguf_py import findings_of

#: Functions that make a finding, and the argument that is its rule's slug.
MAKERS = {"finding": 0, "refuse": 0, "warn": 0, "at_key": 0, "at_tensor": 0, "_refuse": 1}
#: Slugs that are put together: f"{what}-count".
COMPOSED = {"tensor-count", "key-count"}


def emitted() -> Iterator[str]:
    """The slugs that the code writes out where it makes a finding."""
    package = Path(gguf_verify.__file__).parent
    for path in (*package.glob("gguf/*.py"), *package.glob("audit/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
                at = MAKERS.get(name)
                argument = node.args[at] if at is not None and len(node.args) > at else None
                if isinstance(argument, ast.Constant):
                    yield str(argument.value)


def test_every_id_that_the_code_can_emit_has_an_entry() -> None:
    found = set(emitted())
    assert len(found) > 50
    assert found <= set(RULES)
    assert set(RULES) - found <= COMPOSED | mentioned()


def mentioned() -> set[str]:
    """Slugs that stand in the code as a string and are passed on."""
    package = Path(gguf_verify.__file__).parent
    text = "".join(
        p.read_text() for p in (*package.glob("gguf/*.py"), *package.glob("audit/**/*.py")) if p.stem != "rules"
    )
    return {slug for slug in RULES if f'"{slug}"' in text}


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_an_entry_has_reason_cause_and_cure(rule: Rule) -> None:
    assert re.fullmatch(r"GGUF-\d{3}-[a-z0-9-]+", rule.id)
    assert rule.why
    assert not rule.why.endswith(".")
    for text in (rule.cause, rule.cure):
        assert re.fullmatch(r"([A-Z]|llama\.cpp|gguf-py).{15,250}\.", text), text
        assert text == " ".join(text.split())


def test_numbers_ascend() -> None:
    numbers = [rule.number for rule in RULES.values()]
    assert numbers == sorted(set(numbers))


# ---- vocabulary ------------------------------------------------------------------------------------------------------
# Special tokens and merges against the vocabulary.


TOKENS = ["<s>", "a", "b", "ab", "abb"]


def found(path: Path, **keys: object) -> list[Finding]:
    """The findings of a file without tensors that has the vocabulary, and keys of `tokenizer.ggml.`."""
    return findings_of(path, {f"tokenizer.ggml.{name}": value for name, value in {"tokens": TOKENS, **keys}.items()})


@pytest.mark.parametrize("name", ["eos_token_id", "fim_pre_token_id", "mask_token_id", "a_new_token_id"])
@pytest.mark.parametrize(("value", "wrong"), [(0, False), (4, False), (5, True), (32000, True), (-2, True)])
def test_a_special_token_is_one_of_the_vocabulary(name: str, value: int, wrong: bool, tmp_path: Path) -> None:
    findings = found(tmp_path / "v.gguf", **{name: value})
    assert [(f.id, f.owner) for f in findings] == [("GGUF-089-special-token", f"tokenizer.ggml.{name}")] * wrong
    for f in findings:
        assert (f.found, f.severity) == (f"{value} in tokenizer.ggml.{name}", "warning")
        assert f.expected == "a token from 0 to 4 of a vocabulary of 5"


@pytest.mark.parametrize("value", [-1, (1 << 32) - 1])
def test_no_token_is_no_token(value: int, tmp_path: Path) -> None:
    """llama.cpp's LLAMA_TOKEN_NULL, signed and unsigned, stands for none."""
    assert found(tmp_path / "v.gguf", padding_token_id=value) == []


def test_several_special_tokens(tmp_path: Path) -> None:
    assert found(tmp_path / "v.gguf", eog_token_ids=[1, 4]) == []
    (one,) = found(tmp_path / "w.gguf", eog_token_ids=[1, 7, 9])
    assert one.found == "7 (and 1 more) in tokenizer.ggml.eog_token_ids"


def test_a_special_token_that_is_no_number(tmp_path: Path) -> None:
    (one,) = found(tmp_path / "v.gguf", eos_token_id="</s>")
    assert one.id == "GGUF-088-key-type"


def test_merges_of_tokens(tmp_path: Path) -> None:
    assert found(tmp_path / "v.gguf", merges=["a b", "ab b"]) == []


@pytest.mark.parametrize(
    ("merge", "why"),
    [
        ("a c", "of which 'c' is no token"),
        ("b a", "of which 'ba' is no token"),
        ("ab", "which has no space"),
        (" b", "which has no space"),
    ],
)
def test_a_merge_of_what_is_no_token(merge: str, why: str, tmp_path: Path) -> None:
    (one,) = found(tmp_path / "v.gguf", merges=["a b", merge, "ab b"])
    assert (one.id, one.owner) == ("GGUF-090-merges", "tokenizer.ggml.merges")
    assert one.found == f"1 of 3 are none, the first '{merge}' (number 1), {why}, in tokenizer.ggml.merges"
    assert "vocabulary of 5" in one.expected


def test_rows_of_the_embedding_are_the_vocabulary_where_no_tokens_are_listed(tmp_path: Path) -> None:
    embedding = {"token_embd.weight": np.ones((32, 8), np.float32)}
    findings = findings_of(tmp_path / "v.gguf", {"tokenizer.ggml.eos_token_id": 40}, embedding)
    assert [f.id for f in findings] == ["GGUF-089-special-token"]
