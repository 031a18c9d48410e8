"""The digests of audits: the verdict, the findings, and unverified items; a row for each of several files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from ...audit.many import PRECEDENCE, Audits, Unopened
from ...audit.record import Audit
from ...support.command_line import shown
from ...support.shown import View
from ...support.text import counted, printable
from .. import json, notebook
from ..digest import Digest, Finding, Marked, Section, Table, message, paragraphs, unverified, waivers
from ..published import file_name, names
from ..shades import level
from ..terminal import audit as terminal
from ..writer import Form, Kind
from .run import of_waivers

_LEVELS = ("error", "warning", "note")


def digest(audit: Audit) -> Digest:
    """The digest of an audit."""
    found = [*findings(audit)]
    return Digest(
        level=level(audit.verdict),
        words=audit.words,
        exit_code=audit.exit_code,
        command=audit.command,
        repeat=shown(audit.command) if audit.exit_code else "",
        findings=found,
        sections=[*_sections(audit, found)],
    )


def findings(audit: Audit) -> Iterator[Finding]:
    """Yield the fault, the findings of the file, waivers and unverified items."""
    path = file_name(str(audit.path))
    finding = partial(Finding, heading=f"{printable(audit.path.name)}: {audit.words}", path=path)
    if audit.fault:
        yield finding(rule="broken-off", level="error", kind="broken off", message=printable(audit.fault))
    of_part = {file.part: file_name(file.shown) for file in audit.files}
    starts = {(t.part, t.name): t.offset for t in (c.tensor for c in audit.contents)}
    for f in audit.findings:
        base = starts.get((f.part, f.owner))
        yield finding(
            rule=f.id,
            level=f.severity,
            kind="finding",
            scope=f"{f.id} at byte {f.start}",
            message=f"Found {f.found}; expected {f.expected}",
            details=f". Why it matters: {f.why}.",
            path=of_part.get(f.part, path),
            owner=f.owner,
            # the place in the tensor does not change when the header grows
            place=str(f.start - base) if base is not None and f.start >= base else "",
            region=(f.start, f.stop),
            waived=f in audit.waived,
            fails=audit.strict and f.severity == "warning",
            quiet=f.severity == "note",
        )
    yield from of_waivers(audit.waivers, path)
    for name, why in audit.unverified:
        words = f"{printable(name, 64)} could not be judged: {printable(why)}"
        yield finding(rule="not-verified", level="warning", kind="not verified", message=words, owner=name)


def _sections(audit: Audit, found: Sequence[Finding]) -> Iterator[Section]:
    tensors = f"{len(audit.contents):,} of {counted(audit.n_tensors, 'tensors')} read"
    yield f"{printable(audit.path.name, 100)}: {audit.header.size:,} bytes, {tensors}."
    if audit.sample:
        yield f"An audit {audit.sample.sentence}: {audit.sample.untold}."
    if (types := audit.composition).types and audit.refused is None:
        yield f"{types.bits_per_weight:.2f} bits per weight; by bytes {types.words()}."
        shares = [
            (share.type, types.percent(share), f"{share.nbytes:,}", f"{share.weights:,}",
             f"{share.bits_per_weight:.4g}", f"{share.tensors:,}")
            for share in types.types
        ]  # fmt: skip
        heads = ("type", "share of the bytes", "bytes", "weights", "bits per weight", "tensors")
        yield Table("The types of the weights", heads, shares, folded=True)
    yield from paragraphs(found, "broken off")
    if listed := sorted((f for f in found if f.kind == "finding"), key=lambda f: _LEVELS.index(f.level)):
        rows = [(Marked(level(f.level), f.level), f.scope, f.message) for f in listed]
        yield Table("", ("", "finding", "what"), rows)
    yield from waivers(found)
    yield from unverified(found)
    digests = "" if audit.header.sha256 is None else f" · SHA-256 {', '.join(audit.header.sha256)}"
    yield f"gguf-verify {audit.header.gguf_verify}{digests}"


def digest_of_many(audits: Audits) -> Digest:
    """The digest of the audits of several files, the worst first."""
    counts = ", ".join(f"{n:,} {word}" for word, n in audits.verdicts.most_common())
    ordered = sorted(audits.audits, key=lambda a: (PRECEDENCE.index(a.exit_code), level(a.verdict) == "good"))
    rows = [
        (Marked(level(a.verdict), a.verdict), name, _bits(a), a.sentence if isinstance(a, Audit) else a.why)
        for a, name in zip(ordered, names(a.path for a in ordered), strict=True)
    ]
    return Digest(
        level=level(audits.verdict),
        words=audits.verdict,
        exit_code=audits.exit_code,
        command=audits.command,
        findings=[*_of_files(audits)],
        sections=[f"{counted(len(audits.audits), 'files')}: {counts}.", Table("", _HEADS, rows)],
    )


_HEADS = ("", "file", "bits per weight", "how it is")


def _bits(audit: Audit | Unopened) -> str:
    known = isinstance(audit, Audit) and audit.refused is None and bool(audit.composition.types)
    return f"{audit.composition.bits_per_weight:.2f}" if isinstance(audit, Audit) and known else "–"


def _of_files(audits: Audits) -> Iterator[Finding]:
    """Yield the findings of each file, and the files that could not be opened."""
    for a in audits.audits:
        if isinstance(a, Unopened):
            heading = f"{printable(a.path.name)}: {a.verdict}"
            yield Finding(
                rule="not-opened", level="error", heading=heading, message=printable(a.why), path=file_name(str(a.path))
            )
        else:
            yield from findings(a)


# ---- in Python -------------------------------------------------------------------------------------------------------


def line(audit: Audit) -> str:
    """Verdict and counts."""
    sample = f" {audit.sample.sentence}" if audit.sample else ""
    return f"Audit{sample}: {audit.verdict}; {counted(audit.n_tensors, 'tensors')}; {_counts(audit)}"


def _counts(audit: Audit) -> str:
    found = Counter(f.severity for f in audit.findings)
    return ", ".join(counted(n, f"{severity}s") for severity, n in found.items()) or "no findings"


def _message(audit: Audit) -> str:
    return message(f"{printable(audit.path.name, 100)} is not clean: {audit.verdict}; {_counts(audit)}", digest(audit))


VIEW = View(
    Audit,
    line,
    lambda audit: terminal.render(audit, Form()),
    lambda audit: notebook.render(digest(audit)),
    json.of_audit,
    json.renders(Kind.AUDIT),
    _message,
)
