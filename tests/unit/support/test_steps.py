"""The line that names what is being done."""

from __future__ import annotations

import io
import sys
import time

import pytest

from gguf_verify.support.progress import Steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def waited_for(stream: io.StringIO, words: str) -> bool:
    for _ in range(3000):
        if words in stream.getvalue():
            return True
        time.sleep(0.01)
    return False


def test_a_step_is_named_with_its_seconds_and_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(Steps, "DELAY", 0.0)
    monkeypatch.setattr(Steps, "PERIOD", 0.01)
    with Steps(True) as told:
        told("compiling Q4_K for the CPU (2 of 3)")
        assert waited_for(stream, "compiling Q4_K for the CPU (2 of 3) … 0 s")
        told("importing my.py:gemm")
        assert waited_for(stream, "importing my.py:gemm")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_what_is_over_at_once_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with Steps(True) as told:
        told("compiling")
    assert not stream.getvalue()


@pytest.mark.parametrize(("shown", "kind"), [(True, io.StringIO), (False, Terminal)])
def test_nothing_is_written_where_nobody_looks(
    shown: bool, kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := kind())
    monkeypatch.setattr(Steps, "DELAY", 0.0)
    with Steps(shown) as told:
        told("compiling")
        assert told._thread is None
    assert not stream.getvalue()
