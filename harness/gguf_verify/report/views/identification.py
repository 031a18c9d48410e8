"""The result of `identify_model`, in Python."""

from __future__ import annotations

from collections.abc import Iterator

from ...identification import IdentifyReport
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import printable
from .. import json
from ..terminal import identification as terminal
from ..writer import Form, Kind
from .html import block, paragraph, table, verdict

_WORDS = {0: "identified", 1: "not what is declared"}


def _verdict(report: IdentifyReport) -> str:
    return _WORDS.get(report.exit_code, "not everything identified")


def _rows(report: IdentifyReport) -> Iterator[tuple[str, str, str, str, str]]:
    for p in report.products:
        computed = "nothing" if p.found is None else p.found.words
        yield p.type, str(p.m), printable(p.who, 100), p.declared, computed


def line(report: IdentifyReport) -> str:
    """Verdict, and what the kernel computes."""
    wrong = sum(not p.right for p in report.products)
    return (
        f"IdentifyReport: {_verdict(report)}; {printable(report.header.kernel, 100)} declares "
        f"{report.header.definition}; {wrong} of {len(report.products)} products are of another definition"
    )


def html(report: IdentifyReport) -> str:
    """Verdict and the products."""
    heads = ("type", "M", "who", "declares", "computes")
    return block(
        verdict(_verdict(report), report.exit_code, printable(report.header.kernel, 100)),
        table(heads, _rows(report)),
        *(paragraph(f"Not identified: {printable(kind, 64)}: {printable(why, 200)}") for kind, why in report.unable),
    )


def message(report: IdentifyReport) -> str:
    """The products that are not what is declared."""
    lines = [line(report)]
    for p in report.products:
        if not p.right:
            computed = "nothing" if p.found is None else p.found.words
            lines.append(f"{p.type}, M={p.m}, {printable(p.who, 100)}: declares {p.declared}, computes {computed}")
    lines += [f"not identified: {printable(kind, 64)}: {printable(why, 200)}" for kind, why in report.unable]
    return "\n".join([*lines[:14], *([f"repeat with: {shown(report.command)}"] if report.command else [])])


VIEW = View(
    IdentifyReport, line, lambda report: terminal.render(report, Form()), html, json.of_identification,
    json.renders(Kind.IDENTIFICATION), message,
)  # fmt: skip
