"""The costs of a quantization: their formulas against slow ones, their reports, and refusals."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gguf_verify.costs import open_source, predictions, read_text
from gguf_verify.costs.costs import _missing, _too_few
from gguf_verify.costs.gemms import place, relative_error
from gguf_verify.costs.predictions import _Scores
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.gguf.model import open_model
from gguf_verify.llama.process import LlamaRefused
from gguf_verify.report import run_words
from gguf_verify.report.html import charts
from gguf_verify.report.writer import Form, Kind
from gguf_verify.report.writers import HTML, MARKDOWN
from gguf_verify.results.costs import GemmCost, QuantizationCosts, TextCost
from gguf_verify.results.environment import FileInfo
from gguf_verify.results.report import Report
from gguf_verify.support.errors import UsageError
from tests.support.nights import HOSTILE, SCRIPT, run_result, validator
from tests.support.shown import json_of, text_of
from tests.support.tools import FIXTURES


def test_the_relative_error_is_that_of_its_formula() -> None:
    drawn = np.random.default_rng(1)
    x = drawn.standard_normal((5, 64)).astype(np.float32)
    source = drawn.standard_normal((7, 64)).astype(np.float16)
    fmt = FORMATS["Q8_0"]
    rows = drawn.integers(0, 60, (7, 2 * fmt.block_bytes)).astype(np.uint8)
    weights = fmt.decode(rows.reshape(7, 2, fmt.block_bytes)).reshape(7, 64)
    found = relative_error(x, rows, fmt, source.view(np.uint8), ELEMENTS["F16"])
    exact = x.astype(np.float64) @ weights.T.astype(np.float64), x.astype(np.float64) @ source.T.astype(np.float64)
    expected = np.linalg.norm(exact[0] - exact[1]) / np.linalg.norm(exact[1])
    assert found == pytest.approx(expected, rel=1e-5)


def test_rows_that_are_decoded_in_several_steps_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(2)
    x, a, b = (drawn.standard_normal((n, 32)).astype(np.float32) for n in (3, 9, 9))
    arguments = x, a.view(np.uint8), ELEMENTS["F32"], b.view(np.uint8), ELEMENTS["F32"]
    whole = relative_error(*arguments)
    monkeypatch.setattr("gguf_verify.costs.gemms._MOST_WEIGHTS", 64)
    assert relative_error(*arguments) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(
    ("weights", "source", "words"),
    [(0.0, 0.0, "zero"), (1.0, np.inf, "source's product is not finite"), (np.nan, 1.0, "product is not finite")],
)
def test_results_that_are_no_numbers(weights: float, source: float, words: str) -> None:
    made = [np.full((2, 32), v, np.float32).view(np.uint8) for v in (weights, source)]
    found = relative_error(np.ones((1, 32), np.float32), made[0], ELEMENTS["F32"], made[1], ELEMENTS["F32"])
    assert isinstance(found, str)
    assert words in found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.11.attn_q.weight", ("blk.11", "attn_q")), ("output.weight", ("", "output")),
        ("enc.blk.0.ffn_up.weight", ("enc.blk.0", "enc.ffn_up")), ("blk.x.attn_q", ("", "blk.x.attn_q")),
    ],
)  # fmt: skip
def test_layers_and_kinds(name: str, expected: tuple[str, str]) -> None:
    assert place(name) == expected


def test_predictions_are_scored_as_llama_perplexity_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definitions, written out token by token in plain Python."""
    monkeypatch.setattr(predictions, "MOST_ERROR", math.inf)
    monkeypatch.setattr(predictions, "LEAST", 1)
    monkeypatch.setattr(predictions, "LEAST_BEYOND", 0)
    drawn = np.random.default_rng(3)
    source, model = (drawn.standard_normal((70, 11)).astype(np.float32) * 3 for _ in range(2))
    following = drawn.integers(0, 11, 70).tolist()
    scores = _Scores()
    scores.add(source[:40], model[:40], following[:40])
    scores.add(source[40:], model[40:], following[40:])
    found = scores.cost("text", "", 141, 70, 2)
    divergences, losses, agreed = [], [], 0
    for p_logits, q_logits, token in zip(source.tolist(), model.tolist(), following, strict=True):
        p, q = ([math.exp(v) / math.fsum(map(math.exp, row)) for v in row] for row in (p_logits, q_logits))
        divergences.append(math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
        losses.append(-math.log(q[token]))
        agreed += p.index(max(p)) == q.index(max(q))
    assert found.kl_mean == pytest.approx(math.fsum(divergences) / 70)
    assert found.kl_max == pytest.approx(max(divergences))
    assert found.perplexity == pytest.approx(math.exp(math.fsum(losses) / 70))
    assert found.top1 == pytest.approx(agreed / 70)
    ordered = sorted(divergences)
    at = 0.9 * 69  # llama.cpp's percentile: linear between neighbours
    low = ordered[int(at)]
    assert found.kl_percentiles["90%"] == pytest.approx(low + (at - int(at)) * (ordered[int(at) + 1] - low))
    assert found.scored == 70
    assert found.enough == 0
    spread = np.std(divergences, ddof=1) / math.sqrt(70)
    assert found.errors["kl_mean"] >= spread, "that of independent predictions, or more"
    assert found.ratio == pytest.approx(found.perplexity / found.source_perplexity)


def scored(n: int, spread: float, chunks: int = 4, alike: bool = False) -> TextCost:
    """Scores of n predictions in chunks: logits of a vocabulary of 8, those of the model off by a normal distribution.

    Args:
        alike: all predictions of a chunk are the same.
    """
    drawn, scores = np.random.default_rng(5), _Scores()
    for _ in range(chunks):
        rows = 1 if alike else n // chunks
        source = drawn.standard_normal((rows, 8)).astype(np.float32)
        model = source + (spread * drawn.standard_normal((rows, 8))).astype(np.float32)
        following = drawn.integers(0, 8, rows).tolist()
        times = n // chunks // rows
        scores.add(source.repeat(times, axis=0), model.repeat(times, axis=0), following * times)
    return scores.cost("text", "", 2 * n, n // chunks, chunks)


def test_a_figure_has_its_standard_error() -> None:
    """Of many samples of a text, the errors are as large as the figures differ."""
    found = scored(40_000, 0.3)
    losses = found.errors["perplexity"] / found.perplexity
    assert losses == pytest.approx(1.05 / math.sqrt(40_000), rel=0.3), "the losses of a token differ by about 1.05"
    assert found.errors["ratio"] < found.errors["perplexity"] / 2, "the tokens are the same"
    assert {*found.errors} == {"perplexity", "source_perplexity", "ratio", "kl_mean", "top1"}
    assert "99.9%" in found.kl_percentiles
    assert "99.9%" not in scored(4000, 0.3).kl_percentiles, "4 predictions are beyond it"


def test_predictions_that_are_alike_do_not_count_as_many() -> None:
    several = [scored(4000, 0.3, chunks=16, alike=alike) for alike in (False, True)]
    assert several[1].enough > 4000 > 0
    assert several[0].enough == 0


@pytest.mark.parametrize(("n", "spread"), [(20, 0.1), (96, 0.1), (120, 3.0)])
def test_too_few_predictions_give_no_figure(n: int, spread: float) -> None:
    found = scored(n, spread)
    assert found.perplexity is None, "its standard error is more than a tenth of it"
    assert found.enough >= 2 * max(n, predictions.LEAST), "tokens of text; half of them are scored"
    if n < predictions.LEAST:
        assert found.kl_mean is found.kl_max is found.source_perplexity is found.ratio is found.top1 is None
        assert found.kl_percentiles == found.errors == {}
    again = scored(int(1.3 * found.enough / 2), spread)
    assert again.perplexity is not None, "about as much text as it says is enough"
    assert again.kl_mean is not None


def test_reports_say_how_much_text_is_needed() -> None:
    report = reported()
    few = scored(20, 0.1)
    report.costs = msgspec.structs.replace(report.costs, text=few, left=((", ".join(_missing(few)), _too_few(few)),))
    shown = text_of(Kind.RUN, report)
    needed = f"20 predictions are too few for a standard error of 10 %: about {few.enough:,} tokens of text are needed"
    for made in (shown, str(HTML.renders[Kind.RUN](report, Form()))):
        assert needed in made
        assert "KL divergence, mean" not in made
    assert " ± " not in shown


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (7.25, 0.0312, "7.250 ± 0.031"), (123.4, 12.3, "123 ± 12"), (0.0125, 0.00041, "0.01250 ± 0.00041"),
        (1.0, 0.0, "1.0000 ± 0.0000"), (math.inf, math.nan, "inf"), (7.25, None, "7.25"),
    ],
)  # fmt: skip
def test_figures_are_as_long_as_their_errors(value: float, error: float | None, words: str) -> None:
    assert run_words.with_error(value, error) == words


def test_logits_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(LlamaRefused, match="predicts 3 tokens, the model 4"):
        _Scores().add(np.ones((1, 3), np.float32), np.ones((1, 4), np.float32), [0])
    with pytest.raises(LlamaRefused, match="not finite"):
        _Scores().add(np.ones((1, 3), np.float32), np.full((1, 3), np.nan, np.float32), [0])


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"blk.1.attn_v.weight", b"blk.1.attn_z.weight", "it has no tensor blk.1.attn_v.weight"),
        (b"\x04" + bytes(7) + b"ment", b"\x04" + bytes(7) + b"mend", "another vocabulary"),
        (b"\x05" + bytes(7) + b"llama", b"\x05" + bytes(7) + b"qwen2", "its architecture is qwen2"),
    ],
)  # fmt: skip
def test_the_source_of_another_model_is_a_usage_error(tmp_path: Path, old: bytes, new: bytes, words: str) -> None:
    content = (FIXTURES / "tiny-F16.gguf").read_bytes()
    if old not in content:
        pytest.fail(f"the fixture no longer holds {old!r}")
    path = tmp_path / "other.gguf"
    path.write_bytes(content.replace(old, new, 1))
    with open_model(FIXTURES / "tiny-Q4_0.gguf") as model:
        with pytest.raises(UsageError, match=re.escape(words)):
            open_source(path, model)
        with open_source(FIXTURES / "tiny-F16.gguf", model) as source:
            assert source.tensors.keys() == model.tensors.keys()


def test_a_source_in_the_place_of_the_model_is_a_usage_error() -> None:
    with open_model(FIXTURES / "tiny-F16.gguf") as model, pytest.raises(UsageError, match="exchange the two files"):
        open_source(FIXTURES / "tiny-Q4_0.gguf", model)


def test_other_shapes_are_a_usage_error(tmp_path: Path) -> None:
    """attn_q has 256 rows, attn_k 128: they change their names."""
    content = (FIXTURES / "tiny-F16.gguf").read_bytes()
    names = [b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"]
    for old, new in ((names[0], b"?" * 19), (names[1], names[0]), (b"?" * 19, names[1])):
        content = content.replace(old, new, 1)
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with (
        open_model(FIXTURES / "tiny-Q4_0.gguf") as model,
        pytest.raises(UsageError, match=r"its blk\.0\.attn_k\.weight is 256×256, not 256×128"),
    ):
        open_source(path, model)


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff\xfe", "not UTF-8"), (b" \n", "is empty"), (None, "No such file")]
)
def test_a_text_that_cannot_be_read_is_a_usage_error(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_text(path)


def test_a_text_may_be_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gguf_verify.costs.costs.MOST_TEXT", 4)
    (tmp_path / "text").write_text("12345")
    with pytest.raises(UsageError, match="more than 4 bytes"):
        read_text(tmp_path / "text")


# ---- reports ---------------------------------------------------------------------------------------------------------


def gemm(tensor: str, error: float) -> GemmCost:
    layer, kind = place(tensor)
    return GemmCost(
        tensor=tensor, matrix=None, layer=layer, kind=kind, type="Q4_0", source_type="F16", m=4, n=64, k=64, error=error
    )


def reported(name: str = "blk.0.attn_q.weight") -> Report:
    """A run with costs; `name` is that of a tensor."""
    report = run_result()
    text = TextCost(
        text=name, sha256="00", tokens=1000, chunk=256, chunks=3, scored=381, perplexity=7.25, source_perplexity=6.5,
        kl_mean=0.0125, kl_max=0.75, kl_percentiles={"50%": 0.001, "99%": 0.5}, top1=0.9375, ratio=1.115,
        errors={"perplexity": 0.31, "source_perplexity": 0.28, "kl_mean": 0.0011, "top1": 0.0125, "ratio": 0.012},
    )  # fmt: skip
    report.costs = QuantizationCosts(
        source=FileInfo(path=f"/models/{name}", size=1, sha256=("ab",), architecture="llama", tensor_types={"F16": 1}),
        gemms=(gemm(name, 0.25), gemm("blk.0.attn_k.weight", 0.75), gemm("output.weight", 0.125)),
        text=text, left=((name, "its activations are odd"),),
    )  # fmt: skip
    return report


def test_groups_have_means_and_the_place_of_the_largest() -> None:
    costs = reported().costs
    (layer, other) = costs.by_layer
    assert (layer.name, layer.gemms, layer.mean, layer.worst) == ("blk.0", 2, 0.5, 0.75)
    assert layer.worst_tensor == "blk.0.attn_k.weight"
    assert (other.name, other.mean) == ("other", 0.125)
    assert [g.name for g in costs.by_kind] == ["attn_q", "attn_k", "output"]


def test_the_terminal_shows_them_and_the_verdict_stays() -> None:
    plain, report = run_result(), reported()
    shown = text_of(Kind.RUN, report)
    for words in ("7.25 ± 0.31, of the source 6.50 ± 0.28", "+11.5 ± 1.2 %", "0.0125 ± 0.0011", "0.75", "93.8 ± 1.2 %",
                  "381 predictions", "attn_k", "NOT MEASURED"):  # fmt: skip
        assert words in shown
    assert (report.exit_code, report.verdict) == (plain.exit_code, plain.verdict)


def test_json_holds_them_and_is_read_back() -> None:
    report = reported()
    made = json_of(Kind.RUN, report)
    validator("run").validate(made)
    assert msgspec.convert(made["costs"], QuantizationCosts) == report.costs


def test_a_model_card_holds_them() -> None:
    made = MARKDOWN.renders[Kind.RUN](reported(), Form())
    assert isinstance(made, str)
    assert "| perplexity | 7.25 ± 0.31 | 6.50 ± 0.28 |" in made
    assert "| attn&#95;k | Q4&#95;0 | 1 | 0.75000 | 0.75000 | blk.0.attn&#95;k.weight |" in made
    assert "93.8 ± 1.2 %" in made


def test_a_page_shows_them_with_a_bar_for_each_layer() -> None:
    page = HTML.renders[Kind.RUN](reported(), Form())
    assert isinstance(page, str)
    assert 'id="costs"' in page
    assert "blk.0: mean 0.5, largest 0.75 in blk.0.attn_k.weight" in page
    assert 'id="costs"' not in str(HTML.renders[Kind.RUN](run_result(), Form()))


def test_bars_are_as_high_as_their_means() -> None:
    drawn = str(charts.layer_costs(reported().costs.by_layer))
    heights = [float(h) for h in re.findall(r'<rect [^>]*height="([\d.]+)"', drawn)]
    assert heights[0] == pytest.approx(4 * heights[1], rel=1e-2)
    assert charts.layer_costs([]) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_names_stay_text(name: str) -> None:
    report = reported(name)
    for writer in (MARKDOWN, HTML):
        made = str(writer.renders[Kind.RUN](report, Form()))
        assert SCRIPT not in made
        assert "\x1b" not in made
        assert "\u202e" not in made
    assert "\x1b[31m" not in text_of(Kind.RUN, report)
