"""The nightly: what it plans, how cells end, what survives a kill, what a comparison says."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gguf_verify.cli import main
from gguf_verify.cli import nightly as cli_nightly
from gguf_verify.nightly import environments, requirements
from gguf_verify.nightly import history as history_module
from gguf_verify.nightly import night as night_module
from gguf_verify.nightly.compare import Comparison, compare
from gguf_verify.nightly.config import REFERENCE, ConfigFile, Variant, read_config
from gguf_verify.nightly.environments import Environments
from gguf_verify.nightly.exclusive import locked
from gguf_verify.nightly.history import History
from gguf_verify.nightly.night import Settings, run_night
from gguf_verify.nightly.records import Cell, Key, Measure, Night, Outcome
from gguf_verify.nightly.significance import LEAST_NIGHTS, drifts, judge_times
from gguf_verify.report.nightly.lines import comparison_lines, night_lines
from gguf_verify.support.errors import EnvironmentFault, HarnessError, MalformedFile, UsageError
from gguf_verify.support.supervised import Processes, Stopped
from tests.support.nights import run_result
from tests.support.tools import FIXTURES, ROOT

STUB = [sys.executable, "-I", "-S", str(ROOT / "tests" / "support" / "nightly_stub.py")]
Q4_0 = FIXTURES / "tiny-Q4_0.gguf"


# ---- the configuration ----------------------------------------------------------------------------------------------


def write_config(folder: Path, text: str = "", models: str | None = None, **prompts: str) -> Path:
    """A configuration on the CPU in a folder of its own, with a link to a fixture as its model."""
    path = folder / "night.toml"
    link = folder / "tiny.gguf"
    if not link.exists():
        link.symlink_to(Q4_0)
    table = "\n[prompts]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in prompts.items()) if prompts else ""
    path.write_text(f'models = {models or json.dumps(["tiny.gguf"])}\nhosts = ["cpu"]\n{text}\n{table}')
    return path


def test_the_matrix(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf", "source.gguf"):
        (tmp_path / name).symlink_to(Q4_0)
    (tmp_path / "own.py").write_text("")
    path = tmp_path / "n.toml"
    path.write_text(
        """
        models = ["[ab].gguf", "a.gguf"]
        kernels = ["q8_1", "own.py:gemm"]
        hosts = ["auto", "cpu"]
        [quantize]
        sources = ["source.gguf"]
        types = ["Q4_0", "Q6_K"]
        [prompts]
        one = "1"
        two = "2"
        [variants.plain]
        [variants."0.3.35"]
        llama-cpp-python = "0.3.35"
        hosts = ["gpu"]
        [[exclude]]
        variant = "0.3.35"
        type = "Q6_K"
        [[exclude]]
        kernel = "own.py:gemm"
        """
    )
    config = read_config(path)
    cells = config.cells("cpu")
    models = [("a.gguf", ""), ("b.gguf", ""), ("source.gguf", "Q4_0"), ("source.gguf", "Q6_K")]
    expected = [Key(m, t, "q8_1", "cpu", p, "plain") for m, t in models for p in ("one", "two")]
    expected += [Key(m, t, "q8_1", "gpu", p, "0.3.35") for m, t in models[:3] for p in ("one", "two")]
    assert list(cells) == expected
    assert config.name == "n"
    assert config.history == tmp_path / "nightly.sqlite"
    assert config.kernel_argument("own.py:gemm") == f"{tmp_path}/own.py:gemm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models = [", "this is not TOML"),
        ("jobz = 1", "jobz: this key is not known; there are: .*jobs"),
        ("jobs = '1'", "jobs: must be a whole number, is '1'"),
        ("jobs = true", "jobs: must be a whole number, is True"),
        ("jobs = 0", "jobs: must be a whole number >= 1, is 0"),
        ("time_limit = nan", "time_limit: must be a number >= 1.0, is nan"),
        ("n_predict = 1.5", "n_predict: must be a whole number"),
        ("name = '../x'", "name: a name consists of up to 64"),
        ("history = '/no/such/folder/h'", "history: .* cannot be a file"),
        ("keep_reports = 'some'", "keep_reports: nothing is called some; there are: failures, all"),
        ("kernels = ['q9']", "kernels: no kernel is called q9; there are: .*q8_1"),
        ("kernels = ['own.py:f']", "kernels: own.py:f: no such file"),
        ("kernels = ['q8_1', 'q8_1']", "kernels: contains q8_1 twice"),
        ("kernels = []", "kernels: must be a list of length >= 1"),
        ("kernels = 'q8_1'", "kernels: must be a list, is 'q8_1'"),
        ("kernels = [1]", r"kernels\[0\]: must be a string, is \[1\]"),
        ("[quantize]\nsources = ['tiny.gguf']\ntypes = ['Q9']", "quantize.types: llama.cpp quantizes no file to Q9"),
        ("[quantize]\nsources = ['tiny.gguf']", "quantize.types: is missing"),
        ("[quantize]\ntypes = ['Q4_0']", "quantize.sources: is missing"),
        ("quantize = 3", "quantize: must be a table, is 3"),
        ("[prompts]\na = ''", "prompts.a: a prompt has from 1 to 100,000 bytes"),
        ("[prompts]\na = 1", "prompts.a: must be a string"),
        ("[prompts]\n'a b' = 'x'", "prompts.a b: a name consists"),
        ("[prompts]\na = \"\\u0000\"", "prompts.a: must be a string matching regex"),
        ("[prompts]", "prompts: the table is empty"),
        ("[variants.a]\nllama-cpp-python = 'latest'", "variants.a.llama-cpp-python: latest is not a version"),
        ("[variants.a]\nllama-cpp-python = '1; rm'", "is not a version"),
        ("[variants.a]\nrepack = 1", "variants.a.repack: must be true or false, is 1"),
        ("[variants.a]\nreference = 'tpu'", "variants.a.reference: no reference is called tpu; there are: cpu, gpu"),
        ("[variants.a]\nhosts = ['moon']", "variants.a.hosts: no host is called moon"),
        ("[variants.a]\ncolour = 1", "variants.a.colour: this key is not known"),
        ("variants.a = 1", "variants.a: must be a table"),
        ("[variants]", "variants: the table is empty"),
        ("[[exclude]]\nkernel = 'f32'", r"exclude\[0\].kernel: nothing is called f32"),
        ("[[exclude]]\ncolour = 'f32'", r"exclude\[0\].colour: no part of a cell's key is called colour"),
        ("[[exclude]]", r"exclude\[0\]: the table is empty"),
        ("exclude = [1]", r"exclude\[0\]: must be a table"),
        ("[[exclude]]\nkernel = 'q8_1'", "exclude: leaves no cell of the matrix"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_and_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    path = write_config(tmp_path, text)
    assert main(["nightly", "run", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    with pytest.raises(UsageError, match=f"^night.toml: .*{said}"):
        read_config(path)
    assert not (tmp_path / "nightly.sqlite").exists()


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ('["no.gguf"]', "models: no.gguf: no such file"),
        ('["*.bin"]', r"models: \*.bin: no such file"),
        ("[]", "models: must be a list of length >= 1"),
        ('["tiny.gguf", "other/tiny.gguf"]', "models: two models are called tiny.gguf"),
        ('["other"]', "models: other: no such file"),
    ],
)
def test_models_that_are_not_there(tmp_path: Path, models: str, said: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiny.gguf").symlink_to(Q4_0)
    with pytest.raises(UsageError, match=said):
        read_config(write_config(tmp_path, models=models))


def test_no_models_at_all(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text("jobs = 2")
    with pytest.raises(UsageError, match=r"n.toml: models: the matrix is empty"):
        read_config(path)
    with pytest.raises(UsageError, match=r"cannot read the configuration no\.toml"):
        read_config(tmp_path / "no.toml")
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not TOML"):
        read_config(path)


def test_the_reference_names_every_key(tmp_path: Path) -> None:
    for name in ("tiny-Q4_0.gguf", "tiny-F16.gguf"):
        (tmp_path / name).symlink_to(FIXTURES / name)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "more.gguf").symlink_to(Q4_0)
    (tmp_path / "my_kernel.py").touch()
    path = tmp_path / "reference.toml"
    path.write_text(REFERENCE)
    config = read_config(path)
    assert set(tomllib.loads(REFERENCE)) == {f.encode_name for f in msgspec.structs.fields(ConfigFile)}
    assert set(tomllib.loads(REFERENCE)["variants"]["NAME"]) == {f.encode_name for f in msgspec.structs.fields(Variant)}
    assert {model.type for model in config.models} == {"", "Q4_0", "Q6_K"}


# ---- how cells end --------------------------------------------------------------------------------------------------


def run_stub(folder: Path, text: str = "", said: list[str] | None = None, **prompts: str) -> Night:
    config = read_config(write_config(folder, text, **prompts))
    lines = [] if said is None else said
    return run_night(config, Settings(harness=STUB, say=lines.append))


def by_prompt(night: Night) -> dict[str, Cell]:
    return {key.prompt: cell for key, cell in night.cells.items()}


OUTCOMES = {
    "pass": (Outcome.VERIFIED, ""),
    "lies": (Outcome.UNVERIFIED, "exit code 0, but it wrote no report"),
    "garbage": (Outcome.UNVERIFIED, "exit code 0, but its report is not JSON"),
    "nested": (Outcome.UNVERIFIED, "exit code 0, but its report is not JSON"),
    "undecodable": (Outcome.UNVERIFIED, "exit code 0, but its report is not JSON"),
    "list": (Outcome.UNVERIFIED, "exit code 0, but its report does not have schema 2"),
    "schema": (Outcome.UNVERIFIED, "exit code 0, but its report does not have schema 2"),
    "lacks": (Outcome.UNVERIFIED, "exit code 0, but its report lacks the field worst"),
    "lacks-environment": (Outcome.UNVERIFIED, "exit code 0, but its report lacks the field environment"),
    "lacks-claim": (
        Outcome.UNVERIFIED,
        "exit code 0, but its report does not fit schema 2: Object missing required field `verdict` - at `$.rungs[1]`",
    ),
    "wrong-type": (
        Outcome.UNVERIFIED,
        "exit code 0, but its report does not fit schema 2: Expected `int`, got `str` - at `$.rungs[2].n_failures`",
    ),
    "another-rung": (Outcome.UNVERIFIED, "exit code 0, but its report has an unknown rung nonsense"),
    "not-a-number": (Outcome.VERIFIED, ""),
    "nothing-checked": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "says-mismatch": (Outcome.MISMATCH, 'exit code 0, but its report says "mismatch"'),
    "three-rungs": (Outcome.UNVERIFIED, "its report says verified, but not that these rungs passed: tokens"),
    "one-failed": (Outcome.UNVERIFIED, "its report says verified, but not that these rungs passed: tokens"),
    "holds-failures": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "report-exit": (Outcome.UNVERIFIED, "its report says verified and contradicts itself"),
    "contradicts": (Outcome.MISMATCH, "exit code 1, but its report says verified"),
    "mismatch": (Outcome.MISMATCH, "layers: blk.0 row 3 is wrong (and 3 more)"),
    "unverified": (Outcome.UNVERIFIED, "layers: x: no kernel"),
    "fault": (Outcome.BROKEN_OFF, "layers: llama.cpp died in evaluate (SIGSEGV)"),
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
    assert {word: (cell.outcome, cell.words) for word, cell in cells.items()} == OUTCOMES
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
    lines = "\n".join(night_lines(night))
    assert f"{len(OUTCOMES)} cells, 3 verified, 4 mismatch" in lines
    assert "Traceback" not in lines
    assert sum(f"/{len(OUTCOMES)} " in line for line in said) == len(OUTCOMES)  # a line for each cell
    assert any(line.endswith(" left") for line in said)


def test_all_reports_are_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    run_stub(tmp_path, 'keep_reports = "all"', p="pass")
    with History(tmp_path / "nightly.sqlite") as history:
        (cell,) = history.night(1, reports=True).cells.values()
    assert cell.report is not None
    assert cell.report.verdict == "verified"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def gone(pids: Sequence[int], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_the_time_limit_ends_all_that_a_cell_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    night = run_stub(tmp_path, "time_limit = 3\njobs = 2", slow=f"hangs {pids}", leaves=f"leaves {pids}")
    cells = by_prompt(night)
    assert (cells["slow"].outcome, cells["slow"].exit_code) == (Outcome.TIMED_OUT, None)
    assert cells["slow"].words == "not finished within 3 s: still going"
    assert 3 <= cells["slow"].seconds < 30
    assert cells["leaves"].outcome is Outcome.VERIFIED
    started = [int(line) for line in pids.read_text().split()]
    assert len(started) == 3  # two of the one, one of the other, which has a session of its own
    assert gone(started)
    assert night.exit_code == 3


def test_another_llama_cpp_than_the_variants_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub says that it ran with llama-cpp-python 1."""
    monkeypatch.setattr(night_module._Runner, "_command", lambda _self, _key, _ready, model, report: [
        *STUB, str(model), "--prompt=pass", "--json", str(report), "--kernel", "q8_1"])  # fmt: skip
    config = read_config(write_config(tmp_path))
    (cell,) = run_night(config, Settings(say=lambda _line: None)).cells.values()
    assert cell.outcome is Outcome.BROKEN_OFF
    assert cell.words.startswith("ran with llama-cpp-python 1 instead of 0.")


def test_stopped_processes_are_gone(tmp_path: Path) -> None:
    processes = Processes()
    pids = tmp_path / "pids"
    command = [*STUB, "x", f"--prompt=hangs {pids}", "--json", str(tmp_path / "r"), "--kernel", "k"]

    def stop_later(_pid: int) -> None:
        while not pids.exists() or len(pids.read_text().split()) < 2:
            time.sleep(0.01)
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


# ---- killed and resumed ---------------------------------------------------------------------------------------------


def fork_night(path: Path, log: Path | None = None) -> int:
    """run_night in a process of its own; its exit code is 0, or the HarnessError's."""
    pid = os.fork()
    if pid:
        return pid
    code = 77
    try:
        if log is not None:
            os.environ["STUB_LOG"] = str(log)
        run_night(read_config(path), Settings(harness=STUB, say=lambda _line: None))
        code = 0
    except HarnessError as error:
        code = error.exit_code
    finally:
        os._exit(code)


def plain(night: Night) -> list[object]:
    """What two runs of the same have in common: all but times."""
    return [
        (cell.key, dataclasses.replace(cell, seconds=0.0, gemms=dict(cell.gemms))) for cell in night.cells.values()
    ]  # fmt: skip


def killed_and_resumed(
    folder: Path, path: Path, start: Callable[[], int], kills: int, seed: int, longest: float
) -> tuple[Night, int]:
    """Kill a night at random moments, then let it end. Returns it and how many kills met a night at work."""
    rng = random.Random(seed)
    history_path = read_config(path).history
    finished, met = False, 0
    for _ in range(kills):
        pid = start()
        time.sleep(rng.uniform(0.0, longest))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        met += os.WIFSIGNALED(status)
        with History(history_path) as history:
            nights = history.nights()
        finished = bool(nights) and not nights[0].missing
        if finished:  # the next would begin another
            break
    if not finished or not nights[0].finished:
        _, status = os.waitpid(start(), 0)
        assert status == 0
    with History(history_path) as history:
        assert len(history.nights()) == 1
        return history.night(1), met


def test_killed_ten_times_and_resumed(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prompts = {f"p{i}": "pass 0.05" for i in range(18)} | {"bad": "mismatch", "dead": "segv"}
    for folder in (whole, killed):
        folder.mkdir()
        write_config(folder, "jobs = 2\nkernels = ['q8_1', 'f32']", **prompts)
    _, status = os.waitpid(fork_night(whole / "night.toml"), 0)
    assert status == 0
    with History(whole / "nightly.sqlite") as history:
        expected = history.night(1)
    log = killed / "log"
    night, met = killed_and_resumed(
        killed, killed / "night.toml", lambda: fork_night(killed / "night.toml", log), 10, 7, 0.35
    )
    assert plain(night) == plain(expected)
    assert night.planned == expected.planned
    assert night.finished
    print(f"{met} kills met the night at work")
    assert met >= 5  # else this has tested little
    ran = log.read_text().splitlines()
    assert len(ran) <= len(night.planned) + 4 * met  # two ran, two waited to be recorded: the rest was not run again


def test_sigterm_ends_all_and_the_same_command_resumes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = write_config(tmp_path, "time_limit = 100", a="pass", b=f"hangs {pids}")
    pid = fork_night(path)
    deadline = time.monotonic() + 60
    while not pids.exists() or len(pids.read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    assert gone([int(line) for line in pids.read_text().split()])
    with History(tmp_path / "nightly.sqlite") as history:
        (night,) = history.nights()
    assert [key.prompt for key in night.cells] == ["a"]
    assert [key.prompt for key in night.missing] == ["b"]
    assert not night.finished
    assert night.exit_code == 5


def unfinished(folder: Path, **prompts: str) -> Path:
    """A configuration whose night 1 was killed with nothing recorded but its first cell."""
    path = write_config(folder, **prompts)
    run_night(read_config(path), Settings(harness=STUB, say=lambda _line: None))
    db = sqlite3.connect(folder / "nightly.sqlite")
    db.execute("DELETE FROM cell WHERE key > 1")
    db.execute("UPDATE night SET finished = NULL")
    db.commit()
    db.close()
    return path


def test_what_has_changed_begins_a_new_night_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = unfinished(tmp_path, a="pass", b="pass")
    said: list[str] = []
    run_night(read_config(path), Settings(harness=STUB, say=said.append))
    assert said[0] == "resuming night 1: 1 of 2 cells are recorded"
    with History(tmp_path / "nightly.sqlite") as history:
        assert history.night(1).finished
        assert not history.night(1).missing

    def again(change: Callable[[], object], expected: str) -> None:
        folder = tmp_path / expected.replace(" ", "-")
        folder.mkdir()
        shutil.copy(Q4_0, folder / "tiny.gguf")
        path = unfinished(folder, a="pass", b="pass")
        monkeypatch.chdir(folder)
        change()
        said.clear()
        run_night(read_config(path), Settings(harness=STUB, say=said.append))
        assert said[0].startswith("night 1 was not finished and cannot be resumed: "), said
        assert f"{expected} changed; a new night begins" in said[0]
        with History(folder / "nightly.sqlite") as history:
            assert [len(n.cells) for n in history.nights()] == [2, 1]

    monkeypatch.chdir(tmp_path)
    again(lambda: os.utime("tiny.gguf", (1, 1)), "model tiny.gguf")
    again(lambda: write_config(Path(), a="pass", b="pass 0"), "the setting prompts")
    again(lambda: write_config(Path(), "n_predict = 3", a="pass", b="pass"), "the setting n_predict")
    again(lambda: write_config(Path(), "kernels = ['f32']", a="pass", b="pass"), "the matrix")


def test_new_insists(tmp_path: Path) -> None:
    path = unfinished(tmp_path, a="pass", b="pass")
    night = run_night(read_config(path), Settings(harness=STUB, new=True, say=lambda _line: None))
    assert (night.number, len(night.cells)) == (2, 2)


def test_the_second_of_one_configuration_is_told_so(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, a="pass"))
    with (
        locked(config),
        pytest.raises(EnvironmentFault, match='a night of "night" is already running, by process'),
    ):
        run_night(config, Settings(harness=STUB))
    run_night(config, Settings(harness=STUB, say=lambda _line: None))


def test_two_configurations_in_one_history_at_once(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        prompts = {f"p{i}": "pass" for i in range(12)}
        paths.append(write_config(folder, f'name = "{name}"\nhistory = "../h.sqlite"\njobs = 2', **prompts))
    pids = [fork_night(path) for path in paths]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    with History(tmp_path / "h.sqlite") as history:
        nights = history.nights()
        assert sorted(n.number for n in nights) == [1, 2]
        assert {n.config for n in nights} == {"one", "two"}
        assert all(n.finished and len(n.cells) == 12 for n in nights)
        assert [n.config for n in history.nights(config="one")] == ["one"]


# ---- the history ----------------------------------------------------------------------------------------------------

KEY = Key("m.gguf", "Q4_0", "q8_1", "cpu", "p", "installed")


def cell_for(key: Key = KEY, outcome: Outcome = Outcome.VERIFIED, seconds: float = 1.0, u: float = 0.1) -> Cell:
    return Cell(
        key, outcome, "" if outcome is Outcome.VERIFIED else "wrong", 0, seconds, {"bytes": 0.5}, {"llama.cpp": "1"},
        "cpu: x", (Measure("layers", "kernel", u, None, "there", True),), {"KL": 1e-3}, {"blk.0": u, "blk.1": math.inf},
        run_result(["é"]),
    )  # fmt: skip


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    with History(tmp_path / "h") as history:
        other = KEY._replace(prompt="q")
        night = history.begin("c", [KEY, other], {"CPU": "x"}, "1.0")
        assert (night.number, night.finished, night.missing) == (1, None, (KEY, other))
        cell = cell_for(u=math.nan)
        history.record(1, cell)
        read = history.night(1, reports=True)
        found = read.cells[KEY]
        assert math.isnan(found.measures[0].utilisation)
        assert math.isnan(found.gemms["blk.0"])
        assert found.gemms["blk.1"] == math.inf
        assert found.report == cell.report
        assert dataclasses.replace(found, measures=(), gemms={}) == dataclasses.replace(cell, measures=(), gemms={})
        assert read.missing == (other,)
        with pytest.raises(ValueError, match=r"has cell .* already"):
            history.record(1, cell)
        with pytest.raises(ValueError, match=r"has no cell"):
            history.record(1, cell_for(KEY._replace(kernel="z")))
        with pytest.raises(ValueError, match="lacks 1 cells"):
            history.finish(1)
        history.record(1, cell_for(other))
        history.finish(1)
        assert history.night(1).finished
        assert history.nights(1)[0].cells[other] == dataclasses.replace(cell_for(other), gemms={}, report=None)
        history.pin("base", 1)
        assert history.pinned("base") == 1
        assert history.pinned("no") is None
        with pytest.raises(UsageError, match="has no night 2"):
            history.pin("base", 2)
        with pytest.raises(UsageError, match="has no night 2"):
            history.night(2)
        assert history.seconds("c") == {KEY: 1.0, other: 1.0}


def test_an_older_history_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schema version 1, with a report of schema 1, which is not read; then a version to come."""
    path = tmp_path / "h"
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE key (id INTEGER PRIMARY KEY, model TEXT NOT NULL, type TEXT NOT NULL, kernel TEXT NOT NULL,
            host TEXT NOT NULL, prompt TEXT NOT NULL, variant TEXT NOT NULL,
            UNIQUE (model, type, kernel, host, prompt, variant));
        CREATE TABLE night (number INTEGER PRIMARY KEY, started TEXT NOT NULL, finished TEXT, config TEXT NOT NULL,
            hardware TEXT NOT NULL, project TEXT NOT NULL, fingerprint TEXT NOT NULL);
        CREATE TABLE planned (night INTEGER NOT NULL REFERENCES night ON DELETE CASCADE, position INTEGER NOT NULL,
            key INTEGER NOT NULL REFERENCES key, PRIMARY KEY (night, key)) WITHOUT ROWID;
        CREATE TABLE cell (night INTEGER NOT NULL, key INTEGER NOT NULL, outcome TEXT NOT NULL, words TEXT NOT NULL,
            exit_code INTEGER, seconds REAL NOT NULL, host TEXT NOT NULL, versions TEXT NOT NULL, facts TEXT NOT NULL,
            gemms TEXT NOT NULL, PRIMARY KEY (night, key),
            FOREIGN KEY (night, key) REFERENCES planned ON DELETE CASCADE) WITHOUT ROWID;
        CREATE TABLE report (night INTEGER NOT NULL, key INTEGER NOT NULL, content BLOB NOT NULL,
            PRIMARY KEY (night, key), FOREIGN KEY (night, key) REFERENCES cell ON DELETE CASCADE);
        CREATE TABLE pin (name TEXT PRIMARY KEY, night INTEGER NOT NULL REFERENCES night ON DELETE CASCADE);
        CREATE INDEX night_config ON night (config, number);
        PRAGMA user_version = 1;
        INSERT INTO key VALUES (1, 'm.gguf', 'Q4_0', 'q8_1', 'cpu', 'p', 'installed');
        INSERT INTO night VALUES (3, '2026-01-01T00:00:00Z', NULL, 'c', '{"CPU":"x"}', '1.0', '{}');
        INSERT INTO planned VALUES (3, 0, 1);
        INSERT INTO cell VALUES (3, 1, 'verified', '', 0, 2.5, 'cpu', '{}',
            '{"rungs":{},"figures":{},
              "measures":[["layers","kernel (a)",0.5,null,"w"],["layers","llama.cpp",0.1,1,"w"]]}',
            '{"a":0.5}');
        """
    )
    db.execute("INSERT INTO report VALUES (3, 1, ?)", (zlib.compress(b'{"schema": 1}'),))
    db.commit()
    db.close()

    def third(db: sqlite3.Connection) -> None:
        db.execute("ALTER TABLE night ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")

    for version in (2, 3):
        with History(path) as history:
            cell = history.night(3, reports=True).cells[KEY]
            assert cell.measures == (
                Measure("layers", "kernel (a)", 0.5, None, "w", True),
                Measure("layers", "llama.cpp", 0.1, 1, "w", False),
            )  # fmt: skip
            assert cell.gemms == {"a": 0.5}
            assert cell.report is None
        db = sqlite3.connect(path)
        assert db.execute("PRAGMA user_version").fetchone()[0] == version
        assert db.execute("SELECT schema FROM report").fetchall() == [(1,)]
        monkeypatch.setattr(history_module, "MIGRATIONS", [*history_module.MIGRATIONS, third])


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h"
    History(path).close()

    def broken(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE more (x)")
        db.execute("SELECT no FROM such")

    monkeypatch.setattr(history_module, "MIGRATIONS", [*history_module.MIGRATIONS, broken])
    with pytest.raises(HarnessError):
        History(path)
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone()[0] == 2
    assert not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'more'").fetchall()


def no_database(path: Path) -> None:
    path.write_bytes(b"Once upon a time" * 100)


def of_others(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE x (y)")
    db.commit()


def newer(path: Path) -> None:
    History(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")


def hollow(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {len(history_module.MIGRATIONS)}")
    db.commit()


def odd(path: Path) -> None:
    with History(path) as history:
        history.begin("c", [KEY], {}, "1")
        history.record(1, cell_for())
    db = sqlite3.connect(path)
    db.execute("UPDATE cell SET facts = '[]'")
    db.commit()


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (no_database, MalformedFile, "is damaged or not a history"),
        (of_others, MalformedFile, "is a database, but not a history"),
        (newer, EnvironmentFault, "has version 99, but this gguf-verify supports only versions up to 2"),
        (hollow, MalformedFile, "is damaged or not a history"),
        (odd, MalformedFile, "is damaged"),
        (Path.mkdir, EnvironmentFault, "cannot be used"),
    ],
)
def test_what_is_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None], error: type[HarnessError],
    said: str,
) -> None:  # fmt: skip
    path = tmp_path / "h.sqlite"
    make(path)
    with pytest.raises(error, match=said), History(path) as history:
        history.nights()
    for command in (["compare", "--history"], ["status", "--history"], ["pin", "x", "--history"]):
        assert main(["nightly", *command, str(path)]) == error.exit_code
        out, err = capsys.readouterr()
        assert out == ""
        assert len(err.splitlines()) == 1


def test_many_begin_in_one_history_that_is_not_there_yet(tmp_path: Path) -> None:
    pids = []
    for _ in range(8):
        pid = os.fork()
        if not pid:
            code = 77
            try:
                with History(tmp_path / "h") as history:
                    night = history.begin("c", [KEY], {}, "1")
                    history.record(night.number, cell_for())
                    history.finish(night.number)
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    with History(tmp_path / "h") as history:
        assert [n.number for n in history.nights()] == list(range(8, 0, -1))
        assert all(len(n.cells) == 1 and n.finished for n in history.nights())


def test_sqlite_does_not_wait_for_others_to_write_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of twelve processes that begin one file at once, about one in four hundred is told so."""
    told = []

    class Busy(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if "journal_mode" in sql and not told:
                told.append(sql)
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorname = "SQLITE_BUSY"
                raise error
            return super().execute(sql, *args)

    monkeypatch.setattr(history_module.sqlite3, "connect", functools.partial(sqlite3.connect, factory=Busy))
    with History(tmp_path / "h") as history:
        assert history.begin("c", [KEY], {}, "1").number == 1
    assert told


def test_no_history_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "compare", "--history", str(tmp_path / "no")]) == 2
    assert "there is no history" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_a_full_disk_is_one_line_and_half_a_cell_is_none(tmp_path: Path) -> None:
    with History(tmp_path / "h") as history:
        history.begin("c", [KEY], {}, "1")
        (pages,) = history._db.execute("PRAGMA page_count").fetchone()
        history._db.execute(f"PRAGMA max_page_count = {pages}")  # answers as a full disk does
        noise = random.Random(0).randbytes(300_000).hex()
        with pytest.raises(EnvironmentFault, match="full"):
            history.record(1, dataclasses.replace(cell_for(), report=run_result([noise])))
        history._db.execute("PRAGMA max_page_count = 100000")
        assert history.night(1).missing == (KEY,)
        history.record(1, cell_for())


def test_a_thousand_cells_and_twenty_nights_load_quickly(tmp_path: Path) -> None:
    keys = [KEY._replace(model=f"m{i}.gguf") for i in range(1000)]
    gemms = {f"blk.{i}.ffn_down.weight": i / 7 for i in range(100)}
    with History(tmp_path / "h") as history:
        history._db.execute("PRAGMA synchronous = OFF")
        first = dataclasses.replace(cell_for(), gemms=gemms, report=None)
        for number in range(1, 21):
            history.begin("c", keys, {}, "1")
            if number == 1:
                for key in keys:
                    history.record(1, dataclasses.replace(first, key=key))
            else:
                columns = "key, outcome, words, exit_code, seconds, host, versions, facts, gemms"
                history._db.execute(f"INSERT INTO cell SELECT ?, {columns} FROM cell WHERE night = 1", (number,))
        start = time.process_time()
        nights = history.nights()
        seconds = time.process_time() - start
        assert history.night(20).cells[keys[5]].gemms == gemms
    assert sum(len(n.cells) for n in nights) == 20_000
    print(f"20 nights of 1,000 cells: {seconds:.2f} s")
    assert seconds < 1.5


# ---- comparisons ----------------------------------------------------------------------------------------------------


def night_of(number: int, cells: Sequence[Cell], planned: Sequence[Key] | None = None, cpu: str = "x") -> Night:
    found = {cell.key: cell for cell in cells}
    keys = tuple(found) if planned is None else tuple(planned)
    return Night(number, f"{number}", f"{number}", "c", keys, found, {"CPU": cpu}, "1")


def keys_of(changes: Sequence[object]) -> list[str]:
    return [change.key.prompt for change in changes]  # type: ignore[attr-defined]


def test_every_kind_of_change() -> None:
    good, bad, dead = Outcome.VERIFIED, Outcome.MISMATCH, Outcome.CRASHED
    table = {
        "same": (good, good), "broke": (good, bad), "died": (good, dead), "fixed": (dead, good), "still": (bad, bad),
        "other": (bad, dead), "gone": (good, None), "unrun": (bad, None), "new": (None, bad),
    }  # fmt: skip
    cells: list[list[Cell]] = [[], []]
    for name, outcomes in table.items():
        for side, outcome in zip(cells, outcomes, strict=True):
            if outcome is not None:
                side.append(cell_for(KEY._replace(prompt=name), outcome))
    planned = [KEY._replace(prompt=name) for name in table if name != "gone"] + [KEY._replace(prompt="never")]
    old, new = night_of(1, cells[0]), night_of(2, cells[1], planned)
    found = compare([old], old, new)
    assert keys_of(found.new_failures) == ["broke", "died"]
    assert keys_of(found.fixed) == ["fixed"]
    assert keys_of(found.still_failing) == ["still"]
    assert keys_of(found.other_outcome) == ["other"]
    assert [(c.key.prompt, c.words) for c in found.vanished] == [
        ("gone", "not planned any more"), ("unrun", "planned, but not run")
    ]  # fmt: skip
    assert keys_of(found.appeared) == ["new"]
    assert [key.prompt for key in found.not_run] == ["never"]
    assert (found.compared, found.verified) == (6, 1)
    assert found.exit_code() == 1
    text = "\n".join(comparison_lines(found))
    assert "NEW FAILURE m.gguf · Q4_0 · q8_1 · cpu · broke · installed: verified → mismatch: wrong" in text
    assert "VANISHED m.gguf · Q4_0 · q8_1 · cpu · gone · installed: verified → -: not planned any more" in text
    assert "2 new failures, 2 vanished, 1 fixed, 2 still failing, 1 appeared" in text


def test_exit_codes_of_comparisons() -> None:
    one = night_of(1, [cell_for()])
    assert compare([], one, night_of(2, [cell_for()])).exit_code() == 0
    assert compare([], one, night_of(2, [])).exit_code() == 1  # vanished
    assert compare([], night_of(1, []), night_of(2, [])).exit_code() == 5
    assert compare([], night_of(1, []), night_of(2, [cell_for()])).exit_code() == 5
    drifted = compare([], one, night_of(2, [cell_for(u=0.2)]))
    assert (drifted.exit_code(), drifted.exit_code(strict=True)) == (0, 1)
    fails = cell_for(outcome=Outcome.MISMATCH)
    assert compare([], night_of(1, [fails]), night_of(2, [fails])).exit_code() == 0


def test_drift_is_what_the_history_does_not_show() -> None:
    def found(values: Sequence[float], new: float) -> Comparison:
        nights = [night_of(i + 1, [cell_for(u=v)]) for i, v in enumerate(values)]
        return compare(nights[:-1], nights[-1], night_of(99, [cell_for(u=new)]))

    (drift,) = found([0.1, 0.1, 0.1], 0.1 + 1e-6).drift
    assert (drift.rung, drift.who, drift.old, drift.least, drift.most, drift.nights) == (
        "layers",
        "kernel",
        0.1,
        0.1,
        0.1,
        3,
    )
    assert not found([0.1, 0.1, 0.1], 0.1 * (1 + 1e-13)).drift
    assert found([0.1], 0.11).drift
    assert not found([0.1, 0.2], 0.1).drift  # was there before
    assert found([0.1, 0.2], 0.3).drift_not_judged == 1
    assert found([0.1, 0.1, math.nan], 0.1).drift == ()
    assert found([0.1, 0.1, 0.1], math.nan).drift
    noisy = [0.10, 0.11, 0.105, 0.108, 0.102, 0.107]
    assert not found(noisy, 0.112).drift
    assert found(noisy, 0.3).drift
    assert drifts([1.0, 2.0, 3.0], 2.0 + 1e-12) is False
    assert (
        "DRIFT m.gguf · Q4_0 · q8_1 · cpu · p · installed, layers, kernel: utilisation 0.1 → 0.2, 0.1 in 3 nights"
    ) in comparison_lines(found([0.1, 0.1, 0.1], 0.2))


def test_other_machines_are_not_compared() -> None:
    history = [night_of(i, [cell_for()], cpu="slow") for i in range(1, 9)]
    found = compare(history, history[-1], night_of(9, [cell_for(seconds=9, u=0.5)], cpu="fast"))
    assert found.other_machine
    assert not found.drift
    assert found.times_not_judged == {0: 1}
    assert found.hardware == {"CPU": ("slow", "fast")}
    assert any("different machines" in line for line in comparison_lines(found))


def test_versions_that_changed() -> None:
    new = dataclasses.replace(cell_for(), versions={"llama.cpp": "2"})
    found = compare([], night_of(1, [cell_for()]), dataclasses.replace(night_of(2, [new]), project="2"))
    assert found.versions == {"llama.cpp": {("1", "2"): 1}}
    assert found.project == ("1", "2")
    assert "CHANGED llama.cpp: 1 → 2 in 1 cells" in "\n".join(comparison_lines(found))


def noisy_night(
    rng: random.Random, base: dict[int, float], sigma: dict[int, float], pace_sigma: float = 0.2
) -> dict[int, float]:
    """Times with a common pace: log-normal noise, of a cell's own spread."""
    pace = rng.gauss(0, pace_sigma)
    return {k: b * math.exp(pace + rng.gauss(0, sigma[k])) for k, b in base.items()}


def test_a_thousand_stable_nights_and_no_false_alarm() -> None:
    rng = random.Random(20)
    base = {k: rng.uniform(2, 300) for k in range(40)}
    sigma = {k: math.exp(rng.uniform(math.log(0.01), math.log(0.06))) for k in base}
    alarms = judged = 0
    history = [noisy_night(rng, base, sigma) for _ in range(LEAST_NIGHTS)]
    for _ in range(1000):
        new = noisy_night(rng, base, sigma)
        times = judge_times(history, new)
        judged += times.judged
        alarms += len(times.slower)
        history = [*history, new][-12:]
    print(f"{alarms} false alarms in {judged:,} cells of 1,000 nights")
    assert judged == 40_000
    assert alarms == 0


@pytest.mark.parametrize(("nights", "factor"), [(5, 3.0), (8, 2.0), (20, 1.6)])
def test_a_planted_time_regression_is_found_alone(nights: int, factor: float) -> None:
    """In a night that is half as slow again as usual, as a whole."""
    rng = random.Random(nights)
    base = {k: rng.uniform(2, 300) for k in range(40)}
    sigma = dict.fromkeys(base, 0.03)
    for _ in range(20):
        history = [noisy_night(rng, base, sigma) for _ in range(nights)]
        new = {k: 1.5 * t for k, t in noisy_night(rng, base, sigma, 0.0).items()}
        bad = rng.randrange(40)
        new[bad] *= factor
        times = judge_times(history, new)
        assert list(times.slower) == [bad]
        assert times.slower[bad].seconds == pytest.approx(new[bad])
        assert times.slower[bad].seconds / times.slower[bad].expected == pytest.approx(factor, rel=0.25)
        new[bad] /= factor * factor
        times = judge_times(history, new)
        assert (list(times.slower), list(times.faster)) == ([], [bad])


def test_a_slower_cell_is_told_by_the_comparison() -> None:
    nights = 8
    rng = random.Random(1)
    keys = [KEY._replace(prompt=f"p{i}") for i in range(20)]

    def night(number: int, slow: Key | None = None) -> Night:
        pace = math.exp(rng.gauss(0, 0.3))
        times = {key: 10 * pace * math.exp(rng.gauss(0, 0.02)) * (3 if key == slow else 1) for key in keys}
        return night_of(number, [cell_for(key, seconds=t) for key, t in times.items()])

    history = [night(i) for i in range(1, nights + 1)]
    found = compare(history[::-1], history[-1], night(nights + 1, keys[4]))
    assert keys_of(found.slower) == ["p4"]
    assert (found.exit_code(), found.exit_code(strict=True)) == (0, 1)
    assert found.times_judged == 20
    (line,) = [line for line in comparison_lines(found) if line.startswith("SLOWER")]
    assert re.fullmatch(
        r"SLOWER m.gguf .* p4 .*: [0-9.]+ s, [0-9.]+ s expected of 8 nights, \+[0-9.]+ σ \(limit .*\)", line
    )
    later = [night(i) for i in range(50, 60)]  # nights after the new one are no history
    assert compare(later, history[-1], night(nights + 1, keys[4])).times_not_judged == {1: 20}


@pytest.mark.parametrize("cells", [1, 2, 3])
def test_few_cells_hide_no_regression_as_the_nights_pace(cells: int) -> None:
    rng = random.Random(cells)
    base = dict.fromkeys(range(cells), 10.0)
    history = [noisy_night(rng, base, dict.fromkeys(base, 0.02), 0.01) for _ in range(10)]
    assert list(judge_times(history, base | {0: 30.0}).slower) == [0]
    assert not judge_times(history, base).slower


def test_what_slows_every_cell_shows_in_the_pace() -> None:
    rng = random.Random(1)
    base = dict.fromkeys(range(20), 10.0)
    sigma = dict.fromkeys(base, 0.02)
    history = [noisy_night(rng, base, sigma, 0.03) for _ in range(10)]
    times = judge_times(history, {k: 2 * t for k, t in noisy_night(rng, base, sigma, 0.03).items()})
    assert not times.slower
    assert 1.7 < times.pace < 2.3
    assert times.pace_sigmas > 10
    assert abs(judge_times(history, noisy_night(rng, base, sigma, 0.03)).pace_sigmas) < 5


def test_what_is_noise_in_one_history_is_a_regression_in_another() -> None:
    """The same 30 % in a quiet and in a noisy history: no percentage decides."""
    rng = random.Random(3)
    base = dict.fromkeys(range(40), 10.0)
    for spread, expected in ((0.005, [7]), (0.2, [])):
        sigma = dict.fromkeys(base, spread)
        history = [noisy_night(rng, base, sigma) for _ in range(12)]
        new = {k: 10 * math.exp(rng.gauss(0, spread / 10)) for k in base}
        new[7] *= 1.3
        assert list(judge_times(history, new).slower) == expected


def test_few_nights_judge_no_time() -> None:
    history = [{"a": 1.0, "b": 1.0}] * (LEAST_NIGHTS - 1)
    times = judge_times([*history, {"a": 1.0}], {"a": 100.0, "b": 100.0, "c": 1.0})
    assert times.judged == 1
    assert times.not_judged == {LEAST_NIGHTS - 1: 1, 0: 1}
    nights = [night_of(i, [cell_for()]) for i in range(1, 4)]
    lines = list(comparison_lines(compare(nights, nights[-1], night_of(4, [cell_for(seconds=50)]))))
    assert "times of 1 cells not judged: 3 of 5 nights" in lines


def test_times_of_failures_count_for_nothing() -> None:
    history = [night_of(i, [cell_for(seconds=1, outcome=Outcome.MISMATCH)]) for i in range(1, 9)]
    found = compare(history, history[-1], night_of(9, [cell_for(seconds=50)]))
    assert (found.times_judged, found.slower) == (0, ())


# ---- the commands ---------------------------------------------------------------------------------------------------


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
    assert said("compare", str(path))[1].startswith("night 3 against night 2: 1 cells in both, 0 verified in both\nNEW")
    assert said("compare", str(path), "--new", "2")[0] == 0
    assert said("compare", str(path), "--new", "1")[0] == 5
    assert said("pin", "base", str(path), "--night", "1") == (0, "night 1 is now called base\n")
    assert said("compare", str(path), "--old", "base")[1].startswith("night 3 against night 1")
    assert "no night is called basis; pinned are: base (1)" in said("compare", str(path), "--old", "basis")[1]
    assert said("compare", str(path), "--old", "77")[0] == 2
    assert said("pin", "7", str(path))[0] == 2
    code, text = said("status", str(path))
    assert code == 0
    assert [line.split(",")[0] for line in text.splitlines()] == [f"night {i} of night" for i in (3, 2, 1)]
    assert text.splitlines()[2].endswith("(base)")
    assert said("status", "--history", str(tmp_path / "nightly.sqlite"))[1].startswith("night 4 of another")
    assert said("pin", "newest", str(path))[1] == "night 3 is now called newest\n"


# ---- variants -------------------------------------------------------------------------------------------------------


def test_the_dependencies_of_a_variant_are_the_projects_own() -> None:
    found = {text.partition("==")[0]: text for text in requirements.requirements(gpu=False)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(found) == {re.split(r"[<>=~ ]", text)[0] for text in project["dependencies"]} - {"llama-cpp-python"}
    assert all("==" in text for text in found.values())  # as they are installed here
    with_gpu = requirements.requirements(gpu=True)
    assert set(with_gpu) >= set(found.values())


def test_an_installed_harness_brings_nothing_but_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a variant would find this Python's llama_cpp before its own."""
    with requirements.package_path(tmp_path / "unused") as path:
        assert path == str(ROOT / "harness")  # a checkout holds no other package
    in_checkout = requirements.requirements(gpu=False)
    for name in ("gguf_verify", "llama_cpp", "gguf_verify-0.1.0.dist-info"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "x").write_text(name)
    monkeypatch.setattr(requirements, "package_parent", lambda: tmp_path / "site")
    (tmp_path / "to").mkdir()
    with requirements.package_path(tmp_path / "to") as path:
        assert sorted(p.name for p in Path(path).iterdir()) == ["gguf_verify", "gguf_verify-0.1.0.dist-info"]
        assert (Path(path) / "gguf_verify" / "x").is_file()
    assert requirements.requirements(gpu=False) == in_checkout  # of the installed metadata


def test_what_matters_names_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "cache_dir", lambda: tmp_path)
    made = Environments(Processes(), 10)
    base = Variant(version="0.3.35")
    name = made.identity(base)
    assert made.identity(msgspec.structs.replace(base, repack=True)) == name  # neither changes what is installed
    others = [
        msgspec.structs.replace(base, version="0.3.34"), msgspec.structs.replace(base, cmake_args="-DGGML_NATIVE=OFF"),
        msgspec.structs.replace(base, cmake_args=""),
    ]  # fmt: skip
    names = [made.identity(v) for v in others]
    monkeypatch.setenv("CXX", "another")
    names.append(made.identity(base))
    assert len({name, *names}) == 5
    assert made.identity(Variant()).startswith("installed 0.")


class Pip(Processes):
    """Stands in for venv and pip: makes the Python, or fails as told."""

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.commands: list[list[str]] = []
        self.fails = fails

    def run(self, command, *args, log=None, **kwargs):  # type: ignore[no-untyped-def, override]
        self.commands.append(list(command))
        if self.fails and self.fails in " ".join(command):
            command = [sys.executable, "-c", "print('ERROR: no such\\nERROR: no matching distribution'); exit(1)"]
        else:
            if "venv" in command:
                Path(command[-1], "bin").mkdir(parents=True)
            command = ["true"]
        return super().run(command, *args, log=log, **kwargs)


def test_an_environment_is_made_once_and_again_if_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "cache_dir", lambda: tmp_path)
    variant = Variant(version="0.3.35", cmake_args="-DX=1")
    pip = Pip(fails="llama-cpp-python==")
    with pytest.raises(
        EnvironmentFault, match=r"cannot be installed: ERROR: no matching distribution .log: [0-9a-f]+.log"
    ):
        Environments(pip, 60).ready(variant)
    log = Environments(pip, 60).log(variant).read_text()
    assert "no matching distribution" in log
    assert "--no-binary llama-cpp-python --no-cache-dir llama-cpp-python==0.3.35" in log
    folder = tmp_path / "variants" / Environments(pip, 60).identity(variant)
    (folder / "half").write_text("made")
    pip = Pip()
    ready = Environments(pip, 60).ready(variant)
    assert ready.llama_version == "0.3.35"
    assert ready.python == str(folder / "bin" / "python")
    assert not (folder / "half").exists()
    assert len(pip.commands) == 3
    Environments(pip, 60).ready(variant)
    assert len(pip.commands) == 3


def test_a_variant_that_cannot_be_made_is_its_cells_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "cache_dir", lambda: tmp_path / "cache")

    def fails(*_args: object) -> None:
        raise EnvironmentFault("its llama.cpp cannot be installed: no network")

    monkeypatch.setattr(Environments, "_make", fails)
    text = "[variants.here]\n[variants.there]\nllama-cpp-python = '0.3.35'"
    night = run_stub(tmp_path, text, p="pass")
    assert {key.variant: (cell.outcome, cell.words) for key, cell in night.cells.items()} == {
        "here": (Outcome.VERIFIED, ""),
        "there": (Outcome.BROKEN_OFF, "its llama.cpp cannot be installed: no network"),
    }
    assert night.exit_code == 3


# ---- overhead -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_nightly_costs_little_beside_its_cells(tmp_path: Path) -> None:
    """Real time of a night of twenty cells of 0.5 s over the sum of theirs."""
    path = write_config(tmp_path, **{f"p{i}": "pass 0.5" for i in range(20)})
    start = time.monotonic()
    night = run_night(read_config(path), Settings(harness=STUB, say=lambda _line: None))
    wall = time.monotonic() - start
    cells = sum(cell.seconds for cell in night.cells.values())
    print(f"{wall:.2f} s for {cells:.2f} s of cells: {100 * (wall / cells - 1):.1f} % more")
    assert wall < 1.3 * cells  # generous: this machine may be busy. What is measured is printed


# ---- the real thing -------------------------------------------------------------------------------------------------


def nightly(root: Path, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "nightly.py"), *map(str, args)]
    env = {**os.environ, "PYTHONPATH": str(root / "harness")}
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, check=False)


def copy_of_the_project(folder: Path, file: str, old: str, new: str) -> Path:
    """With one line of a kernel altered."""
    for name in ("harness", "kernels", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    source = folder / "kernels" / file
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    return folder


@pytest.mark.slow
def test_a_planted_regression_is_reported_exactly_and_alone(tmp_path: Path) -> None:
    path = write_config(
        tmp_path, "kernels = ['q8_1', 'f32']\nn_predict = 2\nthreads = 1\njobs = 2",
        story="Once upon a time", fox="The quick brown fox",
    )  # fmt: skip
    first = nightly(ROOT, "run", path)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "4 cells, 4 verified" in first.stdout
    assert all(line.startswith("gguf-verify: ") for line in first.stderr.splitlines())
    altered = copy_of_the_project(
        tmp_path / "copy", "gemm/f32/01_naive.cu", "float acc = 0.0f;", "float acc = i == 77 ? 0.5f : 0.0f;"
    )
    second = nightly(altered, "run", path)
    assert second.returncode == 1, second.stdout + second.stderr
    compared = nightly(ROOT, "compare", path)
    assert compared.returncode == 1
    told = [line for line in compared.stdout.splitlines() if line.split()[0].isupper() and "CHANGED" not in line]
    wrong = "NEW FAILURE tiny.gguf · f32 · cpu · {} · installed: verified → mismatch: "
    assert len(told) == 2, compared.stdout
    for line, prompt in zip(told, ("story", "fox"), strict=True):
        assert line.startswith(wrong.format(prompt))
    assert "2 new failures, 0 vanished, 0 fixed, 0 still failing, 0 appeared, 0 utilisations drifted" in compared.stdout
    with History(tmp_path / "nightly.sqlite") as history:
        night = history.night(1)
        assert history.night(2).cells[night.planned[0]].measures == night.cells[night.planned[0]].measures
    cell = night.cells[night.planned[0]]
    assert len(cell.gemms) == 22
    assert {m.rung for m in cell.measures} == {"blocks", "layers", "tokens"}
    assert "layers: gap to llama.cpp, worst NMSE" in cell.figures


@pytest.mark.slow
def test_real_cells_killed_and_resumed(tmp_path: Path) -> None:
    prompts = {"a": "Once upon a time", "b": "The quick brown fox", "c": "One day"}
    text = "n_predict = 2\nthreads = 1\nkernels = ['q8_1', 'f32']"
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name, text, **prompts)

    def start(name: str) -> int:
        command = [sys.executable, str(ROOT / "scripts" / "nightly.py"), "run", str(tmp_path / name / "night.toml")]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "harness")}
        return os.posix_spawn(sys.executable, command, env)

    begun = time.monotonic()
    assert os.waitpid(start("whole"), 0)[1] == 0
    longest = time.monotonic() - begun
    with History(tmp_path / "whole" / "nightly.sqlite") as history:
        expected = history.night(1)
    night, met = killed_and_resumed(
        tmp_path, tmp_path / "killed" / "night.toml", lambda: start("killed"), 5, 11, longest / 4
    )
    strip = [dataclasses.replace(c, rung_seconds={}) for _, c in plain(night)]  # type: ignore[misc]
    assert strip == [dataclasses.replace(c, rung_seconds={}) for _, c in plain(expected)]  # type: ignore[misc]
    assert met >= 2


def test_reports_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The night with what changed since the one before, in every form; what cannot be written is said beforehand."""
    monkeypatch.setattr(cli_nightly, "Settings", functools.partial(Settings, harness=STUB))
    files = {kind: tmp_path / f"report.{kind}" for kind in ("html", "junit", "markdown", "json")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    path = write_config(tmp_path, story="pass")
    assert main(["nightly", "run", str(path), *options]) == 0
    assert json.loads(files["json"].read_text())["comparison"] is None
    path = write_config(tmp_path, story="mismatch")
    assert main(["nightly", "run", str(path), *options]) == 1
    said = json.loads(files["json"].read_text())
    assert [c["words"] for c in said["comparison"]["new_failures"]]
    for kind in ("html", "junit", "markdown"):
        assert "row 3 is wrong" in files[kind].read_text()
    capsys.readouterr()
    for wrong in (["--html", str(tmp_path / "no" / "x")], ["--html", "x", "--json", "x"], ["--json", str(path)]):
        assert main(["nightly", "run", str(path), *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    with History(tmp_path / "nightly.sqlite") as history:
        assert len(history.nights()) == 2
