"""Failures of a run: the diagnoses, the map of the first wrong GEMM, failures with their blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, log10

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ...audit.block_reading import FieldBytes, read_block
from ...formats.tensor_types import ACTIVATION_FORMATS, ELEMENTS
from ...results.diagnoses import LocatedDiagnosis
from ...results.failures import CULPRITS, Failure
from ...results.report import Report
from ...results.rungs import RungResult
from ...support.text import ELLIPSIS, printable, visible
from .. import grid, run_words, shades
from ..grid import Cell, Grid
from ..writer import Form
from .console import BAD, BOLD, DIM, WARN, cut, said, source_lines, table, wrapped

#: Limits without -v; the rest is counted.
MOST_TENSORS, MOST_DIAGNOSES = 6, 4
_HEX_DIGITS = 128
_INDENT = "  "


def wrong(report: Report, form: Form, more: Iterable[Text]) -> Iterator[RenderableType]:
    """The failures by tensor, the first one, its map, and the diagnoses, of which the most important is the last.

    Args:
        more: what is shown on request.
    """
    yield _by_tensor(report)
    yield from more
    if report.failures:
        yield ""
        rung, failure = report.failures[0]
        kind = failure.block_type or report.tensor_types.get(failure.tensor, "")
        yield from _failure(rung, failure, kind, form)
        yield from _again(report, failure)
    explained = report.diagnosed
    drawn = explained[0][0] if explained else next((rung for rung in report.rungs if rung.heat_map is not None), None)
    # of another call than the diagnosis, a map would mislead
    if drawn is not None and drawn.heat_map is not None and (not explained or drawn.diagnosis is explained[0][1]):
        yield from map_lines(drawn, form)
    if len(explained) > MOST_DIAGNOSES:
        yield ""
        yield Text(f"{len(explained) - MOST_DIAGNOSES} more types are wrong: see -v", DIM)
    for rung, diagnosis in reversed(explained[:MOST_DIAGNOSES]):
        yield ""
        yield from diagnosis_lines(diagnosis, form)
        others = [r for r in report.rungs if r.diagnosis is not None and r is not rung]
        if diagnosis is explained[0][1] and others and not form.verbose:
            agree = all(_cause(diagnosis) == _cause(other) for r in others for other in r.diagnoses[:1])
            how, names = "says the same" if agree else "says more", ", ".join(r.name for r in others)
            yield Text(f"{_INDENT}the diagnosis of other rungs ({names}) {how}: see -v", DIM)


def further(report: Report, form: Form) -> Iterator[RenderableType]:
    """The failures, diagnoses and maps that `wrong` does not show."""
    yield from _further_failures(report, form)
    shown = report.diagnosed
    for rung in report.rungs:
        for diagnosis in rung.diagnoses:
            if all(diagnosis is not known for _, known in shown[:MOST_DIAGNOSES]):
                yield ""
                yield from diagnosis_lines(diagnosis, form)
        if rung.heat_map is not None and not (shown and rung is shown[0][0]):
            yield from map_lines(rung, form)


def _cause(d: LocatedDiagnosis) -> tuple[str, set[str]]:
    return d.verdict, {f.id for f in d.faults}


def diagnosis_lines(d: LocatedDiagnosis, form: Form) -> Iterator[Text]:
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


def map_lines(rung: RungResult, form: Form) -> Iterator[Text]:
    """The map below an empty line. Where every cell is wrong a map shows nothing: then a sentence, or nothing at all if
    the cause is known."""
    assert rung.heat_map is not None
    made = grid.of_gemm(rung.heat_map)
    if made.all_wrong and rung.diagnosis is not None and rung.diagnosis.explains:
        return
    yield Text()
    for line in (f"{made.title}: {made.told[0]}",) if made.all_wrong else as_text(made, form.blocks):
        yield from wrapped(Text(_INDENT + line), form.width, 2 * _INDENT)


def _failure(rung: RungResult, f: Failure, kind: str, form: Form) -> Iterator[Text]:
    """The first failure: its sentence, the line of source, the numbers, and the block with its fields and codes."""
    yield from failure_lines(rung, f, form)
    if f.block_hex is not None:
        lines = [*as_lines(kind, f.block_hex), *as_lines(f.activation_type, f.activation_hex or "", "meets")]
        yield from (cut(Text(_INDENT + line), form.width) for line in lines)


def _trace(f: Failure, form: Form) -> Iterator[Text]:
    """The lines of the author's code that failed; with -v all, and those of installed packages."""
    frames = f.trace if form.verbose else tuple(frame for frame in f.trace if frame.own)
    if not f.cause and not form.verbose:  # of several findings the first, which is about two lines at most
        frames = frames[:2]
    if f.cause and len(frames) > 1:  # of an exception
        yield Text(f"{_INDENT}traceback, the last call last:")
    for frame in frames:
        if frame.own and frame.code:
            yield from (said(_INDENT) + line for line in source_lines(frame.place, frame.code, form))
        else:
            line = f"{2 * _INDENT}{visible(frame.place, 200)}: {visible(frame.code, 100)}"
            yield cut(Text(line, DIM), form.width)


def _again(report: Report, f: Failure) -> Iterator[Text]:
    """The number of further calls that failed for the same cause."""
    n = sum(rung.same.get(f.cause, 0) for rung in report.rungs) - 1 if f.cause else 0
    if n > 0:
        yield Text(f"{_INDENT}{ELLIPSIS} and {n:,} more {'call' if n == 1 else 'calls'} failed the same way")


def _numbers(f: Failure, form: Form) -> Iterator[str]:
    if numbers := run_words.numbers(f):
        yield numbers
    if f.block_hex is not None:
        part = f" of part {f.part + 1}" if f.part else ""
        start = "block: " if f.byte_offset is None else f"block at byte {f.byte_offset}{part}: "
        room = _HEX_DIGITS if form.width is None else min(_HEX_DIGITS, max(32, form.width - len(start) - 16) // 2 * 2)
        cut_off = f"{ELLIPSIS} ({len(f.block_hex) // 2} bytes)" if len(f.block_hex) > room else ""
        yield start + f.block_hex[:room] + cut_off


def _by_tensor(report: Report) -> Table:
    """A table of failures by tensor and rung."""
    wrong = [rung for rung in report.rungs if rung.n_failures]
    tensors = run_words.failing(report)
    made = table("failures by tensor", *(rung.name for rung in wrong), right=range(1, 1 + len(wrong)), folded=0)
    shown = tensors[:MOST_TENSORS]
    for name in shown:
        made.add_row(Text(printable(name, 64)), *(f"{rung.failing.get(name, 0):,}" for rung in wrong))
    left = {rung.name: rung.n_failures - sum(rung.failing.get(name, 0) for name in shown) for rung in wrong}
    if any(left.values()):
        others = len(tensors) - len(shown)
        words = "… all others" if others else "not counted by tensor" if shown else "of the whole rung"
        made.add_row(Text(words), *(f"{left[rung.name]:,}" for rung in wrong))
    return made


def failure_sentence(rung: RungResult, f: Failure, form: Form, quoted: bool = False) -> Iterator[Text]:
    """A failure in words.

    Args:
        quoted: the line of source follows.
    """
    mark = ("WAIVED", WARN) if f.tensor in rung.waived else ("FAILED", BAD)
    own = [frame for frame in f.trace if frame.own]
    what = f.what.removesuffix(f"; at {own[-1].place}: {own[-1].code}") if quoted and own else f.what
    yield from wrapped(said((f"{mark[0]} {rung.name}: ", mark[1]), visible(what, 600)), form.width, _INDENT)


def failure_lines(rung: RungResult, f: Failure, form: Form) -> Iterator[Text]:
    """A failure with its line of source and its numbers."""
    yield from failure_sentence(rung, f, form, quoted=True)
    yield from _trace(f, form)
    for line in _numbers(f, form):
        yield from wrapped(Text(_INDENT + line), form.width, 2 * _INDENT)
    if f.culprit != "kernel":
        yield Text(f"{_INDENT}at fault: {CULPRITS[f.culprit]}")


class Distinct:
    """A filter of failures that repeat earlier ones."""

    def __init__(self) -> None:
        self._causes: set[str] = set()
        self._places: set[tuple[object, ...]] = set()
        #: Failures of an output that an earlier failure is of.
        self.again = 0

    def adds(self, rung: RungResult, f: Failure) -> bool:
        """Whether the next failure is new."""
        place = (rung.name, f.tensor, f.row, f.block, f.token)
        if f.row is not None and place in self._places:  # the same output, at another M or on other activations
            self.again += 1
            return False
        self._places.add(place)
        if f.cause in self._causes:
            return False
        self._causes |= {f.cause} - {""}
        return True


def _further_failures(report: Report, form: Form) -> Iterator[Text]:
    """The recorded failures, each output once, but for the first one, which stands below."""
    recorded: Sequence[tuple[RungResult, Failure]] = report.failures
    shown, distinct = 0, Distinct()
    for rung, f in recorded:
        if not distinct.adds(rung, f):
            continue
        shown += 1
        if shown > 1:
            yield from failure_lines(rung, f, form)
            yield from _again(report, f)
    if report.n_failures > shown:
        again = distinct.again
        repeated = f"; {again} more are of the same outputs" if again else ""
        yield Text(f"… {shown} of {report.n_failures:,} failures are shown{repeated}")


# ---- the block of a failure ------------------------------------------------------------------------------------------

_MOST_CODES = 64


def as_lines(kind: str, digits: str, title: str = "x-ray") -> list[str]:
    """Of a type's name and a block's bytes in hex, as a report has them; empty where its fields are not known.

    Of several blocks, the first.
    """
    content = bytes.fromhex(digits)
    if kind in ELEMENTS:
        whole = len(content) // ELEMENTS[kind].block_bytes * ELEMENTS[kind].block_bytes
        return [_values(title, ELEMENTS[kind].decode(np.frombuffer(content[:whole], np.uint8)[None])[0].tolist())]
    form = ACTIVATION_FORMATS.get(kind)
    try:
        read = read_block(kind, content if form is None else content[: form.block_bytes])
    except ValueError:
        return []
    return [*_fields(read.fields, title), *_codes(read.codes)]


def _fields(fields: tuple[FieldBytes, ...], title: str) -> Iterator[str]:
    """Single numbers in one line, then each field of several bytes."""
    single = [
        f"{f.field.name} = {f.values[0]:.6g}" if isinstance(f.values[0], float) else f"{f.field.name} = 0x{f.raw.hex()}"
        for f in fields
        if f.field.count == 1
    ]
    if single:
        yield f"{title}: {', '.join(single)}"
    yield from (f"{f.field.name:<4} {f.raw.hex(' ')}" for f in fields if f.field.count > 1)


def _values(title: str, values: list[float]) -> str:
    return f"{title}: {_joined([f'{v:.6g}' for v in values])}"


def _codes(codes: tuple[int, ...]) -> Iterator[str]:
    if codes:
        yield f"q    {_joined([str(code) for code in codes])}"


def _joined(texts: list[str]) -> str:
    return " ".join(texts[:_MOST_CODES]) + (" …" if len(texts) > _MOST_CODES else "")


# ---- the map of a wrong GEMM -----------------------------------------------------------------------------------------

#: Lines of a map, without title, labels and legend.
LINES = 12

_RANK = " .x0123456789#"

_BLOCKS = {".": "·", **dict.fromkeys("0", "░"), **dict.fromkeys("12", "▒"), **dict.fromkeys("345", "▓"),
           **dict.fromkeys("6789", "█")}  # fmt: skip

_SHADES = {"░": "1 to 10", "▒": "10 to 1,000", "▓": "1,000 to 10⁶", "█": "10⁶ and more"}

_LEGEND = ((".", ". correct"), ("x", "x within the bound, but wrong in its bits or its score"), ("#", "# not finite"))


def as_text(grid: Grid, blocks: bool = False) -> list[str]:
    """The map of a GEMM in at most 15 lines of plain characters, or with block characters.

    Neighbouring lines that look the same are drawn once. `.` is correct; a digit is the power of ten by which the worst
    of the cell exceeds the bound; `x` is within it and wrong in its bits or its score; `#` is not finite.
    """
    drawn = [list(map(_plain, line)) for line in grid.cells]
    step = -(-len(drawn) // LINES)
    drawn = [[max(column, key=_RANK.index) for column in zip(*drawn[i : i + step], strict=True)]
             for i in range(0, len(drawn), step)]  # fmt: skip
    labels = grid.lines[::step]
    width = max(len(grid.down) + 1 + max(map(len, labels)), len(grid.across))
    out, last = [], ""
    for label, line in zip(labels, drawn, strict=True):
        shown = "".join(_BLOCKS.get(c, c) if blocks else c for c in line)
        if shown != last:
            out.append(f"{grid.down} {label:>{width - len(grid.down) - 1}}  {shown}".rstrip())
        last = shown
    names, end = "", 0
    for i, column in enumerate(grid.columns):
        if i % 8 == 0 and i >= end and i + len(column) <= max(len(grid.columns), 8):
            names, end = f"{names:<{i}}{column}", i + len(column) + 1
    legend = "; ".join(_legend({c for line in drawn for c in line}, blocks))
    return [f"utilisation of {grid.title}", f"{grid.across:<{width}}  {names}", *out, legend]


def _legend(used: set[str], blocks: bool) -> list[str]:
    said = [words for c, words in _LEGEND if c in used]
    digits = sorted(used & set("0123456789"))
    if not digits:
        return said
    if blocks:
        return said + [f"{shade} {_SHADES[shade]} × the bound" for shade in dict.fromkeys(_BLOCKS[d] for d in digits)]
    span = digits[0] if len(digits) == 1 else f"{digits[0]}…{digits[-1]}"
    return [*said, f"{span}: over the bound by that power of 10"]


def _plain(cell: Cell) -> str:
    if cell.value is None:
        return " "
    if not isfinite(cell.value):
        return "#"
    if not shades.is_wrong(cell.shade):
        return "."
    return "x" if cell.value <= 1 else str(min(9, int(log10(cell.value))))
