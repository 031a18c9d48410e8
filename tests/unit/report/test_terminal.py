"""A run at the terminal: recordings, the last line, the order of a failing report, the size of a passing one."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from typing import Any

import msgspec
import pytest

from gguf_verify.cli import common
from gguf_verify.cli.explain import find_explanation
from gguf_verify.cli.parser import Parser
from gguf_verify.cli.runs.live import Live
from gguf_verify.kernels.foreign.conversation import _trace
from gguf_verify.report.terminal.failures import as_lines
from gguf_verify.report.writer import Form, Kind, Writer, writers
from gguf_verify.results.costs import GemmCost, QuantizationCosts, TextCost
from gguf_verify.results.coverage import CodeCoverage, NeverRan
from gguf_verify.results.diagnoses import FaultMatch
from gguf_verify.results.failures import Failure, Unverified
from gguf_verify.results.report import Report
from gguf_verify.support.errors import KernelFault
from gguf_verify.support.text import visible
from gguf_verify.verification.climb import Failed, RungEnds
from tests.support import recordings, records
from tests.support.recordings import FOLDER, PIPED, RECORDINGS, failing, interrupted, passing, path_of, stranger
from tests.support.shown import json_of, text_of, written


@pytest.mark.parametrize("name", RECORDINGS)
def test_recordings(name: str) -> None:
    """`python -m tests.support.recordings` writes them anew."""
    assert RECORDINGS[name]() == path_of(name).read_text(encoding="utf-8")


def test_every_recording_is_made() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(RECORDINGS)


def piped(report: Report) -> list[str]:
    return text_of(Kind.RUN, report, width=80).splitlines()


@pytest.mark.parametrize("name", [name for name in RECORDINGS if name.endswith("-piped")])
def test_a_pipe_gets_80_columns_without_colour(name: str) -> None:
    text = path_of(name).read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert not re.search("[░▒▓█]", text)
    lines = [line for line in text.splitlines() if not line.startswith("repeat with: ")]
    assert max(map(len, lines[:-1])) <= 80  # the last line is one line


def test_a_terminal_gets_colour_and_its_width() -> None:
    wide, plain = (path_of(f"fail-wide{end}").read_text(encoding="utf-8") for end in ("", "-no-colour"))
    assert "\x1b[1;31mMISMATCH" in wide
    assert re.sub(r"\x1b\[[0-9;]*m", "", wide) == plain
    assert "▒" in plain
    assert 80 < max(map(len, plain.splitlines()[:-1])) <= 120


# ---- a pass ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [passing, stranger, lambda: passing(("Q4_0", "Q6_K"), 30)])
@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_pass_fits_a_screen(make: object, width: int) -> None:
    assert callable(make)
    lines = text_of(Kind.RUN, make(), width=width).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    assert lines[-1].startswith("VERIFIED in ")


def test_a_pass_says_what_was_not_covered() -> None:
    text = "\n".join(piped(stranger()))
    assert "skipped     7: indices past 2^31, launch limits, other orders of threads" in text
    assert "products made again\n" in text
    assert "4 envelopes in all (-v)" in text


def test_what_was_not_looked_for_is_the_first_note() -> None:
    rung = records.rung("layers")
    rung.note("of no weight")
    rung.note("races were not looked for", first=True)
    rung.note("races were not looked for", first=True)
    assert rung.notes == ["races were not looked for", "of no weight"]


@pytest.mark.parametrize("make", [passing, stranger, failing, interrupted])
def test_nothing_is_lost_with_v(make: object) -> None:
    """Every note, envelope, worst, digest, failure and detail."""
    assert callable(make)
    report: Report = make()
    text = text_of(Kind.RUN, report, detail=1)
    for rung in report.rungs:
        for line in (*rung.notes, *rung.figures, *(w.where for w in rung.worst.values())):
            assert line in text
        for e in rung.envelopes:
            for part in (e.tokens, e.rows, e.columns, *e.values, *e.indices, *e.grids, *(w for w, _ in e.not_covered)):
                assert part in text
        for failure in rung.failures:
            assert text.count(f"FAILED {rung.name}: {failure.what}") == 1
    of = report.environment
    for part in (*of.file.sha256, of.file.path[:200], of.host.chosen, of.versions.ggml, of.kernel.order):
        assert part in text


@pytest.mark.parametrize("make", [passing, failing])
def test_a_narrow_terminal_keeps_the_columns_of_tables(make: object) -> None:
    assert callable(make)
    lines = text_of(Kind.RUN, make(), width=60).splitlines()
    assert max(len(line) for line in lines[:-1] if not line.startswith(("repeat with: ", "sha256", "  token"))) <= 60
    assert any(re.fullmatch(r"rung +verdict +checked +worst +seconds", line) for line in lines)


# ---- a failure -------------------------------------------------------------------------------------------------------


def test_the_answer_comes_last() -> None:
    text = "\n".join(piped(failing()))
    order = [
        "kernel      q8_1", "rung    verdict", "failures by tensor", "-v shows 1 more of 131,325 failures",
        "FAILED blocks: kernel: blk.1", "  got -0.0018, expected -0.0077, bound 7.9e-07", "  x-ray: d = ",
        "  row       0 ", "DIAGNOSIS of", "    fix: the codes of Q8_1", "at fault: the kernel", "repeat with: ",
        "\nMISMATCH: ",
    ]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.count("FAILED") == 1
    assert text.count("DIAGNOSIS") == 1


FIXES = "the codes of Q8_1 are sequential: code k belongs to value k; or: the low nibble of byte j is value j, its high"


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (passing, "VERIFIED in 6.0 s: 4 of 4 rungs passed"),
        (failing, "MISMATCH: activations-interleaved or nibbles-in-pairs (1 of 21 matrices) · fix: "
         f"{FIXES} nibble value j + 16 · more: gguf-verify explain activations-interleaved"),
        (recordings.raising, "MISMATCH: ValueError: cannot reshape array of size 4608 into shape (3,7), at "
         "my_kernel.py:19 in helper (3 of 21 matrices) · more: gguf-verify explain kernel"),
        (recordings.unverified, "BROKEN OFF in 6.0 s: 2 of 4 rungs passed · first: tokens: llama.cpp died in graft "
         "(SIGSEGV) · more: gguf-verify explain llama.cpp"),
        (interrupted, "INTERRUPTED in 6.0 s: 2 of 4 rungs passed · first: interrupted by SIGINT · more: "
         "gguf-verify explain interrupted"),
    ],
    ids=["pass", "fail", "raises", "broken off", "interrupted"],
)  # fmt: skip
def test_the_last_line_says_what_to_do_and_is_all_of_q(make: Callable[[], Report], line: str) -> None:
    assert piped(make())[-1] == line
    assert text_of(Kind.RUN, make(), width=80, detail=-1) == f"{line}\n"
    if " explain " in line:
        find_explanation(line.rpartition(" ")[2])


def test_the_last_line_counts_the_matrices_of_the_rungs_that_failed() -> None:
    report = failing()
    (record, *_) = report.rungs[1].details
    report.rungs[0].details = [msgspec.structs.replace(record, tensor=f"norm.{i}") for i in range(30)]
    assert " (1 of 21 matrices) · " in piped(report)[-1]


def diagnosed(report: Report, **fields: Any) -> str:
    """The last line, with another diagnosis."""
    assert report.rungs[2].diagnosis is not None
    report.rungs[1].diagnosis = None
    report.rungs[2].diagnosis = msgspec.structs.replace(report.rungs[2].diagnosis, **fields)
    return piped(report)[-1]


def test_the_last_line_of_other_diagnoses() -> None:
    one = FaultMatch("nibbles-in-pairs", "…", "read it otherwise.", 1.0, 0.2, True)
    known = diagnosed(failing(), faults=(one,))
    assert known.startswith("MISMATCH: nibbles-in-pairs (1 of 21 matrices) · fix: read it otherwise · more: ")
    advice = "it computes f32, not q8_1 as declared; declare f32"
    other = diagnosed(failing(), verdict="another definition", faults=(), definitions=("f32",), lines=(advice,))
    assert other == f"MISMATCH: {advice} (1 of 21 matrices) · more: gguf-verify explain kernel"
    unknown = diagnosed(failing(), verdict="unknown", faults=(), lines=("unknown: no fault explains it",))
    assert unknown.startswith("MISMATCH: cause unknown (1 of 21 matrices) · first: kernel: blk.1.attn_k.weight row 17")


def test_a_map_whose_cells_are_all_wrong_is_not_drawn() -> None:
    report = failing()
    rung = report.rungs[2]
    assert rung.heat_map is not None
    rows = [[57.0] * len(row) for row in rung.heat_map.utilisation]
    wrong = [[1] * len(row) for row in rung.heat_map.wrong]
    rung.heat_map = msgspec.structs.replace(rung.heat_map, utilisation=rows, wrong=wrong)
    shown = " ".join(" ".join(piped(report)).split())  # with a known cause, not even in words
    assert "utilisation of blk.1" not in shown
    assert "Every cell" not in shown
    text = " ".join(" ".join(piped_of_unknown(report)).split())
    assert "Every cell is wrong, with utilisation 57" in text
    assert "token  0" not in text


def piped_of_unknown(report: Report) -> list[str]:
    diagnosed(report, verdict="unknown", faults=(), lines=("unknown",))
    return piped(report)


def test_lines_of_source_are_shown_as_compilers_do() -> None:
    lines = piped(recordings.raising())
    at = lines.index("    --> my_kernel.py:19 in helper")
    assert lines[at + 1 : at + 3] == ["  19 | return w.reshape(3, 7)", "     | ^^^^^^^^^^^^^^^^^^^^^^"]
    assert not any("tools.py" in line for line in lines)  # an installed package's
    assert "    tools.py:3 in call: return function(x)" in text_of(Kind.RUN, recordings.raising(), detail=1)


def test_lines_of_source_are_escaped_once_and_are_not_in_the_last_line() -> None:
    """As they arrive from the kernel's process; a backslash of the source stays one."""
    code = 't = "a\\n\\\\b" + 1 # (0 of 1 matrix)'
    error = raised_at(f"{code}\x1b\n")
    report = passing()
    report.rungs[1].fail(Failure.of(error, f"blk.0.attn_q.weight: {error}", "blk.0.attn_q.weight"))
    lines = piped(report)
    at = lines.index("   --> k.py:4 in gemm")
    assert lines[at + 1 : at + 3] == [f"  4 | {code}\\x1b", f"    | {'^' * (len(code) + 4)}"]
    assert sum("0 of 1 matrix" in line for line in lines) == 1
    assert lines[-1].startswith('MISMATCH: TypeError: no "\\x1b" \\o, at k.py:4 in gemm (1 of ')
    long = msgspec.structs.replace(report.rungs[1].failures[0], what=f"w: the kernel raised TypeError: {'x' * 500}")
    report.rungs[1].failures = [long]
    assert f"TypeError: {'x' * 120}…, at k.py:4 in gemm (1 of " in piped(report)[-1]


def test_a_cause_that_is_no_exception_is_a_sentence_in_the_last_line() -> None:
    for what, cause in (
        ("the kernel crashed: its process died of SIGSEGV", "SIGSEGV"),
        ("the kernel returned float64[2, 64], expected float32[2, 64]", "float64 for float32"),
    ):
        report = passing()
        report.rungs[1].fail(Failure(f"w: {what}", "w", cause=cause))
        assert piped(report)[-1].startswith("MISMATCH: the kernel is at fault (1 of ")
        assert f" · first: w: {what} · " in piped(report)[-1]


def raised_at(code: str) -> KernelFault:
    """The fault of an exception at a line, read from a kernel's process."""
    place = "k.py:4 in gemm"
    fault = KernelFault(visible(f'the kernel raised TypeError: no "\x1b" \\o; at {place}: {code.strip()}', 600))
    fault.cause, fault.trace = f"TypeError at {place}", _trace([[place, code.strip(), True]])
    return fault


def test_a_branch_that_was_never_taken_is_shown_with_its_line() -> None:
    report = passing()
    never = NeverRan(file="k.cu", line=7, last=7, source="if (M > 5) return;", branch=True)
    coverage = CodeCoverage(lines=9, lines_run=9, branches=4, branches_run=3, n_never=1, never=(never,) * 2)
    kernel = msgspec.structs.replace(report.environment.kernel, coverage=coverage)
    report.environment = msgspec.structs.replace(report.environment, kernel=kernel)
    assert piped(report)[-6:-1] == [
        "not run: went one way only",
        " --> k.cu:7",
        "7 | if (M > 5) return;",
        "  | ^^^^^^^^^^^^^^^^^^",
        "not run: k.cu:7 went one way only: if (M > 5) return;",
    ]


def test_the_activations_that_the_block_meets_stand_beside_it() -> None:
    """Of several blocks of activations, the first; the type of the weights is the failure's own where it has one."""
    report = failing()
    rung = report.rungs[1]
    block = "003c0040" + "05" * 31 + "fb"
    met = msgspec.structs.replace(
        rung.failures[0], activation_type="Q8_1", activation_hex=2 * block, block_type="Q4_1",
        block_hex="003c0040" + "21" * 16,
    )  # fmt: skip
    rung.failures[0] = met
    lines = piped(report)
    at = lines.index("  meets: d = 1, s = 2")
    assert lines[at - 3 : at] == [
        "  x-ray: d = 1, m = 2",
        "  qs   21" + 15 * " 21",
        "  q   " + 16 * " 1" + 16 * " 2",
    ]
    assert lines[at + 2].startswith("  q    5 5 5 5")


@pytest.mark.parametrize(
    ("kind", "digits", "shown"),
    [
        ("F32", "0000803f 000000c0", "1 -2"),
        ("F16", "003c 00c0 01", "1 -2"),
        ("BF16", "803f 00c0", "1 -2"),
        ("F16", "003c" * 65, "1 " * 64 + "…"),
    ],
    ids=["F32", "F16-and-a-byte-more", "BF16", "many"],
)
def test_activations_that_are_not_quantized_are_shown_as_numbers(kind: str, digits: str, shown: str) -> None:
    """Their bits, or bytes, would tell nobody anything."""
    assert as_lines(kind, digits.replace(" ", ""), "meets") == [f"meets: {shown}"]


def test_the_diagnosis_that_says_most_is_shown() -> None:
    report = failing()
    first, second = report.rungs[1], report.rungs[2]
    assert "unknown" not in "\n".join(piped(report)).split("FAILED")[0]
    first.diagnosis, second.diagnosis = second.diagnosis, None
    assert "fix: the codes of Q8_1" in "\n".join(piped(report))
    second.diagnosis = first.diagnosis
    assert "the diagnosis of other rungs (blocks) says the same: see -v" in "\n".join(piped(report))


def test_failures_by_tensor() -> None:
    report = failing()
    names = [f"blk.{i}.attn_q.weight" for i in range(9)]
    report.rungs[1].details = []
    report.rungs[1].failures, report.rungs[1].failing = [], {}
    report.rungs[1].n_failures = 0
    for name in names:
        report.rungs[1].fail(Failure("wrong", name))
    report.rungs[1].fail_more("kernel", 31, "")
    lines = piped(report)
    start = lines.index(next(line for line in lines if line.startswith("failures by tensor")))
    table = [line.split() for line in lines[start + 1 : start + 8]]
    assert table[-1] == ["…", "all", "others", "34", "128,765"]
    assert sum(int(row[-2].replace(",", "")) for row in table) == 40
    assert sum(int(row[-1].replace(",", "")) for row in table) == 128765


def test_a_cause_is_recorded_once_and_counted() -> None:
    report = recordings.raising()
    rung = report.rungs[1]
    assert (len(rung.failures), rung.n_failures) == (1, 3)
    assert rung.failures[0].what.startswith("blk.0.attn_q.weight: the kernel raised ValueError")
    rung.fail(Failure("another", cause="KeyError at my_kernel.py:3 in gemm"))
    rung.fail(Failure("without a cause"))
    rung.fail(Failure("without a cause"))
    assert len(rung.failures) == 4


# ---- runs that ended early -------------------------------------------------------------------------------------------


def test_an_interrupted_run_is_no_pass() -> None:
    for name, code in (("SIGINT", 130), ("SIGTERM", 3), ("SIGHUP", 3)):
        report = interrupted()
        report.ended_by = name  # type: ignore[assignment]
        assert (report.verdict, report.exit_code) == ("interrupted", code)
        assert report.culprits == {"coverage": 1}
        recordings_text = "\n".join(piped(report))
        assert recordings_text.rpartition("\n")[2].startswith("INTERRUPTED in ")
        assert "VERIFIED" not in recordings_text
        made = json_of(Kind.RUN, report)
        assert (made["verdict"], made["ended_by"], made["not_climbed"]) == ("interrupted", name, ["tokens"])
    known = interrupted(known=True)
    assert (known.verdict, known.exit_code) == ("mismatch", 1)
    assert known.culprits == {"kernel": 131325}


def test_a_run_whose_budget_was_spent_is_no_pass() -> None:
    """Also where every rung passed: then what was left is in none of them."""
    report = passing()
    report.ended_by = "budget"
    assert (report.verdict, report.exit_code, report.culprits) == ("not everything verified", 5, {"coverage": 1})
    made = recordings.out_of_time()
    assert (made.verdict, made.exit_code) == ("not everything verified", 5)
    assert made.unfinished == (
        "the budget of 2m was spent; it left unverified: 14 tensors in the blocks rung, 14 tensors in the layers rung; "
        "rungs that were not begun: tokens"
    )
    assert " ".join(piped(made)).count("it left unverified") == 1
    made.rungs[2].leave("blk.9.attn_q.weight", "its activations are not finite")
    left = [line for line in piped(made) if line.startswith("NOT VERIFIED")]
    assert left == ["NOT VERIFIED layers: blk.9.attn_q.weight: its activations are not finite"]
    made.rungs[1].fail(Failure("wrong", "blk.0.attn_q.weight"))
    assert (made.verdict, made.exit_code) == ("mismatch", 1)


def test_a_run_that_verified_nothing_says_so() -> None:
    report = recordings.out_of_time()
    assert piped(report)[-1].startswith("NOT EVERYTHING VERIFIED in ")
    for rung in report.rungs:
        rung.checked.clear()
    assert report.verdict == "not everything verified"
    assert piped(report)[-1].startswith("NOTHING VERIFIED in ")


def test_the_last_line_of_costs_is_about_what_was_measured() -> None:
    report = passing()
    del report.rungs[1:]
    source = report.environment.file
    gemms = tuple(
        GemmCost(
            tensor=f"blk.0.{kind}.weight", matrix=None, layer="blk.0", kind=kind, type="Q4_0", source_type="F16", m=1,
            n=2, k=32, error=error,
        )
        for kind, error in (("attn_q", 0.02), ("attn_k", 0.06))
    )  # fmt: skip
    text = TextCost(
        text="t", sha256="", tokens=9, chunk=9, chunks=1, scored=4, perplexity=2.0, source_perplexity=2.0,
        kl_mean=0.01, kl_max=0.1, kl_percentiles={}, top1=1.0,
    )  # fmt: skip
    left = (("predictions of tokens", "llama.cpp died"),)
    for costs, words in (
        (QuantizationCosts(source=source, gemms=gemms, text=text),
         "COST in 6.0 s: mean error 4 % of 2 products, KL 0.01 over 4 predictions"),
        (QuantizationCosts(source=source, gemms=gemms, left=left),
         "COST in 6.0 s: mean error 4 % of 2 products; not measured: predictions of tokens: llama.cpp died"),
        (QuantizationCosts(source=source, text=text),
         "NOT EVERYTHING MEASURED in 6.0 s: KL 0.01 over 4 predictions; not measured: matrix products"),
        (QuantizationCosts(source=source, left=left),
         "NOTHING MEASURED in 6.0 s: predictions of tokens: llama.cpp died"),
    ):  # fmt: skip
        report.costs = costs
        lines = piped(report)
        assert lines[-1] == words
        assert not any(line.startswith(("kernel ", "skipped ")) for line in lines)
        assert text_of(Kind.RUN, report, width=80, detail=-1) == f"{words}\n"
    report.rungs[0].fail(Failure("wrong bytes"))
    assert piped(report)[-1].startswith("MISMATCH: ")


def test_a_run_whose_rungs_all_passed_and_that_was_ended_is_no_pass() -> None:
    report = passing()
    report.ended_by = "SIGTERM"
    assert (report.verdict, report.exit_code) == ("interrupted", 3)
    report.ended_by, report.not_climbed = "", ("tokens",)
    assert (report.verdict, report.exit_code) == ("not everything verified", 5)
    report.not_climbed, report.changed = (), "by somebody"
    assert report.exit_code == 3


@pytest.mark.parametrize(
    "make", [interrupted, lambda: interrupted(known=True), recordings.exit_first, recordings.out_of_time]
)
def test_the_json_of_a_run_that_ended_early_is_valid(make: object) -> None:
    from tests.support.nights import validator

    assert callable(make)
    report = make()
    made = json_of(Kind.RUN, report)
    validator("run").validate(made)
    assert msgspec.convert(made, Report, strict=False) == report
    page = str(written("--html", Kind.RUN, report))
    assert "rungs that were not begun: " in page
    assert ">Verified</h1>" not in page


@pytest.mark.parametrize("make", [interrupted, recordings.exit_first, recordings.out_of_time])
@pytest.mark.parametrize(
    "writer", [w for w in writers(Kind.RUN) if w.flag != "--heat-map"], ids=lambda writer: writer.name
)
def test_every_report_says_what_ended_the_run(make: Callable[[], Report], writer: Writer) -> None:
    made = writer.renders[Kind.RUN](make(), Form(suffix=writer.suffixes[0] if writer.suffixes else ""))
    assert isinstance(made, str)
    text = " ".join(unescape(made).split())
    if writer.flag == "--json":
        assert make().ended_by in text
    elif writer.flag == "--card":
        assert "tokens: not run" in text
    else:
        assert "rungs that were not begun: " in text


# ---- while it runs ---------------------------------------------------------------------------------------------------


def test_lines_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    report = failing()
    live = Live(PIPED)
    live(RungEnds(report.rungs[0]))
    live(Failed(report.rungs[1], report.rungs[1].failures[0]))
    live(RungEnds(report.rungs[1]))
    live(Failed(report.rungs[2], report.rungs[2].failures[0]))
    live(Failed(report.rungs[2], report.rungs[2].failures[0]))  # of one output once, as in the report
    live(RungEnds(report.rungs[2]))
    captured = capsys.readouterr()
    assert captured.out == ""
    told = captured.err.splitlines()
    assert told[5].startswith("FAILED layers: ")
    assert told[-2] == "… 1 of 128,765 failures of the layers rung are shown"
    assert sum(line.startswith("FAILED") for line in told) == 2
    assert told[:5] == [
        "bytes   passed      1.5 s, 43,008 blocks, 21 tensors, 9 outputs, 6 tokens",
        "FAILED blocks: kernel: blk.1.attn_k.weight row 17 block 3 token 0: the output is",
        "  outside the bound",
        "… 1 of 2,560 failures of the blocks rung are shown",
        "blocks  failed      2,560 failures, 1.5 s, 43,008 blocks, 21 tensors, 9 outputs…",
    ]


# ---- which form ------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("set_to", "options", "form"),
    [
        ({"COLUMNS": "132"}, [], Form(width=132, colour=True, blocks=True)),
        ({"COLUMNS": "132", "NO_COLOR": "1"}, [], Form(width=132, blocks=True)),
        ({"COLUMNS": "132", "NO_COLOR": "1"}, ["--color=always"], Form(width=132, colour=True, blocks=True)),
        ({"COLUMNS": "132"}, ["--color=never", "-vv"], Form(width=132, blocks=True, detail=2)),
        ({"COLUMNS": "7"}, ["-q"], Form(width=common.LEAST_WIDTH, colour=True, blocks=True, detail=-1)),
        ({"COLUMNS": "132", "TERM": "dumb"}, ["-v"], Form(width=132, detail=1)),
    ],
)
def test_the_form_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, set_to: dict[str, str], options: list[str], form: Form
) -> None:
    parser = Parser()
    common.add_detail(parser, "more")
    args = parser.parse_args(options)
    for name in ("NO_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert common.form(args, piped_width=80) == form
    monkeypatch.setattr("sys.stdout", io.StringIO())
    piped = replace(form, width=80, colour="--color=always" in options, blocks=False)
    assert common.form(args, piped_width=80) == piped


def test_not_verified_lines_are_capped_and_whole_with_v() -> None:
    report = passing()
    report.rungs[2].unverified = [Unverified(f"blk.{i}.x.weight", "no kernel") for i in range(30)]
    assert "… and 20 in the layers rung" in piped(report)
    assert "blk.29.x.weight: no kernel" in text_of(Kind.RUN, report, detail=2)
