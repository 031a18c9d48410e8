"""The JSON report of a run, which a night reads again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from gguf_verify.read_report import UnreadableReport, from_json, graph_from_json, read_graph, read_report
from gguf_verify.results.report import Report
from gguf_verify.support.plain import plain
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.nights import gemm_names, run_report
from tests.support.refusals import refused_in_one_line

#: Stands for a value that is dropped.
DROPPED = "(dropped)"


@cache
def valid() -> str:
    """The report of a run that is not verified, in the schema of today."""
    names = gemm_names(1)
    return json.dumps(run_report(names, names[0]))


def changed(changes: Any) -> bytes:
    """The valid report with values changed: pairs of a path, of keys and numbers, and a value."""
    made = json.loads(valid())
    for change in changes:
        try:
            (*path, last), value = change
            at = made
            for key in path:
                at = at[key]
            if value == DROPPED:
                del at[last]
            else:
                at[last] = value
        except (TypeError, ValueError, KeyError, IndexError):
            continue
    return json.dumps(made).encode()


def text_of(data: bytes) -> bytes:
    """The text of an input: {"changes": …} is a changed report, anything else itself."""
    try:
        said = json.loads(data)
        if isinstance(said, dict) and isinstance(said.get("changes"), list):
            return changed(said["changes"])
    except (ValueError, RecursionError):
        pass
    return data


def seeds() -> Iterator[bytes]:
    """A report with nothing and with one thing changed, and texts that are no report."""
    rung: list[object] = ["rungs", 0]
    values: tuple[tuple[list[object], object], ...] = (
        (["rungs"], []), ([*rung, "name"], "\x1b[31m"), ([*rung, "name"], DROPPED), (rung, 7), (["rungs"], 7),
        (["seconds"], "x"), (["verdict"], 7), (["environment"], None), (["schema"], 1), ([*rung, "details"], [{}]),
        (["command"], DROPPED), (["exit_code"], "0"), (["schema"], DROPPED), (["more"], 1), ([*rung, "seconds"], "NaN"),
    )  # fmt: skip
    yield b'{"changes": []}'
    for change in values:
        yield json.dumps({"changes": [change]}).encode()
    for text in ("", "[]", "null", "{}", '{"schema": 1}', "[" * 5000, '{"rungs": null}', "\ud800", "1" * 5000):
        yield text.encode("utf-8", "surrogatepass")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One more place of the report changed; or any JSON."""
    try:
        changes = json.loads(data)["changes"][-4:]
    except (ValueError, TypeError, KeyError, RecursionError):
        return mutations.of_json(data, rng)
    if rng.randrange(8) == 0:
        return mutations.of_json(data, rng)
    path: list[object] = []
    at = json.loads(valid())
    while isinstance(at, (dict, list)) and at and (not path or rng.randrange(8)):
        key: Any = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        path.append(key)
        at = at[key]
    value = DROPPED if rng.randrange(8) == 0 else mutations.of_json_value(at, rng)
    return json.dumps({"changes": [*changes, [path, value]]}).encode()


def check(folder: Path, data: bytes) -> None:
    """It fits the records in every field, or is refused in one line; both ways of reading agree."""
    path = folder / "report.json"
    path.unlink(missing_ok=True)
    with refused_in_one_line(UnreadableReport):
        read_report(path)
    raw = text_of(data)
    path.write_bytes(raw)
    with refused_in_one_line(UnreadableReport):
        graph, stated = read_graph(path)
        assert plain(graph) == plain(graph_from_json(raw))
        assert isinstance(stated.judged, int)
    with refused_in_one_line(UnreadableReport):
        graph_from_json(raw)
    with refused_in_one_line(UnreadableReport):
        report, claims = read_report(path)
        assert isinstance(report, Report)
        assert plain(report) == plain(from_json(raw))
        assert isinstance(claims.exit_code, int)
        assert report.exit_code in (*range(6), 130, 143)


TARGET = Target(
    "run-report", "the JSON report of a run, or changes to one", seeds, check, mutate, inputs=200,
    covered=("gguf_verify.read_report",),
)  # fmt: skip
