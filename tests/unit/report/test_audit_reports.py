"""SARIF and the HTML page of audits and runs, from records made by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gguf_verify.audit.many import Audits, Unopened
from gguf_verify.gguf.rules import RULES
from gguf_verify.report.writer import Kind
from tests.support.audits import audited
from tests.support.nights import run_result
from tests.support.sarif_subset import SCHEMA
from tests.support.shown import written
from tests.support.tools import FIXTURES

TINY = FIXTURES / "tiny-Q4_0.gguf"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def sarif(kind: Kind, result: Any) -> dict[str, Any]:
    made = json.loads(written("--sarif", kind, result))
    jsonschema.Draft202012Validator(SCHEMA).validate(made)
    (run,) = made["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    return run


def test_findings_as_sarif() -> None:
    audit = audited("scale-not-finite", "trailing", "scale-subnormal")
    run = sarif(Kind.AUDIT, audit)
    assert [r["level"] for r in run["results"]] == ["error", "warning", "note"]
    first, found = run["results"][0], audit.findings[0]
    place = first["locations"][0]
    assert place["physicalLocation"]["region"] == {"byteOffset": found.start, "byteLength": 18}
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "fixtures/tiny-Q4_0.gguf"
    assert place["logicalLocations"][0]["name"] == "blk.0.attn_q.weight"
    help_text = {r["id"]: r["help"]["text"] for r in run["tool"]["driver"]["rules"]}
    assert "docs/findings.md#gguf-100-scale-not-finite" in help_text["GGUF-100-scale-not-finite"]
    assert run["invocations"][0] == {"executionSuccessful": True, "exitCode": 1, "commandLine": "gguf-verify audit x"}


def test_paths_stay_relative_and_are_encoded() -> None:
    run = sarif(Kind.AUDIT, replace(audited("trailing"), path=Path("a b/ü#.gguf"), files=()))
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "a%20b/%C3%BC%23.gguf"


def test_a_fingerprint_is_of_the_rule_and_the_tensor_not_of_the_path() -> None:
    one, other = (sarif(Kind.AUDIT, audited("trailing", "gap", path=Path(p)))["results"] for p in ("a", "b"))
    assert [r["partialFingerprints"] for r in one] == [r["partialFingerprints"] for r in other]
    assert one[0]["partialFingerprints"] != one[1]["partialFingerprints"]


def test_every_rule_has_help() -> None:
    run = sarif(Kind.AUDIT, audited(*RULES))
    assert len(run["tool"]["driver"]["rules"]) == len(RULES)
    page = (FIXTURES.parent / "docs" / "findings.md").read_text().lower()
    for rule in run["tool"]["driver"]["rules"]:
        assert f"### {rule['id'].lower()}\n" in page


def test_several_files_as_sarif() -> None:
    audits = Audits((audited("trailing"), Unopened(Path("none.gguf"), "No such file", 4), audited()))
    run = sarif(Kind.AUDITS, audits)
    assert [r["ruleId"] for r in run["results"]] == ["GGUF-048-trailing", "not-opened"]
    assert run["invocations"][0]["exitCode"] == 4


def test_a_run_as_sarif() -> None:
    report = run_result([HOSTILE], HOSTILE)
    run = sarif(Kind.RUN, report)
    failed = [r for r in run["results"] if r["ruleId"].endswith("-mismatch")]
    assert len(failed) == len(report.failures) > 0
    for result, (_, failure) in zip(failed, report.failures, strict=True):
        assert result["level"] == "error"
        region = result["locations"][0]["physicalLocation"].get("region")
        assert (region is None) == (failure.byte_offset is None)
        assert result["properties"]["culprit"] == failure.culprit
    notes = [note["message"]["text"] for note in run["invocations"][0].get("toolExecutionNotifications", [])]
    assert notes == [f"skipped: {check.words}" for check in report.skipped] != []


def test_a_run_that_could_not_judge_everything() -> None:
    report = run_result()
    report.rungs[0].leave("a tensor", "not covered")
    run = sarif(Kind.RUN, report)
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [(f"{report.rungs[0].name}-not-verified", "warning")]


# ---- the page --------------------------------------------------------------------------------------------------------


class Read(HTMLParser):
    """The pieces of the byte map, the tags and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.pieces: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self._piece: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        assert "style" not in values  # the page's policy would not let it be
        if tag == "li" and "seg" in (values.get("class") or "").split():
            assert values["tabindex"] == "0"
            self._piece = values["class"]

    def handle_data(self, data: str) -> None:
        if self._piece is not None and data.strip():
            self.pieces.append((self._piece, data.strip()))
            self._piece = None


def page_of(kind: Kind, result: Any) -> Read:
    return Read(str(written("--html", kind, result)))


def _range(label: str) -> tuple[int, int]:
    """The range that a piece says: "byte 7", or "bytes 7-9"."""
    found = re.match(r"bytes? (\d+)(?:-(\d+))? ", label)
    assert found is not None
    start = int(found[1])
    return start, start + 1 if found[2] is None else int(found[2])


def test_the_map_holds_every_byte_once() -> None:
    read, at = page_of(Kind.AUDIT, audited("scale-not-finite")), 0
    for _, label in read.pieces:
        start, stop = _range(label)
        assert start == at
        at = stop
    assert at == TINY.stat().st_size
    kinds = {c.split()[1] for c, _ in read.pieces}
    assert {"k-header", "k-metadata", "k-descriptions", "k-padding", "t0", "t1"} <= kinds


def test_the_piece_with_a_finding_is_marked() -> None:
    read = page_of(Kind.AUDIT, audited("scale-not-finite"))
    (marked,) = [label for classes, label in read.pieces if "found" in classes.split()]
    assert "blk.0.attn_q.weight" in marked
    assert marked.endswith("error")
    assert not [c for c, _ in page_of(Kind.AUDIT, audited()).pieces if "found" in c.split()]


def test_a_name_stays_text() -> None:
    page = str(written("--html", Kind.AUDITS, Audits((audited("trailing", owner=HOSTILE),))))
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert Read(page).tags.count("script") == 1


@pytest.mark.parametrize("kind", [Kind.AUDIT, Kind.AUDITS])
def test_the_verdict_is_the_title(kind: Kind) -> None:
    audit = audited("scale-not-finite")
    page = str(written("--html", kind, audit if kind is Kind.AUDIT else Audits((audit, audited()))))
    assert "<title>wrong: " in page
    assert re.search(r'<h1 id="verdict">Wrong</h1>', page)
