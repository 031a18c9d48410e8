"""Every report names who is at fault: text, JSON, HTML, JUnit of a night, and the Python API. Handmade results: each
culprit as a failure, as something that could not be verified, as what broke a rung off; and two at once."""

from __future__ import annotations

import html
import itertools
import json
from pathlib import Path

import pytest

from gguf_verify.processes.commands import Ended
from gguf_verify.report.writer import Kind
from gguf_verify.results.failures import CULPRITS, Failure
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.rungs.registry import RUNGS
from gguf_verify.support.errors import Culprit
from gguf_verify_nightly.outcomes import cell_of
from gguf_verify_nightly.records import Key, Night
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.summary import NightReport
from tests.support import records
from tests.support.shown import json_of, text_of, written

KEY = Key("m.gguf", "Q4_0", "q8_1", "cpu", "p", "installed")
#: Longer than what a night keeps of a message.
LONG = "the output is outside the bound " * 30


def passed() -> list[RungResult]:
    rungs = [records.rung(name) for name in RUNGS]
    for rung in rungs:
        rung.count(rung.substance[0])
    return rungs


def failure(rung: RungResult, culprit: Culprit) -> None:
    rung.fail(Failure(LONG, "blk.0.attn_q.weight", 3, culprit=culprit), 7)


def left(rung: RungResult, culprit: Culprit) -> None:
    rung.leave("blk.0.attn_k.weight", "it could not be multiplied", culprit=culprit)


def broken_off(rung: RungResult, culprit: Culprit) -> None:
    rung.fault, rung.fault_culprit = LONG, culprit


WAYS = {"failure": failure, "left": left, "broken off": broken_off}
CASES = {
    **{f"{who}: {way}": {who: way} for who in CULPRITS for way in WAYS},
    **{f"{a} and {b}": {a: "failure", b: "left"} for a, b in itertools.combinations(CULPRITS, 2)},
}


@pytest.mark.parametrize("case", CASES)
def test_every_report_names_them(tmp_path: Path, case: str) -> None:
    rungs = passed()
    for rung, (who, way) in zip(rungs[1:], CASES[case].items(), strict=False):
        WAYS[way](rung, who)
    report = Report(environment=records.environment(), rungs=rungs, command="gguf-verify m.gguf")
    # what was not run has not failed: it is one thing that is not verified
    counts = {who: 7 if way == "failure" and who != "coverage" else 1 for who, way in CASES[case].items()}
    blamed = ", ".join(f"{CULPRITS[who]} ({n})" for who, n in counts.items() if who != "coverage")
    words = "; ".join(filter(None, [blamed and f"at fault: {blamed}", "1 check not reached" * ("coverage" in counts)]))
    assert report.culprits == counts
    assert f"\n{words}\n" in text_of(Kind.RUN, report)
    said = json_of(Kind.RUN, report)
    assert said["culprits"] == counts
    assert words in html.unescape(str(written("--html", Kind.RUN, report)))
    path = tmp_path / "report.json"
    path.write_text(json.dumps(said))
    cell = cell_of(KEY, Ended(report.exit_code, 1.0, ()), path, 60.0, None, False)
    night = Night(1, "2026-10-01T01:30:00+00:00", None, "n.toml", (KEY,), {KEY: cell})
    assert words in html.unescape(str(written("--junit", NightKind.NIGHT, NightReport((night,)))))


def test_a_pass_names_nobody() -> None:
    report = Report(environment=records.environment(), rungs=passed(), command="gguf-verify m.gguf")
    assert report.culprits == {}
    assert "at fault" not in text_of(Kind.RUN, report)
    assert "at fault:" not in str(written("--html", Kind.RUN, report))
