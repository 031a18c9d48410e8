"""The page docs/backend-measurements.md, from the results and from the findings in docs/backends.toml."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import CHECKOUT

from ..markdown import fill, table
from .records import GraphRow, Measured, OperationRow, Results

PAGE, FINDINGS = CHECKOUT / "docs" / "backend-measurements.md", CHECKOUT / "docs" / "backends.toml"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """An explanation of wrong outputs.

    Args:
        id: of its heading.
        title: a sentence.
        backend: ggml's name of the affected backends.
        operations: the operations of the nodes that it explains; see `explaining`.
        seen: where and how it was observed.
        cause: in llama.cpp's sources.
        repetition: the command, or the lines of Python, that repeat it.
    """

    id: str
    title: str
    backend: str
    operations: tuple[str, ...]
    seen: str
    cause: str
    repetition: str


class _Findings(msgspec.Struct):
    findings: tuple[Finding, ...] = ()


def findings(path: Path = FINDINGS) -> tuple[Finding, ...]:
    """Read the findings. Raises UsageError if the file is damaged."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=_Findings).findings
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} contains no valid findings: {error}") from None


def explained(measured: Measured, row: OperationRow, known: Sequence[Finding]) -> tuple[str, ...]:
    """Return the ids of the findings that explain all wrong nodes of an operation; none if a node is unexplained."""
    of = [f.id for f in known if measured.device.endswith(f"({f.backend})") and row.operation in f.operations]
    if row.explained is None:  # an older record without this field
        return tuple(of[:1])
    ids = tuple(each for each in of if each in row.explained)
    return ids if sum(row.explained[each] for each in ids) == row.wrong else ()


def unexplained(results: Results, known: Sequence[Finding]) -> list[str]:
    """Return a line for each row with unexplained wrong outputs, and for each wrong node of a graph."""
    lines = []
    for measured in results.values():
        for row in measured.operations:
            if row.wrong and not explained(measured, row, known):
                lines.append(f"{measured.device}, {row.operation}: wrong nodes: {row.wrong}: {row.first}")
        for function in measured.functions:
            if function.wrong:
                lines.append(
                    f"{measured.device}, {function.function}: {function.wrong:,} of {function.inputs:,} results "
                    f"exceed the declared error, {function.domain}"
                )
        for graph in measured.graphs:
            lines += [f"{measured.device}, {graph.model}: {words}" for words in graph.wrong]
    return lines


def write(results: Results, known: Sequence[Finding]) -> None:
    """Fill in the tables of the page."""
    fill(PAGE, render(results, known), "backends")


def render(results: Results, known: Sequence[Finding]) -> dict[str, str]:
    """Place → its content."""
    return {
        "summary": "\n".join(_summary(results)),
        "operations": "\n\n".join(_operations(m, known) for m in results.values() if m.operations),
        "functions": "\n\n".join(_functions(m) for m in results.values() if m.functions),
        "graphs": "\n\n".join(_graphs(m) for m in results.values() if m.graphs),
        "findings": "\n\n".join(_finding(f) for f in known),
    }


def _summary(results: Results) -> Iterator[str]:
    rows = []
    for m in results.values():
        drawn, wrong = sum(r.outputs for r in m.operations), sum(1 for r in m.operations if r.wrong)
        outputs = sum(g.outputs for g in m.graphs)
        bad = sum(1 for g in m.graphs if g.wrong)
        rows.append((m.device, m.build, m.date, f"{len(m.operations)}", f"{drawn:,}", wrong or "none", len(m.graphs),
                     f"{outputs:,}", bad or "none"))  # fmt: skip
    yield table(
        ("device", "build", "date", "operations and variants", "random outputs", "with wrong outputs", "graphs",
         "graph outputs", "with wrong nodes"), rows,
    )  # fmt: skip


def _operations(measured: Measured, known: Sequence[Finding]) -> str:
    rows = [_row(measured, row, known) for row in measured.operations]
    head = ("operation", "nodes", "outputs", "definition: largest utilisation", "wrong", "not computed or judged")
    return f"**{measured.device}**, {measured.build}, {measured.seeds} seeds:\n\n" + table(head, rows)


def _row(measured: Measured, row: OperationRow, known: Sequence[Finding]) -> tuple[str, ...]:
    by = [f"{name}: {'equal' if row.exact else f'{value:.3g}'}" for name, value in row.definitions.items()]
    wrong = ""
    if row.wrong:
        at = ", ".join(f"[{each}](#{each})" for each in explained(measured, row, known))
        wrong = f"{row.wrong:,}: {at or row.first}"
    left = [f"{row.unsupported:,} not supported"] if row.unsupported else []
    left += [f"{row.ended:,} aborted llama.cpp"] if row.ended else []
    left += [f"{n:,}: {why}" for why, n in row.not_judged.items()]
    return f"`{row.operation}`", f"{row.nodes:,}", f"{row.outputs:,}", "; ".join(by), wrong, "; ".join(left)


def _functions(measured: Measured) -> str:
    rows = [
        (row.function, row.domain, f"{row.inputs:,}", f"{row.ulps:.4g}", f"{row.at:.9g}", f"{row.utilisation:.3g}")
        for row in measured.functions
    ]
    head = ("function", "inputs", "number", "largest error, ulps", "at", "share of the declared error")
    return f"**{measured.device}**, {measured.build}:\n\n" + table(head, rows)


def _graphs(measured: Measured) -> str:
    rows = [_graph(row) for row in measured.graphs]
    head = ("model", "attention", "nodes", "outputs", "verdict", "worst", "on another device", "not judged")
    return f"**{measured.device}**, {measured.build}:\n\n" + table(head, rows)


def _graph(row: GraphRow) -> tuple[str, ...]:
    worst = max(row.operations.items(), key=lambda each: each[1], default=("", 0.0))
    return (
        f"{row.model} ({row.architecture})", "one operation" if row.flash == "auto" else "several operations",
        f"{row.nodes:,}",
        f"{row.outputs:,}", row.verdict, f"`{worst[0]}` {worst[1]:.3g}" if worst[0] else "",
        ", ".join(f"`{name}`" for name in row.fell_back), "; ".join(row.not_judged),
    )  # fmt: skip


def _finding(finding: Finding) -> str:
    shown = "bash" if finding.repetition.lstrip().startswith("gguf-verify") else "python"
    return "\n\n".join(
        (
            f"### {finding.id}", f"**{finding.backend}: {finding.title.strip()}**", f"Seen {finding.seen.strip()}.",
            f"*Cause.* {finding.cause.strip()}", f"```{shown}\n{finding.repetition.strip()}\n```",
        )
    )  # fmt: skip
