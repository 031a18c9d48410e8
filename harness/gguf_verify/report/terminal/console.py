"""Output of reports at the terminal through rich, without its markup.

Text from a file never meets rich's markup: it is escaped by `printable` and passed on as `Text`, or through a console
that has markup, emoji and highlighting switched off. Without a width nothing is wrapped and no name is ever cut.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ...results.failures import WaiverState, WaiverUse
from ...support.text import printable, visible
from ..writer import Form

#: Wider than any line: nothing is wrapped.
_ENDLESS = 1 << 20
#: Columns that a folded column keeps.
_LEAST = 24
#: Characters of a label with the space behind it, at least.
LABEL = 12

GOOD, WARN, BAD, DIM, BOLD = "bold green", "yellow", "bold red", "dim", "bold"
#: Verdicts and severities → style.
STYLES = {
    "passed": GOOD, "verified": GOOD, "verified on drawn data": WARN,
    "clean": GOOD, "clean in the sample": WARN, "clean as far as checked": WARN, "warnings": WARN,
    "failed": BAD, "mismatch": BAD, "wrong": BAD, "refused": BAD,
    "error": BAD, "unverified": WARN, "waived": WARN, "broken off": WARN, "interrupted": WARN,
    "not everything verified": WARN,
    "warning": WARN, "note": "cyan",
}  # fmt: skip


def rendered(parts: Iterable[RenderableType], form: Form) -> str:
    """The parts one below the other, as text that ends with a line feed; no line ends with spaces.

    The last part is the verdict, which is all that is shown where only the verdict is wanted.

    Tables are fitted to the width if their columns permit. The terminal wraps other lines, so that copied text stays
    whole.
    """
    console = Console(
        file=io.StringIO(), width=_ENDLESS, force_terminal=form.colour, no_color=not form.colour,
        color_system="standard" if form.colour else None, markup=False, emoji=False, highlight=False,
        legacy_windows=False, _environ={},
    )  # fmt: skip
    listed = [*parts]
    with console.capture() as capture:
        for part in listed[-1:] if form.quiet else listed:
            if isinstance(part, Table) and form.width is not None:
                console.print(part, width=max(form.width, _least_width(part, console)))
            else:
                console.print(part, soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().split("\n")[:-1])


def _least_width(table: Table, console: Console) -> int:
    """The width below which a column that must not be folded would be cut."""
    folded = [cell_len(str(cell)) for column in table.columns if not column.no_wrap for cell in column.cells]
    natural = Measurement.get(console, console.options, table).maximum
    return natural - max(0, max(folded, default=0) - _LEAST)


def said(*parts: str | tuple[str, str]) -> Text:
    """A line: texts, and texts with a style."""
    return Text.assemble(*parts)


def wrapped(line: Text, width: int | None, indent: str = "") -> list[Text]:
    """A line as lines of this width, broken between words; those after the first begin with the indent."""
    if width is None or line.cell_len <= width:
        return [line]
    console = Console(width=_ENDLESS, _environ={})
    first, *_ = line.wrap(console, width)
    rest = line[len(first.plain) :]
    first.rstrip()
    while rest.plain.startswith(" "):
        rest = rest[1:]
    return [first, *(said(indent) + more for more in rest.wrap(console, max(8, width - len(indent))))]


def verdict_line(verdict: tuple[str, str], words: str, *advice: tuple[str, str]) -> Text:
    """The last line of a report: the verdict, what it is about, and what to do next.

    Args:
        verdict: and its style.
        words: as they follow the verdict, such as ": nibbles-in-pairs" or " in 6.0 s".
        advice: pairs of a label and its words, such as "fix" and "multiply by 4"; those without words are skipped.
    """
    line = said(verdict, words)
    for label, text in advice:
        if text:
            line = line + said((" · ", DIM), (f"{label}: ", BOLD), text.removesuffix("."))
    return line


def source_lines(place: str, code: str, form: Form) -> Iterator[Text]:
    """A line of source as compilers print it: its place, the line, and a line below it that underlines the code.

    Args:
        place: FILE:LINE, and words after it.
        code: the line, without its indentation.
    """
    number = place.partition(" ")[0].rpartition(":")[2]
    gutter = " " * len(number)
    yield cut(said((f"{gutter}--> ", DIM), visible(place, 200)), form.width)
    shown = cut(Text(visible(code, 200)), None if form.width is None else form.width - len(number) - 3)
    yield said((f"{number} | ", DIM)) + shown
    yield said((f"{gutter} | ", DIM), ("^" * shown.cell_len, BAD))


def cut(line: Text, width: int | None) -> Text:
    """The line, cut where it is longer than the width."""
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def table(*columns: str, right: Iterable[int] = (), folded: int | None = None, heading: bool = True) -> Table:
    """A table without lines; `right` are the columns aligned to the right, `folded` is one that may be folded."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=heading, header_style=BOLD)
    aligned = set(right)
    for i, column in enumerate(columns):
        made.add_column(Text(column), justify="right" if i in aligned else "left", overflow="fold", no_wrap=i != folded)
    if folded is not None:
        made.columns[folded].min_width = _LEAST
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of labels and texts; the label "" continues the one above."""
    made = table("", "", folded=1, heading=False)
    made.columns[0].min_width = LABEL - 2
    for label, words in rows:
        made.add_row(Text(label, DIM), Text(words))
    return made


#: State of a waiver → its mark and colour; expired ones come first.
_WAIVERS: dict[WaiverState, tuple[str, str]] = {
    "expired": ("ERROR: WAIVER EXPIRED ", BAD),
    "applied": ("WAIVED ", WARN),
    "unused": ("UNUSED WAIVER ", WARN),
}
_MOST_WAIVERS = 20


def waiver_lines(uses: Sequence[WaiverUse]) -> Iterator[Text]:
    """A line for each waiver."""
    ordered = sorted(uses, key=lambda use: [*_WAIVERS].index(use.state))
    lines = [said(_WAIVERS[use.state], printable(use.words, 600)) for use in ordered]
    yield from capped(lines, _MOST_WAIVERS, "more waivers")


def capped(lines: Iterable[Text], most: int, more: str = "more") -> Iterator[Text]:
    """Yield at most this number of lines, and then the number of further ones, which are not kept."""
    beyond = -most
    for line in lines:
        beyond += 1
        if beyond <= 0:
            yield line
    if beyond > 0:
        yield Text(f"… and {beyond:,} {more}")
