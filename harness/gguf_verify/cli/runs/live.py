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
from ...verification.climb import Event, Failed, RungBegins, RungEnds

#: Failures of a rung that are shown while it runs.
MOST_FAILURES = 3
#: Seconds of a run from which its time is estimated in words.
LONG = 20.0


def about(seconds: float) -> str:
    """Format an estimate: about 40 s, about 4 min, about 1.5 h."""
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


class Live:
    """Prints the events of a run. A rung that takes long shows a bar; first the time that is left is printed.

    Args:
        shown: format of the lines.
    """

    def __init__(self, shown: Form) -> None:
        self._form = shown
        self._distinct = Distinct()
        self._shown, self._begun = 0, False

    def __call__(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, RungBegins):
            self._begins(event)
        elif isinstance(event, Failed):
            self._failed(event.result, event.failure)
        elif isinstance(event, RungEnds):
            self._ended(event.result)

    def _begins(self, event: RungBegins) -> None:
        """Print the time that the run takes, or what is left of it, if it is long."""
        if (left := event.left) is not None and min(left.left, left.budget or left.left) >= LONG:
            words = f"this run takes {about(left.left)}"
            words += f"; --effort quick: {about(left.quick)}" if left.quick < left.left / 2 else ""
            if self._begun:
                words = f"{about(min(left.left, left.budget or left.left))} left"
            elif left.budget is not None and left.budget < left.left:
                words = f"a whole run takes {about(left.left)}, and the budget is {about(left.budget)}"
            self._print(rendered([Text(words)], self._form))
        self._begun = True

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
