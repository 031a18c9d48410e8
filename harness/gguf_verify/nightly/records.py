"""What a night is made of. Runs make these records, the history keeps them, comparisons and reports only read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class Outcome(StrEnum):
    """How a cell ended. Only `VERIFIED` is a pass."""

    VERIFIED = "verified"
    MISMATCH = "mismatch"
    UNVERIFIED = "not everything verified"
    BROKEN_OFF = "broken off"
    MALFORMED = "malformed"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"


class Key(NamedTuple):
    """Which cell of the matrix: equal keys of two nights are compared.

    Args:
        model: the file's name without folder, unique in a configuration.
        type: the type that its matrices were quantized to for this cell; "" as the file has them.
        kernel, host: as `--kernel` and `--host` take them.
        prompt: its name in the configuration.
        variant: of llama.cpp, its name in the configuration.
    """

    model: str
    type: str
    kernel: str
    host: str
    prompt: str
    variant: str

    def __str__(self) -> str:
        return " · ".join(part for part in self if part)


@dataclass(frozen=True)
class Measure:
    """The worst of a rung, of one side.

    Args:
        rung: blocks, layers or tokens.
        who: "kernel", "llama.cpp" or "llama.cpp as …", as the run's report has it.
        utilisation: |y − o| over the bound; below 1 is right.
        score: |y − o| over the spread; None where there is none.
        where: tensor, row, block and token, in words.
    """

    rung: str
    who: str
    utilisation: float
    score: float | None
    where: str


@dataclass(frozen=True)
class Cell:
    """One run.

    Args:
        key: which.
        outcome: how it ended.
        words: one line: what is wrong, or why it ended so; "" where it is verified.
        exit_code: of the run; None where it was killed.
        seconds: wall time of the run.
        rung_seconds: rung → seconds.
        versions: name → version: llama-cpp-python, llama.cpp, gguf-verify, CuPy, NVRTC and whatever else the run says.
        host: where the kernel ran, in words.
        measures: worst utilisation and score by rung and side.
        figures: measured numbers that nobody judges: the semantic gap ("layers: gap to llama.cpp, worst NMSE"), KL
            divergences, top-1 agreement; name → number.
        gemms: tensor → worst utilisation of the kernel in the layers rung, for heat maps and trends.
        report: the run's whole JSON report (`gguf_verify.report.json_report`, schema 1), where it is kept.
    """

    key: Key
    outcome: Outcome
    words: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    rung_seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    measures: tuple[Measure, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    gemms: Mapping[str, float] = field(default_factory=dict)
    report: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Night:
    """One run of the whole matrix.

    Args:
        number: 1, 2, … in its history.
        started, finished: ISO 8601, UTC, to the second; `finished` None while cells are missing.
        config: the configuration's name.
        planned: keys of all cells of the matrix, in order; one that is not among `cells` was not run.
        cells: what was recorded.
        hardware: name → what it ran on: CPU, cores, memory, GPU, kernel of the system.
        project: the project's version, with its commit where it is known.
    """

    number: int
    started: str
    finished: str | None
    config: str
    planned: tuple[Key, ...]
    cells: Mapping[Key, Cell] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    project: str = ""

    @property
    def missing(self) -> tuple[Key, ...]:
        """Planned, not recorded."""
        return tuple(key for key in self.planned if key not in self.cells)
