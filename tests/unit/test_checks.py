"""The account of a run: every class of checks is done, or named as skipped, in every report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields, replace
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gguf_verify.certificates.check import compare
from gguf_verify.certificates.read import canonical
from gguf_verify.checks import ALONE, BY_ID, CHECKS
from gguf_verify.processes.sandbox import Sandbox
from gguf_verify.report import run_words
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import SHORTENING, Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.registry import RUNGS
from tests.support import certificates, records, validated
from tests.support.nights import run_report, run_result
from tests.support.shown import json_of, last_line, text_of, written

#: Options that do not change the extent of a run: they choose where and how it runs.
NEUTRAL = {
    "prompt", "threads", "ctx_size", "seed", "repack", "reference", "llama", "exact_on", "time_limit",
    "kernel_time_limit", "kernel_memory", "verbose", "progress", "save_case", "declare", "imports", "loads",
    "require_coverage",
    "order",
}  # fmt: skip


def report(rungs: Iterable[str] = ("bytes", "blocks", "layers", "tokens"), **options: object) -> Report:
    """A run in which the rungs passed."""
    made = []
    for name in rungs:
        rung = records.rung(name)
        rung.count(rung.substance[0], 9)
        made.append(rung)
    environment = records.environment()
    options_of_run = replace(environment.options, **{"probes": "full"} | options)  # type: ignore[arg-type]
    return Report(environment=msgspec.structs.replace(environment, options=options_of_run), rungs=made)


def skipped(of: Report) -> dict[str, tuple[str, ...]]:
    return {check.id: check.skipped for check in of.skipped}


# ---- nothing can be forgotten ----------------------------------------------------------------------------------------


def test_every_option_is_known_to_shorten_a_run_or_not_to() -> None:
    """A new option stands in one of the two sets; one that shortens a run is recorded by `RungResult.omit` or
    `Options.skips`."""
    assert {field.name for field in fields(Options)} == SHORTENING | NEUTRAL
    assert not SHORTENING & NEUTRAL


def test_every_rung_is_a_class_of_checks() -> None:
    for rung in RUNGS.values():
        check = BY_ID[rung.name]
        assert check.is_rung
        assert set(rung.substance) <= set(check.counts)
        assert set(check.computes) == set(rung.computes)
    assert {check.id for check in CHECKS if check.is_rung} == set(RUNGS)


def test_unknown_checks_are_not_counted() -> None:
    rung = records.rung("layers")
    with pytest.raises(ValueError, match="'compilations' belongs to no class of checks"):
        rung.count("compilations")
    for record in (rung.did, lambda name: rung.omit(name, "why")):
        with pytest.raises(KeyError):
            record("compilations")
    assert (rung.checked, rung.done, rung.skipped) == ({}, {}, [])


def test_a_class_that_nothing_recorded_is_skipped() -> None:
    """So a check that is never reached is named in each report."""
    found = report()
    rungs = {check.id for check in CHECKS if check.is_rung}
    assert set(skipped(found)) == {c.id for c in CHECKS if "gemm" in c.computes} - rungs - {
        "tensors", "sandbox", "every-output", "code",
    }  # fmt: skip
    assert skipped(found)["races"] == ("nothing of it was checked",)
    found.rungs[2].did("walls", 3)
    found.rungs[2].did("again", 0)
    assert not {"walls", "again"} & set(skipped(found))
    assert [(c.id, c.done) for c in found.checks if c.id in ("walls", "again")] == [("walls", 3)]
    found.rungs[2].omit("walls", "one type only")
    assert skipped(found)["walls"] == ("one type only",)


# ---- the headline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rungs", "options", "headline"),
    [
        (("bytes", "blocks", "layers", "tokens"), {}, "VERIFIED"),
        (("bytes",), {}, "VERIFIED: file bytes only"),
        (("bytes", "layers"), {}, "VERIFIED: file bytes and the model's products only"),
        (("layers",), {"tensor": "attn"}, "VERIFIED: the model's products only (tensors 'attn')"),
        (("bytes", "blocks", "layers", "tokens"), {"n_predict": 1}, "VERIFIED (1 of 32 tokens)"),
        (("bytes", "blocks", "layers", "tokens"), {"sandbox": "none"}, "VERIFIED (no sandbox)"),
    ],
)
def test_headlines(
    rungs: tuple[str, ...], options: dict[str, object], headline: str
) -> None:  # fmt: skip
    found = report(rungs, **options)
    assert (found.exit_code, found.verdict, run_words.headline(found)) == (0, "verified", headline)
    assert last_line(text_of(Kind.RUN, found)).startswith(f"{headline} in ")
    assert json_of(Kind.RUN, found)["words"] == found.words


def test_a_brief_run_is_named() -> None:
    found = report()
    for check in ("shapes", "schedules"):
        found.rungs[2].omit(check, "--effort quick", "quick")
    assert run_words.headline(found) == "VERIFIED (quick)"
    assert found.shortened == ["other shapes: --effort quick", "other orders of threads: --effort quick"]


def test_one_call_is_no_more_than_that() -> None:
    found = report(("layers",), only_call="reference,m=4,n=64,k=32")
    found.rungs[0].checked = {ALONE: 1}
    found.rungs[0].substance = (ALONE,)
    assert run_words.headline(found) == "VERIFIED: one call only (reference)"
    assert not found.kernel_ran
    assert report(("layers",), only_call="own,m=4").kernel_ran


def test_a_missing_sandbox_is_listed() -> None:
    found = report()
    sandbox = Sandbox(kind="landlock", by="Landlock 3", missing=("signal your processes",))
    found.environment = msgspec.structs.replace(found.environment, sandbox=sandbox)
    assert run_words.headline(found) == "VERIFIED"
    assert skipped(found)["sandbox"] == ("they may signal your processes",)


# ---- every format ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["--html", "--markdown", "--card", "--annotations"])
def test_every_format_names_what_was_skipped(flag: str) -> None:
    found = report()
    for check in found.skipped:
        assert check.title in unescape(str(written(flag, Kind.RUN, found))), check.id
    assert [check["id"] for check in json_of(Kind.RUN, found)["checks"]] == [check.id for check in found.checks]
    assert all(check.title in text_of(Kind.RUN, found, detail=2) for check in found.skipped)


@pytest.mark.parametrize("flag", ["terminal", "--html", "--markdown", "--card"])
def test_a_kernel_that_never_ran_is_not_named_as_verified(flag: str) -> None:
    def made(of: Report) -> str:
        return text_of(Kind.RUN, of) if flag == "terminal" else str(written(flag, Kind.RUN, of))

    whole, of_bytes = (unescape(made(of)) for of in (report(), report(("bytes",))))
    named = {"terminal": "declares q8_1", "--html": "on cpu: a CPU", "--markdown": "declared q8_1", "--card": "a CPU"}
    assert named[flag] in whole
    assert named[flag] not in of_bytes
    assert "holds for   Q4_0" not in of_bytes
    assert "file bytes only" in of_bytes


@pytest.mark.parametrize("options", [{}, {"n_predict": 1}, {"sandbox": "none"}, {"probes": "brief"}])
def test_a_certificate_of_a_shortened_run_is_not_a_whole_one(tmp_path: Path, options: dict[str, Any]) -> None:
    found = certificates.report(**options)
    if options.get("probes") == "brief":
        found.rungs[2].omit("shapes", "--effort quick", "quick")
    statement = certificates.statement(found)
    checked = compare(
        statement, canonical(statement), certificates.files(tmp_path), here=certificates.HERE, unsigned=True
    )
    assert {line.outcome for line in checked.lines} == {"matches"}
    assert (checked.exit_code, bool(statement.predicate.asked.left_out)) == ((5, True) if options else (0, False))


# ---- validated -------------------------------------------------------------------------------------------------------
# Reports and certificates of the tests are validated, in this process and in others: see `tests.support.validated`.


WRITES = "import sys; open(sys.argv[-1], 'w').write(sys.argv[1])"


def test_reports_of_this_process() -> None:
    found = run_result()
    json_of(Kind.RUN, found)
    found.to_json()
    assert validated.flaws() == []
    found.seconds = "long"  # type: ignore[assignment]
    for make in (lambda: json_of(Kind.RUN, found), found.to_json, found.to_dict):
        make()
        (said,) = validated.flaws()
        assert "a report of this process is not valid by run.schema.json: $.seconds: 'long'" in said


@pytest.mark.parametrize("flag", ["--json", "--certificate"])
def test_files_of_other_processes(tmp_path: Path, flag: str) -> None:
    whole = run_report()
    for made, flaw in (
        (whole, ""),
        ({**whole, "seconds": "long"}, "$.seconds"),
        ({"predicateType": 1}, "is not valid"),
    ):
        command = [sys.executable, "-c", WRITES, json.dumps(made), "gguf_verify", flag, "r.json"]
        subprocess.run(command, cwd=tmp_path, check=True)
        found = validated.flaws()
        assert len(found) == bool(flaw)
        assert all(flaw and flaw in each for each in found)
    subprocess.run([sys.executable, "-c", WRITES, "{", "stub", flag, str(tmp_path / "r.json")], check=True)
    assert not validated.flaws(), "a stand-in may write what it likes"
