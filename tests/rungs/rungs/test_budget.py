"""Runs that may take so long and no longer, by a clock that goes on by one second each time it is looked at."""

from __future__ import annotations

import json
import math
import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_verify.certificates.make import certify
from gguf_verify.certificates.materials import collect
from gguf_verify.cli import main
from gguf_verify.gguf.model import open_model
from gguf_verify.kernels.interface import Candidate
from gguf_verify.report.writer import Form, Kind, every_writer
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs import bytes as bytes_rung
from gguf_verify.rungs.budget import Budget
from gguf_verify.rungs.rounds import in_order, kind_of, leave, rounds
from gguf_verify.rungs.run import Run
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.verification import verify
from tests.support.tools import FIXTURES, altered_kernel, flat

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
USUAL: dict[str, Any] = {"probes": "brief", "prompt": "The import", "n_predict": 1, "progress": False}
WORDS = "the budget of {} was spent"


class Clock:
    """A time that goes on whenever somebody looks at it, and where it is told to."""

    def __init__(self, step: float = 1.0) -> None:
        self.now, self._step = 0.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def run(budget: float | None, kernel: Candidate | str = "q8_1_dp4a", **options: Any) -> Report:
    rungs = options.pop("rungs", None)
    host = "cpu" if isinstance(kernel, str) else "auto"
    return verify(Q4_0, kernel, host, rungs, Options(**(USUAL | {"budget": budget} | options)), clock=Clock())


def left(result: RungResult, words: str) -> list[str]:
    return [u.name for u in result.unverified if u.why == words]


@pytest.fixture(scope="module")
def cut() -> Report:
    return run(60)


@pytest.fixture(scope="module")
def nothing() -> Report:
    return run(1.5)


# ---- whole runs ------------------------------------------------------------------------------------------------------


def test_a_budget_that_suffices_leaves_nothing() -> None:
    chosen: dict[str, Any] = {"rungs": ["layers"], "tensor": "blk.[01].attn"}
    report, without = run(1e6, **chosen), run(None, **chosen)
    assert (report.verdict, report.exit_code, report.ended_by, report.unfinished) == ("verified", 0, "", None)
    assert report.rungs[0].not_checked == without.rungs[0].not_checked
    assert sorted(g.node for g in report.rungs[0].gemms) == sorted(g.node for g in without.rungs[0].gemms)
    assert report.rungs[0].checked == without.rungs[0].checked
    assert report.rungs[0].checked["GEMMs"] == 8
    assert report.rungs[0].figures == without.rungs[0].figures
    assert [e.calls for e in report.rungs[0].envelopes] == [e.calls for e in without.rungs[0].envelopes] != []
    assert [check.done for check in report.checks] == [check.done for check in without.checks]


def test_what_it_does_not_suffice_for_is_named_and_is_no_pass(cut: Report) -> None:
    words = WORDS.format("1m")
    assert (cut.verdict, cut.exit_code) == ("not everything verified", 5)
    assert (cut.ended_by, cut.not_climbed) == ("budget", ("blocks",))
    assert [rung.name for rung in cut.rungs] == ["bytes", "layers", "tokens"]
    bytes_, layers, _ = cut.rungs
    assert bytes_.passed
    # the model's own products come before any other call
    assert {g.tensor for g in layers.gemms} == {*matrices()} - LOOKED_UP
    beside = left(layers, words)
    assert beside[-1] == "other shapes, values and schedules of Q4_0"
    assert len(beside) == 6
    assert not layers.envelopes
    assert cut.unfinished is not None
    kinds = "6 kinds of calls beside the model's own products in the layers rung"
    assert f"{words}; it left unverified: {kinds}" in cut.unfinished
    assert cut.culprits.keys() == {"coverage"}
    assert "--budget 1m" in cut.command
    assert cut.environment.options.budget == 60


#: In no product of the graph.
LOOKED_UP = {"token_embd.weight"}


def matrices() -> list[str]:
    with open_model(Q4_0) as model:
        return [name for name, tensor in model.tensors.items() if len(tensor.shape) > 1]


def test_of_the_model_a_sample_is_judged() -> None:
    """Two rungs: the layers rung is the first."""
    report, words = run(14, rungs=["blocks", "layers"]), WORDS.format("14s")
    layers = report.rungs[-1]
    assert layers.name == "layers"
    judged = {g.tensor for g in layers.gemms}
    assert 0 < len(judged) < 22
    tensors = {name for name in left(layers, words) if name in matrices()}
    assert judged.isdisjoint(tensors)
    assert judged | tensors == {*matrices()} - LOOKED_UP
    in_file = [name for name in matrices() if name in judged]
    assert in_file != [name for name in matrices() if name not in LOOKED_UP][: len(in_file)]


def test_what_is_wrong_at_other_shapes_alone(tmp_path: Path) -> None:
    """It is found if there is time for other shapes; if there is none, nothing is verified that was not tried."""
    wrong = altered_kernel(
        tmp_path, "q8_1_naive", "gemm/q8_1/01_naive.cu", "y[i] = acc", "y[i] = N % 32 ? 2.0f * acc : acc"
    )
    chosen: dict[str, Any] = {"rungs": ["layers"], "tensor": "blk.[01].attn_q"}
    report = run(1e6, wrong, **chosen)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    assert report.rungs[0].diagnosis is not None
    report = run(16, wrong, **chosen)
    assert (report.verdict, report.exit_code, report.ended_by) == ("not everything verified", 5, "budget")
    assert len(report.rungs[0].gemms) == 2
    assert left(report.rungs[0], WORDS.format("16s"))


def test_a_rung_that_is_not_begun_is_named(nothing: Report) -> None:
    assert (nothing.rungs, nothing.exit_code, nothing.ended_by) == ([], 5, "budget")
    assert nothing.not_climbed == ("bytes", "blocks", "layers", "tokens")


def test_the_bytes_rung_scans_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_rung, "_PART", 1)
    report = run(20, rungs=["bytes"])
    (result,) = report.rungs
    with open_model(Q4_0) as model:
        names = {*model.tensors}
    scanned = {record.tensor for record in result.details}
    assert 0 < len(scanned) < len(names)
    assert scanned | {*left(result, WORDS.format("20s"))} == names
    assert len(scanned) + len(left(result, WORDS.format("20s"))) == len(names)
    assert (result.fault, result.verdict) == (None, "unverified")


def test_the_tokens_rung_is_done_whole_or_not_at_all() -> None:
    report = run(12, rungs=["tokens"])
    (result,) = report.rungs
    assert left(result, WORDS.format("12s")) == ["all tokens"]
    assert not result.checked.get("tokens")
    assert (report.exit_code, report.ended_by) == (5, "budget")


def test_a_mismatch_found_before_is_one(tmp_path: Path) -> None:
    wrong = altered_kernel(tmp_path, "q8_1_naive", "gemm/q8_1/01_naive.cu", "y[i] = acc", "y[i] = 2.0f * acc")
    report = run(40, wrong, rungs=["blocks", "layers"], tensor="blk.[01]")
    assert (report.verdict, report.exit_code, report.ended_by) == ("mismatch", 1, "budget")
    assert "--budget" not in report.repeat_of()


def test_one_call_takes_what_it_takes() -> None:
    report = run(1.5, rungs=["layers"], tensor="^blk[.]0[.]attn_k[.]weight$", only_call="own")
    assert (report.verdict, report.ended_by) == ("verified", "")


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_that_is_no_time(budget: float) -> None:
    with pytest.raises(UsageError, match=r"^a budget is a time above 0"):
        run(budget)


# ---- who reads such a report -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", [w for w in every_writer() if Kind.RUN in w.renders], ids=lambda w: w.name)
def test_every_report_is_written(cut: Report, nothing: Report, writer: Any) -> None:
    form = Form(suffix=writer.suffixes[0] if writer.suffixes else "")
    made = writer.renders[Kind.RUN](cut, form)
    assert made
    if writer.flag == "--heat-map":
        with pytest.raises(EnvironmentFault, match="no heat map: the layers rung judged nothing"):
            writer.renders[Kind.RUN](nothing, form)
        return
    for text in (flat(unescape(made)), flat(unescape(writer.renders[Kind.RUN](nothing, form)))):
        if writer.flag == "--json":
            assert json.loads(text)["ended_by"] == "budget"
            assert "blocks" in json.loads(text)["not_climbed"]
        elif writer.flag == "--card":
            assert "NOT EVERYTHING VERIFIED" in text
            assert "blocks: not run" in text
        else:
            assert re.search(r"(?i)the budget of (1m|1[.]5s) was spent; .*rungs that were not begun: .*blocks", text)


def test_no_certificate_is_made(cut: Report) -> None:
    materials = collect("q8_1_dp4a")
    with pytest.raises(EnvironmentFault, match="no certificate: the time limit cut the run short"):
        certify(cut, materials, materials)


def test_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    assert main([str(Q4_0), "--host", "cpu", "--kernel", "q8_1_naive", "--budget", "0.001s", "-o", str(out)]) == 5
    shown = flat(capsys.readouterr().out)
    assert (
        "INCOMPLETE: the budget of 0.001s was spent; rungs that were not begun: bytes, blocks, layers, tokens" in shown
    )
    made = json.loads(out.read_text())
    assert (made["ended_by"], made["verdict"]) == ("budget", "not everything verified")
    assert made["environment"]["options"]["budget"] == 0.001


@pytest.mark.parametrize("value", ["", "0", "x", "1d"])
def test_a_time_that_is_none_is_one_line(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(Q4_0), "--budget", value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"argument --budget: {value!r} is not a duration above 0, such as 90, 90s, 2m or 1h" in line


def test_it_is_not_for_identification(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identify", "q8_1", str(Q4_0), "--budget", "1m"]) == 2
    assert "unknown option --budget" in capsys.readouterr().err
    assert main([str(Q4_0), "--identify", "--budget", "1m"]) == 2
    assert "--budget applies to a verification" in capsys.readouterr().err


# ---- the way through the tensors -------------------------------------------------------------------------------------


class Made:
    """A run of as much as rounds need, whose products take as many seconds as they have bytes."""

    def __init__(self, budget: float, sizes: dict[str, tuple[str, int]]) -> None:
        self.clock = Clock(0.0)
        self.tensors: dict[str, Any] = {
            name: SimpleNamespace(name=name, type=SimpleNamespace(name=kind), shape=(32, size), nbytes=size)
            for name, (kind, size) in sizes.items()
        }
        self.run: Any = SimpleNamespace(budget=Budget.of(budget, self.clock), options=SimpleNamespace(seed=0))
        self.budget, self.result = self.run.budget, RungResult(name="layers")
        self.judged: list[str] = []
        self.rounds = 0

    def climb(self, uses: int = 1, settled: frozenset[str] = frozenset()) -> None:
        refused = set[str]()
        for turn in rounds(self.run, self.tensors, settled):
            self.rounds += 1
            for name in (name for name in self.tensors if turn.chooses(name) for _ in range(uses)):
                if self.budget.spent:
                    refused.add(name)
                    continue
                self.judged.append(name)
                self.clock.now += self.tensors[name].nbytes
        leave(self.run, self.result, self.tensors, {*turn.waiting, *refused} - settled)

    @property
    def left(self) -> list[str]:
        return [u.name for u in self.result.unverified]


MANY = {f"t{i:03}": (("Q4_0", "Q8_0")[i % 5 == 0], 8) for i in range(100)}


def test_the_first_of_each_kind_come_first() -> None:
    made = Made(1e9, MANY)
    order = in_order(made.tensors, 0)
    assert sorted(order) == sorted(MANY)
    assert {kind_of(made.tensors[name])[0] for name in order[:2]} == {"Q4_0", "Q8_0"}
    assert order != in_order(made.tensors, 1)
    assert order == in_order(dict(reversed(made.tensors.items())), 0)
    made.climb()
    assert sorted(made.judged[:2]) == sorted(order[:2])
    assert (sorted(made.judged), made.left) == (sorted(MANY), [])
    assert made.rounds == 2


def test_the_time_is_spent_and_hardly_more() -> None:
    made = Made(400, MANY)
    made.climb()
    assert 400 <= made.clock.now < 400 + 8
    assert len(made.judged) == 50
    assert made.left == [name for name in MANY if name not in made.judged]
    assert made.rounds < 10
    positions = [sorted(MANY).index(name) for name in made.judged]
    assert 30 < sum(positions) / len(positions) < 70  # of the whole model


def test_what_was_judged_in_part_is_left() -> None:
    made = Made(20, dict(list(MANY.items())[:4]))
    made.climb(uses=2)
    assert len(made.judged) == 3
    assert [name for name in made.judged if made.judged.count(name) == 1] == [made.judged[-1]]
    assert made.judged[-1] in made.left
    assert len(made.left) == 3


def test_what_is_settled_is_not_left() -> None:
    made = Made(20, MANY)
    made.climb(settled=frozenset(list(MANY)[:90]))
    assert not {*made.left} & {*list(MANY)[:90]}


def test_each_rung_gets_an_equal_part_of_what_is_left() -> None:
    clock = Clock(0.0)
    whole = Budget.of(120, clock).reserve(20)
    budget = whole.share(4)
    assert budget.left == 25
    half = budget.half()
    assert half.left == 12.5
    clock.now += 12.5
    assert half.spent
    assert budget.left == 12.5
    clock.now += 2.5
    assert whole.share(2).left == 42.5
    budget = whole.share(1)
    assert budget.left == 85
    clock.now += 85
    assert budget.over


def test_without_a_budget_nothing_is_looked_at() -> None:
    budget = Budget(clock=lambda: pytest.fail("it looks at the clock"))
    budget.share(3).check()
    assert (budget.over, budget.spent, budget.left) == (False, False, math.inf)


def test_a_run_has_none_unless_it_is_asked_for() -> None:
    assert not Run(None, None).budget.limited
