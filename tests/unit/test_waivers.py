"""Waivers: mistakes that are refused, the failures that they cover and never cover, and their place in each report."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import msgspec
import pytest

from gguf_verify import waivers
from gguf_verify.report.writer import Form, Kind, Writer
from gguf_verify.report.writers import HTML, MARKDOWN
from gguf_verify.results.diagnoses import FaultMatch, LocatedDiagnosis
from gguf_verify.results.failures import Failure, Unverified, WaiverUse
from gguf_verify.results.report import Report
from gguf_verify.results.rungs import RungResult
from gguf_verify.support.errors import UsageError
from gguf_verify.waivers import REFERENCE, Waiver, apply, read_waivers, refuse_everything
from tests.support import records
from tests.support.nights import SCRIPT, run_result, validator
from tests.support.shown import json_of, last_line, text_of
from tests.support.tools import ROOT

WRONG = "blk.1.attn_k.weight"
DAY, END = date(2026, 6, 1), date(2026, 12, 31)


def waiver(**keys: object) -> Waiver:
    return msgspec.convert({"reason": "issue 42", "until": END, **keys}, Waiver)


def failing(tensor: str = WRONG) -> Report:
    """A run of kernel q8_1 whose blocks and layers rungs fail in one tensor."""
    return run_result([tensor, "blk.0.attn_q.weight"], tensor)


def applied(report: Report, *held: Waiver, day: date = DAY) -> Report:
    return apply(report, held, day)


# ---- the file --------------------------------------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "waivers.toml"
    path.write_text(text)
    return path


def test_the_reference_has_every_key(tmp_path: Path) -> None:
    found = read_waivers(written(tmp_path, REFERENCE))
    assert {name for w in found for name in Waiver.__struct_fields__ if getattr(w, name) is not None} == set(
        Waiver.__struct_fields__
    )
    assert found[0].until == date(2027, 1, 31)


GOOD = 'reason = "r"\nuntil = 2027-01-31\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[waiver]]\ntensor = "t"\nuntil = 2027-01-31', r"waiver\[0\]\.reason: is missing"),
        ('[[waiver]]\ntensor = "t"\nreason = "r"', r"waiver\[0\]\.until: is missing"),
        ('[[waiver]]\ntensor = "t"\nreason = " "\nuntil = 2027-01-31', "reason: is empty"),
        ('[[waiver]]\ntensor = "t"\nreason = "r"\nuntil = "2027-01-31"', "until: must be a date"),
        ('[[waiver]]\ntensor = "t"\nreason = "r"\nuntil = 2027-01-31T00:00:00', "until: must be a date"),
        (f"[[waiver]]\n{GOOD}", "would waive everything"),
        ('[[waiver]]\ntensor = "t"\nreason = "\u200b"\nuntil = 2027-01-31', "reason: is empty"),
        *(
            (f"[[waiver]]\n{key} = '{pattern}'\n{more}{GOOD}", rf"waiver\[0\]\.{key}: matches everything")
            for key, more in (
                ("tensor", ""),
                ("rung", ""),
                ("model", "rung = 'layers'\n"),
                ("kernel", "rung = 'layers'\n"),
            )
            for pattern in ("*", "**", "?*", "*?", "[!z]*", ".*", "^.+$", "*[a-z]*", "*[!0]")
        ),
        *(
            (f"[[waiver]]\ntensor = '{pattern}'\n{GOOD}", r"\.tensor: matches everything")
            for pattern in ("*.weight", "*weight*", "*e*", "*.w[a-z]ight")
        ),
        (f"[[waiver]]\nrung = '[blt]*s'\n{GOOD}", r"\.rung: matches everything"),
        (f"[[waiver]]\nmodel = '*.gguf'\ntensor = 't'\n{GOOD}", r"\.model: matches everything"),
        (f"[[waiver]]\ntensor = ['*']\n{GOOD}", r"\.tensor: must be a string"),
        *(
            (f"[[waiver]]\nfinding = '{f}'\n{GOOD}", r"\.finding: must be the id")
            for f in ("GGUF", "GGUF-", "GGUF-*", "G*")
        ),
        (f'[[waiver]]\nkernel = "k"\n{GOOD}', "would waive everything"),
        (f'[[waiver]]\nfinding = "GGUF-107"\nrung = "layers"\n{GOOD}', "has no kernel, rung or fault"),
        (f'[[waiver]]\ntensr = "t"\n{GOOD}', r"waiver\[0\]\.tensr: unknown key; known keys: reason"),
        (f"[[waiver]]\ntensor = 3\n{GOOD}", r"waiver\[0\]\.tensor: must be a string"),
        (f'[waiver]\ntensor = "t"\n{GOOD}', "waiver: must be a list"),
        ("[[waivers]]", "waivers: unknown key; known keys: waiver"),
        ("\x1b[31m", "not valid TOML"),
        ("[[waiver]]\n" * 1001, "the limit is 1,000"),
        ("x = " + "[" * 100_000, "not valid TOML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as raised:
        read_waivers(written(tmp_path, text))
    assert str(raised.value).startswith("waivers.toml: ")
    assert "\n" not in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_waivers_that_together_cover_everything_are_refused() -> None:
    tensors, rungs = ["token_embd.weight", "blk.0.attn_q.weight", "blk.1.ffn_up.weight"], ["bytes", "blocks", "layers"]

    def refused(*held: Waiver) -> bool:
        try:
            refuse_everything(held, "m.gguf", "q8_1", tensors, rungs)
        except UsageError as error:
            return str(error).startswith("the waivers together cover every tensor of this model in every rung: ")
        return False

    assert refused(waiver(tensor="blk.*"), waiver(tensor="token*"))
    assert refused(*(waiver(rung=name) for name in rungs))
    assert refused(waiver(rung="b*"), waiver(rung="layers", tensor="blk.*"), waiver(tensor="token*"))
    assert not refused(waiver(tensor="blk.*"))
    assert not refused(waiver(tensor="blk.*"), waiver(tensor="token*", kernel="other"))
    assert not refused(waiver(tensor="blk.*"), waiver(tensor="token*", fault="code-order"))
    assert not refused(waiver(rung="layers"))
    assert not refused(*(waiver(tensor=name) for name in tensors)), "each is named"
    assert not refused()


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the waivers no\.toml: No such file"):
        read_waivers(tmp_path / "no.toml")


# ---- what is covered -------------------------------------------------------------------------------------------------


def test_a_run_whose_failures_are_all_waived_is_not_called_verified() -> None:
    assert failing().exit_code == 1
    report = applied(failing(), waiver(tensor=WRONG))
    assert (report.exit_code, report.verdict) == (0, "waived")
    assert report.words == "verified with 2 waived failures"
    assert [r.verdict for r in report.rungs] == ["passed", "waived", "waived", "passed"]
    assert report.culprits == {}
    assert report.waivers == [
        WaiverUse(what=f"tensor {WRONG}", reason="issue 42", until="2026-12-31", state="applied", failures=2)
    ]


@pytest.mark.parametrize(
    "keys",
    [
        {"tensor": "blk.0.*"}, {"tensor": WRONG, "rung": "layers"}, {"tensor": WRONG, "kernel": "f32"},
        {"tensor": WRONG, "model": "other.gguf"}, {"tensor": WRONG, "fault": "code-order"}, {"rung": "tokens"},
        {"finding": "GGUF-107"}, {"tensor": "BLK.1.*"},
    ],
)  # fmt: skip
def test_a_waiver_that_does_not_match_everything(keys: dict[str, str]) -> None:
    report = applied(failing(), waiver(**keys))
    assert (report.exit_code, report.verdict, report.words) == (1, "mismatch", "mismatch")


@pytest.mark.parametrize(
    "keys",
    [{"tensor": "blk.*.attn_[kq].weight"}, {"tensor": WRONG, "kernel": "q8_1", "model": "tiny-*.gguf"}],
)
def test_patterns_match_as_in_a_shell(keys: dict[str, str]) -> None:
    assert applied(failing(), waiver(**keys)).exit_code == 0


def test_several_waivers_add_up() -> None:
    report = applied(failing(), waiver(tensor=WRONG, rung="layers"), waiver(rung="blocks"))
    assert (report.exit_code, [use.failures for use in report.waivers]) == (0, [1, 1])


def test_a_fault_must_be_the_one_that_the_diagnosis_names() -> None:
    def diagnosed(fault: str) -> Report:
        report = failing()
        report.rungs[2].diagnosis = LocatedDiagnosis(
            tensor=WRONG, where=WRONG, who="kernel", row=1, token=0, block=0, verdict="known fault", wrong=1,
            outputs=2, faults=(FaultMatch(fault, "words", "fix", 1.0, 0.1, False),),
        )  # fmt: skip
        return report

    held = waiver(tensor=WRONG, fault="code-order")
    assert applied(diagnosed("code-order"), held).exit_code == 0
    assert applied(diagnosed("rows-backwards"), held).exit_code == 1


def test_failures_that_are_not_recorded_one_by_one_count() -> None:
    """A report holds 20 failures; the one of another tensor is beyond them."""
    report = failing()
    for _ in range(30):
        report.rungs[1].fail(Failure("x", WRONG))
    report.rungs[1].fail_more("kernel", 1, "blk.0.attn_q.weight")
    assert applied(report, waiver(tensor=WRONG)).exit_code == 1
    assert applied(report, waiver(tensor="blk.*")).exit_code == 0


def test_unchecked_tensors_are_never_waived() -> None:
    held = waiver(tensor="*")
    report = failing()
    report.rungs[3].unverified.append(Unverified(WRONG, "no kernel", WRONG))
    assert applied(report, held).exit_code == 5
    report = failing()
    report.rungs[3].fault = "llama.cpp died"
    assert applied(report, held).exit_code == 3
    report = failing()
    report.rungs[2].checked = {}
    assert applied(report, held).exit_code == 5
    report = failing()
    report.changed = "it was replaced"
    assert applied(report, held).exit_code == 3
    assert applied(Report(environment=records.environment()), held).exit_code == 5


def test_an_unlisted_failure_is_not_waived() -> None:
    """A rung whose counts do not add up fails."""
    rung = RungResult(name="layers", substance=("outputs",), checked={"outputs": 1})
    rung.fail(Failure("x", "t"))
    rung.n_failures += 1
    report = Report(environment=records.environment(), rungs=[rung])
    assert applied(report, waiver(tensor="t")).exit_code == 1


# ---- dates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("day", "code"), [(END, 0), (date(2027, 1, 1), 1)])
def test_the_last_day_counts_and_the_next_does_not(day: date, code: int) -> None:
    report = applied(failing(), waiver(tensor=WRONG), day=day)
    assert report.exit_code == code
    assert report.waivers[0].state == ("expired" if code else "applied")


def test_an_expired_waiver_does_not_hide_a_valid_one() -> None:
    old = waiver(tensor=WRONG, until=date(2020, 1, 1))
    report = applied(failing(), old, waiver(tensor="blk.1.*"))
    assert report.exit_code == 0
    assert [(use.state, use.failures) for use in report.waivers] == [("expired", 0), ("applied", 2)]


def test_today_is_a_day_of_utc() -> None:
    assert type(waivers.today()) is date


# ---- reports ---------------------------------------------------------------------------------------------------------


def test_the_terminal_lists_each_waiver() -> None:
    held = waiver(tensor=WRONG), waiver(tensor="none.*"), waiver(rung="layers", until=date(2020, 1, 1))
    shown = text_of(Kind.RUN, applied(failing(), *held))
    assert f"WAIVED tensor {WRONG}: 2 failures, until 2026-12-31: issue 42" in shown
    assert "UNUSED WAIVER tensor none.*: matched nothing" in shown
    assert "ERROR: WAIVER EXPIRED rung layers: expired on 2020-01-01" in shown
    assert "VERIFIED WITH 2 WAIVED FAILURES in " in shown
    assert "VERIFIED in" not in shown
    assert "FAILED" not in shown


def test_an_expired_waiver_is_an_error_line_and_the_run_fails() -> None:
    shown = text_of(Kind.RUN, applied(failing(), waiver(tensor=WRONG), day=date(2027, 6, 1)))
    said = f"ERROR: WAIVER EXPIRED tensor {WRONG}: expired on 2026-12-31, covers nothing (2 failures would match)"
    assert f"{said}: issue 42" in shown
    assert last_line(shown).startswith("MISMATCH: ")
    assert "FAILED blocks" in shown


def test_json_fits_the_schema_and_is_read_back() -> None:
    report = applied(failing(), waiver(tensor=WRONG))
    made = json_of(Kind.RUN, report)
    validator("run").validate(made)
    assert (made["verdict"], made["exit_code"], made["waivers"][0]["state"]) == ("waived", 0, "applied")
    back = msgspec.convert(made, Report, strict=False)
    assert (back.verdict, back.words) == (report.verdict, report.words)


@pytest.mark.parametrize("writer", [HTML, MARKDOWN], ids=["html", "markdown"])
def test_pages_list_waivers(writer: Writer) -> None:
    report = applied(failing(), waiver(tensor=WRONG, reason=SCRIPT))
    made = str(writer.renders[Kind.RUN](report, Form()))
    assert "erified with 2 waived failures" in made
    assert "applied" in made
    assert SCRIPT not in made


def test_texts_of_the_file_are_escaped() -> None:
    shown = text_of(Kind.RUN, applied(failing(), waiver(tensor=WRONG, reason="\x1b[31mred")))
    assert "\\x1b[31mred" in shown
    assert "\x1b" not in shown


def test_the_page_shows_the_reference() -> None:
    assert f"```toml\n{REFERENCE}```" in (ROOT / "docs" / "ci.md").read_text()
