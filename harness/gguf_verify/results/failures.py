"""Records of failures, of unverified items, and of the waivers that cover failures."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..support.errors import Culprit, KernelFault
from ..support.text import counted
from .calls import OWN, Call

#: Bytes of a block that a failure holds: more than the largest block has (292, of Q8_K).
MAX_HEX_BYTES = 512

WaiverState = Literal["applied", "expired", "unused"]

#: Culprit → its name in a sentence.
CULPRITS: dict[Culprit, str] = {
    "kernel": "the kernel",
    "oracle": "the oracle of the kernel's author",
    "definition": "the definition",
    "file": "the file",
    "llama.cpp": "llama.cpp",
    "verifier": "gguf-verify itself",
    "environment": "this machine",
    "coverage": "missing coverage",
}


class Frame(msgspec.Struct, frozen=True):
    """A frame of a kernel's traceback: "FILE:LINE in FUNCTION", its source, and whether it is of its author's code."""

    place: str
    code: str
    own: bool


def frames_of(error: KernelFault) -> tuple[Frame, ...]:
    """The lines of source of a fault."""
    return tuple(Frame(*frame) for frame in error.trace)


class Failure(msgspec.Struct, frozen=True):
    """A failure, with everything needed to examine it.

    Args:
        what: in words.
        tensor: name of the weights; "" if it is about none.
        row: row n of the weights; it counts through all matrices of a tensor that holds several.
        block: block of that row, or 32 values of a type without blocks; None if no single block explains it.
        token: row m of the activations.
        byte_offset: of the block, in its file; `part` counts the files of a split model from 0.
        block_hex: the block's bytes.
        block_type: the type of its weights, where it is recorded with the failure.
        got, expected, bound, utilisation: the numbers, where it is about numbers.
        matrix: which of the tensor's matrices (experts) the row is in, where it holds several.
        culprit: the culprit.
        activation_type, activation_hex: type and bytes of the activations that the block is multiplied by: one block or
            several (limited by the room), or float32; "" and None if no block is known.
        cause: identifies failures of the same cause, of which a rung records only the first; "" for a failure by
            itself.
        call: the kernel's call that failed, if it is of one.
        trace: the frames of the exception that the kernel raised, outermost first; or the lines at which a checked
            build found something.
    """

    what: str
    tensor: str = ""
    row: int | None = None
    block: int | None = None
    token: int | None = None
    byte_offset: int | None = None
    block_hex: str | None = None
    got: float | None = None
    expected: float | None = None
    bound: float | None = None
    utilisation: float | None = None
    part: int = 0
    matrix: int | None = None
    culprit: Culprit = "kernel"
    activation_type: str = ""
    activation_hex: str | None = None
    cause: str = ""
    call: Call | None = None
    block_type: str = ""
    trace: tuple[Frame, ...] = ()

    @property
    def rank(self) -> int:
        """The rank of its call; a failure of no call counts as one of the model."""
        return OWN if self.call is None else self.call.rank

    @classmethod
    def of(cls, error: KernelFault, what: str, tensor: str = "", matrix: int | None = None) -> Failure:
        """A failure of a kernel that gave no output."""
        return cls(
            what, tensor, matrix=matrix, culprit=error.culprit, cause=error.cause, call=error.call,
            trace=frames_of(error),
        )  # fmt: skip


class Unverified(msgspec.Struct, frozen=True):
    """Something that should have been checked and could not be.

    Args:
        name: its name in reports.
        why: why it could not be checked.
        tensor: the name of its tensor; "" for everything that the rung checks.
        culprit: the culprit.
        products: the number of products that it stands for, if these are counted; otherwise 0.
    """

    name: str
    why: str
    tensor: str = ""
    culprit: Culprit = "coverage"
    products: int = 0

    @property
    def title(self) -> str:
        """The name, with the number of products where they are counted."""
        if not self.products:
            return self.name
        return f"{counted(self.products, 'products')} of {self.name}"


class WaiverUse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a waiver in a run or an audit.

    Args:
        what: the failures that it matches, in words.
        reason: why the mismatch is known and accepted.
        until: its last day, ISO 8601.
        state: "applied"; "expired": its last day has passed, so it counts no longer; "unused": it matched nothing.
        failures: number of failures that it covers, or would cover if it had not expired.
    """

    what: str
    reason: str
    until: str
    state: WaiverState
    failures: int

    @property
    def words(self) -> str:
        """In a line."""
        n = counted(self.failures, "failures")
        told = {
            "applied": f"{n}, until {self.until}: {self.reason}",
            "expired": f"expired on {self.until}, covers nothing ({n} would match): {self.reason}",
            "unused": f"matched nothing (until {self.until}: {self.reason})",
        }
        return f"{self.what}: {told[self.state]}"
