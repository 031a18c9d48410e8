"""Records of the explanations of wrong outputs."""

from __future__ import annotations

import msgspec

from ..support.errors import Culprit
from .calls import MEMORY, OTHER_SHAPE, OWN, Call
from .failures import Failure


class FaultMatch(msgspec.Struct, frozen=True):
    """A fault of the catalogue that explains wrong outputs.

    Args:
        id: of the fault, stable.
        words: the fault, with its variant.
        fix: one line.
        explained: share of the error, 1 for all of it; NaN if the fault was observed in further calls, not computed.
        utilisation: the worst |y - f| / bound over the wrong outputs, with f the output predicted by the
            fault; 0 if f is nowhere finite.
        everywhere: correct outputs agree with the fault too; otherwise it affects only a part of the outputs.
    """

    id: str
    words: str
    fix: str
    explained: float
    utilisation: float
    everywhere: bool


class NearestFault(msgspec.Struct, frozen=True):
    """The fault that explains the largest share of an error that no fault explains."""

    id: str
    explained: float


class OutOfRange(msgspec.Struct, frozen=True, kw_only=True):
    """A number that the file or the definition cannot represent, so that a product has no finite exact value.

    Args:
        what: "weight", "weight scale", "activation", "d", "s", "product" (of scales), "sum" (in half) or "output".
        row, token: of the first output without a finite exact value.
        block: the block that the number belongs to; of weights and activations that are not quantized, the value.
        value: the number, or its value in a type without limits; not finite if that is not known.
        limit: the largest number that its type holds.
        ratio: |value| / limit.
    """

    what: str
    row: int
    token: int
    block: int
    value: float
    limit: float
    ratio: float


#: Verdicts of a diagnosis, the least telling first.
UNEXPLAINED = ("another order", "out of range", "unknown")

_TELLING = (*UNEXPLAINED, "another definition", "known fault")

#: Faults that are bad accesses to memory.
MEMORY_FAULTS = frozenset({
    "data-race", "outside-buffers", "uninitialized-memory", "misaligned-access", "input-written", "divergent-barrier",
})  # fmt: skip


class LocatedDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The explanation of a wrong call.

    Args:
        tensor, where, who: as in `OutputMap`.
        row, token, block: of the first wrong output; the block is None if no single one is at fault.
        verdict: "another definition", "known fault", "another order", "out of range" or "unknown".
        wrong, outputs: number of wrong outputs, and of all.
        definitions: other definitions within whose bound all outputs are.
        faults: the faults that explain the outputs; if several, these data cannot distinguish them.
        nearest: the nearest fault, if none explains them.
        out_of_range: why some outputs have no finite exact value; None if all have one.
        culprit: the culprit.
        lines: the diagnosis in words.
        type: of the weights.
        call: the call.
    """

    tensor: str
    where: str
    who: str
    row: int
    token: int
    block: int | None
    verdict: str
    wrong: int
    outputs: int
    definitions: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    nearest: NearestFault | None = None
    out_of_range: OutOfRange | None = None
    culprit: Culprit = "kernel"
    lines: tuple[str, ...] = ()
    type: str = ""
    call: Call | None = None

    @property
    def rank(self) -> int:
        """The importance of the call; a bad access to memory comes before other calls of its shape."""
        rank = OWN if self.call is None else self.call.rank
        return MEMORY if rank == OTHER_SHAPE and any(f.id in MEMORY_FAULTS for f in self.faults) else rank

    @property
    def weight(self) -> tuple[int, int]:
        """The most important diagnosis has the smallest."""
        telling = _TELLING.index(self.verdict) if self.verdict in _TELLING else len(_TELLING)
        return self.rank, -telling

    @property
    def cause(self) -> str:
        """The faults, or else the definitions, in a few words; "" if the cause is unknown."""
        if self.verdict == "known fault":
            return " or ".join(dict.fromkeys(fault.id for fault in self.faults))
        return f"computes {' or '.join(self.definitions)}" if self.definitions else ""

    @property
    def explains(self) -> bool:
        """Whether it names a cause."""
        return self.verdict not in UNEXPLAINED

    def is_of(self, failure: Failure) -> bool:
        """Whether a failure is of the call that it explains."""
        return self.call is not None and failure.call == self.call and failure.tensor == self.tensor
