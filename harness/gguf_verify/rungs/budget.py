"""The time that a run may take, and the part of it that a rung may.

Each rung that can judge some tensors and leave others gets an equal part of the time that is left when it begins; what
it does not use is left to those after it. The tokens rung, which is done whole or not at all, comes last and gets what
is left then. The probes of a type may take half of the time that is left for their rung. Nothing is interrupted: rungs
look at the time between products and between probes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..results.options import spent_words


class BudgetSpent(Exception):
    """A rung that is done whole or not at all has no time left."""


@dataclass(frozen=True)
class Budget:
    """The time of a run and of its current rung; without an end it is unlimited.

    Args:
        clock: returns the time in seconds.
        words: the reason for what is skipped.
        end: of the run.
        deadline: of the rung.
    """

    clock: Callable[[], float] = time.monotonic
    words: str = spent_words(None)
    end: float = math.inf
    deadline: float = math.inf

    @classmethod
    def of(cls, seconds: float | None, clock: Callable[[], float] = time.monotonic, words: str | None = None) -> Budget:
        """A budget of this time from now on; None: unlimited. `words`: None for those of a whole run."""
        end = math.inf if seconds is None else clock() + seconds
        return cls(clock, spent_words(seconds) if words is None else words, end, end)

    def reserve(self, seconds: float) -> Budget:
        """With this time kept for the work after the rungs."""
        end = self.end - seconds
        return replace(self, end=end, deadline=min(self.deadline, end))

    def share(self, rungs: int) -> Budget:
        """That of the next rung: an equal part of the time that is left for this number of rungs."""
        if not self.limited:
            return self
        now = self.clock()
        return replace(self, deadline=now + max(0.0, self.end - now) / rungs)

    def share_left(self, parts: int) -> Budget:
        """With an equal part of the time that is left for the rung."""
        return replace(self, deadline=self.clock() + self.left / parts) if self.limited else self

    def half(self) -> Budget:
        """With half of the time that is left for the rung."""
        return replace(self, deadline=self.deadline - self.left / 2) if self.limited else self

    @property
    def limited(self) -> bool:
        """Whether it has an end."""
        return self.end < math.inf

    @property
    def over(self) -> bool:
        """Whether no time is left for the run."""
        return self.limited and self.clock() >= self.end

    @property
    def left(self) -> float:
        """Seconds that the rung may still take."""
        return max(0.0, self.deadline - self.clock()) if self.limited else math.inf

    @property
    def spent(self) -> bool:
        """Whether the rung's time is over."""
        return self.left <= 0

    def check(self) -> None:
        """Raises BudgetSpent where the rung's time is over."""
        if self.spent:
            raise BudgetSpent(self.words)
