"""What standard error shows of a run while it goes on: a line for each rung as it ends, and the first failure."""

from __future__ import annotations

import sys

from ..report.terminal.console import rendered
from ..report.terminal.run import failure_lines, rung_line
from ..report.writer import Form
from ..results import Failure, Report, RungResult
from ..rungs import Rung
from ..support.progress import print_above_bars
from ..verification import Watcher


class Live(Watcher):
    """Prints as the run goes on.

    Args:
        shown: how lines are written.
    """

    def __init__(self, shown: Form) -> None:
        self._form = shown
        self._told = False

    def failed(self, result: RungResult, failure: Failure) -> None:
        """The run's first failure, as soon as it is known; the run goes on."""
        if not self._told:
            self._told = True
            self._print(rendered(failure_lines(result, failure, self._form), self._form))

    def ends(self, _report: Report, result: RungResult) -> None:
        """A line for the rung."""
        self._print(rendered([rung_line(result, self._form)], self._form))

    def begins(self, report: Report, rung: Rung) -> None:
        """Nothing: a rung that takes long shows a bar."""

    def _print(self, text: str) -> None:
        if sys.stderr is not None:
            print_above_bars(text)
