"""The record of a report writer, and the registry of all of them.

A writer is a `Writer` record that a module of this package defines. `-o FILE` selects it by the ending of the file's
name, at every command whose result it can write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from ..support.registry import members


class Kind(StrEnum):
    """The kind of result of a command.

    RUN is a `results.Report`, AUDIT an `audit.Audit`, AUDITS an `audit.many.Audits`, XRAY an `audit.xray.XRay`,
    IDENTIFICATION an `identification.IdentifyReport`, JUDGEMENT a `captured.Judged`, GRAPH a
    `backend_results.GraphReport`, and BISECTION a `bisection_results.Bisection`. Another package that reports its own
    results has such an enumeration too, and its writers beside it.
    """

    RUN = "run"
    AUDIT = "audit"
    AUDITS = "audits"
    XRAY = "x-ray"
    IDENTIFICATION = "identification"
    JUDGEMENT = "judgement"
    GRAPH = "graph"
    BISECTION = "bisection"


@dataclass(frozen=True)
class Form:
    """The form of a report.

    Args:
        suffix: of the file's name, such as ".svg"; "" at the terminal.
        detail: -1: only the verdict, in one line; 0: what most readers need; 1: every finding, note and figure; 2: also
            a line for each tensor, GEMM and token.
        byte_map: also every range of the file, of an audit.
        colour: with ANSI escapes, for a terminal.
        blocks: draw with block characters.
        width: columns to wrap at; None not to wrap.
    """

    suffix: str = ""
    detail: int = 0
    byte_map: bool = False
    colour: bool = False
    blocks: bool = False
    width: int | None = None

    @property
    def quiet(self) -> bool:
        """Only the verdict is shown."""
        return self.detail < 0

    @property
    def verbose(self) -> bool:
        """Every finding, note and figure is shown."""
        return self.detail > 0

    @property
    def whole(self) -> bool:
        """Each tensor, GEMM and token has a line."""
        return self.detail > 1


Render = Callable[[Any, Form], str | bytes]


@dataclass(frozen=True, eq=False)
class Writer:
    """A kind of report.

    Args:
        name: in messages.
        flag: its option in the previous release, such as "--json"; None for the report on standard output.
        renders: kind of result → function that writes it; EnvironmentFault if the result holds nothing to write.
        endings: endings of file names that select it, such as ".json" or "card.svg"; the first names its file in
            `--report-dir`.
        suffixes: allowed suffixes of the file's name with `flag`; empty: any.
        rung: a rung that a run must have for this to show anything.
    """

    name: str
    flag: str | None
    renders: Mapping[StrEnum, Render]
    endings: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    rung: str | None = None

    @property
    def file(self) -> str:
        """The name of its file in `--report-dir`."""
        first = self.endings[0]
        return f"report{first}" if first.startswith(".") else first


@cache
def every_writer(kinds: type[StrEnum] = Kind) -> tuple[Writer, ...]:
    """The writers in the package that defines these kinds of results: that of standard output, then by flag."""
    package = kinds.__module__.rpartition(".")[0]
    return tuple(sorted(members(package, Writer), key=lambda writer: writer.flag or ""))


def writers(kind: StrEnum) -> tuple[Writer, ...]:
    """The writers that can write a kind of result."""
    return tuple(writer for writer in every_writer(type(kind)) if kind in writer.renders)


def writer_of(name: str, among: Iterable[Writer]) -> Writer | None:
    """The writer that a file's name selects, by the longest ending; None if there is none."""
    found = [(len(end), w) for w in among for end in w.endings if name.lower().endswith(end)]
    return max(found, key=lambda each: each[0])[1] if found else None


def terminal(kind: StrEnum, result: Any, form: Form) -> str:
    """The text of a result for standard output."""
    shown = next(w for w in writers(kind) if w.flag is None).renders[kind](result, form)
    assert isinstance(shown, str)
    return shown
