"""The report of a verification run: the answer first, the rest with `-v`.

A failing report has the verdict and who is at fault, the diagnosis with its fix, the map of the first wrong GEMM, the
first failure, the failures by tensor and how to repeat the run. A passing one says in at most `MOST_LINES` lines of 80
columns what was checked, how far inside the bounds the outputs are, and for which products the verdict holds.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...results.diagnoses import LocatedDiagnosis
from ...results.failures import CULPRITS, Failure, Unverified
from ...results.products import TypeEnvelope
from ...results.report import Report
from ...results.rungs import RungResult
from ...support.command_line import shown
from ...support.text import ELLIPSIS, printable
from .. import grid
from ..writer import Form
from . import costs, waivers
from .block import as_lines
from .console import BAD, BOLD, DIM, LABEL, STYLES, WARN, capped, cut, facts, rendered, said, table, wrapped
from .heat_map import as_text

#: Lines of a passing report without -v, at 80 columns.
MOST_LINES = 24
#: What is shown without -v; the rest is counted.
MOST_NOTES, MOST_UNVERIFIED, MOST_TENSORS, MOST_ENVELOPES, MOST_DIAGNOSES = 3, 10, 6, 2, 4
MOST_FAILURES = 20
_HEX_DIGITS = 128
_INDENT = "  "
#: What a report of drawn data begins with.
DRAWN_MEANS = "on random data (no model)"


def render(report: Report, form: Form) -> str:
    """The report; with `verbose` also everything else that was found, and one line a tensor, GEMM or token."""
    return rendered(_parts(report, form), form)


def _parts(report: Report, form: Form) -> Iterator[RenderableType]:
    top: list[RenderableType] = [*_verdict(report, form)]
    if report.n_failures:
        top += _wrong(report, form)
    top += [*_left(report, form), *_waived(report, form), *_repeat(report), "", _rungs(report), ""]
    yield from top
    if report.costs is not None:
        yield from costs.parts(report.costs)
        yield ""
    if report.n_failures:
        yield facts(_fitted([*_about(report)], form, MOST_LINES))
        if not form.verbose:
            yield from wrapped(Text(f"-v shows {_more(report)}", DIM), form.width)
    else:
        yield from _holds(report, form, rendered(top, form).count("\n"))
    if form.verbose:
        yield from _rest(report, form)


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _verdict(report: Report, form: Form) -> Iterator[Text]:
    passed = sum(rung.verdict == "passed" for rung in report.rungs)
    verdict = (report.headline, STYLES[report.verdict])
    asked = len(report.rungs) + len(report.not_climbed)
    yield said(verdict, f" in {report.seconds:.1f} s: {passed} of {asked} rungs passed")
    if report.drawn is not None:
        yield from wrapped(Text(f"{DRAWN_MEANS}: {report.drawn.words}"), form.width, _INDENT)
    if report.culprits:
        yield from wrapped(Text(f"at fault: {report.at_fault}"), form.width)
    for hint in report.environment.kernel.hints if report.n_failures else ():
        yield from wrapped(said(("hint: ", BOLD), printable(hint, 300)), form.width, _INDENT)
    if means := report.environment.kernel.verified_means:
        yield from wrapped(Text(f"verified here means: {means}"), form.width)
    for limit in report.limits[:2] if not report.n_failures else ():
        yield from wrapped(said(("limit: ", BOLD), printable(limit, 400)), form.width, _INDENT)
    if report.unfinished:
        yield from wrapped(said(("INCOMPLETE: ", WARN), report.unfinished), form.width, _INDENT)
    if report.fault:
        yield from wrapped(said(("BROKEN OFF: ", WARN), printable(report.fault, 600)), form.width, _INDENT)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def _wrong(report: Report, form: Form) -> Iterator[RenderableType]:
    explained = report.diagnosed
    for rung, diagnosis in explained[:MOST_DIAGNOSES]:
        yield ""
        yield from _diagnosis(diagnosis, form)
        if diagnosis is explained[0][1]:
            others = [r for r in report.rungs if r.diagnosis is not None and r is not rung]
            if others and not form.verbose:
                agree = all(_says_the_same(diagnosis, other) for r in others for other in r.diagnoses[:1])
                how, names = "says the same" if agree else "says more", ", ".join(r.name for r in others)
                yield Text(f"{_INDENT}the diagnosis of other rungs ({names}) {how}: see -v", DIM)
    if len(explained) > MOST_DIAGNOSES:
        yield Text(f"{_INDENT}{len(explained) - MOST_DIAGNOSES} more types are wrong: see -v", DIM)
    drawn = explained[0][0] if explained else next((rung for rung in report.rungs if rung.heat_map is not None), None)
    # of another call than the diagnosis, a map would mislead
    if drawn is not None and drawn.heat_map is not None and (not explained or drawn.diagnosis is explained[0][1]):
        yield ""
        yield from _map(drawn, form)
    if report.failures:
        yield ""
        rung, failure = report.failures[0]
        kind = failure.block_type or report.tensor_types.get(failure.tensor, "")
        yield from _failure(rung, failure, kind, form)
        yield from _again(report, failure)
    yield ""
    yield _by_tensor(report)


def _says_the_same(one: LocatedDiagnosis, other: LocatedDiagnosis) -> bool:
    return (one.verdict, {f.id for f in one.faults}) == (other.verdict, {f.id for f in other.faults})


def _diagnosis(d: LocatedDiagnosis, form: Form) -> Iterator[Text]:
    yield from wrapped(said(("DIAGNOSIS ", BOLD), _located(d)), form.width, _INDENT)
    for line in d.lines:
        words, _, fix = printable(line, 600).partition(". Fix: ")
        yield from wrapped(Text(_INDENT + words), form.width, 2 * _INDENT)
        if fix:
            yield from wrapped(said(2 * _INDENT, ("fix: ", BOLD), fix), form.width, 3 * _INDENT)
    for name in dict.fromkeys(f.id for f in d.faults):
        yield Text(f"{_INDENT}more: gguf-verify explain {name}", DIM)


def _located(d: LocatedDiagnosis) -> str:
    block = "" if d.block is None else f" block {d.block}"
    return (
        f"of the first wrong GEMM, {printable(d.tensor, 64)}: {printable(d.who, 80)}, first wrong at row {d.row} "
        f"token {d.token}{block}"
    )


def _map(rung: RungResult, form: Form) -> Iterator[Text]:
    assert rung.heat_map is not None
    for line in as_text(grid.of_gemm(rung.heat_map), form.blocks):
        yield from wrapped(Text(_INDENT + line), form.width, 2 * _INDENT)


def _failure(rung: RungResult, f: Failure, kind: str, form: Form) -> Iterator[Text]:
    """The first failure: what, the numbers, and the block with its fields and codes."""
    yield from failure_lines(rung, f, form)
    yield from _trace(f, form)
    if f.block_hex is not None:
        lines = [*as_lines(kind, f.block_hex), *as_lines(f.activation_type, f.activation_hex or "", "meets")]
        yield from (cut(Text(_INDENT + line), form.width) for line in lines)


def _trace(f: Failure, form: Form) -> Iterator[Text]:
    """The exception's way: where it passed several lines of the author's code, or, with -v, any."""
    frames = f.trace if form.verbose else tuple(frame for frame in f.trace if frame.own)
    if len(frames) > 1 or (frames and form.verbose):
        yield Text(f"{_INDENT}traceback, the last call last:")
        for frame in frames:
            line = f"{2 * _INDENT}{printable(frame.place, 200)}: {printable(frame.code, 100)}"
            yield cut(Text(line, "" if frame.own else DIM), form.width)


def _again(report: Report, f: Failure) -> Iterator[Text]:
    """How many calls failed for the cause of a failure beside it."""
    n = sum(rung.same.get(f.cause, 0) for rung in report.rungs) - 1 if f.cause else 0
    if n > 0:
        yield Text(f"{_INDENT}{ELLIPSIS} and {n:,} more {'call' if n == 1 else 'calls'} failed the same way")


def _numbers(f: Failure, form: Form) -> Iterator[str]:
    if f.got is not None and f.expected is not None:
        line = f"got {f.got:.9g}, expected {f.expected:.9g}"
        line += "" if f.bound is None else f", bound {f.bound:.3g}"
        yield line + ("" if f.utilisation is None else f", utilisation {f.utilisation:.3g}")
    if f.block_hex is not None:
        part = f" of part {f.part + 1}" if f.part else ""
        start = "block: " if f.byte_offset is None else f"block at byte {f.byte_offset}{part}: "
        room = _HEX_DIGITS if form.width is None else min(_HEX_DIGITS, max(32, form.width - len(start) - 16) // 2 * 2)
        yield start + _shortened(f.block_hex, room)


def _at_fault(f: Failure) -> Iterator[Text]:
    if f.culprit != "kernel":
        yield Text(f"{_INDENT}at fault: {CULPRITS[f.culprit]}")


def _shortened(digits: str, most: int) -> str:
    return digits if len(digits) <= most else f"{digits[:most]}{ELLIPSIS} ({len(digits) // 2} bytes)"


def _by_tensor(report: Report) -> Table:
    """How many failures each tensor has in each rung."""
    wrong = [rung for rung in report.rungs if rung.n_failures]
    counts: dict[str, dict[str, int]] = {}
    for rung in wrong:
        found = _counted(rung)
        rest = rung.n_failures - sum(found.values())
        for tensor, n in [*found.items(), *([("", rest)] if rest > 0 else [])]:
            counts.setdefault(tensor, {})[rung.name] = n
    tensors = sorted((name for name in counts if name), key=lambda name: -sum(counts[name].values()))
    made = table("failures by tensor", *(rung.name for rung in wrong), right=range(1, 1 + len(wrong)), folded=0)
    shown = tensors[:MOST_TENSORS]
    for name in shown:
        made.add_row(Text(printable(name, 64)), *(f"{counts[name].get(rung.name, 0):,}" for rung in wrong))
    left = {rung.name: rung.n_failures - sum(counts[name].get(rung.name, 0) for name in shown) for rung in wrong}
    if any(left.values()):
        others = len(tensors) - len(shown)
        words = "… all others" if others else "not counted by tensor" if shown else "of the whole rung"
        made.add_row(Text(words), *(f"{left[rung.name]:,}" for rung in wrong))
    return made


def _counted(rung: RungResult) -> dict[str, int]:
    """Tensor → how many failures it has: those that its record counts, or as many as are recorded."""
    counts: dict[str, int] = {}
    for record in rung.details:
        tensor, n = getattr(record, "tensor", ""), getattr(record, "failures", 0)
        if n:
            counts[tensor] = counts.get(tensor, 0) + n
    recorded: dict[str, int] = {}
    for f in rung.failures:
        if f.tensor and f.tensor not in counts:
            recorded[f.tensor] = recorded.get(f.tensor, 0) + 1
    return counts | recorded


def _more(report: Report) -> str:
    """What -v adds to a failing report."""
    n = len(report.failures) - 1
    failures = f"{n:,} more of {report.n_failures:,} failures, " if n > 0 else ""
    return f"{failures}every note, the envelope and the environment"


def failure_lines(rung: RungResult, f: Failure, form: Form) -> Iterator[Text]:
    """A failure in two lines or so: what, and the numbers."""
    mark = ("WAIVED", WARN) if f.tensor in rung.waived else ("FAILED", BAD)
    yield from wrapped(said((f"{mark[0]} {rung.name}: ", mark[1]), printable(f.what, 600)), form.width, _INDENT)
    for line in _numbers(f, form):
        yield from wrapped(Text(_INDENT + line), form.width, 2 * _INDENT)
    yield from _at_fault(f)


def rung_line(rung: RungResult, form: Form) -> Text:
    """A rung that is over, in a line."""
    worst = "" if rung.worst_utilisation is None else f"worst {rung.worst_utilisation:.3g} of the bound"
    failed = f"{rung.n_failures:,} failures" if rung.n_failures else ""
    told = [failed, worst, f"{rung.seconds:.1f} s", _checked(rung) or "nothing checked"]
    start = said(f"{rung.name:<7} ", (f"{rung.outcome:<10}", STYLES[rung.outcome]), "  ")
    return cut(start + Text(", ".join(filter(None, told))), form.width)


# ---- what is missing -------------------------------------------------------------------------------------------------


def _left(report: Report, form: Form) -> Iterator[RenderableType]:
    """What broke rungs off, and what could not be verified."""
    lines: list[Text] = []
    for rung in report.rungs:
        if rung.fault:
            lines += wrapped(
                said((f"BROKEN OFF {rung.name}: ", WARN), printable(rung.fault, 600)), form.width, 2 * _INDENT
            )
            lines.append(Text(f"{_INDENT}at fault: {CULPRITS[rung.fault_culprit]}"))
        left = [
            said(
                (f"NOT VERIFIED {rung.name}: ", WARN),
                f"{printable(left.title, 100)}: {printable(left.why, 600)}{_unless_uncovered(left)}",
            )
            for left in rung.unverified
        ]
        most = len(left) if form.verbose else MOST_UNVERIFIED
        for line in capped(left, most, f"in the {rung.name} rung"):
            lines += wrapped(line, form.width, _INDENT)
    if lines:
        yield ""
        yield from lines


def _unless_uncovered(left: Unverified) -> str:
    return "" if left.culprit == "coverage" else f" (at fault: {CULPRITS[left.culprit]})"


def _waived(report: Report, form: Form) -> Iterator[RenderableType]:
    """What became of each waiver."""
    if report.waivers:
        yield ""
        for line in waivers.lines(report.waivers):
            yield from wrapped(line, form.width, _INDENT)


def _repeat(report: Report) -> Iterator[RenderableType]:
    if report.exit_code and report.command:
        yield ""
        yield Text(f"repeat with: {shown(report.repeat_of())}")


# ---- what was checked, and for what it holds -------------------------------------------------------------------------


def _rungs(report: Report) -> Table:
    made = table("rung", "verdict", "checked", "worst", "seconds", right=(3, 4), folded=2)
    for rung in report.rungs:
        worst = rung.worst_utilisation
        made.add_row(
            Text(rung.name), Text(rung.outcome, STYLES[rung.outcome]), Text(_checked(rung) or "nothing"),
            "–" if worst is None else f"{worst:.3g}", f"{rung.seconds:.1f}",
        )  # fmt: skip
    for name in report.not_climbed:
        made.add_row(Text(name), Text("not run", WARN), Text("nothing"), "–", "–")
    return made


def _checked(rung: RungResult) -> str:
    """What a rung checked, what it is about first."""
    kinds = sorted(rung.checked, key=lambda kind: kind not in rung.substance)
    return _counts({kind: rung.checked[kind] for kind in kinds})


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in counts.items() if n)


class _Fact(NamedTuple):
    """Words beside a label.

    Args:
        most: lines that it may have where there is room.
        end: what is kept where the words are cut.
        spare: 0 for what is always shown, -1 in full; others are skipped where there is no room, those of large numbers
            first.
    """

    label: str
    words: str
    most: int = 1
    end: str = ""
    spare: int = 0


def _holds(report: Report, form: Form, used: int) -> Iterator[RenderableType]:
    """How far inside the bounds, for which products, on what, in as many lines as are left of a screen of which so many
    are `used`."""
    envelope = _envelope(report) if report.kernel_ran else ()
    listed = [
        *_inside(report), *envelope, *_skipped(report), *_by_design(report), *_first_notes(report), *_about(report)
    ]  # fmt: skip
    yield facts(_fitted(listed, form, MOST_LINES - used))


def _fitted(listed: Sequence[_Fact], form: Form, room: int) -> Iterator[tuple[str, str]]:
    """The facts in so many lines; with -v or without a width nothing is cut or left out."""
    if form.width is None or form.verbose:
        yield from ((fact.label, fact.words + fact.end) for fact in listed)
        return
    width = max(20, form.width - LABEL)
    wrapped_lines = [textwrap.wrap(fact.words + fact.end, width) for fact in listed]
    given = [0 if fact.spare > 0 else 1 if not fact.spare else len(wrapped_lines[i]) for i, fact in enumerate(listed)]
    for i, fact in sorted(enumerate(listed), key=lambda item: item[1].spare):
        if not given[i]:
            given[i] = int(sum(given) < room)
        if given[i] and fact.spare >= 0:
            given[i] += max(0, min(len(wrapped_lines[i]), fact.most, 1 + room - sum(given)) - 1)
    label = ""
    for fact, lines, n in zip(listed, wrapped_lines, given, strict=True):
        label = fact.label or label
        if n:
            yield label, "\n".join(lines if n >= len(lines) else _cut(lines, n, width, fact.end or " (-v)"))
            label = ""


def _cut(lines: list[str], n: int, width: int, end: str) -> list[str]:
    """The first n lines, of which the last says that there are more."""
    last = " ".join(lines[n - 1 :])[: width - len(end) - 1].rstrip(" ,;:(")
    return [*lines[: n - 1], last + ELLIPSIS + end]


def _inside(report: Report) -> Iterator[_Fact]:
    """The worst output of the kernel, and of llama.cpp, of all rungs."""
    label = "inside"
    for of_kernel, who in ((True, "kernel"), (False, "llama.cpp")):
        found = [
            (worst, rung) for rung in report.rungs for worst in rung.worst.values() if worst.of_kernel is of_kernel
        ]
        if found:
            worst, _ = max(found, key=lambda of: math.inf if math.isnan(of[0].utilisation) else of[0].utilisation)
            where = printable(worst.where, 200)
            yield _Fact(label, f"{who} {worst.utilisation:.3g} of the bound, at {where}", spare=0 if of_kernel else 3)
            label = ""


def _envelope(report: Report) -> Iterator[_Fact]:
    """For which products each type's verdict holds beside those of the graph, and what it does not cover."""
    found = [e for rung in report.rungs for e in rung.envelopes]
    groups: dict[str, list[str]] = {}
    for e in found:
        sizes = ", ".join(f"{n} {_ends(numbers)}" for n, numbers in (("M", e.tokens), ("N", e.rows), ("K", e.columns)))
        domain = f"; domain: {e.domain}" if e.domain else ""
        beside = "" if e.under_test else "; not the kernel under test"
        groups.setdefault(f"{sizes}{domain}{beside}", []).append(e.type)
    for i, (words, types) in enumerate(list(groups.items())[:MOST_ENVELOPES]):
        yield _Fact("" if i else "holds for", f"{', '.join(types)}: {words}", 2, spare=6 if i else 0)
    if found:
        calls, brief = sum(e.calls for e in found), any(e.probes != "full" for e in found)
        values = list(dict.fromkeys(value for e in found for value in e.values))
        plan = f"{calls:,} calls of plan {found[0].plan}{', brief' if brief else ''}"
        more = "" if len(groups) < 2 else f"; {len(groups)} envelopes in all (-v)"
        yield _Fact("", f"{plan}; values: {', '.join(values) or 'none'}", 2, more, spare=1)
    if large := [words for e in found for words in e.indices]:
        words = f"{len(large)} launches too large to run whole, by single thread blocks: {'; '.join(large)}"
        yield _Fact("", words, spare=2)
    if grids := [words for e in found for words in e.grids]:
        yield _Fact("", f"grids that CUDA can launch: {' and '.join(grids)}", spare=8)


def _ends(numbers: str) -> str:
    """Ranges without most of those between the first and the last."""
    ranges = numbers.split(", ")
    return (numbers or "none") if len(ranges) <= 2 else f"{ranges[0]}, … {ranges[-1]} ({len(ranges)} ranges)"


def _skipped(report: Report) -> Iterator[_Fact]:
    """Every class of checks that was skipped, or done in part, and then why."""
    skipped = report.skipped
    if not skipped:
        return
    titles = ", ".join(f"{check.title} (in part)" if check.done else check.title for check in skipped)
    yield _Fact("skipped", f"{len(skipped)}: {titles}", spare=-1)
    by_reason: dict[str, list[str]] = {}
    for check in skipped:
        for why in check.skipped:
            by_reason.setdefault(why, []).append(check.title)
    words = "; ".join(f"{', '.join(titles)}: {printable(why, 200)}" for why, titles in by_reason.items())
    yield _Fact("", f"why: {words}", 2, spare=1)


def _by_design(report: Report) -> Iterator[_Fact]:
    """What no rung checks by design."""
    if lines := [f"{left} ({rung.name})" for rung in report.rungs if (left := _counts(rung.not_checked))]:
        yield _Fact("unchecked", "; ".join(lines), spare=1)


def _first_notes(report: Report) -> Iterator[_Fact]:
    """How many notes there are, and the first, which say what was not looked for."""
    rungs = sorted(report.rungs, key=lambda rung: not rung.envelopes)  # the rung that says for what a pass holds
    notes = [f"{rung.name}: {printable(line, 400)}" for rung in rungs for line in rung.notes]
    for i, line in enumerate(notes[:MOST_NOTES]):
        yield _Fact("" if i else "notes", line if i else f"{len(notes)}: {line}", spare=7 if i else 2)


def _about(report: Report) -> Iterator[_Fact]:
    """What was run, in a few lines."""
    e = report.environment
    v, file, kernel, o = e.versions, e.file, e.kernel, e.options
    chosen = {g.kernel for rung in report.rungs for g in rung.gemms if g.under_test and g.kernel != kernel.name}
    which = f" ({', '.join(printable(name, 60) for name in sorted(chosen))})" if chosen else ""
    if not report.kernel_ran:
        yield _Fact("kernel", f"{printable(kernel.name, 200)} was not run")
    else:
        yield _Fact("kernel", f"{printable(kernel.name, 200)}{which}, declares {kernel.declared}")
    if kernel.judged_by and report.kernel_ran:
        yield _Fact("", f"judged by {printable(kernel.judged_by, 200)}", spare=4)
    for code in kernel.code if report.kernel_ran else ():
        yield _Fact("code run", printable(code, 400), spare=4)
    if report.kernel_ran:
        yield _Fact("host", printable(e.host.words, 300))
    if e.exact_on != "NumPy":
        yield _Fact("exact on", printable(e.exact_on, 300))
    types = ", ".join(f"{n} {kind}" for kind, n in file.tensor_types.items())
    name = printable(file.path.rpartition("/")[2], 200)
    about = f"{file.size:,} bytes, {printable(file.architecture or 'no architecture', 40)}: {types}"
    yield _Fact("file", f"{name}; {about}")
    more = "" if len(file.sha256) < 2 else f" and {len(file.sha256) - 1} more (-v)"
    yield _Fact("sha256", file.sha256[0] if file.sha256 else "none", 1, more)
    asked = report.drawn is None or report.drawn.compared
    where = f"llama.cpp {v.llama_cpp} on {printable(e.reference.where, 200)}" if asked else e.reference.where
    where = f"{where}; gguf-verify {v.gguf_verify}"
    confined = not e.sandbox.missing
    yield _Fact("reference", f"{where}; boundary: {e.sandbox.kind}" if confined else where)
    if not confined:
        yield _Fact("sandbox", printable(e.sandbox.words, 400))
    tokens = "" if report.drawn is not None else f', {o.n_predict} tokens after "{printable(o.prompt, 60)}"'
    yield _Fact("run", f"seed {o.seed}, {o.threads} threads{tokens}")


# ---- the rest --------------------------------------------------------------------------------------------------------


def _rest(report: Report, form: Form) -> Iterator[RenderableType]:
    """Everything else that was found."""
    yield ""
    yield facts(_environment(report))
    if report.skipped:
        yield ""
        yield facts(("" if i else "skipped", printable(c.words, 600)) for i, c in enumerate(report.skipped))
    if any(rung.worst for rung in report.rungs):
        yield ""
        yield _worst(report)
    if envelopes := list(_envelopes(report)):
        yield ""
        yield facts(envelopes)
    if ranges := list(_ranges(report)):
        yield facts(ranges)
    if notes := list(_notes(report)):
        yield ""
        yield facts(notes)
    if report.n_failures:
        yield ""
        yield from _failures(report, form)
        for rung in report.rungs:
            for diagnosis in rung.diagnoses:
                yield from _diagnosis(diagnosis, form)
            if rung.heat_map is not None:
                yield from _map(rung, form)
    yield ""
    yield from _details(report)


def _environment(report: Report) -> Iterator[tuple[str, str]]:
    e, drawn = report.environment, report.drawn is not None
    v, file, kernel = e.versions, e.file, e.kernel
    yield "versions", f"gguf-verify {v.gguf_verify} · llama.cpp {v.llama_cpp} (llama-cpp-python {v.llama_cpp_python})"
    yield "", f"ggml {v.ggml} · python {v.python} · numpy {v.numpy} · gguf {v.gguf} · {v.platform}"
    types = ", ".join(f"{n} {kind}" for kind, n in file.tensor_types.items())
    architecture = printable(file.architecture or "no architecture", 40)
    yield "file", f"{printable(file.path, 200)} · {file.size:,} bytes · {architecture} · {types}"
    for i, digest in enumerate(file.sha256):
        yield "sha256" if not i else "", digest
    yield "host", printable(e.host.words, 300) + (f" · chosen {printable(e.host.chosen, 200)}" if e.host.chosen else "")
    ran = "" if report.kernel_ran else " · was not run"
    order = f"declares {kernel.declared} · order of summation: {kernel.order}"
    yield "kernel", f"{printable(kernel.name, 200)}{ran} · {order}"
    if kernel.judged_by:
        yield "", f"judged by {printable(kernel.judged_by, 200)}"
    for code in kernel.code:
        yield "code run", printable(code, 600)
    if kernel.element_kernels:
        names = ", ".join(f"{kind} by {name}" for kind, name in kernel.element_kernels.items())
        where = "" if kernel.element_host == e.host else f" on {printable(kernel.element_host.words, 200)}"
        yield "", f"matrices that are not quantized: {names}{where}, in ascending k"
    yield "exact on", printable(e.exact_on, 300)
    definitions = ", ".join(f"{kind}: {name}" for kind, name in e.reference.definitions.items())
    yield "reference", f"llama.cpp on {e.reference.where} · {definitions}"
    yield "sandbox", printable(e.sandbox.words, 400)
    o = e.options
    tokens = "" if drawn else f' · {o.n_predict} tokens after "{printable(o.prompt, 60)}"'
    yield "run", f"seed {o.seed} · {o.threads} threads{tokens}"


def _worst(report: Report) -> Table:
    made = table("rung", "output of", "worst", "score", "worst at", right=(2, 3), folded=4)
    for rung in report.rungs:
        for i, (who, worst) in enumerate(rung.worst.items()):
            made.add_row(
                "" if i else rung.name, Text(printable(who, 80)), f"{worst.utilisation:.3g}", f"{worst.score:.3g}",
                Text(printable(worst.where, 300)),
            )  # fmt: skip
    return made


def _envelopes(report: Report) -> Iterator[tuple[str, str]]:
    """Every envelope, in full."""
    found = [e for rung in report.rungs for e in rung.envelopes]
    for i, e in enumerate(found):
        yield "" if i else "holds also", _whole(e)
        if e.values:
            yield "", f"{e.type}: values: {', '.join(e.values)}"
        if e.indices:
            yield "", f"{e.type}, by single thread blocks: {'; '.join(e.indices)}"
        if e.grids:
            yield "", f"{e.type}: grids that CUDA can launch: {' and '.join(e.grids)}"
    for what, why in dict.fromkeys(pair for e in found for pair in e.not_covered):
        yield "", f"not covered: {what} ({printable(why, 200)})"


def _whole(e: TypeEnvelope) -> str:
    plan = f"{e.calls:,} calls of plan {e.plan}{'' if e.probes == 'full' else ', brief'}"
    domain = f"; declared domain: {e.domain}" if e.domain else ""
    beside = "" if e.under_test else "; of a kernel beside the one under test"
    sizes = "; ".join(f"{n} {numbers or 'none'}" for n, numbers in (("M", e.tokens), ("N", e.rows), ("K", e.columns)))
    return f"{e.type}: {sizes} ({plan}{domain}{beside})"


def _ranges(report: Report) -> Iterator[tuple[str, str]]:
    """How near the activations come to what a half holds."""
    for rung in report.rungs:
        if rung.headroom is not None:
            yield "range", f"{printable(rung.headroom.tensor, 64)}: {rung.headroom.words}"


def _notes(report: Report) -> Iterator[tuple[str, str]]:
    for rung in report.rungs:
        lines = [f"not checked by this rung: {left}"] if (left := _counts(rung.not_checked)) else []
        lines += [f"{name}: {_figure(value)}" for name, value in rung.figures.items()]
        lines += [printable(note, 400) for note in rung.notes]
        yield from ((rung.name if not i else "", line) for i, line in enumerate(lines))


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def _details(report: Report) -> Iterator[Text]:
    for rung in report.rungs:
        for record in rung.details:
            fields = msgspec.structs.asdict(record).items()
            yield Text(f"{rung.name}: " + "  ".join(f"{name} {_value(value)}" for name, value in fields))


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return printable(value) if isinstance(value, str) else "–" if value is None else str(value)


class Distinct:
    """Which failures say what those before them do not."""

    def __init__(self) -> None:
        self._causes: set[str] = set()
        self._places: set[tuple[object, ...]] = set()
        #: How many were of an output that an earlier one is of.
        self.again = 0

    def adds(self, rung: RungResult, f: Failure) -> bool:
        """Whether the next failure says anything new."""
        place = (rung.name, f.tensor, f.row, f.block, f.token)
        if f.row is not None and place in self._places:  # the same output, at another M or on other activations
            self.again += 1
            return False
        self._places.add(place)
        if f.cause in self._causes:
            return False
        self._causes |= {f.cause} - {""}
        return True


def _failures(report: Report, form: Form) -> Iterator[Text]:
    """The recorded failures, each output once."""
    recorded: Sequence[tuple[RungResult, Failure]] = report.failures
    shown, distinct = 0, Distinct()
    for rung, f in recorded:
        if not distinct.adds(rung, f):
            continue
        shown += 1
        yield from failure_lines(rung, f, form)
        if f is not report.failures[0][1]:  # whose frames stand above
            yield from _trace(f, form)
            yield from _again(report, f)
    if report.n_failures > shown:
        again = distinct.again
        repeated = f"; {again} more are of the same outputs" if again else ""
        yield Text(f"… {shown} of {report.n_failures:,} failures are shown{repeated}")
