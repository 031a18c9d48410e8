"""The digest of a captured product: the first wrong output, the diagnosis, and the definitions."""

from __future__ import annotations

from collections.abc import Iterator

from ...captured import Judged
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import printable
from .. import json, notebook
from ..digest import Bullets, Digest, Finding, Table, message
from ..shades import level
from ..terminal import judgement as terminal
from ..writer import Form, Kind


def digest(judged: Judged) -> Digest:
    """The digest of a captured product."""
    rows = [
        (c.name, "yes" if c.within else "no", f"{c.utilisation:.3g}", f"{c.score:.3g}", f"{c.nmse:.2g}")
        for c in judged.candidates
    ]
    found = [*_findings(judged)]
    return Digest(
        level=level(judged.verdict),
        words=judged.verdict,
        exit_code=judged.exit_code,
        command=judged.command,
        repeat=shown(judged.command),
        findings=found,
        sections=[
            line(judged),
            Bullets("", [f.message for f in found]),
            Table("", ("definition", "fits", "utilisation", "score", "NMSE"), rows),
        ],
    )


def _findings(judged: Judged) -> Iterator[Finding]:
    if (f := judged.first) is not None:
        numbers = f"got {f.got:.9g}, expected {f.expected:.9g}, bound {f.bound:.3g}, utilisation {f.utilisation:.3g}"
        yield Finding(rule=None, level="error", message=f"First wrong: row {f.row} token {f.token}: {numbers}")
    for words in judged.lines[:5]:
        yield Finding(rule=None, level="error", message=f"Diagnosis: {printable(words, 300)}")
    for why in judged.left:
        yield Finding(rule=None, level="warning", message=f"Not verified: {printable(why, 200)}")


def line(judged: Judged) -> str:
    """Verdict, definition, worst utilisation, counts."""
    name = printable(judged.tensor, 64)
    if not judged.outputs:
        return f"Judged: {judged.verdict}; {name}; nothing was judged"
    return (
        f"Judged: {judged.verdict}; {name} as {judged.definition}; worst utilisation {judged.utilisation:.3g}; "
        f"{judged.wrong:,} of {judged.outputs:,} outputs wrong"
    )


VIEW = View(
    Judged,
    line,
    lambda judged: terminal.render(judged, Form()),
    lambda judged: notebook.render(digest(judged)),
    json.of_judgement,
    json.renders(Kind.JUDGEMENT),
    lambda judged: message(line(judged), digest(judged)),
)
