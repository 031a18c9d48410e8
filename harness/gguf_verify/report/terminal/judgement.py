"""A captured product that was judged."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...captured import AUTO, Judged
from ...support.command_line import shown
from ...support.text import counted, printable
from ..writer import Form
from .console import BOLD, STYLES, WARN, facts, rendered, said, table, verdict_line, wrapped

_INDENT = " " * 7


def render(judged: Judged, form: Form) -> str:
    """Return the product, its definition, the first wrong output, the diagnosis, and in the last line the verdict."""
    return rendered(_parts(judged, form), form)


def _parts(j: Judged, form: Form) -> Iterator[RenderableType]:
    stop = j.first_row + j.n
    yield facts([
        ("version", f"gguf-verify {j.gguf_verify}"),
        ("weights", f"{printable(j.tensor, 64)}, {j.type}, rows {j.first_row}:{stop} of {printable(j.file, 200)}"),
        *((("sha256" if not i else "", digest)) for i, digest in enumerate(j.sha256)),
        ("product", f"M = {j.m:,} tokens, N = {j.n:,} rows, K = {j.k:,} columns; outputs {j.output}"),
        *((("read" if not i else "", printable(note, 200))) for i, note in enumerate(j.read)),
        ("judged by", _by(j)),
    ])  # fmt: skip
    if j.candidates:
        yield ""
        yield _candidates(j)
    yield ""
    for why in j.left:
        yield said(("NOT VERIFIED ", WARN), printable(why, 300))
    if j.first is not None:
        f = j.first
        yield said(
            ("FAILED ", "bold red"), f"{j.wrong:,} of {j.outputs:,} outputs; the first: row {f.row} token {f.token}"
        )
        yield Text(
            f"{_INDENT}got {f.got:.9g}, expected {f.expected:.9g}, bound {f.bound:.3g}, utilisation {f.utilisation:.3g}"
        )
        part = f" of part {f.part + 1}" if f.part else ""
        yield Text(f"{_INDENT}the row begins at byte {f.byte_offset}{part}")
    if j.lines:
        yield said(("DIAGNOSIS", BOLD))
        for line in j.lines:
            yield from wrapped(Text(_INDENT + printable(line, 300)), form.width, _INDENT + "  ")
    if j.exit_code and j.command:
        yield Text(f"repeat with: {shown(j.command)}")
    yield _verdict(j)


def _verdict(j: Judged) -> Text:
    """The verdict, the faults with their fixes, or why not everything was judged, in a line."""
    verdict = j.verdict.upper(), STYLES[j.verdict]
    words = f" as {j.definition}: worst utilisation {j.utilisation:.3g}, worst score {j.score:.3g}"
    if not j.exit_code:
        return verdict_line(verdict, words)
    if not j.wrong:
        left = printable(j.left[0], 300) if j.left else ""
        more = ("more", "gguf-verify explain not-everything-verified")
        return verdict_line(verdict, words if j.outputs else ": nothing judged", ("first", left), more)
    names = [*dict.fromkeys(fault.id for fault in j.faults)]
    cause = f": {' or '.join(names)}" if names else ""
    fixes = "; or: ".join([*dict.fromkeys(printable(fault.fix, 300) for fault in j.faults)][:2])
    first = "" if fixes or not j.lines else printable(j.lines[0], 300)
    wrong = f"{j.wrong:,} of {counted(j.outputs, 'outputs')} as {j.definition}"
    words = f"{cause} ({wrong})" if cause else f": {wrong}"
    more = ("more", f"gguf-verify explain {names[0] if names else 'mismatch'}")
    return verdict_line(verdict, words, ("fix", fixes), ("diagnosis", first), more)


def _by(j: Judged) -> str:
    if j.claimed != AUTO:
        words = f"{j.definition}, as claimed"
    elif j.definition in j.fitting:
        words = f"{j.definition}, which fits"
        others = [name for name in j.fitting if name != j.definition]
        words += f" ({', '.join(others)} cannot be distinguished from it on some of these data)" if others else ""
    else:
        words = f"{j.definition}; no definition fits" if j.candidates else "nothing"
    return words + (f"; {j.ambiguous:,} ambiguous codes widen the bound" if j.ambiguous else "")


def _candidates(j: Judged) -> Table:
    made = table("definition", "fits", "utilisation", "score", "NMSE", right=(2, 3, 4))
    for c in j.candidates:
        made.add_row(c.name, "yes" if c.within else "no", f"{c.utilisation:.3g}", f"{c.score:.3g}", f"{c.nmse:.2g}")
    return made
