"""The page of audits: verdicts, the byte map, findings and tensors, arranged for the templates."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

from markupsafe import Markup

from ...audit.many import Audits, Unopened
from ...audit.record import Audit
from ...gguf.file import GgufFile
from ...gguf.records import Finding
from ...results.composition import TypeShare
from ...support.text import byte_range, counted, printable
from ...support.version import project_version
from ..published import names
from ..shades import level
from . import charts

#: Pieces of a map, tensors and findings of a page; the rest is counted.
MOST_SEGMENTS, MOST_TENSORS = 1000, 5000
_WIDEST = 40
_TYPES = 8

#: Kinds of ranges → the piece of the map that they are part of.
_PIECES = {
    **dict.fromkeys(("magic", "version", "tensor count", "key count"), "header"),
    **dict.fromkeys(("key", "value type", "element type", "element count", "value"), "metadata"),
    **dict.fromkeys(("tensor name", "dimensions", "type", "offset"), "descriptions"),
}


class Segment(NamedTuple):
    """A piece of the map: its classes, and its range and owner in words."""

    classes: str
    label: str


class Map(NamedTuple):
    """The byte map of a part."""

    number: int
    size: str
    legend: Sequence[tuple[str, str]]
    segments: Sequence[Segment]
    more: int


class OfTensor(NamedTuple):
    """A line of the tensors' table; `errors`: the relative error, and llama.cpp's, in words."""

    name: str
    type: str
    shape: str
    start: int
    bytes: str
    fingerprint: str
    source: str
    error: float | None
    errors: str


class OfTypes(NamedTuple):
    """The types of the weights: the average size, and for each type its class, its name and figures in words.

    Args:
        bar: the shares of the bytes as a picture.
    """

    bits: str
    bar: Markup
    rows: Sequence[tuple[str, TypeShare, str]]


class Listed(NamedTuple):
    """A line of the files' table; `id` is that of its section, or ""; `bits` per weight in words, or ""."""

    id: str
    name: str
    verdict: str
    level: str
    bits: str
    sentence: str


@dataclass(frozen=True)
class OfAudit:
    """One file."""

    id: str
    name: str
    verdict: str
    level: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    types: OfTypes | None
    maps: Sequence[Map]
    #: With their bytes in words.
    findings: Sequence[tuple[Finding, str]]
    left: Sequence[tuple[str, str]]
    fingerprints: Sequence[tuple[str, str]]
    heads: Sequence[tuple[str, str]]
    tensors: Sequence[OfTensor]
    n_tensors: int
    compared: bool


@dataclass(frozen=True)
class Page:
    """A page, ready to be shown."""

    title: str
    verdict: str
    level: str
    sentence: str
    command: str
    version: str
    listed: Sequence[Listed]
    audits: Sequence[OfAudit]
    unopened: int


def of(result: Audit | Audits) -> Page:
    """One audit or several."""
    if isinstance(result, Audit):
        title = result.path.name
        shown = _audit(result, 0, title)
        return Page(
            title, result.words, shown.level, result.sentence, result.command, project_version(), [], [shown], 0
        )
    listed: list[Listed] = []
    audits: list[OfAudit] = []
    for a, name in zip(result.audits, names(a.path for a in result.audits), strict=True):
        if isinstance(a, Unopened):
            listed.append(Listed("", name, a.verdict, level(a.verdict), "", a.why))
            continue
        made = _audit(a, len(audits), name)
        audits.append(made)
        bits = "" if made.types is None else made.types.bits
        listed.append(Listed(made.id, name, a.verdict, made.level, bits, a.sentence))
    counts = ", ".join(f"{n} {verdict}" for verdict, n in result.verdicts.most_common())
    sentence = f"{counted(len(result.audits), 'files')}: {counts}"
    return Page(
        counted(len(result.audits), "files"), result.verdict, level(result.verdict), sentence, result.command,
        project_version(), listed, audits, len(result.audits) - len(audits),
    )  # fmt: skip


def _audit(audit: Audit, number: int, name: str) -> OfAudit:
    split = len(audit.files) > 1
    findings = [(f, byte_range(f.start, f.stop) + (f" of part {f.part + 1}" if split else "")) for f in audit.findings]
    left = [*audit.left_out, *audit.unverified, *audit.unmapped]
    if len(left) > MOST_SEGMENTS:
        left[MOST_SEGMENTS - 1 :] = [(f"{len(left) - MOST_SEGMENTS + 1:,} more", "not listed here")]
    heads = [("tensor", "s"), ("type", "s"), ("shape", "s"), ("bytes", "n"), ("codes of its blocks", "s")]
    heads += [("against the source", "s"), ("relative error", "n")] if audit.comparisons else []
    tensors = _tensors(audit)
    return OfAudit(
        f"a{number}", name, audit.verdict, level(audit.verdict), audit.sentence, _facts(audit), _types(audit),
        [_map(audit, file) for file in audit.files], findings, left,
        [
            (f.type, f"as {f.consistent.producer} leaves them" if f.consistent else "no known rule holds throughout")
            for f in audit.fingerprints if f.blocks
        ],
        heads, tensors, len(audit.contents), bool(audit.comparisons),
    )  # fmt: skip


def _facts(audit: Audit) -> list[tuple[str, str]]:
    h = audit.header
    facts = [("size", f"{h.size:,} bytes"), ("architecture", h.architecture or "unknown")]
    facts += [("sha256", digest) for digest in h.sha256 or ["not computed"]]
    facts += [("sample", f"{s.words}; {s.untold}")] if (s := audit.sample) else []
    facts += [("source", _base(h.source)), *(("", d) for d in h.source_sha256 or ())] if h.source else []
    facts += [("source's keys", audit.source_keys.words)] if audit.source_keys else []
    facts += [("importance matrix", _base(h.imatrix)), ("", h.imatrix_sha256 or "")] if h.imatrix else []
    llama = f"llama.cpp {h.llama_cpp} (llama-cpp-python {h.llama_cpp_python})" if h.llama_cpp else "no llama.cpp"
    facts.append(("versions", f"gguf-verify {h.gguf_verify} · {llama} · gguf {h.gguf} · numpy {h.numpy}"))
    for readings in audit.readings:
        facts += [(r.reader, r.words) for r in readings]
    return [(name or "sha256", value) for name, value in facts]


def _base(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _classes(audit: Audit) -> dict[str, str]:
    """Type → the class of its colour, in the order of bytes."""
    return {share.type: f"t{i % _TYPES}" for i, share in enumerate(audit.composition.types)}


def _types(audit: Audit) -> OfTypes | None:
    """The types of the weights; None if the file was refused, or holds no tensor."""
    made, colour = audit.composition, _classes(audit)
    if audit.refused is not None or not made.types:
        return None
    rows = [(colour[share.type], share, made.percent(share)) for share in made.types]
    bar = charts.shares([(colour[share.type], share.nbytes) for share in made.types], made.words(len(made.types)))
    return OfTypes(f"{made.bits_per_weight:.2f}", bar, rows)


def _map(audit: Audit, file: GgufFile) -> Map:
    """The ranges, merged into pieces: of the metadata one for each key, of the data one for each tensor."""
    colour = _classes(audit)
    kinds = {name: t.type.name for name, t in file.tensors.items()}
    pieces: list[list[Any]] = []  # start, stop, what, owner
    for r in file.byte_map:
        what = _PIECES.get(r.kind, r.kind)
        owner = r.owner if what in ("metadata", "data") else ""
        if pieces and pieces[-1][2:] == [what, owner]:
            pieces[-1][1] = r.stop
        else:
            pieces.append([r.start, r.stop, what, owner])
    found = [f for f in audit.findings if f.part == file.part and f.stop > f.start]
    marked = _marked(pieces, found)
    segments = []
    for (start, stop, what, owner), severity in zip(pieces[:MOST_SEGMENTS], marked, strict=False):
        kind = colour.get(kinds.get(owner, ""), "t0") if what == "data" else f"k-{what}"
        words = f"{what} {kinds.get(owner, '')}".strip() if what == "data" else what
        name = f" · {printable(owner, 80)}" if owner else ""
        told = f" · {severity}" if severity else ""
        mark = {"error": " found", "warning": " found warned"}.get(severity, "")
        label = f"{byte_range(start, stop)} · {stop - start:,} bytes · {words}{name}{told}"
        segments.append(Segment(f"{kind} w{min(_WIDEST, int(log2(stop - start + 1)))}{mark}", label))
    shown = list(dict.fromkeys(what for _, _, what, _ in pieces if what != "data"))
    legend = [(f"k-{what}", what) for what in shown] + [(kind, name) for name, kind in colour.items()]
    return Map(file.part + 1, f"{file.size:,}", legend, segments, max(0, len(pieces) - MOST_SEGMENTS))


def _marked(pieces: Sequence[Sequence[Any]], findings: Sequence[Finding]) -> list[str]:
    """Of each piece the worst severity of the findings in it, or ""."""
    marks = [""] * len(pieces)
    starts = [piece[0] for piece in pieces]
    order = ("", "note", "warning", "error")
    for f in findings:
        at = bisect_right(starts, f.start) - 1
        if 0 <= at < len(marks) and order.index(f.severity) > order.index(marks[at]):
            marks[at] = f.severity
    return marks


def _tensors(audit: Audit) -> list[OfTensor]:
    compared = {c.tensor.name: c for c in audit.comparisons}
    prints = {
        f.type: f.consistent.producer if f.consistent else "no known rule" for f in audit.fingerprints if f.blocks
    }
    made = []
    for content in audit.contents[:MOST_TENSORS]:
        t, c = content.tensor, compared.get(content.tensor.name)
        errors = ""
        if c is not None and c.error is not None and c.made_error is not None:
            errors = f"{100 * c.error:.3g} %, llama.cpp's {100 * c.made_error:.3g} %"
        told = "" if c is None else _OUTCOMES[c.outcome] + (f": {c.unverified}" if c.unverified else "")
        made.append(OfTensor(
            t.name, t.type.name, " × ".join(map(str, t.shape)) or "one value", t.offset,
            f"{t.offset}-{t.offset + t.nbytes}", prints.get(t.type.name, ""), told,
            None if c is None else c.error, errors,
        ))  # fmt: skip
    return made


_OUTCOMES = {
    "same": "the same bytes", "differs": "differs", "possible": "possible with an importance matrix, not proven",
    "impossible": "impossible with any importance matrix", "missing": "not in the source",
    "not compared": "not compared",
}  # fmt: skip
