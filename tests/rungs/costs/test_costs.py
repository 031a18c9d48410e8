"""The costs of the quantization of real models, with llama.cpp."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from gguf_verify import verify
from gguf_verify.costs import predictions
from gguf_verify.llama.library import Llama
from gguf_verify.results.costs import QuantizationCosts
from gguf_verify.results.options import Options
from gguf_verify.support.errors import EnvironmentFault, UsageError
from tests.support import graphs
from tests.support.tools import FIXTURES, assert_one_line, command_here

F16, Q4_0, Q5_1 = (FIXTURES / f"tiny-{name}.gguf" for name in ("F16", "Q4_0", "Q5_1"))
TEXT = (
    "Once upon a time there was a little girl named Lily. She loved to play outside in the park. One day she saw a big "
    "tree with red apples. She wanted to eat one, but the tree was too tall. Her friend Tom came to help her. "
)
SHORT = Options(prompt="Once upon a time there was a dog", n_predict=1, probes="brief", progress=False)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "story.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def _few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts here are short, so that the models are evaluated in no time."""
    for name, least in (("LEAST", 1), ("LEAST_BEYOND", 0), ("MOST_ERROR", 1e9)):
        monkeypatch.setattr(predictions, name, least)


def costs(model: Path, source: Path, text: Path | None = None) -> QuantizationCosts:
    found = verify(model, rungs=["bytes"], options=SHORT, source=source, source_text=text)
    assert found.exit_code == 0
    assert found.costs is not None
    assert found.costs.left == ()
    return found.costs


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    with Llama() as llama:
        llama.model.open(path, 1)
        llama.model.make_context(len(tokens))
        return llama.model.evaluate(tokens).logits.astype(np.float64)


def test_perplexity_and_divergence_are_those_of_the_logits(text: Path) -> None:
    found = costs(Q4_0, F16, text).text
    with Llama() as llama:
        llama.model.open(F16, 1)
        tokens = llama.model.tokenize(TEXT)
    first = len(tokens) // 2
    assert (found.tokens, found.chunks, found.scored) == (len(tokens), 1, len(tokens) - first - 1)
    probabilities = []
    for path in (F16, Q4_0):
        rows = np.exp(logits(path, tokens)[first:-1])
        probabilities.append(rows / rows.sum(axis=1, keepdims=True))
    p, q = probabilities
    divergences = (p * np.log(p / q)).sum(axis=1)
    assert found.kl_mean == pytest.approx(divergences.mean(), rel=1e-6)
    assert found.kl_max == pytest.approx(divergences.max(), rel=1e-6)
    assert found.top1 == (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    for value, rows in ((found.source_perplexity, p), (found.perplexity, q)):
        expected = math.exp(-np.log(rows[np.arange(len(rows)), tokens[first + 1 :]]).mean())
        assert value == pytest.approx(expected, rel=1e-6)


def test_logits_are_those_of_their_tokens() -> None:
    """Of the last tokens of a batch, as of the whole batch, and as of batches that end with them."""
    with Llama() as llama:
        llama.model.open(F16, 1)
        tokens = llama.model.tokenize(SHORT.prompt)
        llama.model.make_context(len(tokens))
        whole, last = (llama.model.evaluate(tokens, first).logits for first in (0, len(tokens) - 3))
        assert np.array_equal(last, whole[-3:])
        for n in (1, 4):
            (alone,) = llama.model.evaluate(tokens[:n], n - 1).logits
            assert np.allclose(alone, whole[n - 1], atol=1e-3)
            assert not np.allclose(alone, whole[n], atol=1e-1)


def test_a_finer_type_costs_less_and_the_source_itself_nothing(text: Path) -> None:
    coarse, fine, none = costs(Q4_0, F16, text), costs(Q5_1, F16, text), costs(F16, F16, text)
    assert len(coarse.gemms) == len(fine.gemms) == len(none.gemms) == 22
    for a, b, c in zip(coarse.gemms, fine.gemms, none.gemms, strict=True):
        assert a.tensor == b.tensor == c.tensor
        assert a.error > b.error > c.error == 0.0
        assert 0.01 < a.error < 0.2  # 4 bits: steps of an eighth of the largest value
    assert coarse.text.kl_mean > fine.text.kl_mean > none.text.kl_mean == 0.0
    assert none.text.top1 == 1.0
    assert none.text.perplexity == none.text.source_perplexity == fine.text.source_perplexity


def test_a_long_text_is_cut_into_chunks(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "CHUNK", 32)
    found = costs(Q4_0, F16, text).text
    assert found.chunk == 32
    assert found.chunks == found.tokens // 32 >= 2
    assert found.scored == 15 * found.chunks


def test_a_failed_measurement_is_reported_and_changes_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise EnvironmentFault("llama.cpp died in evaluate (SIGSEGV)")

    monkeypatch.setattr(predictions, "measure", crash)
    report = verify(Q4_0, rungs=["bytes"], options=SHORT, source=F16)
    assert (report.exit_code, report.verdict) == (0, "verified")
    assert report.costs.left == (("predictions of tokens", "llama.cpp died in evaluate (SIGSEGV)"),)
    assert len(report.costs.gemms) == 22


def test_only_selected_tensors_are_measured() -> None:
    options = Options(prompt="Once upon a time", n_predict=1, tensor=r"blk\.1\.attn_[qk]", progress=False)
    found = verify(Q4_0, rungs=["bytes"], options=options, source=F16).costs
    assert {g.tensor for g in found.gemms} == {"blk.1.attn_q.weight", "blk.1.attn_k.weight"}


def test_flags_that_do_not_fit_are_usage_errors(text: Path) -> None:
    with pytest.raises(UsageError, match="needs the model's source"):
        verify(Q4_0, rungs=["bytes"], source_text=text)
    done = command_here("identify", "q8_1", Q4_0, "--source", F16)
    assert_one_line(done, 2, "unknown option --source")
    done = command_here("cost", Q4_0, "--source", FIXTURES / "no.gguf")
    assert_one_line(done, 2, "no.gguf")


@pytest.mark.parametrize(
    "name",
    ["moe", "bert", "deepseek", "t5"],
)
def test_graphs_of_other_kinds(name: str, llama: Llama, tmp_path: Path) -> None:
    """Experts, batched products, an encoder, an encoder-decoder model."""
    paths = [graphs.MODELS[name](llama, tmp_path / f"{name}-{kind}.gguf", kind) for kind in ("Q4_0", "F16")]
    found = verify(paths[0], rungs=["bytes"], options=SHORT, source=paths[1]).costs
    quantized = [g for g in found.gemms if g.type == "Q4_0"]
    assert quantized
    assert all(0.01 < g.error < 0.2 for g in quantized)  # it is the same model, in 4 bits
    if name == "moe":
        assert {g.matrix for g in quantized if g.kind == "ffn_down_exps"} <= set(range(graphs.EXPERTS))
        assert len({g.matrix for g in quantized if g.kind == "ffn_down_exps"}) > 1
    if name in ("bert", "t5"):
        assert found.left == (("predictions of tokens", "the model does not continue a text"),)
        assert found.text is None
    else:
        assert found.text.kl_mean > 0
        assert found.left == ()
