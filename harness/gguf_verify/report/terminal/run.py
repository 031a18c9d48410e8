"""The report of a verification run: details first, then the diagnosis, and in the last line the verdict.

A failing report has the set-up, the rungs, the failures by tensor, the first failure, the map of the first wrong GEMM,
and the diagnosis with its fix; above the verdict stands the command that repeats the run. A passing one says in at most
`MOST_LINES` lines of 80 columns what was checked, how far inside the bounds the outputs are, and for which products the
verdict holds.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...results.failures import CULPRITS
from ...results.options import spent_words
from ...results.report import Report
from ...results.rungs import RungResult
from ...support.command_line import shown
from ...support.text import ELLIPSIS, counted, printable
from .. import run_words
from ..writer import Form
from . import details, failures
from .console import (
    BOLD,
    DIM,
    LABEL,
    STYLES,
    WARN,
    capped,
    cut,
    facts,
    rendered,
    said,
    source_lines,
    table,
    verdict_line,
    waiver_lines,
    wrapped,
)

#: Lines of a passing report without -v, at 80 columns.
MOST_LINES = 24
#: Places of the kernel's code that no call executed.
MOST_NOT_RUN = 3
#: Limits without -v; the rest is counted.
MOST_NOTES, MOST_UNVERIFIED, MOST_ENVELOPES = 3, 10, 2
_INDENT = "  "
#: The first words of a report on random data.
DRAWN_MEANS = "on random data (no model)"


def render(report: Report, form: Form) -> str:
    """The report; with `verbose` also everything else that was found, with `whole` one line a tensor, GEMM or token."""
    return rendered(_parts(report, form), form)


def _parts(report: Report, form: Form) -> Iterator[RenderableType]:
    checked: list[RenderableType] = []
    if report.costs is not None:
        checked += [*details.costs(report.costs), ""]
    checked += [_rungs(report), *_left(report, form), *_waived(report, form)]
    if report.n_failures:
        listed = _fitted([*_about(report)], form, MOST_LINES)
        more = () if form.verbose else wrapped(Text(f"-v shows {_more(report)}", DIM), form.width)
        checked += ["", *failures.wrong(report, form, more)]
    checked += ["", *_answer(report, form)]
    if not report.n_failures:
        room = MOST_LINES - 1 - rendered(checked, form).count("\n")
        listed = _fitted([*_about(report), *_holds(report)], form, room)
    yield from (facts(listed), "")
    if form.verbose:
        yield from (*details.rest(report, form), "")
    yield from checked


# ---- the verdict -----------------------------------------------------------------------------------------------------


def _answer(report: Report, form: Form) -> Iterator[Text]:
    """What the verdict means, who is at fault, how to repeat the run, and in the last line the verdict."""
    if report.drawn is not None:
        yield from wrapped(Text(f"{DRAWN_MEANS}: {run_words.drawn(report.drawn)}"), form.width, _INDENT)
    if means := report.environment.kernel.verified_means:
        yield from wrapped(Text(f"verified here means: {means}"), form.width)
    if not report.n_failures:
        for limit in report.limits[:2]:
            yield from wrapped(said(("limit: ", BOLD), printable(limit, 400)), form.width, _INDENT)
        yield from _not_run(report, form)
    if report.unfinished:
        yield from wrapped(said(("INCOMPLETE: ", WARN), report.unfinished), form.width, _INDENT)
    if report.fault:
        yield from wrapped(said(("BROKEN OFF: ", WARN), printable(report.fault, 600)), form.width, _INDENT)
    if report.culprits:
        yield from wrapped(Text(report.at_fault), form.width)
    for hint in report.environment.kernel.hints if report.n_failures else ():
        yield from wrapped(said(("hint: ", BOLD), printable(hint, 300)), form.width, _INDENT)
    if report.exit_code and report.command:
        yield Text(f"repeat with: {shown(report.repeat_of())}")
    yield _verdict(report)


def _not_run(report: Report, form: Form) -> Iterator[Text]:
    """The first places of the kernel's code that no call executed; the line itself of the first one."""
    for i, place in enumerate(report.not_run[:MOST_NOT_RUN]):
        if i or not place.source:
            yield from wrapped(said(("not run: ", WARN), place.words), form.width, _INDENT)
            continue
        yield said(("not run: ", WARN), place.what)
        yield from source_lines(f"{place.file}:{place.line}", place.source, form)
    if (left := len(report.not_run) - MOST_NOT_RUN) > 0:
        yield from wrapped(Text(f"and {left:,} more places of its code (-v)"), form.width, _INDENT)


def _verdict(report: Report) -> Text:
    """The verdict, its cause, and what to do, in a line."""
    verdict = run_words.headline(report), STYLES[report.verdict]
    if report.verdict == "mismatch":
        cause = run_words.cause(report)
        advice = ("fix", cause.fix), ("first", "" if cause.fix else cause.first)
        more = ("more", f"gguf-verify explain {cause.id}")
        return verdict_line(verdict, f": {cause.words}{run_words.extent(report)}", *advice, more)
    if report.verdict == "not everything verified" and not any(run_words.checked(rung) for rung in report.rungs):
        verdict = "NOTHING VERIFIED", WARN
    words = f" in {report.seconds:.1f} s: {run_words.passed(report)}"
    if not report.exit_code and run_words.of_costs(report):
        assert report.costs is not None
        heading, found = run_words.measured(report.costs)
        return verdict_line((heading, BOLD if report.costs.gemms else WARN), f" in {report.seconds:.1f} s: {found}")
    if not report.exit_code:
        return verdict_line(verdict, words)
    cut_short = "interrupted" if report.verdict == "interrupted" else "coverage"
    name = next((culprit for culprit in report.culprits if culprit != "coverage"), cut_short)
    return verdict_line(
        verdict, words, ("first", run_words.first_left(report)), ("more", f"gguf-verify explain {name}")
    )


# ---- failures --------------------------------------------------------------------------------------------------------


def _more(report: Report) -> str:
    """The parts that -v adds to a failing report."""
    n = len(report.failures) - 1
    failures = f"{n:,} more of {counted(report.n_failures, 'failures')}, " if n > 0 else ""
    return f"{failures}every note, the envelope and the environment"


def rung_line(rung: RungResult, form: Form) -> Text:
    """A finished rung, in a line."""
    worst = "" if rung.worst_utilisation is None else f"worst {rung.worst_utilisation:.3g} of the bound"
    failed = counted(rung.n_failures, "failures") if rung.n_failures else ""
    told = [failed, worst, f"{rung.seconds:.1f} s", run_words.checked(rung) or "nothing checked"]
    start = said(f"{rung.name:<7} ", (f"{rung.outcome:<10}", STYLES[rung.outcome]), "  ")
    return cut(start + Text(", ".join(filter(None, told))), form.width)


# ---- unverified items ------------------------------------------------------------------------------------------------


def _left(report: Report, form: Form) -> Iterator[RenderableType]:
    """Faults of rungs, and unverified items."""
    lines: list[Text] = []
    spent = spent_words(report.environment.options.budget)
    for rung in report.rungs:
        if rung.fault:
            lines += wrapped(
                said((f"BROKEN OFF {rung.name}: ", WARN), printable(rung.fault, 600)), form.width, 2 * _INDENT
            )
            if rung.fault_culprit != "coverage":  # as after a signal
                lines.append(Text(f"{_INDENT}at fault: {CULPRITS[rung.fault_culprit]}"))
        left = [
            said(
                (f"NOT VERIFIED {rung.name}: ", WARN),
                f"{printable(left.title, 100)}: {printable(left.why, 600)}{run_words.blame(left)}",
            )
            for left in rung.unverified
            # a line below says what a budget left
            if form.verbose or report.ended_by != "budget" or left.why != spent
        ]
        most = len(left) if form.verbose else MOST_UNVERIFIED
        for line in capped(left, most, f"in the {rung.name} rung"):
            lines += wrapped(line, form.width, _INDENT)
    if lines:
        yield ""
        yield from lines


def _waived(report: Report, form: Form) -> Iterator[RenderableType]:
    """The state of each waiver."""
    if report.waivers:
        yield ""
        for line in waiver_lines(report.waivers):
            yield from wrapped(line, form.width, _INDENT)


# ---- checks, and the scope of the verdict ----------------------------------------------------------------------------


def _rungs(report: Report) -> Table:
    made = table("rung", "verdict", "checked", "worst", "seconds", right=(3, 4), folded=2)
    for rung in report.rungs:
        worst = rung.worst_utilisation
        made.add_row(
            Text(rung.name), Text(rung.outcome, STYLES[rung.outcome]), Text(run_words.checked(rung) or "nothing"),
            "–" if worst is None else f"{worst:.3g}", f"{rung.seconds:.1f}",
        )  # fmt: skip
    for name in report.not_climbed:
        made.add_row(Text(name), Text("not run", WARN), Text("nothing"), "–", "–")
    return made


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


def _holds(report: Report) -> Iterator[_Fact]:
    """The margin to the bounds, the products for which the verdict holds, and what was skipped."""
    yield from _inside(report)
    if report.kernel_ran:
        yield from _envelope(report)
    if not run_words.of_costs(report):
        yield from _skipped(report)
    yield from (*_by_design(report), *_first_notes(report))


def _fitted(listed: Sequence[_Fact], form: Form, room: int) -> Iterator[tuple[str, str]]:
    """The facts in `room` lines; with -v or without a width nothing is cut or omitted."""
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
        if found := run_words.worst(report, of_kernel):
            where = printable(found[0].where, 200)
            use = f"{found[0].utilisation:.3g} of the bound"
            yield _Fact(label, f"{who} {use}, at {where}", spare=0 if of_kernel else 3)
            label = ""


def _envelope(report: Report) -> Iterator[_Fact]:
    """The products beyond the graph for which the verdict of each type holds, and what it does not cover."""
    found = [e for rung in report.rungs for e in rung.envelopes]
    groups: dict[str, list[str]] = {}
    for e in found:
        sizes = ", ".join(
            f"{n} {run_words.ends(numbers, 2)}" for n, numbers in (("M", e.tokens), ("N", e.rows), ("K", e.columns))
        )
        domain = f"; domain: {e.domain}" if e.domain else ""
        beside = "" if e.under_test else "; not the kernel under test"
        groups.setdefault(f"{sizes}{domain}{beside}", []).append(e.type)
    for i, (words, types) in enumerate(list(groups.items())[:MOST_ENVELOPES]):
        yield _Fact("" if i else "holds for", f"{', '.join(types)}: {words}", 2, spare=6 if i else 0)
    if found:
        calls, brief = sum(e.calls for e in found), any(e.probes == "brief" for e in found)
        values = list(dict.fromkeys(value for e in found for value in e.values))
        plan = f"{counted(calls, 'calls')} of plan {found[0].plan}{', quick' if brief else ''}"
        more = "" if len(groups) < 2 else f"; {len(groups)} envelopes in all (-v)"
        yield _Fact("", f"{plan}; values: {', '.join(values) or 'none'}", 2, more, spare=1)
    if large := [words for e in found for words in e.indices]:
        yield _Fact("", f"{counted(len(large), 'large products')}, in part: {'; '.join(large)}", spare=2)
    if grids := [words for e in found for words in e.grids]:
        yield _Fact("", f"grids that CUDA can launch: {' and '.join(grids)}", spare=8)


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
    """Kinds of things that no rung checks by design."""
    if lines := [f"{left} ({rung.name})" for rung in report.rungs if (left := run_words.counts(rung.not_checked))]:
        yield _Fact("unchecked", "; ".join(lines), spare=1)


def _first_notes(report: Report) -> Iterator[_Fact]:
    """The number of notes, and the first ones."""
    rungs = sorted(report.rungs, key=lambda rung: not rung.envelopes)  # the rung that says for what a pass holds
    notes = [f"{rung.name}: {printable(line, 400)}" for rung in rungs for line in rung.notes]
    for i, line in enumerate(notes[:MOST_NOTES]):
        yield _Fact("" if i else "notes", line if i else f"{len(notes)}: {line}", spare=7 if i else 2)


def _about(report: Report) -> Iterator[_Fact]:
    """The set-up of the run, in a few lines."""
    e = report.environment
    v, file, kernel, o = e.versions, e.file, e.kernel, e.options
    chosen = {g.kernel for rung in report.rungs for g in rung.gemms if g.under_test and g.kernel != kernel.name}
    which = f" ({', '.join(printable(name, 60) for name in sorted(chosen))})" if chosen else ""
    if not report.kernel_ran:
        if not run_words.of_costs(report):
            yield _Fact("kernel", f"{printable(kernel.name, 200)} was not run")
    else:
        yield _Fact("kernel", f"{printable(kernel.name, 200)}{which}, declares {kernel.declared}")
    if kernel.judged_by and report.kernel_ran:
        yield _Fact("", f"judged by {printable(kernel.judged_by, 200)}", spare=4)
    for code in kernel.code if report.kernel_ran else ():
        yield _Fact("compiled", printable(code, 400), spare=4)
    if kernel.coverage is not None and report.kernel_ran:
        yield _Fact("code run", kernel.coverage.words)
    if report.kernel_ran:
        yield _Fact("host", printable(e.host.words, 300))
    if e.exact_on != "NumPy":
        yield _Fact("exact on", printable(e.exact_on, 300))
    name = printable(file.path.rpartition("/")[2], 200)
    about = f"{file.size:,} bytes, {printable(file.architecture or 'no architecture', 40)}: {file.of_types}"
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
    yield _Fact("run", f"seed {o.seed}, {counted(o.threads, 'threads')}, {report.seconds:.1f} s{tokens}")


# ---- the rest --------------------------------------------------------------------------------------------------------
