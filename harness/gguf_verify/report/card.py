"""One picture of a run for a README or a model card: its verdict, set-up, scope and map.

The card is 1200 × 630 pixels, the size that sites show links in, light in any theme, and readable at half of that. It
shows skipped rungs and tensors that were not selected as plainly as the checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..checks import Check
from ..results.composition import Composition
from ..results.failures import CULPRITS
from ..results.report import Report
from ..support.text import counted, printable
from . import grid, run_words, scene, shades
from .grid import Grid
from .heat_map import mark_of
from .published import published
from .scene import Box, Frame, Item, Line, Scene, Words, shortened, text_width
from .shades import short
from .writer import Form, Kind, Writer

if TYPE_CHECKING:
    from ..audit.record import Audit

WIDTH, HEIGHT, MARGIN = 1200, 630, 56
#: Place of the map: its left upper corner, its width and height.
_MAP = (700, 250, 444, 236)
#: The width of the column at its left.
_LEFT = 600
#: The rungs that a card lists, even if they were not run.
_RUNGS = ("bytes", "blocks", "layers", "tokens")


def card(report: Report) -> Scene:
    """The card as a scene."""
    made = Scene(width=WIDTH, height=HEIGHT)
    made.add(head(run_words.headline(report), _said(report), shades.level(report.verdict)))
    made.add(_facts(report))
    made.add(_skipped(report))
    made.add(_picture(report))
    made.add(_foot(report))
    return made


def head(word: str, said: str, level: str) -> Iterator[Item]:
    """The top of a card: the verdict, in as large letters as fit, and its sentence."""
    yield Box(0, 0, WIDTH, 176, f"{level}-fill")
    yield Box(0, 172, WIDTH, 4, level)
    most = 84.0
    while text_width(word, most, True, False) > WIDTH - 2 * MARGIN - 150:
        most -= 2
    yield Words(MARGIN, 100, word, tone=level, size=most, bold=True, mono=False)
    yield Words(WIDTH - MARGIN, 64, "gguf-verify", tone="muted", size=24, anchor="end", mono=False)
    width, size = WIDTH - 2 * MARGIN, 29.0
    while size > 24 and text_width(said, size, False, False) > width:
        size -= 1
    yield Words(MARGIN, 150, cut(said, width, size), tone=level, size=size, mono=False)


def _said(report: Report) -> str:
    """Return the sentence of the verdict: the culprit and the reason, or the largest error."""
    if report.verdict in ("verified", "verified on drawn data"):
        used = _worst(report)
        if not report.kernel_ran:
            return "No product of the kernel was made: this says nothing of it"
        if used is None:
            return "Everything that was requested is correct"
        return f"Each output is within its rounding error bound: the largest error is {100 * used:.2g} % of it"
    blamed = ", ".join(CULPRITS[culprit] for culprit in report.culprits if culprit != "coverage")
    why = next((d.lines[0] for _, d in report.diagnosed if d.lines), "")
    why = re.sub(r" \(explains [^)]*\)$", "", why.partition(". Fix: ")[0])
    if not why:
        why = report.fault or next((r.fault for r in report.rungs if r.fault), "")
    if not why and report.n_failures:
        why = counted(report.n_failures, "failures")
    if not why:
        left = [u for r in report.rungs for u in r.unverified]
        why = f"{len(left):,} could not be checked" if left else "nothing was measured"
    return (f"At fault: {blamed}. " if blamed else "") + published(f"{why[:1].upper()}{why[1:]}")


def _worst(report: Report) -> float | None:
    """The kernel's largest utilisation in any rung."""
    found = run_words.worst(report)
    return None if found is None else found[0].utilisation


def _facts(report: Report) -> Iterator[Item]:
    e = report.environment
    kinds = Composition(e.file.types).words(3) or ", ".join(e.file.tensor_types)
    model = e.file.path.rpartition("/")[2]
    device = e.host.device if e.host.sm is None else f"{e.host.device} (sm_{e.host.sm})"
    used = _worst(report)
    lines = [
        ("model", model), ("weights", f"{e.file.architecture or 'no architecture'}: {kinds}"),
        ("kernel", f"{e.kernel.name}, declares {e.kernel.definition}" if report.kernel_ran else "not run"),
        *([("and", ", ".join(e.kernel.declares))] if e.kernel.declares and report.kernel_ran else []),
        ("device", device if report.kernel_ran else "none"),
        ("holds for", _holds(report)),
        ("worst", "not measured" if used is None else f"utilisation {short(used)} (the bound is 1)"),
    ]  # fmt: skip
    for i, (name, value) in enumerate(lines):
        y = 232 + (52 if len(lines) == 6 else 44) * i
        yield Words(MARGIN, y, name, tone="muted", size=22, mono=False)
        size = 27.0
        while size > 20 and text_width(value, size, name == "model", False) > _LEFT - 130:
            size -= 1
        shown = cut(value, _LEFT - 130, size, name == "model")
        tone = "bad" if name == "worst" and used is not None and not used <= 1 else "text"
        yield Words(MARGIN + 130, y, shown, tone=tone, size=size, bold=name == "model", mono=False)


def _skipped(report: Report) -> Iterator[Item]:
    """The classes of checks that were skipped, in two lines."""
    lines, left = [""], [_partly(check) for check in report.skipped if check.id not in _RUNGS]
    for i, title in enumerate(left):
        more = title if i else f"skipped: {title}"
        if lines[-1] and len(lines) < 2 and text_width(f"{lines[-1]}, {more}", 17, False, False) > _LEFT:
            lines.append("")
        lines[-1] += f", {more}" if lines[-1] else more
    for i, line in enumerate(lines):
        yield Words(MARGIN, 526 + 20 * i, cut(line, _LEFT, 17), tone="warn", size=17, mono=False)


def _partly(check: Check) -> str:
    return f"{check.title} (in part)" if check.done else check.title


def _holds(report: Report) -> str:
    """The envelope in short: of the kernel under test the numbers that all of its types hold for, as wide as the
    narrowest; or that it holds for the products that were made alone."""
    if report.exit_code:
        return "nothing, until it is verified"
    if not report.kernel_ran:
        return "no product"
    found = [e for rung in report.rungs for e in rung.envelopes if e.under_test]
    if not found:
        return "these products only"
    of = [_span([getattr(e, field) for e in found]) for field in ("tokens", "rows", "columns")]
    brief = ", few probes" if any(e.probes == "brief" for e in found) else ""
    domain = ", declared domain" if any(e.domain for e in found) else ""
    return f"M {of[0]}, N {of[1]}, K {of[2]}{brief}{domain}"


def _span(ranges: list[str]) -> str:
    """From the largest of the first numbers to the least of the last ones; the numbers between them are samples."""
    if {*ranges} == {"any"}:
        return "any"
    ends = [[int(n.replace(",", "")) for n in re.findall(r"[0-9][0-9,]*[0-9]|[0-9]", numbers)] for numbers in ranges]
    if not all(ends):
        return "none"
    low, high = max(of[0] for of in ends), min(of[-1] for of in ends)
    if low > high:
        return "none"
    return f"{low:,}" if low == high else f"{low:,}…{high:,}"


# ---- the map ---------------------------------------------------------------------------------------------------------


def _picture(report: Report) -> Iterator[Item]:
    """The map of the first wrong GEMM, or of all matrices, between its title and the scale."""
    x, y, width, height = _MAP
    grids = grid.of_run(report)
    if not grids:
        yield Words(x, y + 20, "no map: no layers were judged", tone="muted", size=22, mono=False)
        return
    drawn = grids[0]
    if drawn.every:
        if len(drawn.lines) > len(drawn.columns):  # the long side across
            drawn = _turned(drawn)
        count = len(drawn.drawn)
        title = f"{count:,} matri{'x' if count == 1 else 'ces'}, one square each"
    else:
        m, n = drawn.size
        title = f"first wrong GEMM: N = {n:,}, M = {m:,}"
    yield Words(x, y - 22, cut(title, width, 22), tone="muted", size=22, mono=False)
    lines, columns = len(drawn.cells), len(drawn.cells[0])
    wide, tall = width / columns, min(height / lines, 60 if drawn.every else 40)
    if drawn.every:
        wide = min(wide, 2 * tall)
    gap = 2 if min(wide, tall) >= 8 else 0
    crossed = min(wide, tall) >= 9 and not drawn.all_wrong
    for i, cells in enumerate(drawn.cells):
        for j, cell in enumerate(cells):
            if not cell.empty:
                mark = mark_of(cell) if crossed else ""
                yield Box(x + j * wide, y + i * tall, wide - gap, tall - gap, cell.shade, mark)
    if not drawn.all_wrong and not drawn.every:
        for r in drawn.regions[:8]:
            yield Frame(x + r.left * wide - 1, y + r.top * tall - 1, (r.right - r.left + 1) * wide + 1,
                        (r.bottom - r.top + 1) * tall + 1, "text", 2)  # fmt: skip
    yield from _scale(x, y + height + 20)


def _turned(of: Grid) -> Grid:
    cells = tuple(zip(*of.cells, strict=True))
    return Grid(of.title, of.down, of.across, of.lines, of.columns, cells, of.every)


def _scale(x: float, y: float) -> Iterator[Item]:
    step = 14
    for i in range(shades.STEPS):
        yield Box(x + step * i, y, step, 16, f"u{i}")
    bound = x + step * shades.STEPS
    for i, key in enumerate(shades.WRONG):
        yield Box(bound + 2 * step * i, y, 2 * step, 16, key)
    yield Line(bound, y - 5, bound, y + 21, "text", 2)
    yield Words(x, y + 40, "1e-4", tone="muted", size=18, mono=False)
    yield Words(bound, y + 40, "1 = bound", tone="muted", size=18, anchor="middle", mono=False)
    yield Words(bound + 2 * step * len(shades.WRONG), y + 40, "1e5", tone="muted", size=18, anchor="end", mono=False)


# ---- the rungs -------------------------------------------------------------------------------------------------------


def _foot(report: Report) -> Iterator[Item]:
    """The rungs with their outcomes, the skipped ones, and the versions and digests of file and program."""
    yield Line(MARGIN, 560, WIDTH - MARGIN, 560)
    x = float(MARGIN)
    whole = _RUNGS if report.environment.kernel.computes in ("gemm", "experts") else _RUNGS[:1]
    names = dict.fromkeys([*whole, *(r.name for r in report.rungs), *report.not_climbed])
    for name in names:
        rung = report.rung(name)
        words = f"{name}: {'not run' if rung is None else rung.outcome}"
        tone = "muted" if rung is None else {"passed": "good", "failed": "bad"}.get(rung.outcome, "warn")
        yield Words(x, 592, words, tone=tone, size=20, bold=rung is not None, mono=False)
        x += text_width(words, 20, True, False) + 22
    e = report.environment
    digest = e.file.sha256[0][:16] if e.file.sha256 else ""
    words = f"gguf-verify {e.versions.gguf_verify} against llama.cpp {e.versions.llama_cpp}"
    words += f", sha256 {digest}…" if digest else ""
    words += f", seed {e.options.seed}"
    yield Words(MARGIN, 617, cut(words, WIDTH - 2 * MARGIN, 17), tone="muted", size=17, mono=False)


def cut(text: str, width: float, size: float, bold: bool = False) -> str:
    """Text that fits into a width in pixels: see `scene.shortened`."""
    return shortened(printable(text, 400), width, size, bold, mono=False)


# ---- the writer ------------------------------------------------------------------------------------------------------


def told(report: Report) -> str:
    """Return the card in words, for readers who cannot see it."""
    e = report.environment
    kernel = f"kernel {e.kernel.name}" if report.kernel_ran else "no kernel"
    skipped = ", ".join(map(_partly, report.skipped)) or "nothing"
    return f"{run_words.headline(report)}: {printable(e.file.path.rpartition('/')[2], 100)}, {kernel}. " + (
        f"{_said(report)}. It holds for {_holds(report)}. Skipped: {skipped}."
    )


def _render(report: Report, form: Form) -> str | bytes:
    return _drawn(card(report), f"gguf-verify: {run_words.headline(report)}", told(report), form)


def _render_audit(audit: Audit, form: Form) -> str | bytes:
    from . import audit_card  # late: few audits draw

    return _drawn(audit_card.card(audit), f"gguf-verify audit: {audit.words.upper()}", audit_card.told(audit), form)


def _drawn(made: Scene, title: str, words: str, form: Form) -> str | bytes:
    if form.suffix == ".png":
        return scene.png(made, title, scale=1)
    return scene.svg(made, title, words, dark=False)


WRITER = Writer(
    "card", "--card",
    {Kind.RUN: _render, Kind.AUDIT: _render_audit}, ("card.svg", "card.png", ".svg", ".png"), (".svg", ".png"),
)  # fmt: skip
