"""A night as JSON, schema version 2: `harness/report/schemas/nightly.schema.json`, and `run.schema.json` for the runs.

An object with `schema`, `verdict` {word, level, sentence, outcomes}, `night` (number, started, finished, config,
project, hardware, missing, and `cells`: every field of `gguf_verify.nightly.records.Cell`), `comparison` (null, or
against and a list of {key, words} each of new_failures, vanished, drift, slower, fixed) and `history`: number, started,
finished, verdict and outcomes of all nights, the last of which is `night`.

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". Names are not escaped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...nightly.records import Cell, Key, Night
from ..json_report import safe
from ..json_report import to_dict as run_json
from .summary import KINDS, Comparison, last, verdict

SCHEMA_VERSION = 2


def to_dict(nights: Sequence[Night], comparison: Comparison | None = None) -> dict[str, Any]:
    """The last of the nights as plain objects that JSON can hold. Raises ValueError without nights."""
    night = last(nights)
    found = verdict(night, comparison)
    plain = {
        "schema": SCHEMA_VERSION,
        "verdict": {"word": found.word, "level": found.level, "sentence": found.sentence, "outcomes": found.outcomes},
        "night": {
            **_place(night), "config": night.config, "project": night.project, "hardware": dict(night.hardware),
            "missing": [_key(key) for key in night.missing], "cells": [_cell(cell) for cell in night.cells.values()],
        },
        "comparison": None if comparison is None else {"against": comparison.against} | {
            kind.name: [{"key": _key(c.key), "words": c.words} for c in getattr(comparison, kind.name)]
            for kind in KINDS
        },
        "history": [_past(n, None if n is not night else comparison) for n in nights],
    }  # fmt: skip
    made = safe(plain)
    assert isinstance(made, dict)
    return made


def render(nights: Sequence[Night], comparison: Comparison | None = None) -> str:
    """The same as JSON text."""
    return json.dumps(to_dict(nights, comparison), indent=1, allow_nan=False) + "\n"


def _place(night: Night) -> dict[str, Any]:
    return {"number": night.number, "started": night.started, "finished": night.finished}


def _past(night: Night, comparison: Comparison | None) -> dict[str, Any]:
    found = verdict(night, comparison)
    return {**_place(night), "verdict": found.word, "outcomes": found.outcomes}


def _key(key: Key) -> dict[str, str]:
    return key._asdict()


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "key": _key(cell.key), "outcome": cell.outcome.value, "words": cell.words, "exit_code": cell.exit_code,
        "seconds": cell.seconds, "rung_seconds": dict(cell.rung_seconds), "versions": dict(cell.versions),
        "host": cell.host,
        "measures": [
            {"rung": m.rung, "who": m.who, "utilisation": m.utilisation, "score": m.score, "where": m.where,
             "of_kernel": m.of_kernel}
            for m in cell.measures
        ],
        "figures": dict(cell.figures), "gemms": dict(cell.gemms),
        "report": None if cell.report is None else run_json(cell.report),
    }  # fmt: skip
