"""A file's keys against its source's."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from gguf_verify.report.writer import Kind
from tests.support.audits import TINY, rule, run
from tests.support.importance_files import hugging_face
from tests.support.shown import json_of, text_of
from tests.support.tools import edited_model

Q4_0, F16 = TINY["Q4_0"], TINY["F16"]


@pytest.mark.parametrize(
    ("key", "value", "found", "expected"),
    [
        ("llama.rope.freq_base", 1e6, "'llama.rope.freq_base' of 1000000", "10000, the source's"),
        ("tokenizer.ggml.eos_token_id", 5, "'tokenizer.ggml.eos_token_id' of 5", "2, the source's"),
        ("tokenizer.ggml.add_bos_token", False, "'tokenizer.ggml.add_bos_token' of False", "True, the source's"),
        ("tokenizer.ggml.pre", "gpt-2", "'tokenizer.ggml.pre' of 'gpt-2'", "'default', the source's"),
        ("tokenizer.ggml.add_eos_token", None, "no 'tokenizer.ggml.add_eos_token'", "False, the source's"),
        (
            "tokenizer.chat_template",
            "{{ x }}",
            "'tokenizer.chat_template' of '{{ x }}'",
            "no such key, as in the sourc",
        ),
        ("general.sampling.temp", 0.5, "'general.sampling.temp' of 0.5", "no such key, as in the source"),
    ],
)
def test_a_key_that_differs_is_a_warning(key: str, value: object, found: str, expected: str, tmp_path: Path) -> None:
    result = run(edited_model(Q4_0, tmp_path / "m.gguf", {key: value}), source=F16, readers=False)
    (one,) = result.findings
    assert (one.id, one.severity, one.owner) == (rule("source-key"), "warning", key)
    assert one.found == found
    assert one.expected.startswith(expected)
    assert (result.verdict, result.exit_code) == ("warnings", 0)
    assert "30 of 30 tensors proven to be the source's; 1 of " in result.sentence
    assert " keys differs" in text_of(Kind.AUDIT, result)


@pytest.mark.parametrize(
    ("key", "at", "value", "found"),
    [
        ("tokenizer.ggml.scores", 3, 7.5, "'tokenizer.ggml.scores' of 7.5 as element 3"),
        ("tokenizer.ggml.tokens", 300, "other", "'tokenizer.ggml.tokens' of 'other' as element 300"),
    ],
)
def test_an_element_of_an_array_that_differs(key: str, at: int, value: object, found: str, tmp_path: Path) -> None:
    values = list(gguf.GGUFReader(Q4_0).fields[key].contents())
    values[at] = value
    result = run(edited_model(Q4_0, tmp_path / "m.gguf", {key: values}), source=F16, readers=False)
    assert [f.found for f in result.findings if f.id == rule("source-key")] == [found]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.name", "another name"), ("general.license", "none"), ("general.quantized_by", "someone"),
        ("quantize.imatrix.file", "words.dat"), ("general.tags", ["a", "b"]),
    ],
)  # fmt: skip
def test_keys_that_may_differ(key: str, value: object, tmp_path: Path) -> None:
    result = run(edited_model(Q4_0, tmp_path / "m.gguf", {key: value}), source=F16, readers=False)
    assert (result.findings, result.verdict) == ((), "clean")
    assert result.sentence.endswith("; all 21 compared keys agree")


def test_the_report_counts_the_keys() -> None:
    result = run(Q4_0, source=F16, readers=False)
    assert json_of(Kind.AUDIT, result)["source_keys"] == {"compared": 21, "differing": 0, "why": ""}
    assert json_of(Kind.AUDIT, run(Q4_0, readers=False))["source_keys"] is None


def test_safetensors_have_no_keys_to_compare(tmp_path: Path) -> None:
    result = run(Q4_0, source=hugging_face(tmp_path, False), readers=False)
    assert result.sentence.endswith("keys not compared: safetensors hold none")
