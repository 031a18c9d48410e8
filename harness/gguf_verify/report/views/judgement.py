"""A captured product that was judged, in Python."""

from __future__ import annotations

from collections.abc import Iterator

from ...captured import Judged
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import printable
from .. import json
from ..terminal import judgement as terminal
from ..writer import Form, Kind
from .html import block, listed, paragraph, table, verdict


def line(judged: Judged) -> str:
    """Verdict, definition, worst utilisation, counts."""
    name = printable(judged.tensor, 64)
    if not judged.outputs:
        return f"Judged: {judged.verdict}; {name}; nothing was judged"
    return (
        f"Judged: {judged.verdict}; {name} as {judged.definition}; worst utilisation {judged.utilisation:.3g}; "
        f"{judged.wrong:,} of {judged.outputs:,} outputs wrong"
    )


def _lines(judged: Judged) -> Iterator[str]:
    if (f := judged.first) is not None:
        yield f"First wrong: row {f.row} token {f.token}"
        yield f"  got {f.got:.9g}, expected {f.expected:.9g}, bound {f.bound:.3g}, utilisation {f.utilisation:.3g}"
    yield from (f"Diagnosis: {printable(said, 300)}" for said in judged.lines[:5])
    yield from (f"Not verified: {printable(why, 200)}" for why in judged.left)


def html(judged: Judged) -> str:
    """Verdict, first wrong output, diagnosis and definitions."""
    rows = [
        (c.name, "yes" if c.within else "no", f"{c.utilisation:.3g}", f"{c.score:.3g}", f"{c.nmse:.2g}")
        for c in judged.candidates
    ]
    return block(
        verdict(judged.verdict, judged.exit_code, f"{printable(judged.tensor, 64)} as {judged.definition}"),
        paragraph(line(judged)), listed(_lines(judged)),
        table(("definition", "fits", "utilisation", "score", "NMSE"), rows),
    )  # fmt: skip


def message(judged: Judged) -> str:
    """The first wrong output, the diagnosis, and the command."""
    return "\n".join(
        [line(judged), *_lines(judged), *([f"repeat with: {shown(judged.command)}"] if judged.command else [])]
    )


VIEW = View(
    Judged, line, lambda judged: terminal.render(judged, Form()), html, json.of_judgement, json.renders(Kind.JUDGEMENT),
    message,
)  # fmt: skip
