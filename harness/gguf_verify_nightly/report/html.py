"""The page of nights: the records of `nightly`, arranged for the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from gguf_verify.report import grid
from gguf_verify.report.html import charts, graph, run
from gguf_verify.report.html.charts import Point
from gguf_verify.report.html.page import environment
from gguf_verify.report.html.run import Picture, Run
from gguf_verify.report.shades import rank, shade, short
from gguf_verify.support.text import printable

from ..compare import compare
from ..records import Cell, Key, Night
from ..summary import Changed, Kind, NightReport, Standing, Verdict, lists, worst

#: Runs shown whole; failures of each; rows of GEMMs; heat maps; cells with trends; groups of cells. More are counted.
MOST_RUNS, MOST_FAILURES, MOST_GEMMS, MOST_MAPS, MOST_TRENDS, MOST_GROUPS = 20, 20, 3000, 12, 200, 1000
#: Earlier nights that the night can be compared with on the page, and entries of each list of a comparison: of the one
#: that the night is judged by, and of the others.
MOST_BASELINES, MOST_CHANGES, MOST_OTHER_CHANGES = 20, 500, 40


class RungOfNight(NamedTuple):
    """A rung over all cells: side, worst utilisation and place; the cells; their time."""

    name: str
    worst: Sequence[tuple[str, float, str]]
    cells: int
    seconds: float


class Troubled(NamedTuple):
    """A cell that is not verified, with its run or its graph; both are None where its report is not kept, or not shown
    for want of room."""

    standing: Standing
    run: Run | None
    graph: graph.Page | None = None


class GemmOfNight(NamedTuple):
    """A matrix of a cell."""

    tensor: str
    key: Key
    utilisation: float
    level: str


class Followed(NamedTuple):
    """A cell, and its utilisation and time over the nights; None where there are too many cells, or one night alone."""

    standing: Standing
    utilisation: Markup | None
    seconds: Markup | None


class Group(NamedTuple):
    """A cell of the grid: the runs of one model, type, kernel and host, with all prompts and variants.

    Args:
        number: of its anchor on the page.
        level: of the worst.
        words: the largest utilisation, or the outcome of what is not verified.
        shade: of that utilisation.
        good: how many of them are verified.
    """

    number: int
    key: Key
    level: str
    words: str
    shade: str
    good: int
    cells: Sequence[Followed]


class HostGrid(NamedTuple):
    """Models and types × kernels on one host; `rows` has (model, type, a group or None for each kernel)."""

    host: str
    kernels: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[Group | None]]]


class Baseline(NamedTuple):
    """An earlier night, and what changed since; `most` entries of each list are shown. `judged`: the night is judged
    by it."""

    number: int
    started: str
    changes: Sequence[tuple[Kind, Sequence[Changed]]]
    most: int
    judged: bool


class Past(NamedTuple):
    """A line of the history."""

    night: Night
    verdict: Verdict
    worst: float | None
    seconds: float


@dataclass(frozen=True)
class Page:
    """The last of some nights, ready to be shown."""

    night: Night
    title: str
    verdict: Verdict
    baselines: Sequence[Baseline]
    grids: Sequence[HostGrid]
    n_groups: int
    standings: Sequence[Standing]
    troubled: Sequence[Troubled]
    rungs: Sequence[RungOfNight]
    heats: Sequence[tuple[str, Picture]]
    n_heats: int
    histogram: Markup | None
    gemms: Sequence[GemmOfNight]
    n_gemms: int
    charts: Sequence[tuple[str, Markup]]
    past: Sequence[Past]
    versions: Mapping[str, Sequence[str]]


def of(report: NightReport) -> Page:
    """Everything that the page shows."""
    night, standings = report.night, report.standings
    cells = list(night.cells.values())
    heats = _heats(cells)
    gemms = sorted(
        (GemmOfNight(t, c.key, u, "good" if u <= 1 else "bad") for c in cells for t, u in c.gemms.items()),
        key=lambda g: -rank(g.utilisation),
    )
    past = [Past(n, found, _worst(n), sum(c.seconds for c in n.cells.values())) for n, found in report.history]
    grids, n_groups = _grids(report.nights, standings)
    return Page(
        night=night, title=report.title, verdict=report.verdict, baselines=_baselines(report), grids=grids,
        n_groups=n_groups, standings=standings, troubled=_troubled(standings), rungs=_rungs(cells),
        heats=heats[:MOST_MAPS], n_heats=len(heats),
        histogram=charts.histogram([g.utilisation for g in gemms], "GEMMs of all cells by largest utilisation"),
        gemms=gemms[:MOST_GEMMS], n_gemms=len(gemms), charts=_charts(past), past=past, versions=_versions(cells),
    )  # fmt: skip


def _worst(night: Night) -> float | None:
    values = [v for cell in night.cells.values() if (v := worst(cell)) is not None]
    return max(values, key=rank, default=None)


def _troubled(standings: Sequence[Standing]) -> list[Troubled]:
    out, shown = [], 0
    for standing in standings:
        if standing.verified:
            continue
        cell, made, of_graph = standing.cell, None, None
        if cell is not None and shown < MOST_RUNS:
            made = None if cell.report is None else run.of(cell.report, MOST_FAILURES)
            of_graph = None if cell.graph is None else graph.of(cell.graph)
            shown += made is not None or of_graph is not None
        out.append(Troubled(standing, made, of_graph))
    return out


def _rungs(cells: Sequence[Cell]) -> list[RungOfNight]:
    out = []
    names = [name for cell in cells for name in (*cell.rung_seconds, *(m.rung for m in cell.measures))]
    for name in dict.fromkeys(names):
        found: dict[str, tuple[str, float, str]] = {}
        for cell in cells:
            for m in cell.measures:
                if m.rung != name:
                    continue
                who = m.who if m.of_kernel else "llama.cpp"
                if who not in found or rank(m.utilisation) > rank(found[who][1]):
                    found[who] = who, m.utilisation, f"{m.where} of {cell.key}"
        spent = [cell.rung_seconds[name] for cell in cells if name in cell.rung_seconds]
        out.append(RungOfNight(name, list(found.values()), len(spent), sum(spent)))
    return out


def _heats(cells: Sequence[Cell]) -> list[tuple[str, Picture]]:
    """A map of each model and type: the worst of its cells."""
    of: dict[str, list[grid.Cell]] = {}
    for cell in cells:
        name = " · ".join(part for part in (cell.key.model, cell.key.type) if part)
        of.setdefault(name, []).extend(grid.cell(u, tensor=tensor) for tensor, u in cell.gemms.items())
    drawn = [
        (name, grid.by_layer(found, f"{printable(name, 80)}, the worst of each matrix")) for name, found in of.items()
    ]
    return [(name, run.picture(made)) for name, made in drawn if made is not None]


def _baselines(report: NightReport) -> list[Baseline]:
    """The night that it is judged by, and the other earlier ones that were finished, newest first."""
    found = report.comparison
    if found is None:
        return []
    started = {night.number: night.started for night in report.nights}
    out = [Baseline(found.old, started.get(found.old, ""), report.changes, MOST_CHANGES, True)]
    new, earlier = report.night, report.nights[:-1]
    for old in [n for n in reversed(earlier) if n.finished and n.number != found.old][: MOST_BASELINES - 1]:
        changes = [(kind, of) for kind, of in lists(compare(earlier, old, new)) if of]
        out.append(Baseline(old.number, old.started, changes, MOST_OTHER_CHANGES, False))
    return sorted(out, key=lambda baseline: -baseline.number)


def _grids(nights: Sequence[Night], standings: Sequence[Standing]) -> tuple[list[HostGrid], int]:
    """A grid for each host, and how many groups of cells there are in all."""
    found: dict[tuple[str, str, str, str], list[Standing]] = {}
    for standing in standings:
        key = standing.key
        found.setdefault((key.host, key.model, key.type, key.kernel), []).append(standing)
    drawn, groups = 0, {}
    for number, (at, of_group) in enumerate(list(found.items())[:MOST_GROUPS]):
        cells = []
        for standing in of_group:
            some = len(nights) > 1 and drawn < MOST_TRENDS
            drawn += some
            cells.append(_followed(nights, standing) if some else Followed(standing, None, None))
        groups[at] = _group(number, cells)
    out = []
    for host in dict.fromkeys(at[0] for at in groups):
        here = [at for at in groups if at[0] == host]
        kernels = list(dict.fromkeys(at[3] for at in here))
        rows = [
            (model, kind, [groups.get((host, model, kind, kernel)) for kernel in kernels])
            for model, kind in dict.fromkeys(at[1:3] for at in here)
        ]
        out.append(HostGrid(host, kernels, rows))
    return out, len(found)


def _group(number: int, cells: Sequence[Followed]) -> Group:
    of = [cell.standing for cell in cells]
    bad = [standing for standing in of if not standing.verified]
    used = max((s.worst for s in of if s.worst is not None), key=rank, default=None)
    level = min((s.level for s in of), key=("bad", "warn", "good").index)
    told = next((s for s in bad if s.level == level), None)
    words = told.outcome if told is not None and level == "warn" else short(used)
    return Group(number, of[0].key, level, words, shade(used), len(of) - len(bad), cells)


def _charts(past: Sequence[Past]) -> list[tuple[str, Markup]]:
    """Return the titles and the line charts; none for a single night, which is no trend."""
    if len(past) < 2:
        return []
    shares = []
    for p in past:
        cells = sum(p.verdict.outcomes.values())
        good = p.verdict.outcomes.get("verified", 0)
        shares.append(Point(p.night.number, 100 * good / cells if cells else 0.0, p.verdict.level == "good"))
    largest = [Point(p.night.number, p.worst, p.worst is None or p.worst <= 1) for p in past]
    seconds = [Point(p.night.number, p.seconds, True) for p in past]
    drawn = [
        (title, charts.lines(points, title, unit, log))
        for title, points, unit, log in (
            ("Cells verified, of 100", shares, " %", False),
            ("Largest utilisation of the kernel in the layers rung, logarithmic", largest, "", True),
            ("Seconds in cells", seconds, " s", False),
        )
    ]
    return [(title, made) for title, made in drawn if made is not None]


def _followed(nights: Sequence[Night], standing: Standing) -> Followed:
    """A cell over the nights in which it is known."""
    largest, spent = [], []
    for n in nights:
        then = Standing(standing.key, n.cells.get(standing.key))
        used = None if then.cell is None else worst(then.cell)
        largest.append(Point(n.number, used, then.verified))
        spent.append(Point(n.number, None if then.cell is None else then.cell.seconds, then.verified))
    return Followed(
        standing, charts.lines(largest, "Largest utilisation over the nights, logarithmic", log=True),
        charts.lines(spent, "Seconds over the nights", " s"),
    )  # fmt: skip


def _versions(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Name → all versions that cells ran with."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, version in cell.versions.items():
            found.setdefault(name, {})[version] = None
    return {name: list(versions) for name, versions in found.items()}


def render(report: NightReport) -> str:
    """The page of the last night, with the history up to it."""
    return environment(Path(__file__).parent / "templates").get_template("night.html").render(page=of(report))
