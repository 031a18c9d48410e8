"""What a page shows of nights: plain records made of `gguf_verify.nightly.records`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from ...nightly.records import Cell, Key, Night
from ...rungs import RUNGS
from ...support.text import printable
from ..nightly import summary
from ..nightly.summary import Changed, Comparison, Kind, Standing, Verdict
from . import charts, run
from .charts import Point
from .run import Run

#: Runs shown whole; failures and x-rays of each; rows of GEMMs; heat maps; trends of cells. More are counted.
MOST_RUNS, MOST_FAILURES, MOST_XRAYS, MOST_GEMMS, MOST_MAPS, MOST_TRENDS = 20, 20, 4, 3000, 12, 200


class RungOfNight(NamedTuple):
    """A rung over all cells: the worst of the kernel and of llama.cpp, and where; its time."""

    name: str
    question: str
    worst: Sequence[tuple[str, float, str]]
    cells: int
    seconds: float


class Troubled(NamedTuple):
    """A cell that is not verified; `run` is None where its report is not kept, or not shown for want of room."""

    standing: Standing
    run: Run | None


class GemmOfNight(NamedTuple):
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
    charts: Sequence[Markup]
    past: Sequence[Past]
    trends: Sequence[Trend]
    n_trends: int
    versions: Mapping[str, Sequence[str]]


def of(nights: Sequence[Night], comparison: Comparison | None) -> Page:
    """Raises ValueError without nights."""
    night = summary.last(nights)
    standings = summary.standings(night)
    cells = list(night.cells.values())
    heats = _heats(cells)
    gemms = sorted(
        (GemmOfNight(t, c.key, u, "good" if u <= 1 else "bad") for c in cells for t, u in c.gemms.items()),
        key=lambda g: -charts.rank(g.utilisation),
    )
    past = [Past(n, summary.verdict(n), _worst(n), sum(c.seconds for c in n.cells.values())) for n in nights]
    past[-1] = past[-1]._replace(verdict=summary.verdict(night, comparison))
    return Page(
        night=night, title=summary.title(night), verdict=summary.verdict(night, comparison),
        against=None if comparison is None else comparison.against, changes=list(summary.changes(comparison)),
        standings=standings, troubled=_troubled(standings), rungs=_rungs(cells),
        heats=heats[:MOST_MAPS], n_heats=len(heats),
        histogram=charts.histogram([g.utilisation for g in gemms], "GEMMs of all cells by worst utilisation"),
        gemms=gemms[:MOST_GEMMS], n_gemms=len(gemms), charts=_charts(past), past=past,
        trends=_trends(nights, standings[:MOST_TRENDS]), n_trends=len(standings), versions=_versions(cells),
    )  # fmt: skip


def _worst(night: Night) -> float | None:
    values = [v for cell in night.cells.values() if (v := summary.worst(cell)) is not None]
    return max(values, key=charts.rank, default=None)


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
    for rung in RUNGS.values():
        name, question = rung.name, rung.question
        worst: dict[str, tuple[str, float, str]] = {}
        for cell in cells:
            for m in cell.measures:
                if m.rung != name:
                    continue
                who = m.who if m.of_kernel else "llama.cpp"
                if who not in worst or charts.rank(m.utilisation) > charts.rank(worst[who][1]):
                    worst[who] = who, m.utilisation, f"{m.where} of {cell.key}"
        spent = [cell.rung_seconds[name] for cell in cells if name in cell.rung_seconds]
        if worst or spent:
            out.append(RungOfNight(name, question, list(worst.values()), len(spent), sum(spent)))
    return out


def _heats(cells: Sequence[Cell]) -> list[tuple[str, Markup]]:
    """A map of each model and type: the worst of its cells."""
    of: dict[str, list[charts.Gemm]] = {}
    for cell in cells:
        name = " · ".join(part for part in (cell.key.model, cell.key.type) if part)
        of.setdefault(name, []).extend(charts.Gemm(t, u) for t, u in cell.gemms.items())
    title = "Worst utilisation by layer and matrix: "
    drawn = [(name, charts.heat_map(gemms, title + printable(name, 80))) for name, gemms in of.items()]
    return [(name, made) for name, made in drawn if made is not None]


def _charts(past: Sequence[Past]) -> list[Markup]:
    shares = []
    for p in past:
        cells = sum(p.verdict.outcomes.values())
        good = p.verdict.outcomes.get("verified", 0)
        shares.append(Point(p.night.number, 100 * good / cells if cells else 0.0, p.verdict.level == "good"))
    worst = [Point(p.night.number, p.worst, p.worst is None or p.worst <= 1) for p in past]
    seconds = [Point(p.night.number, p.seconds, True) for p in past]
    drawn = (
        charts.lines(shares, "Cells verified, of 100", " %"),
        charts.lines(worst, "Worst utilisation of the kernel in the layers rung, logarithmic", log=True),
        charts.lines(seconds, "Seconds in cells", " s"),
    )
    return [made for made in drawn if made is not None]


def _trends(nights: Sequence[Night], standings: Sequence[Standing]) -> list[Trend]:
    out = []
    for standing in standings:
        worst, spent = [], []
        for n in nights:
            then = Standing(standing.key, n.cells.get(standing.key))
            used = None if then.cell is None else summary.worst(then.cell)
            worst.append(Point(n.number, used, then.verified))
            spent.append(Point(n.number, None if then.cell is None else then.cell.seconds, then.verified))
        out.append(
            Trend(
                standing, charts.sparkline(worst, "Worst utilisation over the nights, logarithmic", log=True),
                worst[-1].value, charts.sparkline(spent, "Seconds over the nights"), spent[-1].value,
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
