"""The findings of large products, and the names of their faults."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....gguf.file import Tensor
from ....results.calls import Call
from ....results.diagnoses import FaultMatch, LocatedDiagnosis
from ....results.failures import Failure
from ....results.rungs import RungResult
from ....support.text import printable
from ...explain import Explanations
from .repeating import Wrong


@dataclass
class HugeFound:
    """The findings: see `TypeEnvelope`; and whether something is wrong."""

    indices: list[str] = field(default_factory=list)
    grids: list[str] = field(default_factory=list)
    not_covered: list[tuple[str, str]] = field(default_factory=list)
    wrong: bool = False


@dataclass
class Findings:
    """Records failures of large products.

    Args:
        result, explanations: of the rung.
        tensor: the first matrix of the type, for the names of failures.
        call: of which the calls are variants.
    """

    result: RungResult
    tensor: Tensor
    explanations: Explanations
    call: Call
    found: HugeFound = field(default_factory=HugeFound)

    def fail(self, wrong: Wrong, where: str = "", named: FaultMatch | None = None) -> None:
        """Record that a product is wrong, and the name of its fault."""
        self.found.wrong = True
        words = wrong.words if named is None or named.words in wrong.words else f"{wrong.words} ({named.words})"
        culprit = "kernel" if wrong.error is None else wrong.error.culprit
        name = self.tensor.name
        self.result.fail(
            Failure(words, name, token=wrong.token, got=wrong.got, expected=wrong.expected, culprit=culprit,
                    call=self.call)
        )  # fmt: skip
        if named is not None:
            at = f"kernel at {where}"
            self.explanations.say(named_fault(self.tensor, at, named, self.call, wrong.token, wrong.row))


def named_fault(
    tensor: Tensor, who: str, named: FaultMatch, call: Call, token: int, row: int
) -> LocatedDiagnosis:  # fmt: skip
    """A fault that is known by further calls, at one output."""
    return LocatedDiagnosis(
        tensor=tensor.name, where=printable(tensor.name, 64), who=who, row=row, token=token, block=None,
        verdict="known fault", wrong=1, outputs=1, faults=(named,), lines=(f"{named.words}. Fix: {named.fix}",),
        type=tensor.type.name, call=call,
    )  # fmt: skip
