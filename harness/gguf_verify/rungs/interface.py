"""The record of a rung, which each rung's module defines and the registry finds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from ..results.rungs import RungResult
from .explain import WrongOutput
from .run import Run

#: The steps of a rung. After each one its result may hold new failures. A step yields the rung's first wrong call, once
#: it is known and if the run saves a case.
Steps = Generator[WrongOutput | None, None, None]


@dataclass(frozen=True)
class Rung:
    """A step of the verification.

    Args:
        name: of `--rungs`.
        order: rungs are climbed in ascending order; the findings of a lower rung explain those of a higher one.
        question: that the rung answers.
        substance: kinds of checked things; the rung must have checked one of these kinds to pass.
        check: does the work, and records its findings in the result. It may be a generator (see `Steps`): the
            caller can then report failures early, or end the rung between two steps. Raises EnvironmentFault if this
            machine cannot go on (llama.cpp crashed, for example).
        computes: the tasks of the kernels that the rung is for.
        whole: with a budget the rung is done completely or not at all; other rungs skip some tensors.
        own: it judges the model's own products: with a budget it may take all time that is left.
        turn: the place of the rung in a run with a budget, which begins with what shows most per second; 0: `order`.
        later: the part that `check` leaves to the end of such a run, and has recorded as not verified.
    """

    name: str
    order: int
    question: str
    substance: tuple[str, ...]
    check: Callable[[Run, RungResult], Steps | None]
    computes: tuple[str, ...] = ("gemm", "experts")
    whole: bool = False
    own: bool = False
    turn: int = 0
    later: Callable[[Run, RungResult], Steps] | None = None

    def empty(self) -> RungResult:
        """A result in which nothing is checked yet."""
        return RungResult(name=self.name, question=self.question, substance=self.substance)

    def steps(self, run: Run, result: RungResult) -> Steps:
        """Climb the rung step by step, into the result. Raises EnvironmentFault, as `check` does."""
        with result.timed():
            yield from self.check(run, result) or ()

    def later_steps(self, run: Run, result: RungResult) -> Steps:
        """What `check` left, step by step, into the same result. Raises EnvironmentFault."""
        if self.later is not None:
            with result.timed():
                yield from self.later(run, result)

    def climb(self, run: Run) -> RungResult:
        """Climb the rung. Raises EnvironmentFault, as `check` does."""
        result = self.empty()
        for _ in self.steps(run, result):
            pass
        return result
