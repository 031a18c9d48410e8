"""Reports as JSON: the same facts as at the terminal, and every record behind them.

A run's report is schema 4, `schemas/run.schema.json`: the fields of `gguf_verify.results.report.Report` by their names,
and before them `schema`, `verdict`, `words` (the headline), `exit_code`, `culprits` (who is at fault → for how much)
and `checks` (what became of each class of checks); each rung's `verdict` stands before its fields. An
audit's, an x-ray's, an identification's and a judgement's are schema 1: see the functions below.

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". Names from a file are not escaped; bytes
that are not UTF-8 read \\udcNN.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from ..backend_results import GRAPH_SCHEMA
from ..bisection_results import BISECTION_SCHEMA
from ..results.report import SCHEMA_VERSION
from ..support.address import Address
from ..support.plain import plain
from ..support.text import ELLIPSIS
from .published import names, public, published
from .writer import Form, Kind, Writer

if TYPE_CHECKING:
    from ..audit.many import Audits
    from ..audit.record import Audit, AuditHeader
    from ..audit.xray import XRay
    from ..backend_results import GraphReport
    from ..bisection_results import Bisection
    from ..captured import Judged
    from ..gguf.records import Finding, Range
    from ..identification import IdentifyHeader, IdentifyReport
    from ..results.composition import Composition
    from ..results.report import Report

#: Of audits, x-rays and identifications.
_OTHER_VERSION = 1
#: Ranges of a file, entries of the lists of an audit's tensors, and characters of a range's owner; the rest is counted.
MOST_RANGES, MOST_TENSORS, MOST_OWNER = 50_000, 10_000, 256


def of_run(report: Report) -> dict[str, Any]:
    """A run's report as plain objects."""
    made: dict[str, Any] = plain(report)
    made["rungs"] = [
        {"verdict": rung.verdict, **fields} for rung, fields in zip(report.rungs, made["rungs"], strict=True)
    ]
    return {
        "schema": SCHEMA_VERSION, "verdict": report.verdict, "words": report.words, "exit_code": report.exit_code,
        "culprits": report.culprits, "checks": plain(report.checks), **made,
    }  # fmt: skip


def of_audit(audit: Audit, name: str = "") -> dict[str, Any]:
    """An audit as plain objects. Files have names and no folders, because such files are published; `name` is that of
    the audited one, if the base name is not enough.

    Ranges of bytes are half-open: start is the first byte, stop the one after the last.

    kind "audit"; verdict "clean", "clean in the sample", "clean as far as checked", "waived", "warnings", "wrong",
    "refused", "broken off" or "not everything verified"; sentence: what that means here; exit_code; header: versions,
    file, sha256; seconds, command, strict; fault: what broke the audit off, or null; n_tensors: how many the model has,
    of which `tensors` were looked at; composition: {weights, bytes, bits_per_weight, types: {type, tensors, weights,
    bytes, bits_per_weight}, the most bytes first} of all tensors; findings: {severity, id, effect, part, start, stop,
    expected, found, why, owner}; waivers: {what, reason, until, state, failures}; files: one a part, whose byte_map
    lists [start, stop, kind, owner, note]; tensors: {name, type, shape, part, offset, bytes, statistics or null}, where
    `codes` counts each code from the lowest; fingerprints: {type, blocks, consistent or null, rules: {producer, rule,
    obeying}}; readers: a list a part; source: null without --source, else {tensor, outcome ("same", "differs",
    "possible" or "impossible" with an importance matrix, "missing" or "not compared"), differing, first: [row, block]
    or null, made: hex or null, error and made_error: relative to the source, of the file's values and of those that
    llama.cpp makes, unverified, judgement or null, with_importance, through}; source_keys: null, or {compared,
    differing, why: none was compared}; unmapped: tensors of the source that were not compared, {name, why}; unverified:
    {name, why}; left_out: checks that were not requested, {name, why}; not_listed: list → number of entries beyond its
    limit (`MOST_RANGES`, `MOST_TENSORS`; of findings `MAX_PER_RULE`); sample: null, or of a remote file {seed, fetched
    and size in bytes, requests, blocks, of_blocks, piece_bytes, pieces: of a tensor, or null for all, untold: what it
    cannot tell}, where statistics are of the sampled blocks.
    """
    fields = {
        "schema": _OTHER_VERSION, "kind": "audit", "verdict": audit.verdict,
        "sentence": audit.sentence, "exit_code": audit.exit_code,
        "header": _audit_header(audit, name), "seconds": audit.seconds,
        "command": audit.command, "strict": audit.strict, "fault": audit.fault, "n_tensors": audit.n_tensors,
        "composition": _composition(audit.composition),
        "findings": [_finding(f, f in audit.waived) for f in audit.findings],
        "files": [
            {"path": _base(f.shown), "size": f.size, "version": f.version, "alignment": f.alignment,
             "data_offset": f.data_offset, "refused": f.refused.id if f.refused else None,
             "byte_map": [_range(r) for r in f.byte_map[:MOST_RANGES]]}
            for f in audit.files
        ],
        "tensors": [_tensor(c) for c in audit.contents[:MOST_TENSORS]],
        "fingerprints": [
            {"type": f.type, "blocks": f.blocks, "consistent": f.consistent.producer if f.consistent else None,
             "rules": [{"producer": r.producer, "rule": r.text, "obeying": n} for r, n in f.obeying]}
            for f in audit.fingerprints
        ],
        "readers": [
            [{**vars(r), "tensors": [t._asdict() for t in r.tensors[:MOST_TENSORS]]} for r in of_part]
            for of_part in audit.readings
        ],
        "source": [_comparison(c) for c in audit.comparisons[:MOST_TENSORS]] if audit.header.source else None,
        "source_keys": asdict(audit.source_keys) if audit.source_keys else None,
        "unmapped": [{"name": name, "why": why} for name, why in audit.unmapped[:MOST_TENSORS]],
        "unverified": [{"name": name, "why": why} for name, why in audit.unverified[:MOST_TENSORS]],
        "waivers": [msgspec.structs.asdict(use) for use in audit.waivers],
        "left_out": [{"name": name, "why": why} for name, why in audit.left_out],
        "not_listed": _not_listed(audit),
        "sample": {**asdict(audit.sample), "untold": audit.sample.untold} if audit.sample else None,
    }  # fmt: skip
    made = as_object(fields)
    return {key: value if key in ("files", "tensors", "source") else public(value) for key, value in made.items()}


def _audit_header(audit: Audit, name: str) -> dict[str, Any]:
    made = _header(audit.header)
    paths = {key: None if made[key] is None else _base(made[key]) for key in ("source", "imatrix")}
    return made | {"file": name or _base(made["file"]), **paths}


def _base(path: str) -> str:
    """The name of a file or a folder; an address as it is."""
    return path if Address.of(path) is not None else path.rstrip("/").rpartition("/")[2]


def _composition(of: Composition) -> dict[str, Any]:
    return {
        "weights": of.weights, "bytes": of.nbytes, "bits_per_weight": of.bits_per_weight,
        "types": [
            {"type": share.type, "tensors": share.tensors, "weights": share.weights, "bytes": share.nbytes,
             "bits_per_weight": share.bits_per_weight}
            for share in of.types
        ],
    }  # fmt: skip


def _finding(f: Finding, waived: bool) -> dict[str, Any]:
    fields = {"severity": f.severity, "waived": waived, **asdict(f)}
    del fields["more"], fields["unlisted"]  # `not_listed` has the number
    return fields


def _range(owned: Range) -> list[Any]:
    """A range of bytes. A key can have megabytes, and owns several ranges."""
    owner = owned.owner if len(owned.owner) <= MOST_OWNER else owned.owner[:MOST_OWNER] + ELLIPSIS
    return [owned.start, owned.stop, owned.kind, owner, owned.note]


def _not_listed(audit: Audit) -> dict[str, int]:
    """Name of a list → how many entries it lacks; complete lists are omitted."""
    beyond = {
        "findings": sum(f.more for f in audit.findings),
        "byte_map": sum(max(0, len(f.byte_map) - MOST_RANGES) for f in audit.files),
        "readers": sum(max(0, len(r.tensors) - MOST_TENSORS) for of_part in audit.readings for r in of_part),
    }
    for name, of in (
        ("tensors", audit.contents), ("source", audit.comparisons), ("unmapped", audit.unmapped),
        ("unverified", audit.unverified),
    ):  # fmt: skip
        beyond[name] = max(0, len(of) - MOST_TENSORS)
    return {name: n for name, n in beyond.items() if n}


#: Keys of a header that are not its fields' names.
_HEADER_KEYS = {
    "gguf_verify": "gguf-verify", "llama_cpp": "llama.cpp", "llama_cpp_python": "llama-cpp-python",
    "source_sha256": "source sha256", "imatrix_sha256": "imatrix sha256", "definition": "semantics",
    "judged_by": "judged by",
}  # fmt: skip


def _header(header: AuditHeader | IdentifyHeader) -> dict[str, Any]:
    return {_HEADER_KEYS.get(name, name): value for name, value in asdict(header).items()}


def of_audits(audits: Audits) -> dict[str, Any]:
    """Audits of several files as plain objects.

    kind "audits"; verdict and exit_code: of the worst file; seconds, command; verdicts: how many files have each;
    audits: one a file, as `of_audit` has it, or {kind "unopened", path, verdict, exit_code, why}.
    """
    listed = [
        of_audit(a, name) if a in audits.opened else {
            "kind": "unopened", "path": name, "verdict": a.verdict, "exit_code": a.exit_code,
            "why": published(getattr(a, "why", "")),
        }
        for a, name in zip(audits.audits, names(a.path for a in audits.audits), strict=True)
    ]  # fmt: skip
    fields = {
        "schema": _OTHER_VERSION, "kind": "audits", "verdict": audits.verdict, "exit_code": audits.exit_code,
        "seconds": audits.seconds, "command": published(audits.command), "verdicts": dict(audits.verdicts),
        "audits": listed,
    }  # fmt: skip
    return as_object(fields)


def _tensor(content: Any) -> dict[str, Any]:
    t, scan = content.tensor, content.scan
    statistics = None
    if scan is not None:
        bits = t.type.format.bits if t.type.format else 0
        statistics = msgspec.structs.asdict(scan)
        statistics["codes"] = scan.codes[: 1 << bits].tolist() if bits else None
    return {
        "name": t.name, "type": t.type.name, "shape": list(t.shape), "part": t.part, "offset": t.offset,
        "bytes": t.nbytes, "statistics": statistics,
    }  # fmt: skip


def _comparison(c: Any) -> dict[str, Any]:
    return {
        "tensor": c.tensor.name, "outcome": c.outcome, "differing": c.result.differing if c.result else None,
        "first": list(c.first) if c.first else None, "made": c.result.block.hex() if c.first and c.result else None,
        "unverified": c.unverified or ("" if c.source else "the source holds no such tensor"),
        "error": c.error, "made_error": c.made_error, "with_importance": c.with_importance, "through": c.through,
        "judgement": None if c.judgement is None else asdict(c.judgement),
    }  # fmt: skip


def of_xray(xray: XRay) -> dict[str, Any]:
    """A block as plain objects: kind "x-ray"; xray: see `gguf_verify.audit.xray.to_dict`."""
    from ..audit.xray import to_dict

    return {"schema": _OTHER_VERSION, "kind": "x-ray", "xray": to_dict(xray)}


def of_identification(report: IdentifyReport) -> dict[str, Any]:
    """The result of `gguf-verify identify` as plain objects.

    A product has type, tensor, M, N, K, who, declared, identified (names; none where it is no known definition),
    coincide (whether those names give the same on these data), candidates (name, utilisation, score, nmse, within) and
    lines; `unable` lists {type, why}.
    """
    products = [
        {
            "type": p.type, "tensor": p.tensor, "M": p.m, "N": p.n, "K": p.k, "who": p.who, "declared": p.declared,
            "identified": [] if p.found is None else list(p.found.names),
            "coincide": p.found is not None and p.found.coincide,
            "candidates": [] if p.found is None else [vars(c) for c in p.found.candidates], "lines": list(p.lines),
        }
        for p in report.products
    ]  # fmt: skip
    fields = {
        "schema": _OTHER_VERSION, "exit_code": report.exit_code, "header": _header(report.header),
        "command": report.command,
        "products": products, "unable": [{"type": kind, "why": why} for kind, why in report.unable],
    }  # fmt: skip
    return as_object(fields)


def of_judgement(judged: Judged) -> dict[str, Any]:
    """A captured product as plain objects: kind "judgement"; verdict; exit_code; fitting: the definitions that fit; and
    the fields of `gguf_verify.captured.Judged` by their names."""
    fields = asdict(judged) | {"faults": list(judged.faults)}
    return as_object(
        {
            "schema": _OTHER_VERSION, "kind": "judgement", "verdict": judged.verdict, "exit_code": judged.exit_code,
            "fitting": judged.fitting, **fields,
        }
    )  # fmt: skip


def of_graph(report: GraphReport) -> dict[str, Any]:
    """A graph that was judged node by node as plain objects: kind "graph"; verdict; exit_code; judged: how many nodes
    were; and the fields of `gguf_verify.backend_results.GraphReport` by their names."""
    made: dict[str, Any] = plain(report)
    return {
        "schema": GRAPH_SCHEMA, "kind": "graph", "verdict": report.verdict, "exit_code": report.exit_code,
        "judged": report.judged, **made,
    }  # fmt: skip


def of_bisection(found: Bisection) -> dict[str, Any]:
    """A bisection as plain objects: kind "bisection"; exit_code; and the fields of
    `gguf_verify.bisection_results.Bisection` by their names."""
    made: dict[str, Any] = plain(found)
    return {"schema": BISECTION_SCHEMA, "kind": "bisection", "exit_code": found.exit_code, **made}


def as_object(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields with records as plain objects."""
    made = plain(fields)
    assert isinstance(made, dict)
    return made


def as_text(made: dict[str, Any], indent: int | None = 2) -> str:
    """The text of a JSON file."""
    return json.dumps(made, indent=indent, allow_nan=False) + "\n"


def renders(kind: Kind) -> Callable[[Any], str]:
    """Return the function that makes the JSON text for a kind of result."""
    return lambda result: str(WRITER.renders[kind](result, Form(".json")))


WRITER = Writer(
    "JSON", "--json",
    {
        Kind.RUN: lambda report, form: as_text(of_run(report)),
        Kind.AUDIT: lambda audit, form: as_text(of_audit(audit), None),  # of a large file
        Kind.AUDITS: lambda audits, form: as_text(of_audits(audits), None),
        Kind.XRAY: lambda xray, form: as_text(of_xray(xray)),
        Kind.JUDGEMENT: lambda judged, form: as_text(of_judgement(judged)),
        Kind.IDENTIFICATION: lambda report, form: as_text(of_identification(report)),
        Kind.GRAPH: lambda report, form: as_text(of_graph(report)),
        Kind.BISECTION: lambda found, form: as_text(of_bisection(found)),
    },
    (".json",),
)  # fmt: skip
