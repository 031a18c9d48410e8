"""Reports of runs, audits, nights and graphs in which every name is hostile."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec

from gguf_verify.audit.record import Audit, AuditHeader
from gguf_verify.report.writer import Form, Kind, Writer, writers
from gguf_verify.results.report import Report
from gguf_verify_nightly.records import Key, Night, Outcome
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.summary import NightReport
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support import bisection_records, graph_records, nights

#: Characters that a terminal, a page or a report may hold besides printable ones.
ALLOWED = {"\n"}


def seeds() -> Iterator[bytes]:
    """Names that are known to get out of their place somewhere, alone and together."""
    for name in (*(name[:400] for name in nights.HOSTILE), "", " ", "-" * 5, "\t\x85\u200f", "𝒳" * 9):
        yield name.encode("utf-8", "surrogateescape")
    yield "".join(mutations.HOSTILE).encode("utf-8", "surrogateescape")


@cache
def empty_page(html: Any, kind: StrEnum) -> frozenset[str]:
    """The tags and attributes of a page whose names are harmless."""
    return frozenset(_Tags(str(html(made(kind, "x"), Form(".html")))).found)


class _Tags(HTMLParser):
    """Every tag with the names of its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.update(f"{tag} {name}" for name, _ in attrs)
        self.found.add(tag)


def made(kind: StrEnum, name: str) -> Any:
    """A result with that name wherever a file, a host or a user could have given one."""
    if kind is Kind.RUN:
        return run(name)
    if kind is Kind.AUDIT:
        header = AuditHeader(file=name, size=1, sha256=("0" * 64,), architecture=name)
        return Audit(Path(name.replace("\0", "") or "x"), (), header, (), n_tensors=1, command=f"gguf-verify {name}",
                     unverified=[(name, name)])  # fmt: skip
    if kind is Kind.GRAPH:
        return graph_records.named(name)
    if kind is Kind.BISECTION:
        return bisection_records.named(name)
    key = Key(name, "Q4_0", name, "cpu", name, name)
    cell = replace(
        nights.cell(key, 1, Outcome.MISMATCH, 9, name), host=name, versions={name: name}, figures={name: 1.0},
        gemms={name: 57.0}, report=run(name),
    )  # fmt: skip
    night = Night(1, "2026-10-20T01:30:00Z", "2026-10-20T02:00:00Z", name, (key,), {key: cell}, {name: name}, name)
    return NightReport((night,))


def run(name: str) -> Report:
    report = nights.run_result([name, "w"], name)
    of = report.environment
    report.environment = msgspec.structs.replace(
        of, file=msgspec.structs.replace(of.file, path=f"/models/{name}", architecture=name),
        host=msgspec.structs.replace(of.host, device=name), kernel=msgspec.structs.replace(of.kernel, name=name),
    )  # fmt: skip
    report.command = f"gguf-verify {name}"
    return report


def check_text(writer: Writer, kind: StrEnum, text: str) -> None:
    """Valid, and without a character that a terminal or a browser acts on."""
    odd = {c for c in text if not (c.isprintable() or c in ALLOWED)}
    text.encode()  # no surrogate is left
    match writer.flag:
        case "--json" | "--sarif":
            json.loads(text, parse_constant=_no_constant)
        case "--junit":
            ET.fromstring(text)
        case "--html":
            new = set(_Tags(text).found) - empty_page(writer.renders[kind], kind)
            assert not {tag for tag in new if re.match(r"script|img|iframe|object|.* (on|src|href)", tag)}, new
            odd = {c for c in odd if ord(c) < 32 or 0x7F <= ord(c) < 0xA0}
        case None:
            assert "\x1b" not in text
    assert not odd, f"{writer.name} of {kind}: {sorted(odd)}"


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is not JSON")


def check(folder: Path, data: bytes) -> None:
    """Every text of a writer is valid, and holds no character that a terminal or browser acts on."""
    name = data.decode("utf-8", "surrogateescape")
    for kind in (Kind.RUN, Kind.AUDIT, NightKind.NIGHT, Kind.GRAPH, Kind.BISECTION):
        result = made(kind, name)
        for writer in writers(kind):
            if any(suffix in (".png", ".svg", ".pdf") for suffix in writer.suffixes):
                continue  # pictures
            text = writer.renders[kind](result, Form(suffix="", detail=2))
            if isinstance(text, str):
                check_text(writer, kind, text)


TARGET = Target(
    "reports", "a name that a file, a host or a user gives", seeds, check, mutations.of_lines(), inputs=1, largest=400
)
