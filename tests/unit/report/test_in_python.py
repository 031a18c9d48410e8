"""Results as a Python user meets them: truth, one line, the report, HTML, plain data, and an exception."""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

import msgspec
import pytest

import gguf_verify
from gguf_verify.audit.record import Audit, AuditHeader
from gguf_verify.audit.source import Comparison
from gguf_verify.backend_results import GraphReport
from gguf_verify.captured import Judged
from gguf_verify.gguf.records import Finding
from gguf_verify.identification import IdentifyHeader, IdentifyReport
from gguf_verify.report.json import of_run
from gguf_verify.report.message import MOST_LINES, like_another, not_diagnosed, of_cause
from gguf_verify.report.message import of_run as message_of
from gguf_verify.report.writer import Form, Kind, terminal, writers
from gguf_verify.results.calls import Call
from gguf_verify.results.diagnoses import FaultMatch, LocatedDiagnosis
from gguf_verify.results.failures import Failure, Unverified
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.support.errors import UsageError, VerificationError
from tests.support import records

COMMAND = "gguf-verify model.gguf --kernel mine.py:gemm --seed 3"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e`$(id)`'"


def right() -> Report:
    layers = records.rung("layers")
    layers.count("outputs", 100)
    return Report(environment=records.environment(), rungs=[layers], command=COMMAND)


def wrong(tensor: str = "blk.0.attn_q.weight", lines: tuple[str, ...] = ("nibbles. Fix: swap them",)) -> Report:
    report = right()
    (layers,) = report.rungs
    call = Call(kind="other-m", m=7, n=128, k=256)
    for row in range(20):
        layers.fail(Failure(
            f"kernel: {tensor} row {row} block 1 token 0: the output is outside the bound", tensor, row, 1, 0, 4096,
            "00ff" * 40, 2.5, 1.5, 1e-6, 1e6, call=call,
        ), 50)  # fmt: skip
    layers.diagnosis = LocatedDiagnosis(
        tensor=tensor, where=tensor, who="kernel", row=0, token=0, block=1, verdict="known fault", wrong=900,
        outputs=1000, lines=lines,
    )  # fmt: skip
    return report


def test_the_package_lists_its_public_names() -> None:
    """And no import of its own; each is there."""
    assert dir(gguf_verify) == sorted(gguf_verify.__all__)
    assert all(getattr(gguf_verify, name) is not None for name in dir(gguf_verify))


@pytest.mark.parametrize("kind", [Report, RungResult, Audit, GraphReport, Judged, IdentifyReport, Finding, Comparison])
def test_no_property_of_a_result_ends_completion(kind: type) -> None:
    """jedi, by which notebooks complete names, fails on a whole object for one property of a `Literal` type. One that
    only type checkers know is no type to it."""
    for each in vars(kind).values():
        if isinstance(each, property):
            try:
                returned = get_type_hints(each.fget)["return"]
            except NameError:
                continue
            assert get_origin(returned) is not Literal, each.fget


def test_every_form_has_what_is_declared_and_what_was_skipped() -> None:
    report = right()
    declared = msgspec.structs.replace(report.environment.kernel, declares=("sums in halves",))
    report.environment = msgspec.structs.replace(report.environment, kernel=declared)
    # heat maps are pictures of one rung, and annotations say nothing of a pass
    lists = [w for w in writers(Kind.RUN) if not w.rung and w.flag != "--annotations"]
    forms = {writer.flag: writer.renders[Kind.RUN](report, Form(detail=2)) for writer in lists}
    assert len(forms) > 5
    assert "q8_1, sums in halves" in report._repr_html_()
    assert [flag for flag, text in forms.items() if "sums in halves" not in str(text)] == []
    assert report.skipped
    for check in report.skipped:
        assert [flag for flag, text in forms.items() if check.title not in unescape(str(text))] == []


def test_a_report_is_true_where_everything_is_verified() -> None:
    assert right()
    assert not wrong()
    report = right()
    report.rungs[0].leave("blk.9.attn_q.weight", "type TQ9 is not covered")
    assert not report
    broken = right()
    broken.rungs[0].fault = "llama.cpp died"
    assert not broken
    changed = right()
    changed.changed = "it was written to"
    assert not changed
    assert not Report(environment=records.environment())


def test_a_rung_says_what_to_ask() -> None:
    """`if report.rung("layers"):` could mean either of two things, so it means none."""
    with pytest.raises(TypeError, match="passed"):
        bool(records.rung("layers"))
    assert right().rungs[0].passed
    assert not wrong().rungs[0].passed
    assert not records.rung("layers").passed


def test_one_line() -> None:
    for report in (right(), wrong(), wrong(HOSTILE)):
        assert len(repr(report).splitlines()) == 1
        assert len(repr(report)) < 200
        assert repr(report).isprintable()
    assert repr(right()) == "<Report: verified: the model's products only; 1 of 1 rung passed>"
    assert "mismatch; at fault: the kernel (1,000)" in repr(wrong())
    assert "1,000 failures" in repr(wrong())


def test_str_is_the_report_at_the_terminal() -> None:
    for report in (right(), wrong(), wrong(HOSTILE)):
        assert f"{report}\n" == terminal(Kind.RUN, report, Form())
        assert "\x1b" not in str(report)


def test_plain_data_are_those_of_the_flag() -> None:
    flag = next(w for w in writers(Kind.RUN) if w.flag == "--json")
    for report in (right(), wrong()):
        assert report.to_json() == flag.renders[Kind.RUN](report, Form())
        assert report.to_dict() == of_run(report) == json.loads(report.to_json())
    made = wrong()
    made.to_dict()["rungs"].clear()
    assert len(made.rungs) == 1


def test_html_is_escaped_short_and_loads_nothing() -> None:
    made = wrong(HOSTILE, ("swap. Fix: swap them", HOSTILE))._repr_html_()
    assert "<script" not in made
    assert "\x1b" not in made
    assert "\u202e" not in made
    assert "://" not in made
    assert len(made) < 6000
    for words in ("mismatch", "the kernel (1,000)", "Fix: swap them", "got 2.5", "bytes 4096-4176", "--only-call"):
        assert words in made
    assert "verified" in right()._repr_html_()


def test_nothing_is_raised_where_everything_is_verified() -> None:
    right().raise_for_mismatch()


@pytest.mark.parametrize("lines", [("a fault. Fix: this",), tuple(f"line {i} {'x' * 900}" for i in range(40))])
def test_the_message_has_at_most_fifteen_lines(lines: tuple[str, ...]) -> None:
    report = wrong(lines=lines)
    for i in range(30):
        report.rungs[0].leave(f"tensor {i}", "not covered\nand more")
    report.rungs[0].fault = "llama.cpp died\nof something"
    with pytest.raises(VerificationError) as caught:
        report.raise_for_mismatch()
    said = str(caught.value).splitlines()
    assert caught.value.report is report
    assert isinstance(caught.value, AssertionError)
    assert len(said) <= MOST_LINES == 15
    assert said[-1].startswith("repeat with: gguf-verify model.gguf")
    text = "\n".join(said)
    for words in ("1,000", "900 of 1,000", "got 2.5, expected 1.5", "byte 4096", "utilisation 1e+06", lines[0][:8]):
        assert words in text
    assert all(len(line) < 500 for line in said)


def test_the_message_of_one_tensor_is_about_that_one() -> None:
    report = wrong()
    report.rungs[0].leave("blk.7.ffn_up.weight", "not covered")
    said = message_of(report, "blk.7.ffn_up.weight")
    assert "blk.7.ffn_up.weight: not covered" in said
    assert "attn_q" not in said
    assert said.endswith("--rungs layers --tensor '^blk[.]7[.]ffn_up[.]weight$'")
    assert "blk.0.attn_q.weight row 0" in message_of(report, "blk.0.attn_q.weight")


def several() -> Report:
    """Three wrong matrices: one is diagnosed, one has its cause, and that of the last one is not known."""
    report = wrong()
    (layers,) = report.rungs
    layers.details = [records.gemm(f"blk.{i}.attn_q.weight", 10.0**i, 100) for i in range(3)]
    faults = (FaultMatch("nibbles-in-pairs", "nibbles", "swap them", 1.0, 0.1, True),)
    assert layers.diagnosis is not None
    layers.diagnosis = msgspec.structs.replace(layers.diagnosis, faults=faults, type="Q4_0")
    for i, cause in ((0, "nibbles-in-pairs"), (1, "nibbles-in-pairs"), (2, "")):
        layers.attribute(f"blk.{i}.attn_q.weight", cause)
        layers.fail_more("kernel", 100, f"blk.{i}.attn_q.weight")
    return report


def test_a_cause_is_claimed_only_of_the_tensors_that_have_it() -> None:
    report = several()
    first, second, last = (f"blk.{i}.attn_q.weight" for i in range(3))
    assert [of_cause(report, t) for t in (first, second, last)] == [*["nibbles-in-pairs"] * 2, "cause not diagnosed"]
    assert like_another(report, second, "ID") == (
        "same cause as ID: nibbles-in-pairs; this matrix: 100 failures in products of 12×256 outputs and at other M, "
        "worst 10 × the bound"
    )
    assert [not_diagnosed(report, t) for t in (first, second)] == ["", ""]
    words, command = not_diagnosed(report, last).splitlines()
    assert words.startswith(
        "not diagnosed by itself, and not explained by the diagnosis of another matrix; this matrix"
    )
    assert command.endswith("--rungs layers --tensor '^blk[.]2[.]attn_q[.]weight$'")
    said = message_of(report, second)  # of which no failure is listed
    assert "Wrong: 100 in the layers rung\n" in said
    assert f"Diagnosis: of {first}, the same cause: nibbles. Fix: swap them" in said
    assert "(2 of 3 matrices; 1 of another or unknown cause)" in str(report).splitlines()[-1]


def test_two_causes_of_a_tensor_are_none() -> None:
    rung = records.rung("layers")
    for cause in ("a", "a", "b", "a"):
        rung.attribute("t", cause)
    assert rung.causes == {"t": ""}


def test_everything_that_is_not_verified_raises() -> None:
    left, nothing = right(), Report(environment=records.environment(), rungs=[records.rung("layers")])
    left.rungs[0].unverified.append(Unverified("blk.9", "not covered"))
    for report, words in ((left, "blk.9: not covered"), (nothing, "checked nothing")):
        with pytest.raises(VerificationError, match=words):
            report.raise_for_mismatch()


def test_a_failure_is_repeated_by_its_call() -> None:
    report = wrong()
    repeat = report.repeat_of()
    assert (
        repeat == f"{COMMAND} --rungs layers --tensor '^blk[.]0[.]attn_q[.]weight$' --only-call other-m,m=7,n=128,k=256"
    )
    assert right().repeat_of() == COMMAND
    other = Failure("no call is known", "blk.1.attn_q.weight")
    report.rungs[0].failures = [other]
    assert report.repeat_of(other) == f"{COMMAND} --rungs layers --tensor '^blk[.]1[.]attn_q[.]weight$'"


@pytest.mark.parametrize(
    "call",
    [
        Call(kind="own"), Call(kind="probe", number=13, given=True, m=6, n=70, k=768),
        Call(kind="graft", number=1, use=21, first_row=4096),
    ],
)  # fmt: skip
def test_a_call_is_read_back(call: Call) -> None:
    assert Call.parse(call.id) == call


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "own,m", "own,m=x", "own,m=1,m=2", "own,size=4", "own,kind=3", "own,m=1" + "0" * 99, "\x1b[31m"],
)
def test_what_is_no_call(text: str) -> None:
    with pytest.raises(UsageError, match="--only-call") as caught:
        Call.parse(text)
    assert str(caught.value).isprintable()


def test_results_that_are_finished_cannot_be_changed() -> None:
    report = wrong()
    with pytest.raises(AttributeError):
        report.rungs[0].failures[0].row = 3  # type: ignore[misc]
    with pytest.raises(AttributeError):
        report.environment.options.seed = 3  # type: ignore[misc]
    assert issubclass(RungResult, msgspec.Struct)


def test_defaults_are_the_command_lines() -> None:
    from gguf_verify.cli.kernel_options import effort_of
    from gguf_verify.cli.verify import build_parser
    from gguf_verify.support.command_line import cores

    args, options = build_parser().parse_args(["model.gguf"]), Options()
    assert (args.n_predict, args.ctx_size) == (options.n_predict, options.ctx_size)
    assert effort_of(args) == {"probes": options.probes, "thorough": options.thorough}
    assert args.seed is None
    assert (args.time_limit, args.kernel_time_limit, args.reference) == (
        options.time_limit, options.kernel_time_limit, options.reference
    )  # fmt: skip
    assert (args.threads, options.threads) == (0, cores())


def test_all_public_names_are_there() -> None:
    for name in gguf_verify.__all__:
        assert getattr(gguf_verify, name) is not None
    assert callable(gguf_verify.audit_model)


def _audit(**fields: Any) -> Audit:
    return Audit(Path(HOSTILE), (), AuditHeader(file=HOSTILE, size=0, sha256=None), **fields)


def test_audits_and_identifications_too() -> None:
    assert _audit()
    left = _audit(unverified=[(HOSTILE, "not covered")])
    assert not left
    header = IdentifyHeader(**dict.fromkeys(IdentifyHeader.__dataclass_fields__, HOSTILE))
    header = replace(header, definition="q8_1")
    identified = IdentifyReport(header, unable=[(HOSTILE, "why")], command="gguf-verify identify k x")
    judged = Judged(
        file="m.gguf", tensor=HOSTILE, type="Q4_0", sha256=(), m=0, n=1, k=32, first_row=0, output="float32",
        claimed="auto", definition="auto", candidates=(), wrong=0, outputs=0, utilisation=0.0, score=0.0, nmse=0.0,
        left=("x has no token",),
    )  # fmt: skip
    for result in (left, identified, judged):
        assert not result
        assert len(repr(result).splitlines()) == 1
        assert repr(result).isprintable()
        assert str(result)
        assert "<script" not in result._repr_html_()
        assert json.loads(result.to_json()) == result.to_dict()
        with pytest.raises(VerificationError) as caught:
            result.raise_for_mismatch()
        assert len(str(caught.value).splitlines()) <= 15
