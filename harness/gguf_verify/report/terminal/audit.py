"""The audit of a file: what it holds, the findings, and in the last line the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ...audit.audit import coverage
from ...audit.content import Content, affected
from ...audit.many import Audits, Unopened
from ...audit.record import Audit
from ...gguf.file import GgufFile
from ...gguf.records import Finding
from ...support.command_line import shown
from ...support.text import byte_range, counted, printable
from ..writer import Form
from . import composition, statistics, xray
from .console import DIM, STYLES, WARN, capped, facts, rendered, said, verdict_line, waiver_lines

if TYPE_CHECKING:
    from ...gguf.records import Severity

#: Limits without -v; the rest is counted.
MOST_COMPARED, MOST_UNVERIFIED, MOST_FINDINGS, MOST_OF_RULE = 3, 10, 5, 3
#: Ranges that --map lists; the rest is counted.
MOST_RANGES = 20_000
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")

#: Groups of the summary of the byte map → kinds of ranges.
_SUMMARY = (
    ("header", ("magic", "version", "tensor count", "key count")),
    ("metadata", ("key", "value type", "element type", "element count", "value")),
    ("descriptions", ("tensor name", "dimensions", "type", "offset")),
    ("padding", ("padding",)), ("data", ("data",)), ("gaps", ("gap",)), ("trailing", ("trailing",)),
    ("unread", ("unread",)),
)  # fmt: skip


def render(audit: Audit, form: Form) -> str:
    """The whole report; with `verbose` also statistics of every tensor, with `byte_map` every range of the file."""
    return rendered(_parts(audit, form), form)


def render_many(audits: Audits, form: Form) -> str:
    """Audits of several files: one line for each, details of those that are not clean, and a summary; with `verbose`
    the whole report of each."""
    return rendered(_many(audits, form), form)


def _many(audits: Audits, form: Form) -> Iterator[RenderableType]:
    for a in audits.audits:
        yield _answer(a) if isinstance(a, Audit) else _unopened(a)
        if not isinstance(a, Audit):
            continue
        if form.verbose or form.byte_map:
            yield from ("", *_parts(a, form), "")
        elif a.findings or a.unverified or a.fault:
            yield from (Text.assemble("    ", line) for line in _told(a))
    yield ""
    if audits.exit_code and audits.command:
        yield Text(f"repeat with: {printable(audits.command)}")
    counts = ", ".join(f"{n} {verdict}" for verdict, n in audits.verdicts.most_common())
    worst = next((a for a in audits.audits if audits.exit_code and a.exit_code == audits.exit_code), None)
    yield verdict_line(
        (audits.verdict.upper(), STYLES[audits.verdict]),
        f" in {audits.seconds:.1f} s: {counted(len(audits.audits), 'files')}: {counts}",
        ("first", "" if worst is None else printable(str(worst.path), 200)),
    )


def _told(audit: Audit) -> Iterator[Text]:
    """The findings of one of several files, a line each."""
    if audit.fault:
        yield said(("BROKEN OFF", WARN), f": {printable(audit.fault)}")
    lines = [
        said((f"{f.severity:<8}", STYLES[f.severity]), f"{f.id} at {_where(f, len(audit.files) > 1)}: found {f.found}")
        for f in audit.findings
    ]
    yield from capped(lines, MOST_FINDINGS, "findings (audit the file alone to see them)")
    yield from (Text(f"not compared with {name}: {printable(why)}") for name, why in audit.left_out)
    yield from _left(audit, "were not verified")


def _left(audit: Audit, more: str) -> Iterator[Text]:
    """Unverified items, and the number of further ones."""
    for name, why in audit.unverified[:MOST_UNVERIFIED]:
        yield said(("NOT VERIFIED ", WARN), f"{printable(name, 64)}: {printable(why)}")
    if len(audit.unverified) > MOST_UNVERIFIED:
        yield Text(f"… and {len(audit.unverified) - MOST_UNVERIFIED:,} {more}")


def _unopened(a: Unopened) -> Text:
    return said((a.verdict.upper(), STYLES[a.verdict]), f": {printable(a.why)}")


def _answer(audit: Audit) -> Text:
    """The verdict, and its meaning for this file."""
    name = printable(str(audit.path), 200)
    types = audit.composition
    bits = f" ({types.bits_per_weight:.2f} bits per weight)" if types.types and audit.refused is None else ""
    return said((audit.words.upper(), STYLES[audit.verdict]), f": {name}{bits}{_looked(audit)}: {audit.sentence}")


def _looked(audit: Audit) -> str:
    """The number of tensors that a pass is about, if it is not about all."""
    part = audit.exit_code == 0 and len(audit.contents) != audit.n_tensors
    return f" ({len(audit.contents):,} of {counted(audit.n_tensors, 'tensors')})" if part else ""


def _parts(audit: Audit, form: Form) -> Iterator[RenderableType]:
    yield facts(_header(audit))
    yield ""
    for file in audit.files:
        if len(audit.files) > 1 or file.part:
            yield Text(f"part {file.part + 1}: {printable(file.path.name)}, {file.size:,} bytes")
        yield facts(_ownership(file))
        if form.byte_map:
            yield from ("", Text("\n".join(_map(file))), "")
    yield facts(_read(audit))
    if (types := audit.composition).types and audit.refused is None:
        yield from composition.lines(types)
    if any(c.scan is not None for c in audit.contents):
        yield from statistics.of_types(audit, form.whole)
    if audit.fingerprints:
        yield from (
            "",
            "fingerprint: which codes the blocks with d ≠ 0 hold",
            statistics.fingerprints(audit.fingerprints),
        )
    if audit.comparisons:
        yield from ("", Text(statistics.source(audit)))
        if any(c.error is not None for c in audit.comparisons):
            yield from ("relative error of the decoded values, the largest of each type", statistics.errors(audit))
    yield from _compared(audit, form)
    if audit.findings:
        yield ""
        yield from _findings(audit, form)
    yield ""
    yield from _left_over(audit)
    if audit.exit_code and audit.command:
        yield Text(f"repeat with: {shown(audit.command)}")
    yield _verdict(audit)


# ---- the file --------------------------------------------------------------------------------------------------------


def _header(audit: Audit) -> Iterator[tuple[str, str]]:
    h = audit.header
    llama = f" · llama.cpp {h.llama_cpp} (llama-cpp-python {h.llama_cpp_python})" if h.llama_cpp else ""
    yield "versions", f"gguf-verify {h.gguf_verify}{llama}"
    ggml = f"ggml {h.ggml} · " if h.ggml else ""
    yield "", f"{ggml}python {h.python} · numpy {h.numpy} · gguf {h.gguf} · {h.platform}"
    about = [printable(h.file, 200), counted(h.size, "bytes"), printable(h.architecture or "", 40)]
    yield "file", " · ".join(filter(None, about))
    yield from (("sha256" if not i else "", d) for i, d in enumerate(h.sha256 or ["not computed"]))
    if audit.sample:
        yield "sample", audit.sample.words
        yield "", audit.sample.untold
    if h.source:
        yield "source", printable(h.source, 200)
        yield from (("", digest) for digest in h.source_sha256 or ["not computed"])
    if h.imatrix:
        yield "imatrix", printable(h.imatrix, 200)
        yield "", h.imatrix_sha256 or "not computed"
    yield "sandbox", printable(h.sandbox, 400)


def _ownership(file: GgufFile) -> Iterator[tuple[str, str]]:
    sizes = Counter(file.byte_map.sizes())
    if any(f.id.endswith("-unowned") for f in coverage(file)):
        said = "NOT each owned by one field, see below"
    elif sizes["unread"]:
        said = f"{sizes['unread']:,} of them not read"
    else:
        said = "each owned by one field: 100 %"
    yield "bytes", f"{file.size:,}, {said}, {counted(len(file.byte_map), 'ranges')}"
    parts = [(name, sum(sizes[kind] for kind in kinds)) for name, kinds in _SUMMARY]
    yield "", " · ".join(f"{name} {n:,}" for name, n in parts if n)


def _map(file: GgufFile) -> Iterator[str]:
    """Every range of the file. There may be very many, so this is no table of rich."""
    yield f"{'start':>14} {'stop':>14} {'bytes':>13}  {'kind':<14}owner and value; stop is the byte after the last"
    for r in file.byte_map[:MOST_RANGES]:
        what = " = ".join(filter(None, [printable(r.owner, 64), printable(r.note, 60)]))
        yield f"{r.start:>14} {r.stop:>14} {r.nbytes:>13,}  {r.kind:<14}{what}"
    if len(file.byte_map) > MOST_RANGES:
        yield f"… and {len(file.byte_map) - MOST_RANGES:,} more ranges"


def _read(audit: Audit) -> Iterator[tuple[str, str]]:
    """The number of tensors that were read, and the answers of other readers."""
    if audit.n_tensors != len(audit.contents) and audit.refused is None:
        yield "tensors", f"{len(audit.contents):,} of {audit.n_tensors:,} checked"
    for part, readings in enumerate(audit.readings):
        of_part = f" part {part + 1}" if len(audit.readings) > 1 else ""
        for reading in readings:
            yield reading.reader + of_part, printable(reading.words, 400)


# ---- findings --------------------------------------------------------------------------------------------------------


def _findings(audit: Audit, form: Form) -> Iterator[Text]:
    """The findings, the most severe ones last; without -v those of one rule together."""
    by_rule: dict[tuple[str, bool], list[Finding]] = {}
    for f in audit.findings:
        by_rule.setdefault((f.id, f in audit.waived), []).append(f)
    for (_, waived), findings in sorted(by_rule.items(), key=lambda item: -_SEVERITIES.index(item[1][0].severity)):
        if len(findings) > 1 and not form.verbose:
            yield from _of_one_rule(audit, findings, " (waived)" if waived else "")
            continue
        for f in findings:
            place = f"{f.id} at {_where(f, len(audit.files) > 1)}{' (waived)' if waived else ''}"
            yield said((f"{f.severity:<8}", STYLES[f.severity]), place)
            yield Text(f"{'':8}found {f.found}; expected {f.expected}")
            yield Text(f"{'':8}{f.why}")


def _of_one_rule(audit: Audit, findings: Sequence[Finding], waived: str) -> Iterator[Text]:
    """The findings of one rule: how many, the worst, the share of each type, and whether they matter."""
    first, split = findings[0], len(audit.files) > 1
    counts = [(c, n) for c in audit.contents if (n := affected(c).get(first.id, 0))]
    what = f"{counted(sum(1 + f.more for f in findings), 'findings')}, the first at {_where(first, split)}"
    if counts:
        unit = "blocks" if counts[0][0].tensor.type.quantized else "values"
        total = sum(n for _, n in counts)
        what = f"{counted(len(counts), 'tensors')}, {counted(total, unit)}; {_shares(audit, counts, unit)}"
    yield said((f"{first.severity:<8}", STYLES[first.severity]), f"{first.id}{waived}: {what}")
    if counts:
        worst, n = max(counts, key=lambda item: item[1] / max(1, _blocks(item[0])))
        name = f"{printable(worst.tensor.name, 64)} ({worst.tensor.type.name})"
        of = _blocks(worst)
        yield Text(f"{'':8}the worst: {name}, {n:,} of {counted(of, unit)} ({statistics.percent(n, of)})")
        of_worst = [f for f in findings if f.owner == worst.tensor.name]
        found, label = (of_worst, "") if of_worst else (findings, "the first: ")
    else:
        found, label = findings, ""
    for f in found[: 1 if counts else MOST_OF_RULE]:
        yield Text(f"{'':8}{label}at {_where(f, split)}: found {f.found}; expected {f.expected}")
    yield Text(f"{'':8}{first.why}. {first.rule.cure}")
    yield Text(f"{'':8}-v lists each finding", DIM)


def _shares(audit: Audit, counts: Sequence[tuple[Content, int]], unit: str) -> str:
    """By type, the share of its blocks that findings are about, the largest first."""
    wrong, of = Counter[str](), Counter[str]()
    for content in audit.contents:
        of[content.tensor.type.name] += _blocks(content)
    for content, n in counts:
        wrong[content.tensor.type.name] += n
    shares = sorted(wrong, key=lambda kind: -wrong[kind] / max(1, of[kind]))
    return ", ".join(f"{statistics.percent(wrong[kind], of[kind])} of the {kind} {unit}" for kind in shares)


def _blocks(content: Content) -> int:
    return 0 if content.scan is None else content.scan.blocks


def _where(f: Finding, split: bool) -> str:
    return byte_range(f.start, f.stop) + (f" of part {f.part + 1}" if split or f.part else "")


def _compared(audit: Audit, form: Form) -> Iterator[Text]:
    pairs = [c.xrays for c in audit.comparisons if c.xrays is not None]
    shown = pairs if form.verbose else pairs[:MOST_COMPARED]
    for ours, made in shown:
        yield Text()
        yield from xray.pair_lines(ours, made, ("file", "source"))
    if len(pairs) > len(shown):
        yield Text(f"… {len(shown)} of {len(pairs)} tensors that differ are shown (-v shows all)")


def _left_over(audit: Audit) -> Iterator[Text]:
    """What was not compared or not verified, and the waivers."""
    if audit.fault and audit.verdict != "broken off":  # else the first line says it
        yield said(("BROKEN OFF", WARN), f": {audit.fault}")
    yield from (Text(f"not compared with {name}: {printable(why)}") for name, why in audit.left_out)
    yield from _left(audit, "tensors were not verified")
    yield from waiver_lines(audit.waivers)


def _verdict(audit: Audit) -> Text:
    """The verdict, its meaning, and what to do about the most severe finding, in a line."""
    notes = f"; {counted(n, 'notes')}" if (n := audit.counts["note"]) and audit.refused is None else ""
    words = f"{_looked(audit)} in {audit.seconds:.1f} s: {audit.sentence}{notes}"
    verdict = audit.words.upper(), STYLES[audit.verdict]
    findings = sorted(
        (f for f in audit.findings if f not in audit.waived and f.severity != "note"),
        key=lambda f: _SEVERITIES.index(f.severity),
    )
    if worst := audit.refused or next(iter(findings), None):
        first = "" if worst is audit.refused else f"{worst.id} at {_where(worst, len(audit.files) > 1)}"
        more = f"gguf-verify explain {worst.id}"
        return verdict_line(verdict, words, ("first", first), ("fix", worst.rule.cure), ("more", more))
    left = "" if not audit.unverified else ": ".join(map(printable, audit.unverified[0]))
    more = f"gguf-verify explain {audit.verdict.replace(' ', '-')}" if audit.exit_code and not audit.sample else ""
    return verdict_line(verdict, words, ("first", left), ("more", more))
