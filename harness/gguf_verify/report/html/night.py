"""What a page shows of nights: the records of `nightly`, arranged for the templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from ...nightly.records import Cell, Key, Night
from ...nightly.summary import Changed, Kind, NightReport, Standing, Verdict, worst
from ...support.text import printable
from .. import grid
from ..shades import rank
from . import charts, run
from .charts import Point
from .run import Run

#: Runs shown whole; failures and x-rays of each; rows of GEMMs; heat maps; trends of cells. More are counted.
MOST_RUNS, MOST_FAILURES, MOST_XRAYS, MOST_GEMMS, MOST_MAPS, MOST_TRENDS = 20, 20, 4, 3000, 12, 200


class RungOfNight(NamedTuple):
    """A rung over all cells: whose worst utilisation, how large and where; the cells; their time."""

    name: str
    worst: Sequence[tuple[str, float, str]]
    cells: int
    seconds: float


class Troubled(NamedTuple):
    """A cell that is not verified; `run` is None where its report is not kept, or not shown for want of room."""

    standing: Standing
    run: Run | None


class GemmOfNight(NamedTuple):
    """A matrix of a cell."""

    tensor: str
    key: Key
    utilisation: float
    level: str


class Trend(NamedTuple):
    """A cell over the nights: small pictures, and the last values."""

    standing: Standing
    utilisation: Markup | None
    last_utilisation: float | None
    seconds: Markup | None
    last_seconds: float | None


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
    against: str | None
    changes: Sequence[tuple[Kind, Sequence[Changed]]]
    standings: Sequence[Standing]
    troubled: Sequence[Troubled]
    rungs: Sequence[RungOfNight]
    heats: Sequence[tuple[str, Markup]]
    n_heats: int
    histogram: Markup | None
    gemms: Sequence[GemmOfNight]
    n_gemms: int
    charts: Sequence[tuple[str, Markup]]
    past: Sequence[Past]
    trends: Sequence[Trend]
    n_trends: int
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
    return Page(
        night=night, title=report.title, verdict=report.verdict,
        against=None if report.comparison is None else report.comparison.against, changes=report.changes,
        standings=standings, troubled=_troubled(standings), rungs=_rungs(cells), heats=heats[:MOST_MAPS],
        n_heats=len(heats),
        histogram=charts.histogram([g.utilisation for g in gemms], "GEMMs of all cells by largest utilisation"),
        gemms=gemms[:MOST_GEMMS], n_gemms=len(gemms), charts=_charts(past), past=past,
        trends=_trends(report.nights, standings[:MOST_TRENDS]), n_trends=len(standings), versions=_versions(cells),
    )  # fmt: skip


def _worst(night: Night) -> float | None:
    values = [v for cell in night.cells.values() if (v := worst(cell)) is not None]
    return max(values, key=rank, default=None)


def _troubled(standings: Sequence[Standing]) -> list[Troubled]:
    out, shown = [], 0
    for standing in standings:
        if standing.verified:
            continue
        kept = None if standing.cell is None else standing.cell.report
        made = None
        if kept is not None and shown < MOST_RUNS:
            made, shown = run.of(kept, MOST_FAILURES, MOST_XRAYS), shown + 1
        out.append(Troubled(standing, made))
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


def _heats(cells: Sequence[Cell]) -> list[tuple[str, Markup]]:
    """A map of each model and type: the worst of its cells."""
    of: dict[str, list[grid.Cell]] = {}
    for cell in cells:
        name = " · ".join(part for part in (cell.key.model, cell.key.type) if part)
        of.setdefault(name, []).extend(grid.cell(u, tensor=tensor) for tensor, u in cell.gemms.items())
    drawn = [
        (name, grid.by_layer(found, f"{printable(name, 80)}, the worst of each matrix")) for name, found in of.items()
    ]
    return [(name, run.picture(made)) for name, made in drawn if made is not None]


def _charts(past: Sequence[Past]) -> list[tuple[str, Markup]]:
    """What a line shows, and the line."""
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


def _trends(nights: Sequence[Night], standings: Sequence[Standing]) -> list[Trend]:
    out = []
    for standing in standings:
        largest, spent = [], []
        for n in nights:
            then = Standing(standing.key, n.cells.get(standing.key))
            used = None if then.cell is None else worst(then.cell)
            largest.append(Point(n.number, used, then.verified))
            spent.append(Point(n.number, None if then.cell is None else then.cell.seconds, then.verified))
        out.append(
            Trend(
                standing, charts.sparkline(largest, "Largest utilisation over the nights, logarithmic", log=True),
                largest[-1].value, charts.sparkline(spent, "Seconds over the nights"), spent[-1].value,
            )
        )  # fmt: skip
    return out


def _versions(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Name → all versions that cells ran with."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for name, version in cell.versions.items():
            found.setdefault(name, {})[version] = None
    return {name: list(versions) for name, versions in found.items()}
