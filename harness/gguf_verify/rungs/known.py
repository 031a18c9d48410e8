"""The state of a rung at the dispatch of a task (see `pool`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..results.calls import OWN
from ..results.diagnoses import LocatedDiagnosis
from ..results.rungs import PartialResult, RungResult
from .explain import Explanations
from .run import Run


@dataclass(frozen=True)
class Known:
    """The findings of a rung at the dispatch of a task, at least: the task need not look for more of them.

    Args:
        listed: failures of the model's own products that are listed.
        explanations: diagnoses that may still be tried: `Explanations.left`.
        map: wrong outputs get a map.
        unkept: the first wrong call is to be kept.
        causes: diagnoses of the model's own products that name a cause.
    """

    listed: int = 0
    explanations: Mapping[tuple[str, int], int] = field(default_factory=dict)
    map: bool = False
    unkept: bool = False
    causes: tuple[LocatedDiagnosis, ...] = ()

    @classmethod
    def of(cls, result: RungResult, explanations: Explanations) -> Known:
        own = sum(failure.rank == OWN for failure in result.failures)
        causes = tuple(d for d in result.diagnoses if d.cause and d.rank == OWN)
        return cls(own, dict(explanations.left), explanations.draws, explanations.unkept, causes)

    def is_outdated(self, now: Known, part: PartialResult, type: str) -> bool:
        """Whether the failures of a part, of a tensor of this type, would have other causes by what is known now.

        Such a task is judged again, so that the causes in a report do not depend on when tasks were given out.
        """
        return bool(part.failing) and self._of(type) != now._of(type)

    def _of(self, type: str) -> list[LocatedDiagnosis]:
        return [cause for cause in self.causes if cause.type == type]

    def part(self) -> PartialResult:
        """A result in which nothing is recorded yet."""
        return PartialResult(name="", listed=self.listed)

    def explanations_in(self, part: PartialResult, run: Run) -> Explanations:
        """Those of the wrong calls of a part."""
        return Explanations(
            part, run.options.threads, self.map, left=self.explanations, holds=self.unkept, known=self.causes
        )
