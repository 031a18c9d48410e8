"""What a rung returns: one small record, which reports only read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

MAX_FAILURES = 20
#: More than the largest block has, 292 bytes of Q8_K.
MAX_HEX_BYTES = 512

#: What a rung must have checked at least one of, or it has verified nothing.
SUBSTANCE = {
    "bytes": ("blocks", "values"),
    "blocks": ("blocks",),
    "layers": ("outputs",),
    "tokens": ("tokens", "embeddings"),
}


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong, with all that is needed to look at it.

    Args:
        what: in words.
        tensor: name of the weights, "" where it is not about one.
        row: row n of the weights; it counts through all matrices of a tensor that holds several.
        block: block of that row, or 32 values of a type without blocks; None where no single one explains it.
        token: row m of the activations.
        byte_offset: of the block, in its file; `part` counts the files of a split model from 0.
        block_hex: the block's bytes.
        got, expected, bound, utilisation: the numbers, where it is about numbers.
        matrix: which of the tensor's matrices (experts) the row is in, where it holds several.
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


@dataclass(frozen=True)
class Worst:
    """The largest utilisation of a bound, and where it was."""

    utilisation: float
    where: str


@dataclass
class RungResult:
    """One rung of one run.

    Args:
        name: bytes, blocks, layers or tokens.
        checked: what was checked, by kind, in the order in which a report names it.
        not_checked: what was left out because it is none of this rung's business, by kind.
        unverified: what should have been checked and could not be: (name, why).
        failures: the first MAX_FAILURES; `n_failures` counts all.
        worst: worst utilisation of the kernel, and of llama.cpp against its own semantics.
        score: largest |y - o| / spread of either, by who.
        figures: measured numbers that nobody judges, by name.
        notes: what a reader should know, a line each.
        details: one record a tensor, GEMM or token.
        diagnosis: what explains the first wrong GEMM, and where: `gguf_verify.diagnosis.Diagnosis.as_dict`.
        heat_map: utilisation of the first wrong GEMM, on a grid: tensor, where, who, and what
            `gguf_verify.diagnosis.Map.as_dict` holds.
        fault: why the environment broke the rung off (llama.cpp died, say), where it did.
        seconds: how long it took.
    """

    name: str
    checked: dict[str, int] = field(default_factory=dict)
    not_checked: dict[str, int] = field(default_factory=dict)
    unverified: list[tuple[str, str]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    n_failures: int = 0
    worst: dict[str, Worst] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    diagnosis: dict[str, Any] | None = None
    heat_map: dict[str, Any] | None = None
    fault: str | None = None
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """failed, unverified or passed; nothing measured is never a pass."""
        if self.n_failures:
            return "failed"
        if self.unverified or self.fault or not any(map(self.checked.get, SUBSTANCE[self.name])):
            return "unverified"
        return "passed"

    def count(self, kind: str, n: int = 1) -> None:
        self.checked[kind] = self.checked.get(kind, 0) + n

    def skip(self, kind: str, n: int = 1) -> None:
        self.not_checked[kind] = self.not_checked.get(kind, 0) + n

    def fail(self, failure: Failure, n: int = 1) -> None:
        """Record a failure that stands for n of them."""
        self.n_failures += n
        if len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)

    def leave(self, name: str, why: str) -> None:
        """Record something that could not be checked, once."""
        if (name, why) not in self.unverified:
            self.unverified.append((name, why))

    def measure(self, who: str, utilisation: float, score: float, where: str) -> None:
        """Keep the worst utilisation and score."""
        if who not in self.worst or not utilisation <= self.worst[who].utilisation:
            self.worst[who] = Worst(utilisation, where)
        if who not in self.score or not score <= self.score[who]:
            self.score[who] = score

    @contextmanager
    def timed(self) -> Iterator[RungResult]:
        start = time.perf_counter()
        try:
            yield self
        finally:
            self.seconds += time.perf_counter() - start
