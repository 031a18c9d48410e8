"""The judgement of a captured product."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..diagnosis.identify import Candidate
from ..results.diagnoses import FaultMatch
from ..support.errors import EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED
from ..support.shown import Shown
from ..support.version import project_version

if TYPE_CHECKING:  # at run time, completion in notebooks (jedi) fails on a property of such a type
    Verdict = Literal["verified", "mismatch", "not everything verified"]

#: The claim that means: find the definition that fits.
AUTO = "auto"


@dataclass(frozen=True)
class WrongOutput:
    """An output outside its bound.

    Args:
        row, token: the row of the tensor and the token of x.
        got, expected, bound, utilisation: the numbers.
        byte_offset, part: the start of the row: its offset, and the part of a split model.
    """

    row: int
    token: int
    got: float
    expected: float
    bound: float
    utilisation: float
    byte_offset: int
    part: int


@dataclass(frozen=True, repr=False)
class Judged(Shown):
    """The findings of a captured product.

    Args:
        file, tensor, type: of the weights.
        sha256: of each part of the model.
        m, n, k: tokens, rows and columns.
        first_row: of the tensor, with which the rows begin.
        output: the type of y: "float32", "float16" or "bfloat16".
        claimed: the definition that was claimed; "auto" for none.
        definition: the one that y was judged by: the claimed one, or the one that fits, or the nearest.
        candidates: every definition that was tried, on some rows and tokens, the nearest first.
        wrong: how many outputs fail.
        outputs: how many were judged.
        utilisation, score: of the worst output.
        nmse: over all outputs.
        first: the first output that fails.
        left: why some or all could not be judged.
        ambiguous: activation codes that an approximate division may set differently, for which the bound was widened.
        lines: what explains wrong outputs.
        faults: the faults of the catalogue that do.
        read: how x and y were read, where they are not matrices of NumPy's format: plain numbers, transposed.
        command: that repeats it.
        gguf_verify: this project's version.
    """

    file: str
    tensor: str
    type: str
    sha256: tuple[str, ...]
    m: int
    n: int
    k: int
    first_row: int
    output: str
    claimed: str
    definition: str
    candidates: tuple[Candidate, ...]
    wrong: int
    outputs: int
    utilisation: float
    score: float
    nmse: float
    first: WrongOutput | None = None
    left: tuple[str, ...] = ()
    ambiguous: int = 0
    lines: tuple[str, ...] = ()
    faults: tuple[FaultMatch, ...] = ()
    read: tuple[str, ...] = ()
    command: str = ""
    gguf_verify: str = field(default_factory=project_version)

    @property
    def exit_code(self) -> int:
        """1 if an output is wrong; otherwise 5 if some or all outputs could not be judged."""
        if self.wrong:
            return EXIT_MISMATCH
        return EXIT_UNVERIFIED if self.left or not self.outputs else EXIT_VERIFIED

    @property
    def verdict(self) -> Verdict:
        """The exit code in words."""
        if self.wrong:
            return "mismatch"
        return "verified" if self.exit_code == EXIT_VERIFIED else "not everything verified"

    @property
    def fitting(self) -> tuple[str, ...]:
        """The definitions whose bound the outputs meet, on the rows and tokens where all were tried."""
        return tuple(c.name for c in self.candidates if c.within)
