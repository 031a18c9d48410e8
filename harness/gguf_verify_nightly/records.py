"""Records of a night: made by the night, kept by the history, and only read by comparisons and reports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gguf_verify.backend_results import GraphReport
from gguf_verify.results.report import Report
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EXIT_MALFORMED, EXIT_MISMATCH, EXIT_UNVERIFIED, EXIT_VERIFIED

#: Takes the place of the kernel in the keys of cells that judge llama.cpp's graph on one of its devices.
BACKEND = "backend"


class Outcome(StrEnum):
    """How a cell ended. Only `VERIFIED` is a pass. `WAIVED` (every failure is waived) does not fail a night."""

    VERIFIED = "verified"
    WAIVED = "waived"
    MISMATCH = "mismatch"
    UNVERIFIED = "not everything verified"
    BROKEN_OFF = "broken off"
    MALFORMED = "malformed"
    TIMED_OUT = "timed out"
    CRASHED = "crashed"


#: Exit codes of a night; the first outcome that occurs decides.
EXIT_CODES = {
    Outcome.MISMATCH: EXIT_MISMATCH, Outcome.CRASHED: EXIT_ENVIRONMENT, Outcome.TIMED_OUT: EXIT_ENVIRONMENT,
    Outcome.BROKEN_OFF: EXIT_ENVIRONMENT, Outcome.MALFORMED: EXIT_MALFORMED, Outcome.UNVERIFIED: EXIT_UNVERIFIED,
}  # fmt: skip


class Key(NamedTuple):
    """The identity of a cell in the matrix. Cells of two nights with equal keys are compared with each other.

    Args:
        model: the file's name without its folder, unique in a configuration.
        type: the type that its matrices were quantized to for this cell; "" for the file as it is.
        kernel, host: values of `--kernel` and `--host`; or `BACKEND` and a value of `--device`.
        prompt: its name in the configuration.
        variant: the name of the llama.cpp in the configuration.
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
    """The worst output of one side in one rung.

    Args:
        rung: the rung's name; "graph" for nodes of a graph.
        who: the side's name in the run's report: "kernel", "llama.cpp" or "llama.cpp as …"; for a graph, the
            operation.
        utilisation: |y - o| / bound; an output is within the bound at or below 1.
        score: |y - o| / spread; None if the rung has none.
        where: tensor, row, block and token, as text.
        of_kernel: whether the side is the kernel, not llama.cpp; for a graph, whether the requested device computed it.
    """

    rung: str
    who: str
    utilisation: float
    score: float | None
    where: str
    of_kernel: bool


class Failed(NamedTuple):
    """The identity of a cell's first problem. Comparisons of nights use it, because sentences are reworded.

    Args:
        check: the rung, "graph" or "run".
        tensor: the tensor, node or operation.
        place: in the tensor or the graph.
        kind: culprit and diagnosis, or the operation and its device.
        number: of such problems.
    """

    check: str
    tensor: str = ""
    place: str = ""
    kind: str = ""
    number: int = 0


def facts(sentence: str) -> str:
    """The parts of a sentence that rewording keeps: the words with a digit, an underscore or two capitals."""
    return " ".join(word.strip("().,:;") for word in sentence.split() if re.search(r"[\d_]|[A-Z]{2}", word))


@dataclass(frozen=True)
class Cell:
    """One run of the matrix.

    Args:
        key: its identity.
        outcome: how it ended.
        reason: one line with the problem, or why the run ended in this way; "" if it is verified.
        exit_code: of the run; None if the run was killed.
        seconds: wall time of the run.
        rung_seconds: rung → seconds.
        versions: name → version, such as "llama-cpp-python", "llama.cpp", "gguf-verify", "CuPy" and "NVRTC".
        host: where the kernel or the graph ran, in one line.
        measures: the worst output of each side in each rung.
        figures: measured numbers that are not judged, such as KL divergences: name → number.
        gemms: tensor → largest utilisation of the kernel in the layers rung; only if the night is read alone.
        report: the run's report, if it is kept; only if the night is read with its reports. None for a graph.
        graph: the same for a run that judged a graph.
        opened: files that the kernel opened → sha256, or "" if not known; only for a run that has just ended.
        failed: the identity of the problem that `reason` reports; None if the run's report holds no records of it.
    """

    key: Key
    outcome: Outcome
    reason: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    rung_seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    host: str = ""
    measures: tuple[Measure, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    gemms: Mapping[str, float] = field(default_factory=dict)
    report: Report | None = None
    graph: GraphReport | None = None
    opened: Mapping[str, str] = field(default_factory=dict)
    failed: Failed | None = None

    @property
    def verified(self) -> bool:
        return self.outcome is Outcome.VERIFIED

    @property
    def accepted(self) -> bool:
        """Whether it is verified, or every failure is waived."""
        return self.outcome in (Outcome.VERIFIED, Outcome.WAIVED)


@dataclass(frozen=True)
class Night:
    """One run of the whole matrix.

    Args:
        number: 1, 2, … in its history.
        started, finished: ISO 8601, UTC, to the second; `finished` is None while cells are missing.
        config: the configuration's name.
        planned: the keys of all cells of the matrix, in order.
        cells: the recorded cells.
        hardware: the machine (CPU, cores, memory, GPU, operating system): name → value.
        project: the project's version, with its commit if known.
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
        """Cells that are planned and not recorded."""
        return tuple(key for key in self.planned if key not in self.cells)

    @property
    def exit_code(self) -> int:
        """0 if every planned cell is verified or waived; otherwise 1 for a mismatch, 3 if a cell was aborted, crashed
        or timed out, 4 for a malformed file, 5 if something is unverified or was not run."""
        outcomes = {cell.outcome for cell in self.cells.values()}
        for outcome, code in EXIT_CODES.items():
            if outcome in outcomes:
                return code
        return EXIT_UNVERIFIED if self.missing or not self.cells else EXIT_VERIFIED
