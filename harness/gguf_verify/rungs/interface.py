"""What a rung is: a record that each rung's module defines, and that the registry finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..results.rungs import RungResult
from .run import Run


@dataclass(frozen=True)
class Rung:
    """A step of the verification.

    Args:
        name: what `--rungs` takes.
        order: rungs are climbed in ascending order: what a lower rung finds explains a higher one.
        question: that the rung answers.
        substance: kinds of things that it counts as checked, of which it must have checked one to pass.
        check: does the work, and records what it finds in the result. Raises EnvironmentFault where this machine cannot
            go on (llama.cpp crashed, for example).
        computes: the kernels that it is for, by what these compute.
        whole: a budget lets it end or leaves all of it; it leaves some tensors of other rungs.
    """

    name: str
    order: int
    question: str
    substance: tuple[str, ...]
    check: Callable[[Run, RungResult], None]
    computes: tuple[str, ...] = ("gemm", "experts")
    whole: bool = False

    def empty(self) -> RungResult:
        """A result in which nothing is checked yet."""
        return RungResult(name=self.name, question=self.question, substance=self.substance)

    def climb(self, run: Run, result: RungResult | None = None) -> RungResult:
        """Check, and say what was found, in a result that the caller may read meanwhile. Raises EnvironmentFault, as
        `check` does."""
        result = self.empty() if result is None else result
        with result.timed():
            self.check(run, result)
        return result
