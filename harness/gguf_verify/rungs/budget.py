"""The time that a run may take, and the part of it that a rung may.

Each rung that can judge some tensors and leave others gets an equal part of the time that is left when it begins; what
it does not use is left to those after it. The tokens rung, which is done whole or not at all, comes last and gets what
is left then. The probes of a type may take half of the time that is left for their rung. Nothing is interrupted: rungs
look at the time between products and between probes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..results.options import spent_words


class BudgetSpent(Exception):
    """A rung that is done whole or not at all has no time left."""


class Budget:
    """The time of one run, from now on.

    Args:
        seconds: of the whole run; None: unlimited.
        clock: returns the time in seconds.
        words: the reason for what is skipped; None: that the budget is spent.
    """

    def __init__(
        self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic, words: str | None = None
    ) -> None:
        self.clock = clock
        self.limited = seconds is not None
        #: Something was skipped because of it.
        self.cut = False
        #: The reason for what is skipped.
        self.words = spent_words(seconds) if words is None else words
        self._end = math.inf if seconds is None else clock() + seconds
        self._deadline = self._end

    def reserve(self, seconds: float) -> None:
        """Keep this time for the work after the rungs."""
        self._end -= seconds
        self._deadline = min(self._deadline, self._end)

    def share(self, rungs: int) -> None:
        """A rung begins; it gets an equal part of the time that is left for this number of rungs."""
        if self.limited:
            now = self.clock()
            self._deadline = now + max(0.0, self._end - now) / rungs

    @contextmanager
    def half(self) -> Iterator[None]:
        """In this block, half of the time that is left for the rung is all of it."""
        before = self._deadline
        if self.limited:
            self._deadline -= self.left / 2
        try:
            yield
        finally:
            self._deadline = before

    @property
    def over(self) -> bool:
        """Whether no time is left for the run."""
        return self.limited and self.clock() >= self._end

    @property
    def left(self) -> float:
        """Seconds that the rung may still take."""
        return max(0.0, self._deadline - self.clock()) if self.limited else math.inf

    @property
    def spent(self) -> bool:
        """Whether the rung's time is over."""
        return self.left <= 0

    def check(self) -> None:
        """Raises BudgetSpent where the rung's time is over."""
        if self.spent:
            self.cut = True
            raise BudgetSpent(self.words)
