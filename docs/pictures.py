"""Pictures of the pages: a report as at a terminal, and the bar chart of the ladder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tools.measure import markdown

HERE = Path(__file__).parent
_STYLE = "text{font:13px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}"
#: The beginning of a line of a report, and its colour; the first that matches counts.
_COLOURS = (
    (r"MISMATCH|FAILED", "#ff7b72"),
    (r"\$ ", "#8b949e"),
    (r"DIAGNOSIS|at fault", "#ffa657"),
    (r" +fix:", "#7ee787"),
)


def failing_report() -> str:
    """docs/failing-report.svg: the first report that the tutorial for authors of kernels quotes, in short."""
    page = (HERE / "tutorials" / "kernel-author.md").read_text()
    pattern = r"^    (gguf-verify [^\n]*--rungs layers)\n\n```\n([^`]*^MISMATCH[^`]*)^```"
    command, report = re.findall(pattern, page, re.MULTILINE)[0]
    shown = [part for part in report.rstrip("\n").split("\n\n") if not part.startswith(("…", "failures by tensor"))]
    return _terminal([f"$ {command}", *_wrapped("\n\n".join(shown).split("\n"))])


def _wrapped(lines: Sequence[str], width: int = 88) -> Iterator[str]:
    for line in lines:
        while len(line) > width:
            cut = line.rfind(" ", 0, width)
            yield line[:cut]
            line = "    " + line[cut + 1 :]
        yield line


def _terminal(lines: Sequence[str]) -> str:
    width, height = 24 + 8 * max(map(len, lines)), 24 + 18 * len(lines)
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"><style>{_STYLE}</style>',
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
    ]
    for number, line in enumerate(lines):
        colour = next((colour for begin, colour in _COLOURS if re.match(begin, line)), "#e6edf3")
        made.append(f'<text x="12" y="{27 + 18 * number}" fill="{colour}">{escape(line)}</text>')
    return "\n".join([*made, "</svg>\n"])


def ladder() -> str:
    """docs/ladder.svg: TFLOP/s of each step at N = K = 4096, from the table of docs/benchmarks.md."""
    table = markdown.marked((HERE / "benchmarks.md").read_text(), "bench", "ladder")
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return _bars([(row[0], float(row[1].split()[0])) for row in rows])


def _bars(values: Sequence[tuple[str, float]]) -> str:
    height, most = 44 + 24 * len(values), max(value for _, value in values)
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" '
        'style="font-family:sans-serif;font-size:13px">',
        f'<rect width="720" height="{height}" fill="#fff"/>',
        '<text x="12" y="24" font-weight="bold">TFLOP/s at M = 512, N = K = 4096, Q4_0</text>',
    ]
    for number, (name, value) in enumerate(values):
        y, width = 36 + 24 * number, 480 * value / most
        colour = "#57606a" if name == "llama.cpp" else "#3f51b5"
        made += [
            f'<text x="150" y="{y + 14}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="158" y="{y}" width="{width:.1f}" height="18" fill="{colour}"/>',
            f'<text x="{164 + width:.1f}" y="{y + 14}">{value:g}</text>',
        ]
    return "\n".join([*made, "</svg>\n"])


PICTURES = {"failing-report.svg": failing_report, "ladder.svg": ladder}
