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

import pytest

PROPERTY = "processor-seconds"


def spent() -> float:
    return sum(os.times()[:4])


class ProcessorTimes:
    """A plugin. Under pytest-xdist, workers measure and the controller writes."""

    def __init__(self, path: Path, *, writes: bool) -> None:
        self._path, self._writes = path, writes
        self._before = spent()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = spent()
        report.user_properties.append((PROPERTY, now - self._before))
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += sum(float(str(v)) for name, v in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self) -> None:
        if not self._writes:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        longest_first = sorted(self._seconds.items(), key=lambda each: -each[1])
        unfinished.write_text("".join(f"{seconds:.2f}\t{test}\n" for test, seconds in longest_first))
        unfinished.replace(self._path)
