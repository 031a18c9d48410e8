"""Progress display of a night: the number of recorded cells, the running cell and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from gguf_verify.support.progress import progress_bar
from gguf_verify.support.text import counted, printable

from .records import Cell, Key, Night


class Progress:
    """A bar on a terminal, otherwise one line per cell. Threads call `begins`; the main thread calls the rest.

    Args:
        night: the night with the cells recorded so far.
        pending: the cells to be run.
        jobs: number of cells that run at the same time.
        before: seconds that each cell took in the last night that ran it.
        terminal: show a bar.
        say: called with each line.
    """

    def __init__(
        self, night: Night, pending: Sequence[Key], jobs: int, before: Mapping[Key, float], terminal: bool,
        say: Callable[[str], object],
    ) -> None:  # fmt: skip
        self._total, self._recorded, self._jobs = len(night.planned), len(night.cells), jobs
        self._before, self._terminal, self._say = before, terminal, say
        self._pending = dict.fromkeys(pending)
        self._started: dict[Key, float] = {}
        self._took: dict[Key, float] = {}
        self._bar = progress_bar(f"night, {counted(self._total, 'cells')}", self._total, "cell", terminal)
        self._bar.bar_format = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {postfix}"
        self._bar.update(self._recorded)

    def begins(self, key: Key) -> None:
        self._started[key] = time.monotonic()

    def done(self, cell: Cell) -> None:
        self._pending.pop(cell.key, None)
        self._started.pop(cell.key, None)
        if cell.seconds:
            self._took[cell.key] = cell.seconds
        self._recorded += 1
        self._bar.update()
        if not self._terminal:
            reason = f": {cell.reason}" if cell.reason else ""
            left = f"; {self._left()} left" if self._pending else ""
            how = f"{self._recorded}/{self._total} {cell.outcome} in {cell.seconds:.1f} s"
            self._say(f"{how}, {printable(str(cell.key), 200)}{reason}{left}")

    def killed(self, key: Key, how: str) -> None:
        """Report a run that was killed from outside, and is therefore not recorded."""
        self._pending.pop(key, None)
        self._started.pop(key, None)
        if not self._terminal:
            self._say(f"{printable(str(key), 200)}: {how}")

    def show(self) -> None:
        if self._terminal:
            current = next(iter(self._started.copy()), None)
            name = "" if current is None else printable(str(current), 60)
            self._bar.set_postfix_str(f"{self._left()} left, {name}")

    def _left(self) -> str:
        """Estimate the remaining time from earlier times, scaled to this night's pace. New cells take the mean."""
        known = [(seconds, self._before[key]) for key, seconds in self._took.items() if self._before.get(key)]
        pace = sum(now for now, _ in known) / sum(then for _, then in known) if known else 1.0
        seen = list(self._took.values()) or list(self._before.values())
        if not seen:
            return "unknown time"
        mean = sum(seen) / len(seen)
        now = time.monotonic()
        left = 0.0
        for key in self._pending:
            expected = self._before[key] * pace if key in self._before else mean
            begun = self._started.get(key)
            left += expected if begun is None else max(0.0, expected - (now - begun))
        seconds = round(left / self._jobs)
        return f"{seconds} s" if seconds < 100 else f"{round(seconds / 60)} min"

    def close(self) -> None:
        self._bar.close()
