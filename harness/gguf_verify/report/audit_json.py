"""The audit as JSON: the same facts as at the terminal, and every record behind them.

Schema version 1, an object with

    schema        1
    kind          "audit"
    verdict       "clean", "wrong", "refused", "broken off" or "not everything verified"
    exit_code     0, 1, 3, 4 or 5
    header        versions, file, sha256: name → value
    seconds, command, strict
    fault         what broke the audit off, or null
    n_tensors     how many the model has; `tensors` are those that were looked at
    findings      list of {id, severity, effect, part, start, stop, expected, found, why, owner}
    files         one a part: {path, size, version, alignment, data_offset, refused, byte_map}, the map a list of
                  [start, stop, kind, owner, note]
    tensors       list of {name, type, shape, part, offset, bytes, statistics or null}; see gguf_verify.llama.Scan;
                  `codes` counts each code, from the lowest
    fingerprints  list of {type, blocks, consistent or null, rules: list of {producer, rule, obeying}}
    readers       one list a part: {reader, verdict, said, data_offset, tensors}
    source        list of {tensor, differing, first: [row, block] or null, made: hex or null, unverified}, or null
    unverified    list of {name, why}

Of one block (`--block`, `--row`, `--offset`) it is {schema, kind: "x-ray", xray}; see gguf_verify.audit.xray.

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity". Names from the file are not escaped;
bytes that are not UTF-8 read \\udcNN.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ..audit import Audit, Content, Reading
from ..audit.source import Comparison
from ..gguf import Finding, GgufFile
from .json_report import safe

SCHEMA_VERSION = 1


def to_dict(audit: Audit) -> dict[str, Any]:
    """The audit as plain objects that JSON can hold."""
    plain = safe({
        "schema": SCHEMA_VERSION, "kind": "audit", "verdict": audit.verdict, "exit_code": audit.exit_code,
        "header": audit.header, "seconds": audit.seconds, "command": audit.command, "strict": audit.strict,
        "fault": audit.fault, "n_tensors": audit.n_tensors,
        "findings": [_finding(f) for f in audit.findings],
        "files": [_file(f) for f in audit.files],
        "tensors": [_tensor(c) for c in audit.contents],
        "fingerprints": [
            {"type": f.type, "blocks": f.blocks, "consistent": f.consistent.producer if f.consistent else None,
             "rules": [{"producer": r.producer, "rule": r.text, "obeying": n} for r, n in f.obeying]}
            for f in audit.fingerprints
        ],
        "readers": [[_reading(r) for r in readings] for readings in audit.readings],
        "source": [_comparison(c) for c in audit.comparisons] if audit.header.get("source") else None,
        "unverified": [{"name": name, "why": why} for name, why in audit.unverified],
    })  # fmt: skip
    assert isinstance(plain, dict)
    return plain


def render(audit: Audit) -> str:
    """The audit as JSON text."""
    return json.dumps(to_dict(audit), allow_nan=False) + "\n"


def render_xray(plain: dict[str, Any]) -> str:
    """The x-ray of one block, as `gguf_verify.audit.xray.to_dict` gives it."""
    return (
        json.dumps(safe({"schema": SCHEMA_VERSION, "kind": "x-ray", "xray": plain}), indent=2, allow_nan=False) + "\n"
    )


def _finding(f: Finding) -> dict[str, Any]:
    return {"severity": f.severity, **asdict(f)}


def _reading(reading: Reading) -> dict[str, Any]:
    return {**asdict(reading), "tensors": [t._asdict() for t in reading.tensors]}


def _file(file: GgufFile) -> dict[str, Any]:
    return {
        "path": str(file.path), "size": file.size, "version": file.version, "alignment": file.alignment,
        "data_offset": file.data_offset, "refused": file.refused.id if file.refused else None,
        "byte_map": [list(r) for r in file.byte_map],
    }  # fmt: skip


def _tensor(content: Content) -> dict[str, Any]:
    t, scan = content.tensor, content.scan
    statistics = None
    if scan is not None:
        bits = t.type.format.bits if t.type.format else 0
        statistics = {**asdict(scan), "codes": scan.codes[: 1 << bits].tolist() if bits else None}
    return {
        "name": t.name, "type": t.type.name, "shape": list(t.shape), "part": t.part, "offset": t.offset,
        "bytes": t.nbytes, "statistics": statistics,
    }  # fmt: skip


def _comparison(c: Comparison) -> dict[str, Any]:
    return {
        "tensor": c.tensor.name, "differing": c.result.differing if c.result else None,
        "first": list(c.first) if c.first else None, "made": c.result.block.hex() if c.first and c.result else None,
        "unverified": c.unverified or ("" if c.source else "the source holds no such tensor"),
    }  # fmt: skip
