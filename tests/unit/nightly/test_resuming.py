"""Nights that are killed and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_verify.support.errors import EnvironmentFault, HarnessError
from gguf_verify_nightly.config import read_config
from gguf_verify_nightly.exclusive import locked
from gguf_verify_nightly.history import History
from gguf_verify_nightly.night import Settings, run_night
from tests.support.processes import gone, wait_until
from tests.support.stub_nights import Q4_0, STUB, killed_and_resumed, plain, write_config


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


@pytest.mark.parametrize("kills", [5, 10])
def test_killed_and_resumed(tmp_path: Path, kills: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    prompts = {f"p{i}": "pass 0.05" for i in range(9 * kills // 5)} | {"bad": "mismatch", "dead": "segv"}
    for folder in (whole, killed):
        folder.mkdir()
        write_config(folder, "jobs = 2\nkernels = ['q8_1', 'f32']", **prompts)
    _, status = os.waitpid(fork_night(whole / "night.toml"), 0)
    assert status == 0
    with History(whole / "nightly.sqlite") as history:
        expected = history.night(1)
    log = killed / "log"
    night, met = killed_and_resumed(
        killed, killed / "night.toml", lambda: fork_night(killed / "night.toml", log), kills, 7, 0.35
    )
    assert plain(night) == plain(expected)
    assert night.planned == expected.planned
    assert night.finished
    print(f"{met} kills met the night at work")
    assert met >= kills // 2  # else this has tested little
    ran = log.read_text().splitlines()
    assert len(ran) <= len(night.planned) + 4 * met  # two ran, two waited to be recorded: the rest was not run again


def test_sigterm_ends_all_and_the_same_command_resumes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    path = write_config(tmp_path, "time_limit = 100", a="pass", b=f"hangs {pids}")
    pid = fork_night(path)
    assert wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
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
    assert said[0] == "resuming night 1: 1 of 2 cells recorded"
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


def test_what_was_opened_for_a_kernel_is_part_of_a_night(tmp_path: Path) -> None:
    """A library that the loader opened is no part of the kernel's text: the run's report has it."""
    library = tmp_path / "libimpl.so"
    library.write_bytes(b"one")
    path = unfinished(tmp_path, a=f"opens {library}", b="pass")
    said: list[str] = []
    os.utime(library, (1, 1))
    run_night(read_config(path), Settings(harness=STUB, say=said.append))
    assert said[0] == "resuming night 1: 1 of 2 cells recorded"
    again = tmp_path / "again"
    again.mkdir()
    path = unfinished(again, a=f"opens {library}", b="pass")
    library.write_bytes(b"two")
    said.clear()
    run_night(read_config(path), Settings(harness=STUB, say=said.append))
    what = "night 1 was not finished and cannot be resumed"
    assert said[0] == f"{what}: the kernel's file {library} changed; a new night begins"


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


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("elsewhere")])
def test_a_lock_that_is_no_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """It may lie in a folder that others write."""
    config = read_config(write_config(tmp_path, a="pass"))
    make(config.history.with_name(f"{config.history.name}.{config.name}.lock"))
    with pytest.raises(EnvironmentFault, match="cannot write"), locked(config):
        pass


def test_two_configurations_in_one_history_at_once(tmp_path: Path) -> None:
    paths = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        prompts = {f"p{i}": "pass" for i in range(5)}
        paths.append(write_config(folder, f'name = "{name}"\nhistory = "../h.sqlite"\njobs = 2', **prompts))
    pids = [fork_night(path) for path in paths]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
    with History(tmp_path / "h.sqlite") as history:
        nights = history.nights()
        assert sorted(n.number for n in nights) == [1, 2]
        assert {n.config for n in nights} == {"one", "two"}
        assert all(n.finished and len(n.cells) == 5 for n in nights)
        assert [n.config for n in history.nights(config="one")] == ["one"]


@pytest.mark.parametrize("signal_", ["SIGKILL", "SIGTERM"])
def test_a_cell_that_somebody_kills_is_tried_again(tmp_path: Path, signal_: str) -> None:
    """As the kernel does that is out of memory, or an administrator: three times in all."""
    path = write_config(tmp_path, p="pass", q=f"killed {signal_}")
    said: list[str] = []
    for time in (1, 2):
        night = run_night(read_config(path), Settings(harness=STUB, say=said.append))
        assert (night.number, night.finished, night.exit_code) == (1, None, 5)
        assert [cell.outcome for cell in night.cells.values()] == ["verified"]
        assert [key.prompt for key in night.missing] == ["q"]
        assert any(f"killed from outside by {signal_}; will be tried again ({time} of 3)" in line for line in said)
        assert said[-1] == "1 cell was killed from outside; the same command tries again"
    night = run_night(read_config(path), Settings(harness=STUB, say=said.append))
    assert night.finished
    assert night.exit_code == 3
    last = [cell for cell in night.cells.values() if cell.key.prompt == "q"]
    assert [(c.outcome, c.reason) for c in last] == [
        ("crashed", f"killed from outside by {signal_}, like the 2 runs before; not tried again")
    ]
    with sqlite3.connect(tmp_path / "nightly.sqlite") as db:
        assert (
            db.execute("SELECT night, reason FROM killed").fetchall() == [(1, f"killed from outside by {signal_}")] * 3
        )


def test_a_cell_that_was_killed_once_passes_when_it_is_tried_again(tmp_path: Path) -> None:
    path = write_config(tmp_path, p=f"killed-once {tmp_path / 'mark'}")
    assert run_night(read_config(path), Settings(harness=STUB, say=lambda _line: None)).finished is None
    night = run_night(read_config(path), Settings(harness=STUB, say=lambda _line: None))
    assert (night.number, night.exit_code) == (1, 0)
    assert night.finished
