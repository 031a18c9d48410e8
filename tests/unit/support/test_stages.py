"""Times of stages: inner ones are taken from outer ones, threads have clocks of their own, and rungs add them up."""

from __future__ import annotations

import threading

import pytest

from gguf_verify.results.rungs import RungResult
from gguf_verify.support import stages
from gguf_verify.support.stages import counted, stage


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only the test moves: its one element is the time."""
    now = [100.0]
    monkeypatch.setattr("gguf_verify.support.stages.time.perf_counter", lambda: now[0])
    return now


def test_inner_stages_are_taken_from_outer_ones(clock: list[float]) -> None:
    before = stages.seconds()
    with stage("launch"):
        clock[0] += 1
        with stage("quantize"):
            clock[0] += 2
            with stage("compile"):
                clock[0] += 4
        with stage("quantize"):
            clock[0] += 8
        clock[0] += 16
    assert stages.since(before) == {"compile": 4, "quantize": 10, "launch": 17}
    assert list(stages.since(before)) == [name for name in stages.STAGES if name in ("compile", "quantize", "launch")]


def test_a_stage_that_raises_is_counted_and_closed(clock: list[float]) -> None:
    @counted("judging")
    def broken() -> None:
        clock[0] += 3
        raise ValueError("no")

    before = stages.seconds()
    with pytest.raises(ValueError, match="no"):
        broken()
    with stage("upload"):
        clock[0] += 1
    assert stages.since(before) == {"judging": 3, "upload": 1}


def test_names_are_known() -> None:
    with pytest.raises(AssertionError), stage("lunch"):
        pass


def test_threads_have_clocks_of_their_own() -> None:
    def work() -> None:
        with stage("download"):
            pass

    before = stages.seconds()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert stages.since(before) == {}


def test_a_rung_adds_them_up(clock: list[float]) -> None:
    with stage("pack"):
        clock[0] += 50  # before the rung
    result = RungResult(name="layers")
    for _ in range(2):
        with result.timed():
            clock[0] += 1
            with stage("launch"):
                clock[0] += 2
    assert (result.seconds, result.stages) == (6, {"launch": 4})
