"""How the cells of a night end."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gguf_verify.cli import main
from gguf_verify.processes import keeper
from gguf_verify.processes.commands import Ended, Processes, Stopped
from gguf_verify.report.writer import Kind
from gguf_verify.waivers import REFERENCE
from gguf_verify_nightly import night
from gguf_verify_nightly import night as night_module
from gguf_verify_nightly.config import read_config
from gguf_verify_nightly.history import History
from gguf_verify_nightly.night import Settings, run_night
from gguf_verify_nightly.outcomes import cell_of
from gguf_verify_nightly.records import Cell, Failed, Key, Measure, Night, Outcome
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.summary import NightReport
from tests.support import recordings
from tests.support.processes import gone, wait_until
from tests.support.shown import json_of, text_of, written
from tests.support.stub_nights import KEY, STUB, cell_for, run_stub, write_config


def by_prompt(night: Night) -> dict[str, Cell]:
    return {key.prompt: cell for key, cell in night.cells.items()}


OUTCOMES = {
    "pass": (Outcome.VERIFIED, ""),
    "lies": (Outcome.UNVERIFIED, "exit code 0, but it wrote no report"),
    "garbage": (Outcome.UNVERIFIED, "exit code 0, but its report is not JSON"),
    "nested": (Outcome.UNVERIFIED, "exit code 0, but its report is not JSON"),
    "undecodable": (Outcome.UNVERIFIED, "exit code 0, but its report is not JSON"),
    "list": (Outcome.UNVERIFIED, "exit code 0, but its report does not have schema 4"),
    "schema": (Outcome.UNVERIFIED, "exit code 0, but its report does not have schema 4"),
    "lacks": (Outcome.UNVERIFIED, "exit code 0, but its report lacks the field worst"),
    "lacks-environment": (Outcome.UNVERIFIED, "exit code 0, but its report lacks the field environment"),
    "lacks-claim": (
        Outcome.UNVERIFIED,
        "exit code 0, but its report does not fit schema 4: Object missing required field `verdict` - at `$.rungs[1]`",
    ),
    "wrong-type": (
        Outcome.UNVERIFIED,
        "exit code 0, but its report does not fit schema 4: Expected `int`, got `str` - at `$.rungs[2].n_failures`",
    ),
    "another-rung": (Outcome.UNVERIFIED, "exit code 0, but its report has an unknown rung nonsense"),
    "not-a-number": (Outcome.VERIFIED, ""),
    "never-ran": (Outcome.VERIFIED, "k.cu:45 went one way only: if (M == 1500) (and 2 more)"),
    "nothing-checked": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "waived": (Outcome.WAIVED, "tensor blk.0: 4 failures, until 2999-01-31: issue 42"),
    "waived-lies": (Outcome.UNVERIFIED, "its report says waived and contradicts itself"),
    "waived-says": (Outcome.UNVERIFIED, "its report says waived and contradicts itself"),
    "waived-unused": (Outcome.UNVERIFIED, "its report says waived and contradicts itself"),
    "says-mismatch": (Outcome.MISMATCH, 'exit code 0, but its report says "mismatch"'),
    "three-rungs": (Outcome.UNVERIFIED, "its report says verified, but not that these rungs passed: tokens"),
    "one-failed": (Outcome.UNVERIFIED, "its report says verified, but not that these rungs passed: tokens"),
    "holds-failures": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "report-exit": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "contradicts": (Outcome.MISMATCH, "exit code 1, but its report says verified"),
    "mismatch": (Outcome.MISMATCH, "layers: blk.0 row 3 is wrong (and 3 more); at fault: the kernel (4)"),
    "changed": (
        Outcome.BROKEN_OFF,
        "a file was changed while it was verified: m.gguf was written to, cut or replaced; at fault: this machine (1)",
    ),
    "hides-a-change": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "budget": (
        Outcome.UNVERIFIED,
        "the budget of 2m was spent; it left unverified: blk.0 in the layers rung; rungs that were not begun: tokens; "
        "1 check not reached",
    ),
    "hides-a-budget": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "unverified": (Outcome.UNVERIFIED, "layers: x: no kernel; 1 check not reached"),
    "fault": (Outcome.BROKEN_OFF, "layers: llama.cpp died in evaluate (SIGSEGV); at fault: this machine (1)"),
    "malformed": (Outcome.MALFORMED, "\\x1b[31mno GGUF"),
    "says-wrong": (Outcome.MISMATCH, "the kernel wrote outside its output"),
    "raises": (Outcome.BROKEN_OFF, "exit code 1 and no report: ValueError: no"),
    "usage": (Outcome.BROKEN_OFF, "exit code 2: no such kernel"),
    "segv": (Outcome.CRASHED, "died of SIGSEGV: last words"),
    "strange": (Outcome.BROKEN_OFF, "exit code 99"),
    "floods": (Outcome.VERIFIED, ""),
}


def test_every_outcome(tmp_path: Path) -> None:
    said: list[str] = []
    night = run_stub(tmp_path, "jobs = 2", said, **{word: word for word in OUTCOMES})
    cells = by_prompt(night)
    assert {word: (cell.outcome, cell.reason) for word, cell in cells.items()} == OUTCOMES
    assert night.finished
    assert night.exit_code == 1
    passed = cells["pass"]
    assert passed.measures == (Measure("layers", "kernel", 0.03125, 1.5, "blk.0 row 1", True),)
    assert passed.figures == {"layers: gap to llama.cpp, worst NMSE": 0.0003}
    assert passed.gemms == {"blk.0": 0.0625}
    assert passed.versions["llama-cpp-python"] == "1"
    assert passed.versions["C++ compiler"] == "c++ 1"
    assert passed.rung_seconds["blocks"] == 0.25
    assert cells["not-a-number"].gemms == {"blk.0": math.inf}
    assert cells["not-a-number"].measures[0].utilisation == math.inf
    assert cells["segv"].exit_code is None
    assert cells["fault"].exit_code == 3
    with History(tmp_path / "nightly.sqlite") as history:
        held = by_prompt(history.night(1, reports=True))
    assert held["pass"].report is None  # kept of what is no pass
    assert held["mismatch"].report is not None
    assert held["mismatch"].report.rungs[2].n_failures == 4
    assert held["mismatch"].report.verdict == "mismatch"
    assert held["mismatch"].failed == Failed("layers", "", "blk.0 3", "kernel", 4)
    assert {cell.failed for cell in (held["pass"], held["contradicts"], held["segv"])} == {None}
    assert held["fault"].failed == Failed("layers", place="SIGSEGV", kind="broken off, environment")
    lines = text_of(NightKind.NIGHT, NightReport((night,)))
    assert f"{len(OUTCOMES)} cells, 4 verified, 1 waived, 4 mismatch" in lines
    assert "Traceback" not in lines
    assert sum(f"/{len(OUTCOMES)} " in line for line in said) == len(OUTCOMES)  # a line for each cell
    assert any(line.endswith(" left") for line in said)


def test_the_waivers_of_the_configuration_reach_each_run(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(REFERENCE)
    stub = tmp_path / "stub.py"
    stub.write_text(f"import sys\nopen({str(tmp_path / 'called')!r}, 'w').write(' '.join(sys.argv))\n")
    for text, wanted in (('waivers = "known.toml"', True), ("", False)):
        config = read_config(write_config(tmp_path, text, p="pass"))
        run_night(config, Settings(harness=[sys.executable, "-I", "-S", str(stub)], say=lambda _: None))
        called = (tmp_path / "called").read_text()
        assert (f"--waivers {tmp_path / 'known.toml'}" in called) is wanted


def test_all_reports_are_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    run_stub(tmp_path, 'keep_reports = "all"', p="pass")
    with History(tmp_path / "nightly.sqlite") as history:
        (cell,) = history.night(1, reports=True).cells.values()
    assert cell.report is not None
    assert cell.report.verdict == "verified"


def test_the_time_limit_ends_all_that_a_cell_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = "time_limit = 6\njobs = 2"
    config = read_config(write_config(tmp_path, text, slow=f"hangs {pids}", leaves=f"leaves {pids}"))
    night = run_night(config, Settings(harness=STUB, say=lambda _line: None, grace=0.5))
    cells = by_prompt(night)
    assert (cells["slow"].outcome, cells["slow"].exit_code) == (Outcome.TIMED_OUT, None)
    assert cells["slow"].reason == "not finished within 6 s: still going"
    assert 6 <= cells["slow"].seconds < 60
    assert cells["leaves"].outcome is Outcome.VERIFIED
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 3  # two of the one, one of the other, which has a session of its own
    assert gone(started)
    assert night.exit_code == 3


class _OverWhenReady(Processes):
    """A command's time is over when it has made a file, and not before."""

    def __init__(self, ready: Path) -> None:
        super().__init__()
        self._ready = ready

    def _wait(self, process: Any, deadline: float) -> str:
        if not self._ready.exists():
            assert wait_until(self._ready.exists)
            return "time"
        return super()._wait(process, deadline + 60)


def test_what_a_cell_had_found_when_its_time_was_over_is_kept(tmp_path: Path) -> None:
    """SIGTERM comes first, and the cell writes what it knows."""
    kind = Key("m.gguf", "Q4_0", "q8_1", "cpu", "p", "installed")
    for word, outcome, reason in (
        ("knows", Outcome.MISMATCH,
         "layers: blk.0 row 3 is wrong (and 3 more); at fault: the kernel (4); not finished within 6 s"),
        ("does-not-know", Outcome.TIMED_OUT, "not finished within 6 s, in the tokens rung"),
    ):  # fmt: skip
        ready, report = tmp_path / f"{word}.ready", tmp_path / f"{word}.json"
        processes = _OverWhenReady(ready)
        command = [*STUB, "m.gguf", f"--prompt={word} {ready}", "-o", str(report), "--kernel", "q8_1"]
        ended = processes.run(command, 6, grace=1)
        processes.close()
        assert ended.exit_code is None
        cell = cell_of(kind, ended, report, 6, None, False)
        assert (cell.outcome, cell.reason, cell.exit_code) == (outcome, reason, None)
        assert bool(cell.measures) is (outcome is Outcome.MISMATCH)


def test_a_cell_that_does_not_end_when_it_is_asked_to_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    processes = Processes()
    line = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(600)"
    ended = processes.run([sys.executable, "-c", line], 0.01, grace=0.01)
    processes.close()
    assert ended.exit_code is None
    assert ended.seconds < 300


@pytest.mark.parametrize("_try", range(5))
def test_a_command_that_has_hardly_begun_is_killed(_try: int) -> None:
    """Its keeper sees that nobody waits any more, while the command has not made its own session."""
    lifeline, ours = os.pipe()
    os.close(ours)
    line = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    command = [
        sys.executable,
        "-I",
        "-S",
        str(keeper.__file__),
        f'{{"lifeline": {lifeline}}}',
        sys.executable,
        "-c",
        line,
    ]
    try:
        assert subprocess.run(command, pass_fds=[lifeline], timeout=60, check=False).returncode == -signal.SIGKILL
    finally:
        os.close(lifeline)


def test_the_line_of_a_mismatch_begins_with_its_diagnosis(tmp_path: Path) -> None:
    """A line is cut at its end, and the cause says more than the place."""
    path, report = tmp_path / "report.json", recordings.failing()
    path.write_text(json.dumps(json_of(Kind.RUN, report)))
    cell = cell_of(KEY, Ended(report.exit_code, 1.0, ()), path, 60.0, None, False)
    assert cell.reason.startswith("blocks: cause unknown: ")
    layers = report.rungs.pop(2)
    report.rungs = [report.rungs[0], layers]
    path.write_text(json.dumps(json_of(Kind.RUN, report)))
    cell = cell_of(KEY, Ended(report.exit_code, 1.0, ()), path, 60.0, None, False)
    assert cell.reason.startswith("layers: activations-interleaved, nibbles-in-pairs: ")
    night = Night(1, "2026-10-01T01:30:00+00:00", "2026-10-01T02:30:00+00:00", "n.toml", (KEY,), {KEY: cell})
    for shown in (
        str(written("--html", NightKind.NIGHT, NightReport((night,)))),
        text_of(NightKind.NIGHT, NightReport((night,))),
    ):
        assert cell.reason[:40] in shown
        assert "ismatch" in shown or "MISMATCH" in shown
        assert "ot everything verified" not in shown


def test_another_llama_cpp_than_the_variants_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub says that it ran with llama-cpp-python 1."""
    monkeypatch.setattr(night_module._Runner, "_command", lambda _self, _key, _ready, model: [
        *STUB, str(model), "--prompt=pass", "--kernel", "q8_1"])  # fmt: skip
    config = read_config(write_config(tmp_path))
    (cell,) = run_night(config, Settings(say=lambda _line: None)).cells.values()
    assert cell.outcome is Outcome.BROKEN_OFF
    assert cell.reason.startswith("ran with llama-cpp-python 1 instead of 0.")


def test_stopped_processes_are_gone(tmp_path: Path) -> None:
    processes = Processes()
    pids = tmp_path / "pids"
    command = [*STUB, "x", f"--prompt=hangs {pids}", "-o", str(tmp_path / "r"), "--kernel", "k"]

    def stop_later(_pid: int) -> None:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        processes.stop()

    with pytest.raises(Stopped):
        processes.run(command, 100, on_start=stop_later)
    assert gone([int(line) for line in pids.read_text().split()])
    with pytest.raises(Stopped):
        processes.run(command, 100)
    processes.close()


def test_a_command_that_is_not_there() -> None:
    processes = Processes()
    ended = processes.run(["/no/such/command"], 10)
    processes.close()
    assert ended.exit_code == 127
    assert "/no/such/command: No such file" in ended.last_line


# ---- commands --------------------------------------------------------------------------------------------------------
# The commands of `gguf-verify nightly`.


def test_compare_status_and_pin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path)
    with History(tmp_path / "nightly.sqlite") as history:
        for number, outcome in ((1, Outcome.VERIFIED), (2, Outcome.VERIFIED), (3, Outcome.MISMATCH)):
            history.begin("night", [KEY], {"CPU": "x"}, "1")
            history.record(number, cell_for(outcome=outcome))
            history.finish(number)
        history.begin("another", [KEY], {"CPU": "x"}, "1")
        history.record(4, cell_for())
        history.finish(4)

    def said(*args: str) -> tuple[int, str]:
        code = main(["nightly", *args])
        out, err = capsys.readouterr()
        assert (out == "") != (err == "")
        return code, out or err

    assert said("compare", str(path))[0] == 1
    counts = "1 cell in both, 0 of them verified in both"
    assert said("compare", str(path))[1].startswith(f"night 3 against night 2: {counts}\nNEW")
    assert said("compare", str(path), "--new", "2")[0] == 0
    assert said("compare", str(path), "--new", "1")[0] == 5
    assert said("pin", "base", str(path), "--night", "1") == (0, "night 1 now has the name base\n")
    assert said("compare", str(path), "--old", "base")[1].startswith("night 3 against night 1")
    assert "no night has the name basis; pinned names: base (1)" in said("compare", str(path), "--old", "basis")[1]
    assert said("compare", str(path), "--old", "77")[0] == 2
    assert said("pin", "7", str(path))[0] == 2
    code, text = said("status", str(path))
    assert code == 0
    assert [line.split(",")[0] for line in text.splitlines()] == [f"night {i} of night" for i in (3, 2, 1)]
    assert text.splitlines()[2].endswith("(base)")
    assert said("status", "--history", str(tmp_path / "nightly.sqlite"))[1].startswith("night 4 of another")
    assert said("pin", "newest", str(path))[1] == "night 3 now has the name newest\n"


def test_reports_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each form has the night and its changes; a path that cannot be written is an error before the run."""
    monkeypatch.setattr(night, "Settings", functools.partial(Settings, harness=STUB))
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "junit", "markdown", "json")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    path = write_config(tmp_path, story="pass")
    assert main(["nightly", "run", str(path), *options]) == 0
    assert json.loads(files["json"].read_text())["comparison"] is None
    path = write_config(tmp_path, story="mismatch")
    assert main(["nightly", "run", str(path), *options]) == 1
    said = json.loads(files["json"].read_text())
    assert [c["reason"] for c in said["comparison"]["new_failures"]]
    for kind in ("html", "junit", "markdown"):
        assert "row 3 is wrong" in files[kind].read_text()
    capsys.readouterr()
    for wrong in (["-o", str(tmp_path / "no" / "x")], ["-o", "x.json", "-o", "x.json"], ["-o", str(path)]):
        assert main(["nightly", "run", str(path), *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with History(tmp_path / "nightly.sqlite") as history:
        assert len(history.nights()) == 2
