"""What `--identify` found, at the terminal and as JSON.

JSON, schema version 1: {schema, exit_code, header, command, products, unable}; a product has type, tensor, M, N, K,
who, declared, identified (names; empty for none), coincide (the same on these data), candidates (each with name,
utilisation, score, nmse, within) and lines; `unable` is a list of {type, why}.
"""

from __future__ import annotations

import json
from typing import Any

from ..gguf import printable
from ..identification import Identified, IdentifyReport
from .json_report import safe


def render(report: IdentifyReport) -> str:
    """The table, and a sentence for whatever is not what it declares."""
    h = report.header
    who = max([20, *(len(p.who) + 2 for p in report.products)])  # a file's name may be longer
    judged = f" ({printable(h['judged by'], 200)})" if h["judged by"] else ""
    lines = [
        f"gguf-verify {h['gguf-verify']} · llama.cpp {h['llama.cpp']} · {printable(h['file'], 200)}",
        f"kernel {h['kernel']}, declares {h['semantics']}{judged} · {h['host']}",
        f"llama.cpp runs on: {h['reference']}", "",
        f"{'type':<9}{'M':>3}  {'who':<{who}}{'computes':<32}{'utilisation':>12}  next nearest",
    ]  # fmt: skip
    lines += [_line(p, who) for p in report.products]
    lines.append("")
    said: dict[tuple[str, str, str], list[str]] = {}
    for p in report.products:
        for line in p.lines:
            said.setdefault((p.who, p.type, line), []).append(str(p.m))
    for (by, kind, line), tokens in said.items():
        more = line.startswith(" ")  # about the line before
        lines.append(printable(line if more else f"{by}, {kind}, M={', '.join(tokens)}: {line}", 400))
    lines += [f"NOT IDENTIFIED {printable(kind)}: {printable(why)}" for kind, why in report.unable]
    verdict = {0: "IDENTIFIED: each computes what it declares", 1: "NOT WHAT IS DECLARED"}
    lines.append(verdict.get(report.exit_code, "NOT EVERYTHING IDENTIFIED"))
    if report.exit_code and report.command:
        lines.append(f"repeat with: {printable(report.command)}")
    return "\n".join(lines) + "\n"


def _line(p: Identified, who: int) -> str:
    start = f"{p.type:<9}{p.m:>3}  {p.who:<{who}}"
    if p.found is None:
        return f"{start}nothing"
    words = " or ".join(p.found.names) or "none of the known"
    named = p.found.candidates[0]
    other = p.found.next
    after = "" if other is None else f"{other.name}, NMSE {other.nmse:.2g}"
    return f"{start}{words:<32}{named.utilisation:>12.3g}  {after}"


def to_json(report: IdentifyReport) -> str:
    """The report as JSON text; see the module."""
    plain: dict[str, Any] = {
        "schema": 1,
        "exit_code": report.exit_code,
        "header": report.header,
        "command": report.command,
        "products": [
            {
                "type": p.type, "tensor": p.tensor, "M": p.m, "N": p.n, "K": p.k, "who": p.who, "declared": p.declared,
                "identified": [] if p.found is None else list(p.found.names),
                "coincide": p.found is not None and p.found.coincide,
                "candidates": [] if p.found is None else [vars(c) for c in p.found.candidates],
                "lines": list(p.lines),
            }
            for p in report.products
        ],
        "unable": [{"type": kind, "why": why} for kind, why in report.unable],
    }  # fmt: skip
    return json.dumps(safe(plain), indent=2, allow_nan=False) + "\n"
