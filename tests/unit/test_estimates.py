"""Estimates of the time of a run, from records that were never measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gguf_verify.cli.runs.live import Live, about
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.kernels.domain import EVERYTHING
from gguf_verify.report.writer import Form
from gguf_verify.results.options import Options
from gguf_verify.rungs.budget import Budget
from gguf_verify.rungs.estimates import Estimate, Estimates
from gguf_verify.rungs.registry import RUNGS
from gguf_verify.verification.climb import RungBegins
from tests.support import records

NAMES = ("bytes", "blocks", "layers", "tokens")


def run(probes: str = "full", size: int = 1) -> Any:
    """Of a run as much as its estimates need: ten matrices of 256 rows and as many columns, times `size`."""
    kind = SimpleNamespace(name="Q4_0", weights=FORMATS["Q4_0"], quantized=True)
    one = SimpleNamespace(type=kind, n_rows=256 * size, k=256, nbytes=1, shape=(256, 256 * size))
    return SimpleNamespace(
        kernel=SimpleNamespace(host=SimpleNamespace(name="cpu"), domain=EVERYTHING),
        model=SimpleNamespace(parts=[SimpleNamespace(size=10_000_000)]),
        options=Options(seed=0, probes=probes, prompt="x" * 48),  # type: ignore[arg-type]
        selected=lambda: [one] * 10, uncovered=lambda tensor: None, budget=Budget(),
    )  # fmt: skip


def test_more_work_takes_longer() -> None:
    made = Estimates(run())
    each = {name: made.rung(name, False) for name in NAMES}
    assert all(each.values())
    assert made.of_rungs(NAMES).left == pytest.approx(sum(each.values()))
    assert made.rung("layers", True) < made.rung("layers", False)
    large = Estimates(run(size=100))
    assert all(large.rung(name, False) > each[name] for name in ("blocks", "layers", "tokens"))
    brief = Estimates(run("brief")).of_rungs(NAMES)
    assert brief.left == brief.quick == made.of_rungs(NAMES).quick


def test_what_was_measured_corrects_them() -> None:
    """The graph's products took three times as long as they should have: so do all others, with their tokens."""
    made, rung = Estimates(run()), records.rung("layers")
    guessed = made.own(), made.tokens, made.beside(False)
    rung.details = [records.gemm(f"t{i}", 0.1, n=256, k=256, m=12) for i in range(10)]
    rung.seconds = 3 * guessed[0]
    made.measured([records.rung("bytes"), rung])
    assert (made.own(), made.tokens, made.beside(False)) == pytest.approx([3 * seconds for seconds in guessed])
    made.measured([rung])
    assert made.own() == pytest.approx(3 * guessed[0])


def test_a_type_that_no_matrix_has_is_not_estimated() -> None:
    assert Estimates(run()).probes("Q6_K", False) == 0


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "about 10 s"), (42, "about 40 s"), (240, "about 4 min"), (7000, "about 1.9 h")]
)
def test_in_words(seconds: float, words: str) -> None:
    assert about(seconds) == words


def test_it_is_shown_before_the_run_and_while_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    live = Live(Form())
    live(RungBegins(RUNGS["bytes"], Estimate(240, 40)))
    live(RungBegins(RUNGS["blocks"], Estimate(200, 150)))
    live(RungBegins(RUNGS["tokens"], Estimate(5, 5)))
    live(RungBegins(RUNGS["tokens"]))
    said = capsys.readouterr().err
    assert said == "this run takes about 4 min; --effort quick: about 40 s\nabout 3 min left\n"
    limited = Live(Form())
    limited(RungBegins(RUNGS["bytes"], Estimate(400, 100, 180)))
    limited(RungBegins(RUNGS["layers"], Estimate(390, 90, 170)))
    said = capsys.readouterr().err
    assert said == "a whole run takes about 7 min, and the budget is about 3 min\nabout 3 min left\n"
