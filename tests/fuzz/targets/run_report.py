"""The JSON report of a run, which a night reads again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from gguf_verify.nightly.run_report import UnreadableReport, from_json, read_report
from gguf_verify.results import Report
from tests.fuzz import mutations
from tests.fuzz.target import Target
from tests.support.nights import gemm_names, run_report
from tests.support.refusals import refused_in_one_line


def seeds() -> Iterator[bytes]:
    """The report of a run that is verified, of one that is not, and what is none."""
    names = gemm_names(1)
    for made in (run_report(names), run_report(names, names[0]), run_report([*names, "\x1b[31m"])):
        yield json.dumps(made, ensure_ascii=False).encode()
    for text in ("", "[]", "null", "{}", '{"schema": 1}', "[" * 5000, '{"rungs": null}', "\ud800", "1" * 5000):
        yield text.encode("utf-8", "surrogatepass")
    whole = run_report(names)
    rung = whole["rungs"][0]
    changes: tuple[dict[str, object], ...] = (
        {"rungs": []}, {"rungs": [rung | {"name": "\x1b"}]}, {"rungs": [{"name": "bytes"}]}, {"rungs": [7]},
        {"rungs": 7}, {"seconds": "x"}, {"verdict": 7}, {"environment": None}, {"schema": 1},
        {"rungs": [rung | {"details": [{}]}]},
    )  # fmt: skip
    for change in changes:
        yield json.dumps(whole | change).encode()
    yield json.dumps({name: value for name, value in whole.items() if name != "command"}).encode()
    yield json.dumps(json.loads(json.dumps(run_report(names))) | {"exit_code": "0"}).encode()


def check(folder: Path, data: bytes) -> None:
    """It fits the records in every field, or is refused in one line; both ways of reading agree."""
    path = folder / "report.json"
    with refused_in_one_line(UnreadableReport):
        read_report(folder / "none")
    path.write_bytes(data)
    with refused_in_one_line(UnreadableReport):
        report, claims = read_report(path)
        assert isinstance(report, Report)
        assert report == from_json(data) or "nan" in repr(report)
        assert isinstance(claims.exit_code, int)
        assert report.exit_code in range(6)


TARGET = Target(
    "run-report", "the JSON report of a run", seeds, check, mutations.of_json, inputs=800, largest=1 << 15,
    covered=("gguf_verify.nightly.run_report",),
)  # fmt: skip
