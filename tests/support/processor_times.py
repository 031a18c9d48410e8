"""Processor time of each test: its own process and the children that have ended, in user and system mode.

`pytest --processor-times FILE` writes one line a test, `seconds<TAB>node id`, the longest first. Unlike wall time, the
numbers can be compared between runs on a machine that others use too. The set-up and the tear-down of a shared fixture
count for the first and the last test that uses it. Processes that are killed inside the boundary do not count: the
kernel ends their namespace without adding up their times.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_OUTPUT = "processor-seconds"


def spent() -> float:
    return sum(os.times()[:4])


class ProcessorTimes:
    """A plugin. Under pytest-xdist, workers measure and the controller writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = spent()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = spent()
        self._seconds[item.nodeid] += now - self._before
        self._before = now
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended. One that crashed leaves no output."""
        for test, seconds in getattr(node, "workeroutput", {}).get(_OUTPUT, {}).items():
            self._seconds[test] += seconds

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_OUTPUT] = dict(self._seconds)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        longest_first = sorted(self._seconds.items(), key=lambda each: -each[1])
        unfinished.write_text("".join(f"{seconds:.2f}\t{test}\n" for test, seconds in longest_first))
        unfinished.replace(self._path)
