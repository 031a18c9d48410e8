"""A night as JSON, schema 4 of `schemas/nightly.schema.json`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gguf_verify.report.json import as_object, as_text, of_graph, of_run
from gguf_verify.results.report import SCHEMA_VERSION

from ..records import Cell, Night
from ..summary import NightReport, Verdict


def of_night(report: NightReport) -> dict[str, Any]:
    """A night as plain objects: its verdict, the night with its cells, what changed, and the history up to it."""
    comparison = report.comparison
    changed = {kind.name: [{"key": c.key._asdict(), "reason": c.reason} for c in found] for kind, found in report.lists}
    night = report.night
    fields = {
        "schema": SCHEMA_VERSION, "verdict": asdict(report.verdict),
        "night": {
            **_place(night), "config": night.config, "project": night.project, "hardware": dict(night.hardware),
            "missing": [key._asdict() for key in night.missing], "cells": [_cell(c) for c in night.cells.values()],
        },
        "comparison": None if comparison is None else {"against": comparison.against, **changed},
        "history": [_past(night, verdict) for night, verdict in report.history],
    }  # fmt: skip
    return as_object(fields)


def _place(night: Night) -> dict[str, Any]:
    return {"number": night.number, "started": night.started, "finished": night.finished}


def _past(night: Night, verdict: Verdict) -> dict[str, Any]:
    return {**_place(night), "verdict": verdict.word, "outcomes": verdict.outcomes}


def _cell(cell: Cell) -> dict[str, Any]:
    # the report of a run, or of its graph, has these too
    fields = {name: getattr(cell, name) for name in cell.__dataclass_fields__ if name not in ("opened", "failed")}
    report = None if cell.report is None else of_run(cell.report)
    graph = None if cell.graph is None else of_graph(cell.graph)
    return {
        **fields, "key": cell.key._asdict(), "outcome": cell.outcome.value, "report": report, "graph": graph,
    }  # fmt: skip


def render(report: NightReport) -> str:
    """The report of a night as the text of a JSON file."""
    return as_text(of_night(report), 1)
