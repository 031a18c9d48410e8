"""The report of a verification run."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...results import CULPRITS, Environment, Failure, LocatedDiagnosis, Report, Unverified
from ...support.command_line import shown
from ...support.text import printable
from .. import grid
from ..writer import Form
from .console import BAD, BOLD, STYLES, WARN, capped, facts, rendered, said, table
from .heat_map import as_text

#: What is shown of each rung without -v; the rest is counted.
MOST_NOTES, MOST_UNVERIFIED = 5, 10
MOST_FAILURES = 20
_HEX_DIGITS = 128
_INDENT = " " * 7


def render(report: Report, form: Form) -> str:
    """The whole report; with `verbose` also one line a tensor, GEMM or token."""
    return rendered(_parts(report, form), form)


def _parts(report: Report, form: Form) -> Iterator[RenderableType]:
    yield facts(_environment(report.environment))
    yield ""
    yield _rungs(report)
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
    if form.verbose:
        yield ""
        yield from _details(report)
    yield ""
    yield from _failures(report)
    yield from _explained(report, form)
    yield from _unverified(report)
    yield from _verdict(report)


# ---- what was run ----------------------------------------------------------------------------------------------------


def _environment(e: Environment) -> Iterator[tuple[str, str]]:
    v, file, kernel = e.versions, e.file, e.kernel
    yield "versions", f"gguf-verify {v.gguf_verify} · llama.cpp {v.llama_cpp} (llama-cpp-python {v.llama_cpp_python})"
    yield "", f"ggml {v.ggml} · python {v.python} · numpy {v.numpy} · gguf {v.gguf} · {v.platform}"
    types = ", ".join(f"{n} {kind}" for kind, n in file.tensor_types.items())
    architecture = printable(file.architecture or "no architecture", 40)
    yield "file", f"{printable(file.path, 200)} · {file.size:,} bytes · {architecture} · {types}"
    for i, digest in enumerate(file.sha256):
        yield "sha256" if not i else "", digest
    yield "host", printable(e.host.words, 300) + (f" · chosen {printable(e.host.chosen, 200)}" if e.host.chosen else "")
    yield "kernel", f"{printable(kernel.name, 200)} · declares {kernel.definition} · order of summation: {kernel.order}"
    if kernel.judged_by:
        yield "", f"judged by {printable(kernel.judged_by, 200)}"
    if kernel.element_kernels:
        names = ", ".join(f"{kind} by {name}" for kind, name in kernel.element_kernels.items())
        where = "" if kernel.element_host == e.host else f" on {printable(kernel.element_host.words, 200)}"
        yield "", f"matrices that are not quantized: {names}{where}, in ascending k"
    definitions = ", ".join(f"{kind}: {name}" for kind, name in e.reference.definitions.items())
    yield "reference", f"llama.cpp on {e.reference.where} · {definitions}"
    o = e.options
    yield "run", f'seed {o.seed} · {o.threads} threads · {o.n_predict} tokens after "{printable(o.prompt, 60)}"'


# ---- what was found --------------------------------------------------------------------------------------------------


def _rungs(report: Report) -> Table:
    made = table("rung", "verdict", "checked", "worst utilisation", "seconds", right=(3, 4), folded=2)
    for rung in report.rungs:
        worst = rung.worst_utilisation
        made.add_row(
            Text(rung.name), Text(rung.outcome, STYLES[rung.outcome]), Text(_counts(rung.checked) or "nothing"),
            "–" if worst is None else f"{worst:.3g}", f"{rung.seconds:.1f}",
        )  # fmt: skip
    return made


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in counts.items() if n)


def _worst(report: Report) -> Table:
    made = table("rung", "output of", "utilisation", "score", "worst at", right=(2, 3), folded=4)
    for rung in report.rungs:
        for i, (who, worst) in enumerate(rung.worst.items()):
            made.add_row(
                "" if i else rung.name, Text(printable(who, 80)), f"{worst.utilisation:.3g}", f"{worst.score:.3g}",
                Text(printable(worst.where, 300)),
            )  # fmt: skip
    return made


def _envelopes(report: Report) -> Iterator[tuple[str, str]]:
    """For which products each type's verdict holds beside those of the graph, and what it does not cover."""
    found = [e for rung in report.rungs for e in rung.envelopes]
    for i, e in enumerate(found):
        plan = f"{e.calls:,} calls of plan {e.plan}{'' if e.probes == 'full' else ', brief'}"
        domain = f"; declared domain: {e.domain}" if e.domain else ""
        beside = "" if e.under_test else "; of a kernel beside the one under test"
        sizes = ", ".join(f"{n} {_ends(numbers)}" for n, numbers in (("M", e.tokens), ("N", e.rows), ("K", e.columns)))
        yield "" if i else "holds also", f"{e.type}: {sizes} ({plan}{domain}{beside})"
        if e.indices:
            yield "", f"{e.type}, by single thread blocks: {'; '.join(e.indices)}"
        if e.grids:
            yield "", f"{e.type}: CUDA launches its grids of {' and '.join(e.grids)}"
    for what, why in dict.fromkeys(pair for e in found for pair in e.not_covered):
        yield "", f"not covered: {what} ({printable(why, 200)})"


def _ranges(report: Report) -> Iterator[tuple[str, str]]:
    """How near the activations come to what a half holds."""
    for rung in report.rungs:
        if rung.headroom is not None:
            yield "range", f"{printable(rung.headroom.tensor, 64)}: {rung.headroom.words}"


def _ends(numbers: str) -> str:
    """Ranges without most of those between the first and the last."""
    ranges = numbers.split(", ")
    return (
        (numbers or "none") if len(ranges) <= 3 else f"{ranges[0]}, {ranges[1]}, … {ranges[-1]} ({len(ranges)} ranges)"
    )


def _notes(report: Report) -> Iterator[tuple[str, str]]:
    for rung in report.rungs:
        lines = [f"not checked by this rung: {left}"] if (left := _counts(rung.not_checked)) else []
        figures = [f"{name}: {_figure(value)}" for name, value in rung.figures.items()]
        lines += [" · ".join(figures[i : i + 2]) for i in range(0, len(figures), 2)]
        lines += [printable(note, 400) for note in rung.notes[:MOST_NOTES]]
        if len(rung.notes) > MOST_NOTES:
            lines.append(f"… and {len(rung.notes) - MOST_NOTES:,} more notes (--json has all of them)")
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


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def _failures(report: Report) -> Iterator[Text]:
    recorded = report.failures[:MOST_FAILURES]
    shown = 0
    places: set[tuple[object, ...]] = set()
    for rung, f in recorded:
        place = (rung.name, f.tensor, f.row, f.block, f.token)
        if f.row is not None and place in places:  # the same output again, at another M or on other activations
            continue
        places.add(place)
        shown += 1
        yield said((f"FAILED {rung.name}: ", BAD), printable(f.what, 600))
        yield from (Text(_INDENT + line) for line in _numbers(f))
        if f.culprit != "kernel":
            yield Text(f"{_INDENT}at fault: {CULPRITS[f.culprit]}")
    if report.n_failures > shown:
        again = len(recorded) - shown
        repeated = f"; {again} more are of the same outputs" if again else ""
        yield Text(f"… {shown} of {report.n_failures:,} failures are shown{repeated}")


def _numbers(f: Failure) -> Iterator[str]:
    if f.got is not None and f.expected is not None:
        line = f"got {f.got:.9g}, expected {f.expected:.9g}"
        line += "" if f.bound is None else f", bound {f.bound:.3g}"
        yield line + ("" if f.utilisation is None else f", utilisation {f.utilisation:.3g}")
    if f.block_hex is not None:
        part = f" of part {f.part + 1}" if f.part else ""
        yield f"block at byte {f.byte_offset}{part}: {_shortened(f.block_hex)}"


def _shortened(digits: str) -> str:
    return digits if len(digits) <= _HEX_DIGITS else f"{digits[:_HEX_DIGITS]}… ({len(digits) // 2} bytes)"


def _explained(report: Report, form: Form) -> Iterator[Text]:
    for rung in report.rungs:
        if rung.diagnosis is not None:
            yield said(("DIAGNOSIS ", BOLD), _located(rung.diagnosis))
            yield from (Text(_INDENT + printable(line, 300)) for line in rung.diagnosis.lines)
        if rung.heat_map is not None:
            yield from (Text(_INDENT + line) for line in as_text(grid.of_gemm(rung.heat_map), form.blocks))


def _located(d: LocatedDiagnosis) -> str:
    block = "" if d.block is None else f" block {d.block}"
    return (
        f"of the first wrong GEMM, {printable(d.tensor, 64)}: {printable(d.who, 80)}, first wrong at row {d.row} "
        f"token {d.token}{block}"
    )


def _unverified(report: Report) -> Iterator[Text]:
    if report.fault:
        yield said(("BROKEN OFF: ", WARN), printable(report.fault, 600))
    for rung in report.rungs:
        if rung.fault:
            yield said((f"BROKEN OFF {rung.name}: ", WARN), printable(rung.fault, 600))
            yield Text(f"{_INDENT}at fault: {CULPRITS[rung.fault_culprit]}")
        lines = [
            said(
                (f"NOT VERIFIED {rung.name}: ", WARN),
                f"{printable(left.name, 64)}: {printable(left.why, 600)}{_unless_uncovered(left)}",
            )
            for left in rung.unverified
        ]
        yield from capped(lines, MOST_UNVERIFIED, f"in the {rung.name} rung")


def _unless_uncovered(left: Unverified) -> str:
    return "" if left.culprit == "coverage" else f" (at fault: {CULPRITS[left.culprit]})"


def _verdict(report: Report) -> Iterator[Text]:
    passed = sum(rung.verdict == "passed" for rung in report.rungs)
    verdict = (report.verdict.upper(), STYLES[report.verdict])
    yield said(verdict, f" in {report.seconds:.1f} s: {passed} of {len(report.rungs)} rungs passed")
    if report.culprits:
        yield Text(f"at fault: {report.at_fault}")
    if means := report.environment.kernel.verified_means:
        yield Text(f"verified here means: {means}")
    if report.exit_code and report.command:
        yield Text(f"repeat with: {shown(report.repeat_of())}")
