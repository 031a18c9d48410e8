"""The result of `gguf-verify identify`: definitions of the kernel and of llama.cpp by type and number of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...support.command_line import shown
from ...support.errors import EXIT_MISMATCH
from ...support.text import printable
from ..writer import Form
from .console import BAD, GOOD, WARN, facts, rendered, said, table

if TYPE_CHECKING:
    from ...identification import Identified, IdentifyReport

_VERDICTS = {0: ("IDENTIFIED", GOOD, ": each computes what it declares"), 1: ("NOT WHAT IS DECLARED", BAD, "")}


def render(report: IdentifyReport, form: Form) -> str:
    """Return the table, and notes on each product that is not as declared."""
    return rendered(_parts(report), form)


def _parts(report: IdentifyReport) -> Iterator[RenderableType]:
    h = report.header
    judged = f" ({printable(h.judged_by, 200)})" if h.judged_by else ""
    yield facts([
        ("versions", f"gguf-verify {h.gguf_verify} · llama.cpp {h.llama_cpp}"),
        ("file", printable(h.file, 200)),
        ("kernel", f"{printable(h.kernel, 200)}, declares {h.definition}{judged} · {printable(h.host, 300)}"),
        ("reference", f"llama.cpp on {h.reference}"),
    ])  # fmt: skip
    yield ""
    yield _products(report)
    yield ""
    yield from map(Text, _sentences(report))
    for kind, why in report.unable:
        yield said(("NOT IDENTIFIED ", WARN), f"{printable(kind)}: {printable(why)}")
    if report.exit_code and report.command:
        yield Text(f"repeat with: {shown(report.command)}")
    word, style, rest = _VERDICTS.get(report.exit_code, ("NOT EVERYTHING IDENTIFIED", WARN, ""))
    if report.exit_code == EXIT_MISMATCH:
        rest = f": {next(_sentences(report), '')}".removesuffix(": ")
    elif report.unable:
        rest = ": {}: {}".format(*map(printable, report.unable[0]))
    yield said((word, style), rest)


def _products(report: IdentifyReport) -> Table:
    made = table("type", "M", "who", "computes", "utilisation", "next nearest", right=(1, 4), folded=3)
    for p in report.products:
        made.add_row(*map(Text, (p.type, str(p.m), printable(p.who, 200), *_found(p))))
    return made


def _found(p: Identified) -> tuple[str, str, str]:
    """Return the definition, the utilisation of its bound, and the next nearest definition."""
    if p.found is None:
        return "nothing", "", ""
    named, other = p.found.candidates[0], p.found.next
    words = " or ".join(p.found.names) or "none of the known definitions"
    return words, f"{named.utilisation:.3g}", "" if other is None else f"{other.name}, NMSE {other.nmse:.2g}"


def _sentences(report: IdentifyReport) -> Iterator[str]:
    """Each sentence once, with all numbers of tokens that it is about."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for p in report.products:
        for line in p.lines:
            found.setdefault((p.who, p.type, line), []).append(str(p.m))
    for (who, kind, line), tokens in found.items():
        about_the_last = line.startswith(" ")
        yield printable(line if about_the_last else f"{who}, {kind}, M={', '.join(tokens)}: {line}", 400)
