"""Reports without a browser: what they say, that it validates, and that no name gets out of its place."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec
import pytest
import xmlschema
from PIL import Image

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.report import card, run_words, scene, schema, shades
from gguf_verify.report.html import block, charts, page
from gguf_verify.report.html import run as of_run
from gguf_verify.report.markdown import LIMIT
from gguf_verify.report.writer import Form, Kind, writers
from gguf_verify.results.failures import Failure, Unverified
from gguf_verify.results.options import Options
from gguf_verify.results.products import DrawnData, EmbeddingRecord, TensorValues, TypeEnvelope
from gguf_verify.results.report import Report
from gguf_verify_nightly.compare import Change, Comparison, Drift, Slower, compare
from gguf_verify_nightly.records import Cell, Key, Night, Outcome
from gguf_verify_nightly.report import html as of_night
from gguf_verify_nightly.report import schema as night_schema
from gguf_verify_nightly.report.terminal import night_lines
from gguf_verify_nightly.report.writers import NightKind
from gguf_verify_nightly.significance import TimeChange
from gguf_verify_nightly.summary import NightReport, verdict
from tests.support import nights
from tests.support.html_pages import ReadPage
from tests.support.nights import (
    HOSTILE,
    SCRIPT,
    cell,
    changes,
    history,
    keys,
    report,
    run_report,
    run_result,
    validator,
)
from tests.support.shown import json_of, text_of, written

WRONG = nights.gemm_names(21)[8]


@cache
def junit_schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(schema.SCHEMAS / "junit.xsd"))


def junit_of(found: NightReport) -> str:
    return str(written("--junit", NightKind.NIGHT, found))


def markdown_of(found: NightReport) -> str:
    return str(written("--markdown", NightKind.NIGHT, found))


def hostile_night(**fields: object) -> NightReport:
    """Every name that a night has is one that a file, a host or a user could have given it."""
    listed = [Key(*(HOSTILE[(i + j) % len(HOSTILE)] for j in range(6))) for i in range(len(HOSTILE))]
    cells: dict[Key, Cell] = {}
    for i, key in enumerate(listed):
        name = HOSTILE[i]
        made = cell(key, 1, Outcome.MISMATCH if i % 2 else Outcome.CRASHED, words=name)
        cells[key] = replace(
            made, gemms=dict.fromkeys(HOSTILE, 0.5), versions={name: name}, host=name, figures={name: 1.0},
            measures=tuple(replace(m, where=name, who=f"kernel {name}") for m in made.measures),
            report=nights.run_result([*HOSTILE], name),
        )  # fmt: skip
    night = Night(1, "2026-10-20T01:30:00+00:00", "2026-10-20T02:00:00+00:00", SCRIPT, (*listed, keys()[0]), cells,
                  {name: name for name in HOSTILE}, SCRIPT)  # fmt: skip
    changed = [Change(key, Outcome.VERIFIED, None, name) for key, name in zip(listed, HOSTILE, strict=True)]
    drift = [Drift(key, "layers", name, 0.1, 0.2, 0.1, 0.1, 9) for key, name in zip(listed, HOSTILE, strict=True)]
    slower = [Slower(key, TimeChange(2.0, 1.0, 9.0, 5.0, 9)) for key in listed]
    every = tuple(changed)
    compared = Comparison(
        0, 1, new_failures=every, fixed=every, vanished=every, drift=tuple(drift), slower=tuple(slower)
    )  # fmt: skip
    return NightReport((night,), compared)


# ---- verdicts --------------------------------------------------------------------------------------------------------


def test_verdict_of_a_night() -> None:
    nights = history(2)
    quiet, loud = nights
    assert verdict(quiet).word == "verified"
    assert (verdict(loud).word, verdict(loud).level) == ("mismatch", "bad")
    assert verdict(loud, changes()).word == "regression"
    assert verdict(loud, changes()).outcomes == {"verified": 21, "mismatch": 1, "crashed": 1, "not run": 1}
    planned = replace(loud, planned=tuple(loud.cells))
    assert (verdict(planned).word, verdict(planned).level) == ("mismatch", "bad")
    assert verdict(replace(quiet, finished=None)).word == "not finished"


def test_a_waived_cell_is_skipped_with_its_reason() -> None:
    key, other = keys()[:2]
    words = "tensor blk.0.*: 3 failures, until 2999-01-31: issue 42"
    cells = {key: cell(key, 1, Outcome.WAIVED, words=words), other: cell(other, 1)}
    night = replace(history(1)[0], planned=(key, other), cells=cells)
    assert night.exit_code == 0
    assert (verdict(night).word, verdict(night).level) == ("verified with 1 waived", "warn")
    made = junit_of(NightReport((night,)))
    junit_schema().validate(made)
    root = ET.fromstring(made)
    assert [s.get("skipped") for s in root] == ["1"]
    assert root.find("testsuite/testcase/skipped").get("message") == words
    for render in (markdown_of, of_night.render):
        assert "issue 42" in render(NightReport((night,)))
    wrong = replace(night, cells=cells | {other: cell(other, 1, Outcome.MISMATCH)})
    assert wrong.exit_code == 1
    assert verdict(wrong).word == "mismatch"


@pytest.mark.parametrize("outcome", [o for o in Outcome if o not in (Outcome.VERIFIED, Outcome.WAIVED)])
def test_no_other_outcome_is_a_pass(outcome: Outcome) -> None:
    key = keys()[0]
    night = replace(history(1)[0], planned=(key,), cells={key: cell(key, 1, outcome)})
    assert verdict(night).word == ("mismatch" if outcome is Outcome.MISMATCH else "not everything verified")
    assert verdict(night).level != "good"
    case = ET.fromstring(junit_of(NightReport((night,)))).find("testsuite/testcase")
    assert case is not None
    assert case.find("failure" if outcome is Outcome.MISMATCH else "error") is not None


def test_vanished_is_never_a_pass() -> None:
    quiet = history(2)[0]
    key = keys()[0]._replace(variant="0.3.30")
    gone = Comparison(1, 2, vanished=(Change(key, Outcome.VERIFIED, None, "verified, now gone"),))
    assert verdict(quiet, gone).word == "regression"
    suites = ET.fromstring(junit_of(NightReport((quiet,), gone))).findall("testsuite")
    assert [s.get("errors") for s in suites if s.get("name") == "0.3.30"] == ["1"]


def test_nothing_run_is_no_pass() -> None:
    night = replace(history(1)[0], planned=(), cells={})
    assert verdict(night).word == "nothing was run"
    root = ET.fromstring(junit_of(NightReport((night,))))
    assert root.find("testsuite/testcase/error") is not None
    junit_schema().validate(junit_of(NightReport((night,))))
    for render in (markdown_of, of_night.render):
        assert "othing was run" in render(NightReport((night,)))
    with pytest.raises(ValueError, match="no night"):
        NightReport(())


# ---- schemas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compared", [True, False])
def test_json_validates(compared: bool) -> None:
    made = json_of(NightKind.NIGHT, report(compared=compared))
    validator("nightly").validate(made)
    assert len(made["night"]["cells"]) == 23
    assert [k["kernel"] for k in made["night"]["missing"]] == ["q8_1_mma"]
    assert len(made["history"]) == 20
    assert made["history"][-1]["verdict"] == ("regression" if compared else "mismatch")


@pytest.mark.parametrize("outcome", [*Outcome])
def test_json_validates_for_every_outcome(outcome: Outcome) -> None:
    """Also where all is waived, which no other night of these tests is, and in the nights after it."""
    night = nights.history(1)[-1]
    cells = {key: replace(cell, outcome=outcome) for key, cell in [*night.cells.items()][:2]}
    night = replace(night, planned=tuple(cells), cells=cells)
    later = replace(night, number=night.number + 1)
    made = json_of(NightKind.NIGHT, NightReport((night, later), compare([], night, later)))
    validator("nightly").validate(made)
    assert made["night"]["cells"][0]["outcome"] == outcome.value


def test_json_of_hostile_names_and_numbers() -> None:
    hostile = hostile_night()
    key = next(iter(hostile.night.cells))
    strange = replace(hostile.night.cells[key], gemms={"x": float("nan"), "y": float("inf")})
    night = replace(hostile.night, cells={**hostile.night.cells, key: strange})
    made = json_of(NightKind.NIGHT, replace(hostile, nights=(night,)))
    validator("nightly").validate(made)
    assert made["night"]["cells"][0]["gemms"] == {"x": "NaN", "y": "Infinity"}
    json.dumps(made, ensure_ascii=False).encode()  # no surrogate is left, in keys neither


def test_the_schema_is_that_of_the_records() -> None:
    """It is written by `python -m gguf_verify.report.schema`."""
    assert schema.PATH.read_text() == schema.text(schema.run_schema())
    assert night_schema.PATH.read_text() == schema.text(night_schema.nightly_schema())


def test_what_is_written_is_read_back() -> None:
    found = run_result(wrong=WRONG)
    found.rungs[2].worst["kernel"] = msgspec.structs.replace(found.rungs[2].worst["kernel"], utilisation=float("inf"))
    assert msgspec.convert(json_of(Kind.RUN, found), Report, strict=False) == found


def test_run_report_validates() -> None:
    validator("run").validate(run_report())
    validator("run").validate(run_report(wrong=nights.gemm_names(21)[8]))


def broken(report: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**report, "verdict": "mismatch"}  # with exit code 0
    yield {**report, "schema": 1}
    yield {**report, "more": 1}
    yield {k: v for k, v in report.items() if k != "command"}
    for change in ({"n_failures": 1}, {"fault": "died"}, {"unverified": [{"name": "x", "why": "y"}]},
                   {"seconds": -1}, {"worst": {"kernel": {"utilisation": "1", "where": ""}}}):  # fmt: skip
        yield {**report, "rungs": [{**report["rungs"][0], **change}, *report["rungs"][1:]]}


@pytest.mark.parametrize("i", range(9))
def test_schema_refuses(i: int) -> None:
    assert not validator("run").is_valid([*broken(run_report())][i])


def test_junit_validates() -> None:
    made = junit_of(report())
    junit_schema().validate(made)
    root = ET.fromstring(made)
    assert [s.get("name") for s in root] == ["installed", "0.3.35"]
    assert sum(int(s.get("tests", 0)) for s in root) == 24
    assert [(s.get("failures"), s.get("errors")) for s in root] == [("1", "1"), ("0", "1")]
    failed = root.find("testsuite/testcase/failure")
    assert failed is not None
    assert "utilisation 57" in (failed.text or "")
    assert "repeat with: verify_model.py" in (failed.text or "")
    assert root.find(".//skipped") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [('tests="12"', 'tests="0"'), ('time="', 'time="-'), ("T01:30:00", "T01:30:00Z"), ("<failure", "<skipped"),
     ('classname="', 'class="'), ('name="Q4_0 · cpu · story · installed"', 'name=""')],
)  # fmt: skip
def test_junit_schema_refuses(old: str, new: str) -> None:
    made = junit_of(report())
    assert old in made
    made = made.replace(old, new).replace("</failure", "</skipped" if "skipped" in new else "</failure")
    assert not junit_schema().is_valid(made)


def test_junit_of_hostile_names() -> None:
    made = junit_of(hostile_night())
    junit_schema().validate(made)
    root = ET.fromstring(made.encode())
    assert any("\\u202eweight" in (case.get("classname") or "") for case in root.iter("testcase"))
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\ufffe\udc80]", made)


# ---- text and Markdown -----------------------------------------------------------------------------------------------


def test_lines_of_a_night() -> None:
    lines = [*map(str, night_lines(history()[-1]))]
    assert "24 cells, 21 verified, 1 mismatch, 1 crashed, 1 not run" in lines[0]
    assert [line.split(" ")[0] for line in lines[1:]] == ["MISMATCH", "CRASHED", "MISMATCH:"]
    assert lines[-1].startswith(f"MISMATCH: night 20: 21 of 24 cells verified · first: {lines[1][9:]} · more: ")
    for line in map(str, night_lines(hostile_night().night)):
        assert not re.search("[\x00-\x1f\u202e\u2066\ufffe\udc80]", line)


def test_text_of_a_run_shows_the_first_bytes_of_a_long_block() -> None:
    found = nights.run_result(wrong=nights.gemm_names(21)[8], kind="Q6_K")
    digits = found.rungs[1].failures[0].block_hex
    assert digits
    assert len(digits) == 420
    assert f"block at byte 4150: {digits[:128]}… (210 bytes)\n" in text_of(Kind.RUN, found)
    assert digits in json.dumps(nights.run_report(wrong=nights.gemm_names(21)[8], kind="Q6_K"))


def test_lines_count_what_they_leave_out() -> None:
    cell = next(c for c in history(1)[0].cells.values() if c.outcome is Outcome.VERIFIED)
    listed = [keys()[0]._replace(prompt=str(i)) for i in range(100)]
    cells = {key: replace(cell, key=key, outcome=Outcome.CRASHED) for key in listed}
    lines = [*map(str, night_lines(replace(history(1)[0], planned=tuple(listed), cells=cells)))]
    assert len(lines) == 23
    assert lines[-2] == "… and 80 more"


def test_markdown() -> None:
    made = markdown_of(report())
    assert made.startswith("## ❌ Regression\n")
    assert made.index("What changed") < made.index("<details>")
    assert made.count("<details>") == made.count("</details>") == 2
    assert "| ❌ new failures | tiny-F16.gguf · Q4&#95;0 · q8&#95;1&#95;mma" in made


def test_markdown_of_hostile_names() -> None:
    made = markdown_of(hostile_night())
    assert len(made.encode()) < LIMIT
    assert "&#60;script&#62;" in made
    for row in (line for line in made.splitlines() if line.startswith("|")):
        assert re.sub(r"&#[0-9]+;(<!-- -->)?", "", row).count("|") == 4 or row == "| --- | --- | --- |"
    kept = re.sub(r"</?(details|summary)>|<!-- -->|&#[0-9]+;", "", made)
    assert not re.search(r"[<>`\[\]@{]|\*\*|://", kept.replace("{{", "").replace("{%", ""))


@pytest.mark.parametrize("many", ["changed", "cells"])
def test_markdown_stays_below_what_github_takes(many: str) -> None:
    listed = [keys()[0]._replace(prompt=f"prompt {i} " + "é_" * 200) for i in range(3000)]
    planned = tuple(listed if many == "cells" else listed[:1])
    night = replace(history(1)[0], planned=planned, cells={})
    some = listed if many == "changed" else listed[:1]
    compared = Comparison(0, 1, new_failures=tuple(Change(key, Outcome.VERIFIED, None, "words") for key in some))
    made = markdown_of(NightReport((night,), compared))
    assert len(made.encode()) < LIMIT < 65_536
    shown = made.count("new failures |" if many == "changed" else "⚠️ not run")
    assert f"… and {3000 - shown:,} more" in made
    assert made.count("<details>") == made.count("</details>")


# ---- HTML ------------------------------------------------------------------------------------------------------------


@cache
def pages() -> dict[str, str]:
    return {
        "night": of_night.render(report()), "hostile night": of_night.render(hostile_night()),
        "run": page.run(run_result(wrong=WRONG)), "hostile run": page.run(run_result([*HOSTILE], SCRIPT)),
        "run that passed": page.run(run_result()),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["night", "hostile night", "run", "hostile run", "run that passed"])
def test_html_holds_no_more_than_its_own(name: str) -> None:
    made = pages()[name]
    found = ReadPage(made)
    assert not found.open
    assert not found.bad
    assert found.elements.count("script") == found.elements.count("style") == 1
    assert not {"img", "link", "iframe", "object", "base", "form"} & {*found.elements}
    assert len(found.ids) == len({*found.ids})
    # text of a hostile name, also in a pattern
    links = {"https://example.invalid)", "https://example.i…", r"https://example[.]invalid\\)\\"}
    assert set(re.findall(r"https?://[^\s\"'<]*", made)) <= links
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\ufffe\udc80]", made)
    assert ("{{ 7*7 }}{% raw %}" in made) == ("hostile" in name)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    made.encode()


def test_html_of_a_script() -> None:
    for made in (pages()["hostile night"], pages()["hostile run"]):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made
        assert SCRIPT not in made
        assert "abc\\u202eweight" in made
        assert "n" * 119 in made
        assert "n" * 2000 not in made


def test_templates_show_what_does_not_print() -> None:
    template = page.environment().from_string("{{ x }}{{ x|name }}")
    assert template.render(x="a\u202e<b>\udc80") == 2 * "a\\u202e&lt;b&gt;\\x80"


def test_html_says_the_verdict_first() -> None:
    made = of_night.render(report())
    order = ["Regression</h1>", "What changed</h2>", "Models × kernels</h2>", "Not verified</h2>", "Trends</h2>",
             "Everything else</h2>", "Rungs, over all cells</summary>"]  # fmt: skip
    assert sorted(order, key=made.index) == order
    assert ">Mismatch</h1>" in page.run(run_result(wrong=WRONG))
    passed = run_result()
    assert ">Verified</h1>" in page.run(passed)
    assert "Verified here means" not in page.run(passed)
    kernel = msgspec.structs.replace(passed.environment.kernel, verified_means=f"less than {SCRIPT}")
    passed.environment = msgspec.structs.replace(passed.environment, kernel=kernel)
    assert "Verified here means: less than &lt;script&gt;" in page.run(passed)


def test_html_of_a_wrong_run_answers_first() -> None:
    made = page.run(nights.explained(WRONG))
    order = ['<h1 id="verdict">Mismatch</h1>', "at fault: the kernel", "The largest error of the kernel is 57 times",
             "<b>The offset of the codes is applied twice", "subtract it once", "Where it is wrong</h2>",
             "rows 16 to 23 × all 12 tokens", "The first failure</h2>", "<dt>got</dt><dd>-0.0018</dd>",
             "<dt>expected</dt><dd>-0.0077</dd>", "<dt>bound</dt><dd>7.9e-07</dd>", "X-ray of the block <",
             "X-ray of the activations that it is multiplied by <", "Repeat with", "Wrong, by tensor</h2>",
             "All 20 failures, one by one</summary>", "Everything else</h2>", "<summary>Rungs</summary>",
             "Environment</summary>"]  # fmt: skip
    assert sorted(order, key=made.index) == order
    assert made.count("one by one</summary>") == 1, "all failures are in one fold"
    assert made.count("<details") < 14
    assert made.count("<details") == made.count("<details class="), "nothing is open but what was chosen"
    assert "<details open" not in made


def test_a_cause_that_several_rungs_see_is_said_once() -> None:
    found = nights.explained(WRONG)
    again = msgspec.structs.replace(found.rungs[2].diagnosis, where="blk.9", lines=found.rungs[2].diagnosis.lines[:1])
    found.rungs[1].diagnosis = again
    found.rungs[3].diagnosis = msgspec.structs.replace(again, lines=("unknown: no fault explains it", "rows 3 to 5"))
    first, second = of_run.of(found).explained
    assert first.found == [
        ("The offset of the codes is applied twice (explains 100 % of the error).", "subtract it once")
    ]
    assert [(where.partition(",")[0], len(more)) for where, more in first.places] == [
        (f"layers: {WRONG}", 1), ("blocks: blk.9", 0),
    ]  # fmt: skip
    assert second.found == [("Unknown: no fault explains it.", "")]
    assert second.places[0][1] == ["rows 3 to 5"]


def test_html_of_a_pass_says_what_and_how_far() -> None:
    found = run_result()
    found.rungs[2].envelopes = [envelope()]
    made = page.run(found)
    order = ["Verified</h1>", "The largest error of the kernel is 9 % of its bound", "What was checked</h2>",
             "Skipped:",
             "How far inside the bounds</h2>", "Envelope</h2>", "1 to 9, 15 to 17, … 127 to 129 (4 ranges)",
             "Everything else</h2>"]  # fmt: skip
    assert sorted(order, key=made.index) == order
    assert "Diagnosis" not in made
    assert "failure" not in re.sub("<style>.*</style>", "", made, flags=re.S).replace("failures</button>", "")[:5000]


def envelope(**fields: Any) -> TypeEnvelope:
    usual: dict[str, Any] = {
        "type": "Q4_0", "plan": 2, "probes": "full", "domain": "", "calls": 123, "rows": "1 to 9, 256",
        "tokens": "1 to 9, 15 to 17, 31 to 33, 127 to 129", "columns": "32 to 4096", "values": ("zeros",),
        "not_covered": (("2^31 weights", "no memory"),), "under_test": True,
    }  # fmt: skip
    return TypeEnvelope(**(usual | fields))


def test_wrong_ones_are_counted_by_tensor_and_rung() -> None:
    found = run_result(wrong=WRONG)
    found.rungs[3].fail(Failure("the logits of token 3 are not finite"), 4)
    counts = of_run.of(found).counts
    assert [(c.tensor, tuple(c.wrong), c.total) for c in counts] == [
        (WRONG, (0, 1, 1, 0), 2), ("", (0, 0, 0, 4), 4),
    ]  # fmt: skip


def test_activations_of_several_blocks() -> None:
    met = bytes(range(72)).hex()
    assert [len(b.values) for b in block.of_activations("Q8_1", met)] == [32, 32]
    assert [part.name for part in block.of_activations("Q8_1", met)[1].parts] == ["d", "s", "qs"]
    assert len(block.of_activations("F32", met)[0].values) == 18
    assert block.of_activations("", "") == block.of_activations("Q8_1", "xyz") == []
    assert len(block.of_activations("Q8_1", met * 100)) == 8


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4"])
def test_xray_of_a_block(kind: str) -> None:
    raw = bytes(range(1, FORMATS[kind].block_bytes + 1))
    made = block.of(kind, raw.hex())
    assert made
    assert "".join(b for part in made.parts for b in part.bytes) == raw.hex()
    assert [part.name for part in made.parts] == [f.name for f in FORMATS[kind].fields]
    assert len(made.values) == FORMATS[kind].block_size
    short = block.of(kind, raw[:-1].hex())
    assert short
    assert not short.values
    assert "not decoded" in short.why


def test_xray_of_what_is_no_block() -> None:
    assert block.of("Q4_0", "xyz") is None
    assert block.of("Q4_0", "") is None
    unknown = block.of("Q9_9", "00ff")
    assert unknown
    assert unknown.parts[0].bytes == ("00", "ff")
    halves = block.of("F16", "003c" * 4)
    assert halves
    assert len(halves.values) == 4


def test_shades() -> None:
    assert [shades.shade(v) for v in (0.0, 1e-5, 0.99e-4, 1.01e-4, 0.5, 1.0)] == ["u0", "u0", "u0", "u1", "u8", "u8"]
    over = (1.01, 11.0, 101.0, 2e3, 2e4, 2e5, 1e9, float("inf"), float("nan"))
    assert [shades.shade(v) for v in over] == ["x0", "x1", "x2", "x3", "x4", "x5", "x5", "x5", "x5"]
    assert shades.shade(0.1, wrong=True) == "x0"
    assert shades.shade(None) == "un"


def test_bins_of_a_histogram() -> None:
    values = [2e5, 1.0, 1.0000001, 0.02, 0.03, 0.1, 0.0, float("nan"), float("inf"), 3.2, -1.0]
    found = {bar.title: (bar.n, bar.right) for bar in charts.bars(values) if bar.n}
    assert found == {
        "exactly 0": (1, True), "above 0.01 to 0.032": (2, True), "above 0.032 to 0.1": (1, True),
        "above 0.32 to 1": (1, True), "above 1 to 3.2": (1, False), "above 3.2 to 10": (1, False),
        "above 1e5 to 3.2e5": (1, False), "inf": (1, False), "NaN": (2, False),
    }  # fmt: skip
    for extreme in ([5e-324, 1.7e308], [0.0], [float("nan")], [1.0], [7.0], [1e-9] * 3):
        bars = charts.bars(extreme)
        assert sum(bar.n for bar in bars) == len(extreme)
        assert len(bars) <= 22
        assert sum(bar.n for bar in bars if bar.right) == sum(v <= 1 for v in extreme)


def test_histogram_and_lines() -> None:
    made = charts.histogram([0.02, 0.02, 5.0, float("nan"), 0.0], "x")
    assert made
    assert "5 values, the largest NaN; 2 over the bound." in made
    assert [*re.findall(">(within the bound|wrong|0|NaN|inf|1|10|0.001)</text>", made)] == [
        "0", "0.001", "1", "10", "NaN", "within the bound", "wrong",
    ] or ">10<" not in made  # fmt: skip
    assert charts.histogram([], "x") is None
    drawn = charts.lines([charts.Point(1, 1.0), charts.Point(2, None), charts.Point(3, 2.0, False)], "x", " s")
    assert drawn
    assert "3 nights, from 0 to 2 s, last 2 s. Not all verified in night 3." in drawn
    assert drawn.count("M") >= 2, "a night without a value breaks the line"
    assert charts.lines([charts.Point(1, None)], "x") is None


def test_axes_of_a_line() -> None:
    points = [charts.Point(n, 10 ** (-n / 4)) for n in range(1, 21)]
    drawn = str(charts.lines(points, "x", log=True))
    labels = re.findall(">([^<>]+)</text>", drawn)
    assert labels[:3] == ["1e-5", "0.001", "0.1"] or {"1e-5", "0.001", "0.1"} <= {*labels}
    assert {"1", "5", "9", "13", "20", "night"} <= {*labels}
    linear = re.findall(">([^<>]+)</text>", str(charts.lines([charts.Point(1, 18.0), charts.Point(2, 22.0)], "x")))
    assert linear[:5] == ["0", "5", "10", "15", "20"]


# ---- a night's page --------------------------------------------------------------------------------------------------


def test_the_grid_holds_every_cell_once() -> None:
    (found,) = of_night.of(report()).grids
    assert (found.host, list(found.kernels)) == ("cpu", ["q8_1", "f32", "q8_1_mma"])
    assert [row[1] for row in found.rows] == ["Q4_0", "Q5_1", "Q4_K", "Q6_K"]
    groups = [group for _, _, row in found.rows for group in row]
    assert [len(group.cells) for group in groups] == [2] * 12
    assert {f.standing.key for group in groups for f in group.cells} == {*keys()}
    by = {(g.key.type, g.key.kernel): (g.level, g.words, g.good) for g in groups}
    assert by["Q4_0", "q8_1_mma"] == ("bad", "57", 1)
    assert by["Q4_K", "f32"] == ("warn", "crashed", 1)
    assert by["Q6_K", "q8_1_mma"] == ("warn", "not run", 1)
    assert by["Q4_0", "q8_1"][::2] == ("good", 2)
    shown = pages()["night"]
    for group in groups:
        assert shown.count(f'href="#group-{group.number}"') == shown.count(f'id="group-{group.number}"') == 1
    assert not re.search("<td><span class=.muted.>–", shown[shown.index('id="grid"') : shown.index('id="troubled"')])


def test_hosts_have_grids_of_their_own() -> None:
    quiet = history(1)[0]
    moved = {
        key._replace(host="gpu"): replace(c, key=key._replace(host="gpu")) for key, c in list(quiet.cells.items())[:5]
    }
    night = replace(quiet, planned=(*quiet.planned, *moved), cells={**quiet.cells, **moved})
    found = of_night.of(NightReport((night,))).grids
    assert [g.host for g in found] == ["cpu", "gpu"]
    cells = [group for _, _, row in found[1].rows for group in row]
    assert sum(len(group.cells) for group in cells if group) == 5
    assert None in cells or len(cells) == 5


def test_trends_need_two_nights() -> None:
    one = of_night.render(report(1, compared=False))
    assert "This is the only night of the history" in one
    assert 'class="line' not in one
    several = of_night.render(report(3))
    assert "only night" not in several
    assert several.count('class="lines"') == 3 + 2 * 24, "of the night, and two of each cell"


def test_a_baseline_can_be_chosen() -> None:
    found = of_night.of(report()).baselines
    assert [b.number for b in found] == list(range(19, 0, -1))
    assert [b.judged for b in found] == [True] + [False] * 18
    assert found[0].changes == report().changes
    older = {kind.name: [c.key for c in of] for kind, of in found[5].changes}
    assert older["new_failures"] == [keys()[2], keys()[7]]
    assert older["vanished"] == [keys()[-1]]
    shown = pages()["night"]
    assert (
        shown.count('class="baseline" data-night="')
        == shown.count("<option value=") - shown.count('<option value="">')
        == 19
    )
    assert len(re.findall('class="baseline" data-night="[0-9]+">', shown)) == 1, "without a script the verdict's alone"
    assert of_night.of(report(compared=False)).baselines == []


# ---- the card --------------------------------------------------------------------------------------------------------


def card_texts(found: Report) -> list[str]:
    made = card.card(found)
    assert (made.width, made.height) == (1200, 630)
    texts = [v for v in made.items if isinstance(v, scene.Words)]
    for i, text in enumerate(texts):
        assert text.left >= card.MARGIN - 8, text
        assert text.left + text.width <= 1200 - card.MARGIN + 8, text
        assert text.size >= 17
        for other in texts[i + 1 :]:
            apart = text.left + text.width <= other.left or other.left + other.width <= text.left
            assert apart or abs(text.y - other.y) >= 0.8 * min(text.size, other.size), (text, other)
    for box in (v for v in made.items if isinstance(v, scene.Box)):
        assert 0 <= box.x <= box.x + box.width <= 1200
        assert 0 <= box.y <= box.y + box.height <= 560
    return [text.text for text in texts]


def test_card_of_a_pass() -> None:
    found = run_result()
    found.rungs[2].envelopes = [
        envelope(), envelope(type="Q8_0", tokens="1 to 65", probes="brief"),
        envelope(type="F16", tokens="1", under_test=False),
    ]  # fmt: skip
    texts = card_texts(found)
    assert texts[0] == "VERIFIED"
    assert "Each output is within its rounding error bound: the largest error is 9 % of it" in texts
    assert {"tiny-Q4_0.gguf", "q8_1, declares q8_1", "a CPU", "utilisation 0.09 (the bound is 1)"} <= {*texts}
    assert "M 1…65, N 1…256, K 32…4,096, few probes" in texts
    assert {f"{name}: passed" for name in ("bytes", "blocks", "layers", "tokens")} <= {*texts}


def test_card_of_a_mismatch_is_as_prominent() -> None:
    passed, wrong = (card.card(r) for r in (run_result(), nights.explained(WRONG)))
    heads = [next(v for v in made.items if isinstance(v, scene.Words)) for made in (passed, wrong)]
    assert [(v.text, v.tone, v.size) for v in heads] == [("VERIFIED", "good", 84), ("MISMATCH", "bad", 84)]
    texts = card_texts(nights.explained(WRONG))
    assert "At fault: the kernel. The offset of the codes is applied twice" in texts
    assert "nothing, until it is verified" in texts
    assert "layers: failed" in texts
    assert any(isinstance(v, scene.Frame) for v in wrong.items)


def test_card_says_what_was_left_out() -> None:
    found = run_result()
    found.rungs = found.rungs[:2]
    found.environment = msgspec.structs.replace(found.environment, options=Options(tensor="blk.0.*"))
    texts = card_texts(found)
    assert texts[0] == "VERIFIED: file bytes and single blocks only (tensors 'blk.0.*')"
    assert {"tokens: not run", "layers: not run", "no map: no layers were judged"} <= {*texts}
    assert any(text.startswith("skipped: every tensor (in part), ") for text in texts), texts
    found.rungs[0].leave("blk.3", "no kernel")
    assert card_texts(found)[0] == "NOT EVERYTHING VERIFIED"
    found.rungs[0].fault = "llama.cpp died"
    assert "At fault: this machine. Llama.cpp died" in card_texts(found)
    found.rungs = []
    assert not any("At fault" in text for text in card_texts(found))
    assert card_texts(found)[0] != "VERIFIED"


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_card_of_hostile_names(suffix: str) -> None:
    for name in HOSTILE:
        found = run_result([*HOSTILE], SCRIPT)
        e = found.environment
        host = msgspec.structs.replace(e.host, device=name)
        found.environment = msgspec.structs.replace(
            e, file=msgspec.structs.replace(e.file, path=f"/m/{name}", tensor_types={name: 1}, architecture=name),
            host=host, kernel=msgspec.structs.replace(e.kernel, name=name, definition=name),
            options=Options(tensor=name),
        )  # fmt: skip
        card_texts(found)
        made = written("--card", Kind.RUN, found, suffix)
        if isinstance(made, str):
            root = ET.fromstring(made)
            assert not [e for e in root.iter() if e.tag.rpartition("}")[2] in ("script", "img")]
            assert not re.search("[\x00-\x08\x0b-\x1f\u202e\u2066\ufffe\udc80]", made)
        else:
            picture = Image.open(io.BytesIO(made))
            assert (picture.format, picture.size) == ("PNG", (1200, 630))


def test_card_is_light_in_any_theme() -> None:
    made = str(written("--card", Kind.RUN, run_result(), ".svg"))
    assert "prefers-color-scheme" not in made
    assert 'viewBox="0 0 1200 630"' in made
    assert not re.search("href|url\\((?!data:)|@import", made), "it needs no other file"
    drawn = written("--card", Kind.RUN, run_result(), ".png")
    assert isinstance(drawn, bytes)
    picture = Image.open(io.BytesIO(drawn)).convert("RGB")
    assert picture.getpixel((10, 300)) == (255, 255, 255)


def test_html_of_a_large_history() -> None:
    made = of_night.render(report(20, gemms=200))
    assert len(made.encode()) < 5_000_000
    assert f"{200 * 22:,}"[:1] in made
    names = nights.gemm_names(1000)
    large = page.run(run_result(names, names[8]))
    assert len(large.encode()) < 5_000_000
    assert large.count('data-outcome="right"') == 999 * 2


def test_html_of_a_night_in_which_everything_is_wrong() -> None:
    listed = [keys()[0]._replace(prompt=f"prompt {i}") for i in range(1000)]
    found = run_result(wrong=WRONG, kind="Q6_K")
    first = found.rungs[1].failures[0]
    for rung in found.rungs:
        wide = [bytes([len(rung.name), i] * 105).hex() for i in range(20)]
        rung.failures = [msgspec.structs.replace(first, block_hex=digits) for digits in wide]
    made = replace(cell(keys()[0], 1, Outcome.MISMATCH), report=found)
    cells = {key: replace(made, key=key) for key in listed}
    past = tuple(replace(history(1)[0], number=n, planned=tuple(listed), cells=cells) for n in range(1, 21))
    failed = tuple(Change(key, Outcome.VERIFIED, Outcome.MISMATCH, "x" * 400) for key in listed)
    shown = of_night.render(NightReport(past, Comparison(19, 20, new_failures=failed)))
    assert len(shown.encode()) < 5_000_000
    assert shown.count("X-ray of the block <") == 20, "one of each run that is shown"
    assert "… and 500 more" in shown


def test_html_of_a_run_that_broke_off() -> None:
    found = run_result()
    for rung in found.rungs[2:]:
        rung.details = []
    found.rungs[2].fault, found.rungs[2].worst = "llama.cpp died", {}
    found.rungs[1].unverified = [Unverified(SCRIPT, "no decode")]
    cosines = {"shared": 1.0, "own": float("nan"), "exact": 1.0, "own_difference": 0.0}
    found.rungs[3].details = [EmbeddingRecord(position=0, text="Once", **cosines)]
    made = page.run(found)
    assert ">Broken off</h1>" in made
    assert "llama.cpp died" in made
    assert "1 thing could not be checked" in made
    assert "cosine on the kernel's own" in made.replace("&#39;", "'")


def test_html_counts_the_failures_of_every_kind_of_record_by_tensor() -> None:
    """As the terminal does."""
    found = run_result()
    found.rungs[1].details = [TensorValues("blk.7.attn_q.weight", "Q4_0", 9, 5)]
    found.rungs[1].fail(Failure("wrong", "blk.7.attn_q.weight"), 5)
    made = page.run(found)
    table = made[made.index('id="counts"') : made.index("</table>", made.index('id="counts"'))]
    assert "<code>blk.7.attn_q.weight</code></th><td>Q4_0</td>" in table
    assert table.count('data-v="5">5<') == 2
    assert re.search(r"blk\.7\.attn_q\.weight +5\n", text_of(Kind.RUN, found))


def test_a_pass_on_random_data_is_a_warning_in_every_report() -> None:
    found = run_result()
    found.drawn = DrawnData(seed=1, compared=True)
    assert (found.verdict, found.exit_code) == ("verified on drawn data", 0)
    assert found.words.startswith("verified on random data (no model)")
    assert card_texts(found)[0].startswith("VERIFIED ON RANDOM DATA (NO MODEL)")
    assert card.card(found).items[0].shade == "warn-fill"
    assert 'class="verdict warn"' in page.run(found)
    assert str(written("--markdown", Kind.RUN, found)).startswith("## ⚠️ Verified on random data")


# ---- colours ---------------------------------------------------------------------------------------------------------

#: Text and what it stands on, as the style sheet has them.
PAIRS = (
    ("text", "page"), ("text", "card"), ("text", "inset"), ("muted", "page"), ("muted", "card"), ("muted", "inset"),
    ("link", "card"), ("link", "inset"), ("link", "page"), ("good", "good-fill"), ("warn", "warn-fill"),
    ("bad", "bad-fill"), ("bad", "card"), ("bad", "inset"),
    *((f"c{i}", "inset") for i in range(5)),
)  # fmt: skip


def themes() -> dict[str, dict[str, str]]:
    style = page.style()
    roots = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\n *\}", style, re.S)]  # fmt: skip # noqa: E501
    assert len(roots) == 3
    return dict(zip(("light", "dark", "print"), roots, strict=True))


def luminance(colour: str) -> float:
    """Relative luminance: WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_contrast(theme: str) -> None:
    colours = themes()[theme]
    low = {}
    for ink, ground in PAIRS:
        a, b = sorted((luminance(colours[ink]), luminance(colours[ground])))
        ratio = (b + 0.05) / (a + 0.05)
        if ratio < 4.5:
            low[ink, ground] = round(ratio, 2)
    assert not low
    used = set(re.findall(r"(?<![\w-])color: var\(--([\w-]+)", page.style()))
    assert used <= {ink for ink, _ in PAIRS} | {"fill", "hue"}, "a colour of text that no pair is of"


@pytest.mark.parametrize("theme", list(shades.PALETTE))
def test_what_is_written_on_a_shade_can_be_read(theme: str) -> None:
    """And up to the bound the shades are in order of lightness."""
    colours = shades.PALETTE[theme]
    for fill, ink in colours.values():
        a, b = sorted((luminance(fill), luminance(ink)))
        assert (b + 0.05) / (a + 0.05) >= 4.5
    order = [luminance(colours[f"u{i}"][0]) for i in range(shades.STEPS)]
    assert order == sorted(order, reverse=theme == "light")


# ---- all writers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("utilisation", "words"),
    [
        (0.25, "0.25 of its bound"), (1.0, "exactly its bound (one rounding; expected)"),
        (1.0004, "1.0004 times its bound"), (0.99996, "0.99996 of its bound"), (3120.0, "3,120 times its bound"),
        (2.0, "2 times its bound"), (float("inf"), "inf times its bound"),
    ],
)  # fmt: skip
def test_an_error_in_terms_of_its_bound(utilisation: float, words: str) -> None:
    """Never "1 times": an error is within its bound, exactly that, or beyond it."""
    assert run_words.of_bound(utilisation) == words


def test_headings_count_things() -> None:
    page = str(written("--html", Kind.RUN, run_result()))
    night = str(of_night.render(report(3)))
    assert not re.search(r"<summary>[A-Za-z]+, [0-9,]+</summary>", page + night)
    assert "<summary>21 GEMMs</summary>" in page
    assert "<summary>24 cells</summary>" in night


def test_flags_are_found() -> None:
    flags: dict[StrEnum, set[str | None]] = {
        kind: {w.flag for w in writers(kind)} - {None} for kind in [*Kind, *NightKind]
    }
    assert flags[Kind.RUN] == {"--json", "--html", "--heat-map", "--card", "--sarif", "--markdown", "--annotations"}
    assert flags[NightKind.NIGHT] == {"--json", "--html", "--junit", "--markdown"}
    assert flags[Kind.AUDITS] == {"--json", "--html", "--sarif", "--markdown", "--annotations"}
    assert flags[Kind.AUDIT] == flags[Kind.AUDITS] | {"--card"}
    assert flags[Kind.XRAY] == flags[Kind.IDENTIFICATION] == {"--json"}
    assert all(any(w.flag is None for w in writers(kind)) for kind in flags)


def test_every_writer_writes() -> None:
    results: dict[StrEnum, Any] = {
        Kind.RUN: run_result(wrong=WRONG),
        NightKind.NIGHT: report(3),
        NightKind.COMPARISON: changes(),
    }
    for kind, result in results.items():
        for writer in writers(kind):
            for suffix in writer.suffixes or ("",):
                assert writer.renders[kind](result, Form(suffix=suffix))
