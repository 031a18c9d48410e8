"""Runs that end before their last rung: -x, Ctrl-C, SIGTERM and SIGHUP; and what is told while they run."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from gguf_verify.cli import main
from gguf_verify.cli.common import internal_errors
from gguf_verify.cli.interrupts import interruptible, undisturbed
from gguf_verify.cli.runs.live import MOST_FAILURES, Live
from gguf_verify.gguf.model import open_model
from gguf_verify.kernels.interface import Candidate
from gguf_verify.report.writer import Form, Kind
from gguf_verify.results.options import Options
from gguf_verify.rungs.run import Run
from gguf_verify.support.errors import Interrupted
from gguf_verify.verification import verify
from gguf_verify.verification.climb import Event, Failed, RungBegins, RungEnds
from tests.support.shown import last_line, text_of
from tests.support.tools import FIXTURES, altered_kernel, flat

Q4_0 = FIXTURES / "tiny-Q4_0.gguf"
ONE = Options(probes="brief", prompt="The import", n_predict=1, tensor="blk.0.attn_k", progress=False)
RAISES = """
from gguf_verify import kernel


@kernel(formats=["Q4_0"], semantics="q8_1")
def gemm(weights, activations, shape):
    return helper(weights)


def helper(weights):
    raise ValueError("too bad\\nin two lines")
"""


class Told:
    """Keeps the events in words, and raises an error at one of them."""

    def __init__(self, raises: BaseException | None = None, at: str = "") -> None:
        self.said: list[str] = []
        self._raises, self._at = raises, at

    def __call__(self, event: Event) -> None:
        match event:
            case RungBegins(rung):
                words = f"begins {rung.name}"
            case Failed(result, failure):
                words = f"failed {result.name}: {failure.tensor}"
            case RungEnds(result):
                words = f"ends {result.name}"
            case _:
                raise AssertionError(event)
        self.said.append(words)
        if self._raises is not None and words == self._at:
            raise self._raises


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Candidate:
    folder = tmp_path_factory.mktemp("wrong")
    return altered_kernel(folder, "q8_1_naive", "gemm/q8_1/01_naive.cu", "y[i] = acc", "y[i] = 2.0f * acc")


def test_the_first_failure_may_end_the_run(wrong: Candidate) -> None:
    told = Told()
    options = Options(**{**vars(ONE), "exit_first": True})
    report = verify(Q4_0, wrong, options=options, told=told)
    assert list(dict.fromkeys(told.said)) == [
        "begins bytes", "ends bytes", "begins blocks", "failed blocks: blk.0.attn_k.weight", "ends blocks",
    ]  # fmt: skip
    assert told.said.count("failed blocks: blk.0.attn_k.weight") == len(report.failures)
    assert (report.verdict, report.exit_code, report.ended_by) == ("mismatch", 1, "first failure")
    assert report.not_climbed == ("layers", "tokens")
    assert "rungs that were not begun: layers, tokens" in flat(text_of(Kind.RUN, report, width=80))


@pytest.fixture(scope="module")
def waivers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waivers") / "known.toml"
    path.write_text('[[waiver]]\ntensor = "blk.0.attn_[qk].weight"\nreason = "known"\nuntil = 2999-01-01\n')
    return path


TWO = Options(**{**vars(ONE), "exit_first": True, "tensor": "blk.0.attn_[kqv]"})


@pytest.mark.parametrize("rungs", [["blocks"], ["layers"], ["tokens"]])
def test_the_first_failure_ends_the_rung_too(wrong: Candidate, rungs: list[str]) -> None:
    """What was found until then is kept, and explained."""
    report = verify(Q4_0, wrong, rungs=rungs, options=TWO)
    (result,) = report.rungs
    assert (report.verdict, report.exit_code, report.ended_by) == ("mismatch", 1, "first failure")
    assert (result.outcome, result.fault) == ("broken off", "ended at its first failure (-x)")
    assert len({f.tensor for f in result.failures}) == 1
    assert len(result.details) <= 1
    assert result.diagnosis is not None
    assert report.culprits == {"kernel": report.n_failures}
    assert report.unfinished == "the first failure ended the run (-x); rungs that were not begun: none"
    assert result.seconds > 0


def test_a_wrong_byte_ends_the_bytes_rung(tmp_path: Path) -> None:
    """The scan of the tensors is broken off, and nothing else is asked of the process that it was made in."""
    path = tmp_path / "wrong.gguf"
    raw = bytearray(Q4_0.read_bytes())
    with open_model(Q4_0) as model:
        for name in ("blk.0.attn_k.weight", "output.weight"):
            offset = model.tensors[name].offset
            raw[offset : offset + 2] = b"\x00\x7e"  # NaN
    path.write_bytes(raw)
    told = Told()
    options = Options(**{**vars(ONE), "exit_first": True, "tensor": None})
    report = verify(path, "q8_1_naive", "cpu", options=options, told=told)
    (result,) = report.rungs
    assert (report.exit_code, report.ended_by, report.not_climbed) == (
        1,
        "first failure",
        ("blocks", "layers", "tokens"),
    )
    assert (len(result.failures), result.outcome) == (1, "broken off")
    assert told.said == ["begins bytes", f"failed bytes: {result.failures[0].tensor}", "ends bytes"]


def test_a_waived_failure_ends_nothing(wrong: Candidate, waivers: Path) -> None:
    report = verify(Q4_0, wrong, rungs=["blocks", "layers"], options=TWO, waivers=waivers)
    (blocks,) = report.rungs
    assert (report.verdict, report.exit_code, report.ended_by) == ("mismatch", 1, "first failure")
    order = list(dict.fromkeys(name for name in blocks.failing))
    assert len(order) > 1
    assert order[-1] == "blk.0.attn_v.weight"
    alone = verify(Q4_0, wrong, rungs=["blocks", "layers"], options=ONE_AND_END, waivers=waivers)
    assert (alone.verdict, alone.exit_code, alone.ended_by) == ("waived", 0, "")
    assert [rung.verdict for rung in alone.rungs] == ["waived", "waived"]


ONE_AND_END = Options(**{**vars(ONE), "exit_first": True})


def test_each_failure_is_printed_as_it_is_found(
    wrong: Candidate, waivers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first ones, in the words of the report, and no output twice; what a waiver covers says so."""
    form = Form(width=80)
    report = verify(Q4_0, wrong, rungs=["blocks", "layers"], options=ONE, waivers=waivers, told=Live(form))
    told = capsys.readouterr().err
    verbose = text_of(Kind.RUN, report, width=80, detail=1)
    assert told.count("WAIVED ") == 2 * MOST_FAILURES < verbose.count("WAIVED blocks: ") + verbose.count("WAIVED la")
    for line in told.splitlines():
        if line.startswith("WAIVED"):
            assert line in verbose
    for rung in report.rungs:
        assert f"of {rung.n_failures:,} failures of the {rung.name} rung are shown\n{rung.name}" in told


def test_without_it_the_run_goes_on(wrong: Candidate) -> None:
    told = Told()
    report = verify(Q4_0, wrong, rungs=["bytes", "blocks", "layers"], options=ONE, told=told)
    failed = [line for line in told.said if line.startswith("failed")]
    # reported as they are found; the report has the most important ones first
    assert sorted(failed) == sorted(f"failed {rung.name}: {f.tensor}" for rung, f in report.failures)
    assert {rung.name for rung, _ in report.failures} == {"blocks", "layers"}
    assert (report.verdict, report.ended_by, report.not_climbed) == ("mismatch", "", ())


def test_a_pass_is_no_first_failure() -> None:
    options = Options(**{**vars(ONE), "exit_first": True})
    report = verify(Q4_0, "q8_1_naive", "cpu", ["bytes", "blocks"], options)
    assert (report.verdict, report.ended_by) == ("verified", "")


@pytest.mark.parametrize(
    ("error", "ended_by", "code"),
    [
        (KeyboardInterrupt(), "SIGINT", 130),
        (Interrupted("SIGTERM"), "SIGTERM", 3),
        (Interrupted("SIGHUP"), "SIGHUP", 3),
    ],
)
def test_an_interrupted_run_reports_what_it_found(error: BaseException, ended_by: str, code: int) -> None:
    told = Told(error, "begins layers")
    report = verify(Q4_0, "q8_1_naive", "cpu", options=ONE, told=told, interrupted_report=True)
    assert (report.verdict, report.exit_code, report.ended_by) == ("interrupted", code, ended_by)
    assert [rung.name for rung in report.rungs] == ["bytes", "blocks"]
    assert report.not_climbed == ("layers", "tokens")


def test_an_interrupted_rung_keeps_what_is_known_to_be_wrong(wrong: Candidate) -> None:
    told = Told(KeyboardInterrupt(), "failed blocks: blk.0.attn_k.weight")
    report = verify(Q4_0, wrong, options=ONE, told=told, interrupted_report=True)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    assert (report.rungs[1].name, report.rungs[1].outcome) == ("blocks", "broken off")
    assert report.rungs[1].fault == "interrupted by SIGINT before its end"
    assert report.culprits == {"kernel": report.n_failures}


def test_without_being_asked_an_interrupt_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        verify(Q4_0, "q8_1_naive", "cpu", ["bytes"], ONE, told=Told(KeyboardInterrupt(), "ends bytes"))


def test_all_files_are_written_when_a_run_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A signal that comes between two rungs, to the whole command."""

    class Signals(Told):
        def __init__(self, _form: object) -> None:
            super().__init__()

        def __call__(self, event: Event) -> None:
            if isinstance(event, RungBegins) and event.rung.name == "blocks":
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("gguf_verify.cli.runs.live.Live", Signals)
    out, page = tmp_path / "r.json", tmp_path / "r.html"
    arguments = [
        str(Q4_0),
        "--host",
        "cpu",
        "--kernel",
        "q8_1_naive",
        "--rungs",
        "bytes,blocks",
        "--progress",
        "always",
    ]
    assert main([*arguments, "-o", str(out), "-o", str(page)]) == 3
    captured = capsys.readouterr()
    assert captured.err == "gguf-verify: interrupted by SIGTERM\n"
    assert last_line(captured.out).startswith("INTERRUPTED in ")
    assert "rungs that were not begun: blocks\n" in captured.out
    assert json.loads(out.read_text())["verdict"] == "interrupted"
    assert "Interrupted by SIGTERM; rungs that were not begun: blocks." in page.read_text()


# ---- signals ---------------------------------------------------------------------------------------------------------


def test_a_signal_is_an_exception_once() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.unraisablehook
    with interruptible():
        with pytest.raises(Interrupted) as caught:
            os.kill(os.getpid(), signal.SIGTERM)
        assert caught.value.signal == "SIGTERM"
        os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends it twice
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT), sys.unraisablehook) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_result_that_is_known_is_delivered(number: int) -> None:
    """A signal while a report is written raises nothing, nor does it later."""
    delivered = False
    with interruptible():
        with undisturbed():
            os.kill(os.getpid(), number)
            delivered = True
        os.kill(os.getpid(), number)
    assert delivered


def test_a_run_that_is_over_is_whole_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while what the run opened is closed."""

    close = Run.close

    def closing(run: Run) -> None:
        close(run)
        raise Interrupted("SIGHUP")

    monkeypatch.setattr(Run, "close", closing)
    report = verify(Q4_0, "q8_1_naive", "cpu", ["bytes"], ONE, interrupted_report=True)
    assert (report.verdict, report.exit_code, report.ended_by) == ("verified", 0, "")


class Dies:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def dies_and_goes_on() -> None:
    dies = Dies()
    del dies
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_signal_that_comes_in_a_destructor_is_not_lost() -> None:
    with interruptible(), pytest.raises(Interrupted):
        dies_and_goes_on()


def imports_in_vain(number: int) -> None:
    try:
        os.kill(os.getpid(), number)
        time.sleep(10)
    except KeyboardInterrupt:
        raise ImportError("numpy._core.multiarray failed to import") from None


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Interrupted)])
def test_an_import_that_makes_its_own_error_of_a_signal(number: int, raised: type[BaseException]) -> None:
    """NumPy's compiled modules make an ImportError of whatever ends what they import."""
    before = signal.signal(number, signal.default_int_handler)  # a shell's background job ignores SIGINT, and stays so
    try:
        with interruptible(), pytest.raises(raised), internal_errors(verbose=False):
            imports_in_vain(number)
    finally:
        signal.signal(number, before)


# ---- a kernel that raises --------------------------------------------------------------------------------------------


def test_a_kernel_that_raises_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my_kernel.py"
    path.write_text(RAISES)
    out = tmp_path / "r.json"
    chosen = ["--rungs", "blocks", "--tensor", "attn_[qk]", "-o", str(out)]
    assert main([str(Q4_0), "--kernel", f"{path}:gemm", *chosen]) == 1
    shown = flat(capsys.readouterr().out)
    where = "my_kernel.py:11 in helper ("
    assert "blk.0.attn_q.weight: the kernel raised ValueError: too bad traceback, the last call last: " in shown
    assert "--> my_kernel.py:7 in gemm 7 | return helper(weights) | ^^^^" in shown
    assert "--> my_kernel.py:11 in helper 11 | raise ValueError(" in shown
    assert shown.rpartition("MISMATCH: ")[2].startswith(f"ValueError: too bad, at {where}")
    assert "… and 5 more calls failed the same way" in shown
    assert "at fault: the kernel (6)" in shown
    assert shown.count("the kernel raised") == 1
    (rung,) = json.loads(out.read_text())["rungs"]
    assert (len(rung["failures"]), rung["n_failures"]) == (1, 6)  # one for each tensor
