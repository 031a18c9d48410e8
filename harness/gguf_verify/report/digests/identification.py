"""The digest of `identify_model`: the products, declared and computed."""

from __future__ import annotations

from collections.abc import Iterator

from ...identification import Identified, IdentifyReport
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import printable
from .. import json, notebook
from ..digest import Digest, Finding, Table, message
from ..terminal import identification as terminal
from ..writer import Form, Kind

_WORDS = {0: ("good", "identified"), 1: ("bad", "not what is declared")}


def digest(report: IdentifyReport) -> Digest:
    """The digest of an identification."""
    level, words = _WORDS.get(report.exit_code, ("warn", "not everything identified"))
    rows = [(p.type, str(p.m), printable(p.who, 100), p.declared, _computed(p)) for p in report.products]
    table = Table("", ("type", "M", "who", "declares", "computes"), rows)
    return Digest(
        level=level,
        words=words,
        exit_code=report.exit_code,
        command=report.command,
        repeat=shown(report.command),
        findings=[*_findings(report)],
        sections=[printable(report.header.kernel, 100), table, *map(_not_identified, report.unable)],
    )


def _findings(report: IdentifyReport) -> Iterator[Finding]:
    for p in report.products:
        if not p.right:
            told = f"declares {p.declared}, computes {_computed(p)}"
            yield Finding(rule=None, level="error", scope=f"{p.type}, M={p.m}, {printable(p.who, 100)}", message=told)
    for unable in report.unable:
        yield Finding(rule=None, level="warning", message=_not_identified(unable))


def _computed(product: Identified) -> str:
    return "nothing" if product.found is None else product.found.words


def _not_identified(unable: tuple[str, str]) -> str:
    return f"not identified: {printable(unable[0], 64)}: {printable(unable[1], 200)}"


def line(report: IdentifyReport) -> str:
    """Verdict, and the number of products that are not as declared."""
    wrong = sum(not p.right for p in report.products)
    return (
        f"IdentifyReport: {digest(report).words}; {printable(report.header.kernel, 100)} declares "
        f"{report.header.definition}; {wrong} of {len(report.products)} products are of another definition"
    )


VIEW = View(
    IdentifyReport,
    line,
    lambda report: terminal.render(report, Form()),
    lambda report: notebook.render(digest(report)),
    json.of_identification,
    json.renders(Kind.IDENTIFICATION),
    lambda report: message(line(report), digest(report)),
)
