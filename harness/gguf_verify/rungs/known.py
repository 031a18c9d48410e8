"""What a rung knows when it gives out a task (`tasks`)."""

from __future__ import annotations

from dataclasses import dataclass

from ..results import PartialResult, RungResult
from .explain import MOST_DIAGNOSES, Explanations
from .run import Run


@dataclass(frozen=True)
class Known:
    """What a rung had found when a task was given out, at least: more of it need not be looked for.

    Args:
        listed: failures that are listed.
        explanations: diagnoses that may still be tried.
        map: the map of the first wrong output is to be drawn.
        unkept: the first wrong call is to be kept.
    """

    listed: int = 0
    explanations: int = MOST_DIAGNOSES
    map: bool = False
    unkept: bool = False

    @classmethod
    def of(cls, result: RungResult, explanations: Explanations) -> Known:
        return cls(len(result.failures), explanations.left, explanations.undrawn, explanations.unkept)

    def part(self) -> PartialResult:
        """A result in which nothing is recorded yet."""
        return PartialResult(name="", listed=self.listed)

    def explanations_in(self, part: PartialResult, run: Run) -> Explanations:
        """Those of the wrong calls of a part."""
        return Explanations(part, run.options.threads, self.map, left=self.explanations, holds=self.unkept)


__all__ = ["Known"]
