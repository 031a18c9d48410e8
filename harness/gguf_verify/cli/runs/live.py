"""Events of a run on standard error, as they happen."""

from __future__ import annotations

import sys

from rich.text import Text

from ...report.terminal.console import rendered
from ...report.terminal.failures import Distinct, failure_sentence
from ...report.terminal.run import rung_line
from ...report.writer import Form
from ...results.failures import Failure
from ...results.rungs import RungResult
from ...support.progress import print_above_bars
from ...verification.climb import Event, Failed, RungEnds

#: Failures of a rung that are shown while it runs.
MOST_FAILURES = 3


class Live:
    """Prints the events of a run. A rung that takes long shows a bar, so its beginning is not printed.

    Args:
        shown: format of the lines.
    """

    def __init__(self, shown: Form) -> None:
        self._form = shown
        self._distinct = Distinct()
        self._shown = 0

    def __call__(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, Failed):
            self._failed(event.result, event.failure)
        elif isinstance(event, RungEnds):
            self._ended(event.result)

    def _failed(self, result: RungResult, failure: Failure) -> None:
        """Print a failure in words, unless it repeats one already shown or several are; the report has its numbers."""
        if self._shown < MOST_FAILURES and self._distinct.adds(result, failure):
            self._shown += 1
            self._print(rendered(failure_sentence(result, failure, self._form), self._form))

    def _ended(self, result: RungResult) -> None:
        """Print a line for the rung, after one that says how many failures were not shown."""
        if result.n_failures > self._shown:
            more = f"… {self._shown:,} of {result.n_failures:,} failures of the {result.name} rung are shown"
            self._print(rendered([Text(more)], self._form))
        self._shown = 0
        self._print(rendered([rung_line(result, self._form)], self._form))

    def _print(self, text: str) -> None:
        if sys.stderr is not None:
            print_above_bars(text)
