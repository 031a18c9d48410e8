"""Bars, lines of a log and the current step on standard error."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from gguf_verify.support.progress import Lines, Steps, print_above_bars, progress_bar, under_way


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("late", [False, True])
def test_lines_stand_above_a_bar_that_is_shown(late: bool) -> None:
    """A bar appears after a while only; until then a line must not show it."""
    with redirect_stderr(Terminal()) as out, progress_bar("work", 9, "step", shown=True) as bar:
        if late:
            bar.start_t -= 100
            bar.update()
            bar.refresh()
            assert "work:" in out.getvalue()
        before = len(out.getvalue())
        print_above_bars("a line\n")
        assert ("work:" in out.getvalue()[before:]) == late
    end = out.getvalue().rpartition("\n")[2]
    assert end.rpartition("\r")[2] == ""  # the bar is gone
    assert "a line\n" in out.getvalue()


class NotebookOutput(io.StringIO):
    """Standard error of a cell, as ipykernel makes it."""


NotebookOutput.__module__ = "ipykernel.iostream"


def test_a_notebook_has_a_bar() -> None:
    with redirect_stderr(NotebookOutput()) as out, progress_bar("layers", 9, "GEMM", shown=True) as bar:
        bar.start_t -= 100
        bar.update()
        bar.refresh()
        assert "layers:  11%" in out.getvalue()
    assert out.getvalue().endswith(" \r")  # it is gone
    assert "\x1b" not in out.getvalue()


# ---- in a log --------------------------------------------------------------------------------------------------------


class Clock:
    """A time that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[io.StringIO, Clock]]:
    """Standard error is a file, and only the test moves the time."""
    with monkeypatch.context() as patch, redirect_stderr(io.StringIO()) as out:
        patch.setattr(Lines, "clock", staticmethod(clock := Clock()))
        yield out, clock


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as (log, clock), progress_bar("blocks", 8 << 20, "B", shown=True) as bar:
        for _ in range(8):
            under_way(bar, "blk.0.\x1b[31mffn")
            clock.now += Lines.PERIOD / 2
            bar.update(1 << 20)
    lines = log.getvalue().splitlines()
    assert len(lines) == 4
    assert lines[0] == r"blocks: 25 % (2.00MB of 8.00MB), 68.3kB/s, 01:30 left, blk.0.\x1b[31mffn"
    assert lines[3].startswith("blocks: 100 % (8.00MB of 8.00MB), 68.3kB/s, 00:00 left")


def test_the_rate_ignores_earlier_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as (log, clock), progress_bar("layers", 40, "GEMM", shown=True, initial=20) as bar:
        clock.now += 100
        bar.update(10)
        bar.update(None)
    assert log.getvalue() == "layers: 75 % (30 GEMM of 40 GEMM), 0.1 GEMM/s, 01:40 left\n"


def test_a_log_gets_nothing_of_what_is_soon_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as (log, clock), progress_bar("bytes", None, "B", shown=True) as bar:
        clock.now += Lines.PERIOD - 1
        bar.update(3)
        assert not log.getvalue()
        clock.now += 1
        bar.update(3)
    assert log.getvalue() == "bytes: 6.00B, 0.20B/s\n"


def test_nothing_is_shown_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged(monkeypatch) as (log, clock), progress_bar("bytes", 3, "B", shown=False) as bar:
        under_way(bar, "a")
        clock.now += 1000
        bar.update(3)
    assert not log.getvalue()


def test_the_bar_names_what_is_under_way() -> None:
    """At once where the bar is shown, since that may take long; not before it is."""
    with redirect_stderr(Terminal()) as out, progress_bar("work", 9, "B", shown=True) as bar:
        under_way(bar, "early")
        assert not out.getvalue()
        bar.start_t -= 100
        under_way(bar, "blk.0.\x1b[31mffn")
        assert r"blk.0.\x1b[31mffn" in out.getvalue()


# ---- the current step ------------------------------------------------------------------------------------------------


class Quick(Steps):
    """Steps without a delay."""

    DELAY, PERIOD = 0.0, 0.01


def waited_for(stream: io.StringIO, words: str) -> bool:
    for _ in range(3000):
        if words in stream.getvalue():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(("kind", "clear"), [(Terminal, "\r\x1b[K"), (NotebookOutput, f"\r{' ' * 76}\r")])
def test_a_step_is_shown_with_its_seconds_and_vanishes(kind: type[io.StringIO], clear: str) -> None:
    """A notebook knows no escape sequence that clears a line."""
    with redirect_stderr(kind()) as stream, Quick(True) as told:
        told("compiling Q4_K for the CPU (2 of 3)")
        assert waited_for(stream, "compiling Q4_K for the CPU (2 of 3) … 0 s")
        told("importing my.py:gemm")
        assert waited_for(stream, "importing my.py:gemm")
    assert stream.getvalue().endswith(clear)
    assert kind is Terminal or "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    ("shown", "stream", "kind"), [(True, Terminal, Steps), (True, io.StringIO, Quick), (False, Terminal, Quick)]
)
def test_no_step_is_shown(shown: bool, stream: type[io.StringIO], kind: type[Steps]) -> None:
    """If it is soon over, if no terminal is there, or if the user wants no progress."""
    with redirect_stderr(stream()) as out, kind(shown) as told:
        told("compiling")
        time.sleep(0.05)
    assert not out.getvalue()
