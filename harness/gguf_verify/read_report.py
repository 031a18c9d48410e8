"""The JSON report of a run, read back as typed records. What does not fit them in every field is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from .backend_results import GraphReport
from .results.report import SCHEMA_VERSION, Report
from .results.rungs import RungResult
from .rungs.registry import RUNGS
from .support.files import open_regular
from .support.text import printable

T = TypeVar("T")

#: How many bytes of JSON are read at most.
MOST_BYTES = 1 << 28
_OF_A_GRAPH = "the records of a graph"


class UnreadableReport(Exception):
    """The report cannot be read; the argument ends the sentence "its report …" or replaces it."""


class RungClaim(Struct, frozen=True):
    """The verdict that the report states for a rung."""

    name: str
    verdict: str


class Claims(Struct, frozen=True):
    """Statements of the report that also follow from its records: the two must agree."""

    verdict: str
    exit_code: int
    rungs: tuple[RungClaim, ...]


class GraphClaims(Struct, frozen=True):
    """Likewise what the report of a graph states."""

    verdict: str
    exit_code: int
    judged: int


def read_report(path: Path) -> tuple[Report, Claims]:
    """Read the report that a run wrote. Raises UnreadableReport."""
    document = _document(_content(path))
    if not isinstance(document, dict) or document.get("schema") != SCHEMA_VERSION:
        raise UnreadableReport(f"its report does not have schema {SCHEMA_VERSION}")
    return _report(document), _converted(document, Claims)


def read_graph(path: Path) -> tuple[GraphReport, GraphClaims]:
    """Read the report that a run of `gguf-verify backend` wrote. Raises UnreadableReport."""
    document = _document(_content(path))
    if not isinstance(document, dict) or document.get("kind") != "graph":
        raise UnreadableReport("its report is not that of a graph")
    return _graph(document), _converted(document, GraphClaims, _OF_A_GRAPH)


def graph_from_json(raw: bytes) -> GraphReport:
    """A report of a graph that the history wrote. Raises UnreadableReport."""
    document = _document(raw)
    if not isinstance(document, dict):
        raise UnreadableReport("its report is not that of a graph")
    return _graph(document)


def _graph(document: dict[str, Any]) -> GraphReport:
    if missing := set(GraphReport.__struct_fields__) - set(document):
        raise UnreadableReport(f"its report lacks the field {min(missing)}")
    return _converted(document, GraphReport, _OF_A_GRAPH)


def from_json(raw: bytes) -> Report:
    """A report that the history wrote. Raises UnreadableReport."""
    return _report(_document(raw))


def _content(path: Path) -> bytes:
    """The bytes of a report. Raises UnreadableReport if it cannot be read or is longer than `MOST_BYTES`."""
    try:
        with open_regular(path) as file:
            raw = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UnreadableReport("it wrote no report") from None
    except OSError as error:
        raise UnreadableReport(f"its report cannot be read: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise UnreadableReport(f"its report has more than {MOST_BYTES:,} bytes")
    return raw


def _document(raw: bytes) -> Any:
    """The JSON document of a report. Raises UnreadableReport."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError):
        raise UnreadableReport("its report is not JSON") from None


def _report(document: Any) -> Report:
    """Defaults of the records are for those who make them: here every field must be there."""
    try:
        missing = set(Report.__struct_fields__) - set(document)
        for rung in document["rungs"]:
            missing |= set(RungResult.__struct_fields__) - set(rung)
    except (TypeError, KeyError):
        missing = {"rungs"}
    if missing:
        raise UnreadableReport(f"its report lacks the field {min(missing)}")
    report = _converted(document, Report)
    if unknown := [rung.name for rung in report.rungs if rung.name not in RUNGS]:
        raise UnreadableReport(f"its report has an unknown rung {printable(unknown[0], 60)}")
    return report


def _converted(document: Any, kind: type[T], what: str = f"schema {SCHEMA_VERSION}") -> T:
    """A document as a typed record; `what` names the schema in errors. Raises UnreadableReport."""
    try:
        return msgspec.convert(document, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UnreadableReport(f"its report does not fit {what}: {printable(str(error), 200)}") from None
