"""llama.cpp's own loading of a file: vocabulary, hyper-parameters and tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gguf_verify.report.writer import Kind
from tests.support import corpus
from tests.support.audits import TINY, bytes_rung, rule, run
from tests.support.shown import json_of, text_of
from tests.support.tools import edited_model, split_model, write_model

Q4_0 = TINY["Q4_0"]
#: The changes, and llama.cpp's sentence.
NOT_LOADED: dict[str, tuple[dict[str, object], str]] = {
    "a tensor is missing": ({"without": ["blk.1.ffn_up.weight"]}, "'blk.1.ffn_up.weight' not found"),
    "a tensor too many": ({"more": {"blk.0.attn_sinks.weight": np.ones(8, np.float32)}}, "wrong number of tensors"),
    "a shape that no key has": ({"keys": {"llama.feed_forward_length": 512}}, "has wrong shape"),
    "a key is missing": ({"keys": {"llama.context_length": None}}, "key not found in model: llama.context_length"),
    "a key is wrong": ({"keys": {"llama.rope.dimension_count": 16}}, "invalid n_rot: 16"),
    "no merges": ({"keys": {"tokenizer.ggml.model": "gpt2"}}, "cannot find tokenizer merges"),
    "an unknown tokenizer": ({"keys": {"tokenizer.ggml.model": "morse"}}, "unknown tokenizer: 'morse'"),
    "fewer layers": ({"keys": {"llama.block_count": 2}}, "wrong number of tensors"),
}


@pytest.mark.parametrize("case", NOT_LOADED)
def test_a_file_that_llama_does_not_load_is_wrong(case: str, tmp_path: Path) -> None:
    changes, said = NOT_LOADED[case]
    result = run(edited_model(Q4_0, tmp_path / "m.gguf", **changes))  # type: ignore[arg-type]
    (found,) = [f for f in result.findings if f.severity == "error"]
    assert (found.id, result.exit_code) == (rule("llama-refuses"), 1)
    assert "error loading model: " in found.found
    assert said in found.found
    assert "llama.cpp   does not load, " in text_of(Kind.AUDIT, result)


def test_a_file_that_crashes_llamas_loader_is_wrong(tmp_path: Path) -> None:
    """Its header does not: the tensors that llama.cpp sees are still compared."""
    result = run(edited_model(Q4_0, tmp_path / "m.gguf", {"llama.block_count": 100_000}))
    (found,) = [f for f in result.findings if f.severity == "error"]
    assert (found.id, result.exit_code) == (rule("llama-refuses"), 1)
    assert found.found.startswith("llama.cpp crashed (SIGABRT): ")
    _, llama = result.readings[0]
    assert (llama.verdict, llama.loads, len(llama.tensors)) == ("accepted", False, 30)


def test_a_loaded_file_is_reported_as_loaded() -> None:
    result = run(Q4_0)
    _, llama = result.readings[0]
    assert (llama.loads, llama.words) == (True, "accepted and loaded, 30 tensors")
    assert json_of(Kind.AUDIT, result)["readers"][0][1]["loads"] is True


def test_the_first_part_loads_all_of_a_split_model(tmp_path: Path) -> None:
    first, *_ = split_model(Q4_0, tmp_path, 12)
    result = run(first)
    assert [llama.loads for _, llama in result.readings] == [True, None, None]
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"general.type": "adapter"}, "general.type is 'adapter', not model"),
        ({"general.type": "mmproj"}, "general.type is 'mmproj', not model"),
    ],
)
def test_a_file_that_is_no_model_is_reported_as_not_loaded(keys: dict[str, object], why: str, tmp_path: Path) -> None:
    result = run(edited_model(Q4_0, tmp_path / "m.gguf", keys, without=["blk.1.ffn_up.weight"]))
    assert result.exit_code == 0
    assert f"llama.cpp   accepted, 29 tensors: header only: {why}" in text_of(Kind.AUDIT, result)


def test_a_file_that_names_no_architecture_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(corpus.gguf([], [corpus.info("w", [32, 4], 0, 0)], [bytes(512)]).data)
    _, llama = run(path).readings[0]
    assert (llama.loads, llama.not_loaded) == (None, "the file does not declare itself a model")


def test_a_model_that_lost_its_architecture_is_not_taken_for_something_else(tmp_path: Path) -> None:
    at = Q4_0.read_bytes().index(b"general.architecture")
    raw = bytearray(Q4_0.read_bytes())
    raw[at : at + 20] = b"general.architectura"
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    result = run(path)
    assert rule("llama-refuses") in [f.id for f in result.findings]


def test_an_unknown_architecture_is_a_warning(tmp_path: Path) -> None:
    """It may be newer than this llama.cpp, or another program's."""
    rows = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    result = run(write_model(tmp_path / "m.gguf", {"w": (rows, "F32")}))
    (found,) = result.findings
    assert (found.id, found.severity, result.exit_code) == (rule("llama-architecture"), "warning", 0)
    assert result.verdict == "warnings"
    assert "unknown model architecture: 'test'" in found.found


def test_the_file_is_at_fault_in_a_verification(tmp_path: Path) -> None:
    path = edited_model(Q4_0, tmp_path / "m.gguf", without=["blk.1.ffn_up.weight"])
    report = bytes_rung(path)
    assert (report.verdict, report.culprits) == ("mismatch", {"file": 1})
    assert "error loading model: " in report.rungs[0].failures[0].what
