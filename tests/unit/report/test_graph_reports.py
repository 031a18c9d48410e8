"""Graphs that were judged node by node, as JUnit, Markdown, annotations, lines and in Python."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xmlschema
from jsonschema import Draft202012Validator

from gguf_verify.backend_results import GraphReport, Varying
from gguf_verify.report import graph_words, html, junit
from gguf_verify.report.annotations import MOST
from gguf_verify.report.digests.graph import digest
from gguf_verify.report.json import of_graph
from gguf_verify.report.markdown import LIMIT
from gguf_verify.report.writer import Kind, writers
from gguf_verify.support.errors import VerificationError
from tests.support.graph_records import VERDICTS, graph, graphs, left, named, operation, wrong_node
from tests.support.nights import HOSTILE, SCRIPT
from tests.support.sarif_subset import SCHEMA as SARIF
from tests.support.shown import last_line, text_of, written

#: What no text may hold: XML cannot, or a terminal acts on it.
ODD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u2066\ufffe\udc80]")


@cache
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(Path(html.__file__).parents[1] / "schemas" / "junit.xsd"))


def suite_of(report: GraphReport) -> ET.Element:
    """The one suite, which validates."""
    made = str(written("--junit", Kind.GRAPH, report))
    schema().validate(made)
    assert not ODD.search(made)
    (suite,) = ET.fromstring(made.encode())
    return suite


def markdown_of(report: GraphReport) -> str:
    return str(written("--markdown", Kind.GRAPH, report))


def annotations_of(report: GraphReport) -> list[tuple[str, str]]:
    """Level and message of each line."""
    found = []
    for line in str(written("--annotations", Kind.GRAPH, report)).splitlines():
        level, message = re.fullmatch(r"::(error|warning|notice) title=[^:,\n]*::(.*)", line).groups()
        found.append((level, message))
    return found


def test_the_records_are_of_every_verdict() -> None:
    assert {name: report.verdict for name, report in graphs().items()} == VERDICTS


def test_flags_are_found() -> None:
    flags = {w.flag for w in writers(Kind.GRAPH)} - {None}
    assert flags == {"--json", "--html", "--junit", "--markdown", "--sarif", "--annotations"}


# ---- JUnit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERDICTS)
def test_junit_is_green_where_the_verdict_is_a_pass(name: str) -> None:
    report = graphs()[name]
    suite = suite_of(report)
    cases = suite.findall("testcase")
    tags = [child.tag for case in cases for child in case]
    assert (not tags) == (report.exit_code == 0)
    assert ("failure" in tags) == (report.verdict == "mismatch")
    assert "skipped" not in tags
    assert [int(suite.get(n)) for n in ("tests", "failures", "errors", "skipped")] == [
        len(cases), tags.count("failure"), tags.count("error"), 0,
    ]  # fmt: skip


def test_a_wrong_operation_is_a_failure_with_its_first_wrong_node() -> None:
    suite = suite_of(graphs()["wrong"])
    told = {case.get("name"): case.find("failure") for case in suite.findall("testcase")}
    assert [name for name, failure in told.items() if failure is not None] == ["ROPE"]
    failure = told["ROPE"]
    assert failure.get("type") == "mismatch"
    assert failure.get("message").startswith(
        "ROPE Qcur-0 on CUDA0, node 7 of the prompt of 10 tokens: token 3, head 1, d 17: got 1.5"
    )
    for words in ("node 7 of the prompt", "tokens 3 to 5", "src[1] inp_pos I32 [10]", "repeat with: gguf-verify back"):
        assert words in failure.text


def test_an_operation_has_one_case_on_each_device() -> None:
    suite = suite_of(graphs()["not judged"])
    cases = {(case.get("classname"), case.get("name")): case.find("error") for case in suite.findall("testcase")}
    why = "no definition of these sums is known"
    assert {key: error.get("message") for key, error in cases.items()} == {
        ("tiny-Q4_0.gguf/CUDA0", "MUL_MAT Q4_0"): f"not judged: MUL_MAT Q4_0 on CUDA0: {why} (5 nodes)",
        ("tiny-Q4_0.gguf/CUDA0", "ADD"): f"not judged: ADD on CUDA0: {why} (5 nodes)",
        ("tiny-Q4_0.gguf/CPU", "ADD"): f"not judged: ADD on CPU: {why} (1 node)",
    }
    assert {error.get("type") for error in cases.values()} == {"not judged"}


def test_a_failure_also_says_what_was_not_judged() -> None:
    wrong = operation("ROPE", first=wrong_node())
    (case,) = suite_of(graph(wrong, not_judged=(left("ROPE"),))).findall("testcase")
    assert "not judged: ROPE on CUDA0: no definition of these sums is known (5 nodes)" in case.find("failure").text


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("broken off", "broken off", "llama.cpp died of SIGSEGV"),
        ("interrupted", "interrupted", "ended early by SIGINT"),
        ("nothing on the device", "not everything verified", "12 nodes are correct, none of them on CUDA0"),
        ("nothing", "not everything verified", "0 nodes are correct, none of them on CUDA0"),
    ],
)  # fmt: skip
def test_what_no_operation_is_to_blame_for_is_an_error_of_the_graph(name: str, kind: str, message: str) -> None:
    *_, case = suite_of(graphs()[name]).findall("testcase")
    assert case.get("name") == "the whole graph"
    assert (case.find("error").get("type"), case.find("error").get("message")) == (kind, message)


def test_what_is_no_mistake_is_told_beside_the_cases() -> None:
    told = suite_of(graphs()["varying"]).find("system-out").text
    assert "other bits: micro-batches of 8 against 1: first at ROPE Qcur-0 on CUDA0, token 3" in told
    assert "same bits: micro-batches of 64 against 1" in told
    assert suite_of(graphs()["fell back"]).find("system-out").text.startswith("fell back to CPU, not computed on CUDA0")


def test_no_junit_is_green_whose_verdict_is_no_pass() -> None:
    """Also of a digest that has no finding for its verdict."""
    made = digest(graphs()["right"])
    for exit_code, errors in ((0, "0"), (5, "1")):
        (suite,) = ET.fromstring(junit.render(replace(made, exit_code=exit_code)))
        assert suite.get("errors") == errors


@pytest.mark.parametrize("i", range(len(HOSTILE)))
def test_junit_of_hostile_names(i: int) -> None:
    suite = suite_of(named(HOSTILE[i]))
    assert {child.tag for case in suite.findall("testcase") for child in case} == {"failure", "error"}


# ---- Markdown --------------------------------------------------------------------------------------------------------


def test_markdown_says_the_verdict_first() -> None:
    made = markdown_of(graphs()["many wrong"])
    order = ["## ❌ Mismatch", "40 of 50 nodes", "| ❌ ROPE |", "### The first wrong nodes", "| ROPE Kcur-1 |",
             "… and 38 more wrong nodes", "<summary>5 nodes were not judged</summary>", "SHA-256"]  # fmt: skip
    assert sorted(order, key=made.index) == order
    assert "inp&#95;pos I32" in made
    assert "got nan" in made


def test_markdown_of_the_other_verdicts() -> None:
    told = {name: unescape(markdown_of(report)) for name, report in graphs().items()}
    assert told["right"].startswith("## ✅ Verified\n")
    assert "| ✅ CPY F16 | CUDA0 | 12 | 4,096 | bytes, halves | equal |  |" in told["right"]
    assert told["broken off"].startswith("## ⚠️ Broken off\n")
    assert "Broken off: llama.cpp died of SIGSEGV." in told["broken off"]
    assert "Interrupted: ended early by SIGINT." in told["interrupted"]
    assert "Incomplete: ended early by the first failure." in told["first failure"]
    assert told["not judged"].startswith("## ⚠️ Not everything verified\n")
    assert "### Not computed on CUDA0" in told["fell back"]
    assert "| other bits | micro-batches of 8 against 1" in told["varying"]


def test_markdown_of_hostile_names() -> None:
    for name in HOSTILE:
        made = markdown_of(named(name))
        assert not ODD.search(made)
        assert len(made.encode()) < LIMIT
        for row in (line for line in made.splitlines() if line.startswith("|")):
            plain = re.sub(r"&#[0-9]+;(<!-- -->)?", "", row)
            assert plain.count("|") in (8, 6, 5, 4, 3), row
        kept = re.sub(r"</?(details|summary|br)>|<!-- -->|&#[0-9]+;", "", made)
        assert not re.search(r"[<>`\[\]@{]|\*\*|://", kept.replace("{{", "").replace("{%", ""))


@pytest.mark.parametrize("name", ["é_" * 200, "@" * 300])
def test_markdown_stays_below_what_github_takes(name: str) -> None:
    many = [operation(f"{i} {name}", "CPU", definitions=(name,)) for i in range(800)]
    wrong = operation(name, first=wrong_node(name, place=name, extent=name, inputs=(name,) * 12))
    found = graph(*many, wrong, not_judged=tuple(left(f"{i} {name}") for i in range(800)), fault=name)
    made = markdown_of(found)
    assert len(made.encode()) < LIMIT < 65_536
    assert made.count("more, which do not fit here") == 3
    assert made.count("<details>") == made.count("</details>") == 1
    assert "### The first wrong nodes" in made
    assert made.count("| ❌ ") == 1


# ---- annotations -----------------------------------------------------------------------------------------------------


def test_annotations() -> None:
    told = {name: annotations_of(report) for name, report in graphs().items()}
    assert told["right"] == []
    assert [level for level, _ in told["wrong"]] == ["error"]
    assert "ROPE Qcur-0 on CUDA0, node 7 of the prompt of 10 tokens: token 3, head 1" in told["wrong"][0][1]
    assert [level for level, _ in told["many wrong"]] == ["error", "error", "error", "warning"]
    assert told["many wrong"][2][1] == "38 more wrong nodes"
    assert told["broken off"] == [("error", "llama.cpp died of SIGSEGV")]
    assert told["interrupted"] == [("warning", "ended early by SIGINT")]
    assert [level for level, _ in told["not judged"]] == ["warning"] * 3
    assert [level for level, _ in told["nothing on the device"]] == ["warning", "notice"]
    assert [level for level, _ in told["fell back"]] == ["notice"]
    assert [level for level, _ in told["varying"]] == ["notice"], "the same bits are no news"


@pytest.mark.parametrize("name", VERDICTS)
def test_no_verdict_but_a_pass_is_silent(name: str) -> None:
    report = graphs()[name]
    levels = {level for level, _ in annotations_of(report)}
    assert bool(levels & {"error", "warning"}) == bool(report.exit_code)


def test_annotations_of_hostile_names() -> None:
    for name in (*HOSTILE, "a%0A::error title=x::y\n::error::z\r"):
        made = str(written("--annotations", Kind.GRAPH, named(name)))
        assert not ODD.search(made)
        assert all(line.count("\n") == 0 and line.startswith("::") for line in made.splitlines())
        assert 3 <= len(annotations_of(named(name))) <= 3 * MOST


# ---- SARIF -----------------------------------------------------------------------------------------------------------


def sarif_of(report: GraphReport) -> dict[str, Any]:
    """The one run, which keeps the standard."""
    made = json.loads(str(written("--sarif", Kind.GRAPH, report)))
    Draft202012Validator(SARIF).validate(made)
    (run,) = made["runs"]
    return dict(run)


@pytest.mark.parametrize("name", VERDICTS)
def test_sarif(name: str) -> None:
    report = graphs()[name]
    run = sarif_of(report)
    levels = {result["level"] for result in run["results"]}
    assert bool(levels & {"error", "warning"}) == bool(report.exit_code)
    assert run["invocations"][0]["exitCode"] == report.exit_code
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    assert len({str(result["partialFingerprints"]) for result in run["results"]}) == len(run["results"])


def test_what_sarif_says() -> None:
    (result,) = sarif_of(graphs()["wrong"])["results"]
    assert result["ruleId"] == "graph-mismatch"
    assert "ROPE Qcur-0 on CUDA0, node 7" in result["message"]["text"]
    (varying,) = sarif_of(graphs()["varying"])["results"]
    assert (varying["ruleId"], varying["level"]) == ("graph-other-bits", "note")


def test_sarif_of_hostile_names() -> None:
    for name in HOSTILE:
        made = str(written("--sarif", Kind.GRAPH, named(name)))
        assert not ODD.search(json.dumps(json.loads(made), ensure_ascii=False))
        sarif_of(named(name))


# ---- the terminal, and Python ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VERDICTS)
def test_in_python(name: str) -> None:
    report = graphs()[name]
    assert bool(report) == (report.exit_code == 0)
    assert repr(report).startswith(f"<GraphReport: {report.verdict}; CUDA0; ")
    text = text_of(Kind.GRAPH, report)
    assert f"{report}\n" == text
    assert last_line(text).startswith(f"{report.verdict.upper()}: ")
    assert (f"repeat with: {report.command}\n" in text) == bool(report.exit_code)
    assert text_of(Kind.GRAPH, report, detail=-1) == f"{last_line(text)}\n"
    assert report.to_dict() == of_graph(report) == json.loads(report.to_json())
    assert report.verdict in report._repr_html_()
    if report:
        report.raise_for_mismatch()
        return
    with pytest.raises(VerificationError) as caught:
        report.raise_for_mismatch()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"tiny-Q4_0.gguf on CUDA0 is not verified: {report.verdict}")
    assert lines[-1] == f"repeat with: {report.command}"


def test_hostile_names_in_python() -> None:
    for name in HOSTILE:
        report = named(name)
        for text in (repr(report), str(report), report._repr_html_()):
            assert not ODD.search(text)
        assert len(repr(report).splitlines()) == 1
        assert SCRIPT not in report._repr_html_()
        assert len(report._repr_html_()) < 30_000
        with pytest.raises(VerificationError) as caught:
            report.raise_for_mismatch()
        assert len(str(caught.value).splitlines()) <= 15


def test_a_notebook_shows_the_first_operations() -> None:
    large = graph(*(operation(f"OP{i}") for i in range(100)))
    assert "… and 60 more" in large._repr_html_()


def test_what_the_record_escaped_is_not_escaped_again() -> None:
    """At the terminal, in JUnit's lines and in Python; the others escape once more, as for all results."""
    node = wrong_node(r"a\\b\x1b")
    report = graph(operation("ROPE", first=node))
    assert r"ROPE a\\b\x1b on CUDA0" in str(report)
    assert r"ROPE a\\b\x1b on CUDA0" in suite_of(report).find("testcase/failure").text


def test_what_is_written_is_read_back() -> None:
    for report in graphs().values():
        assert msgspec.convert(json.loads(report.to_json()), GraphReport, strict=False).verdict == report.verdict


def test_nodes_without_outputs_are_no_pass() -> None:
    """A node may have no element; that nothing of it is wrong says nothing."""
    report = graph(operation("ROPE", elements=0))
    assert (report.verdict, report.exit_code) == ("not everything verified", 5)
    assert graph(operation("ROPE", elements=0), operation("MUL")).verdict == "verified"


def test_nothing_compared_is_not_the_same() -> None:
    for compared, label in ((0, "not compared"), (3, "same bits")):
        found = Varying(micro_batch=4, against=9, operation="", node="", device="", token=-1, compared=compared)
        assert graph_words.varying(found)[0] == label
