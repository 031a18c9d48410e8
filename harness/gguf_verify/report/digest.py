"""The digest of a result: its findings, and the sections in which Markdown and notebooks show it.

`digests` has a function for each kind of result. The writers of SARIF, annotations, JUnit and Markdown know no kind of
result: each writes a digest. Texts from files are printable in findings, and are escaped by the writers in sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from ..support.text import ELLIPSIS, printable

#: "none": a check that passed.
Level = Literal["error", "warning", "note", "none"]


class Case(NamedTuple):
    """A test case of JUnit. Findings with the same suite, class and name are one case."""

    suite: str
    classname: str
    name: str
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong, something that could not be checked, something worth knowing, or a check that passed.

    All texts but the path are printable, and each fits on a line.

    Args:
        rule: the id of its rule, such as "GGUF-048-trailing" or "layers-mismatch"; None: it explains or sums up other
            findings, or is no fault.
        level: how bad it is.
        kind: what it is, such as "mismatch" or "not judged".
        heading: the file and the verdict of its result.
        scope: the part of the result, such as the rung; "": the whole.
        message: what was found.
        numbers: after the message, such as ": got 1, expected 2"; "": none.
        details: after the numbers, where there is room.
        lines: further lines, where there is more room.
        path: the file, without folders of this machine: see `published.file_name`.
        owner: the tensor, key or node; "": none.
        place: in the owner. It does not change when the file moves or grows, so it holds no offset in the file.
        region: the bytes, half-open; None: not about bytes.
        waived: a waiver covers it.
        fails: it fails the result, whatever its level.
        quiet: it is harmless, and no annotation.
        properties: further facts, by name.
        case: the test case that it belongs to; None: no one.
    """

    rule: str | None
    level: Level
    message: str
    kind: str = ""
    heading: str = ""
    path: str = ""
    scope: str = ""
    numbers: str = ""
    details: str = ""
    lines: Sequence[str] = ()
    owner: str = ""
    place: str = ""
    region: tuple[int, int] | None = None
    waived: bool = False
    fails: bool = False
    quiet: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)
    case: Case | None = None


class Marked(NamedTuple):
    """A text with the mark of a level: "good", "warn" or "bad"."""

    level: str
    text: str


@dataclass(frozen=True)
class Bullets:
    """A list under a title; "": no title."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        title: above it; "": none.
        rows: a cell may hold several lines.
        folded: it is opened by a click, which needs a title.
        spare: bytes of a Markdown page that stay free for later sections.
        width: characters of a line in a cell.
    """

    title: str
    heads: Sequence[str]
    rows: Iterable[Sequence[str | Marked]]
    folded: bool = False
    spare: int = 4_000
    width: int = 300


#: A paragraph, a list or a table.
Section = str | Bullets | Table


@dataclass(frozen=True, kw_only=True)
class Digest:
    """A result, ready to be written.

    Args:
        level: of the verdict: "good", "warn" or "bad".
        words: the verdict.
        exit_code, command: of the command.
        repeat: the command that repeats the first failure, quoted for a shell; "": everything is verified.
        findings: all of them.
        notes: further facts in a line each, for the log of a tool.
        sections: in order.
        started: when it began; None if no format needs it.
        suites: suite of test cases → its properties.
        seconds: of a suite; None: those of its cases.
    """

    level: str
    words: str
    exit_code: int
    command: str = ""
    repeat: str = ""
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    sections: Sequence[Section] = ()
    started: datetime | None = None
    suites: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    seconds: float | None = None


def seen(text: str, limit: int = 600) -> str:
    """Text as it prints, cut after `limit` characters. Backslashes are kept, so that nothing is escaped twice."""
    made = "".join(c if c.isprintable() else printable(c) for c in text[: limit + 1])
    return made if len(made) <= limit else made[:limit] + ELLIPSIS


def message(head: str, digest: Digest) -> str:
    """The message of an exception, in at most 15 lines: failures, unverified items, and the command to repeat."""
    bad = [f for f in digest.findings if f.level in ("error", "warning") and not f.waived]
    lines = [head, *(f"{f.scope}: {f.message}" if f.scope else f.message for f in bad)]
    lines = [seen(line, 300) for line in lines[:14]]
    return "\n".join([*lines, *([f"repeat with: {digest.repeat}"] if digest.repeat else [])])


def paragraphs(findings: Iterable[Finding], *kinds: str) -> list[Section]:
    """A paragraph for each finding of these kinds."""
    return [f"{f.kind.capitalize()}: {f.message}." for f in findings if f.kind in kinds]


def waivers(findings: Iterable[Finding]) -> list[Section]:
    """The list of the waivers, if there is one."""
    lines = [f"{f.heading.capitalize()}: {f.message}" for f in findings if f.kind == "waiver"]
    return [Bullets("", lines)] if lines else []


def unverified(findings: Iterable[Finding]) -> list[Section]:
    """The table of unverified items, if there are any."""
    rows = [(f.scope, f.message) for f in findings if f.kind == "not verified"]
    return [Table(f"{len(rows):,} could not be verified", ("in", "what"), rows, folded=True)] if rows else []
