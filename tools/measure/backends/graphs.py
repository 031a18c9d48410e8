"""Graphs of models on a device, judged like in `gguf-verify backend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from gguf_verify.backend_results import GraphOptions, GraphReport
from gguf_verify.support.text import printable
from gguf_verify_graph.verification import verify_graph

from .records import GraphRow

_FLASH: tuple[Literal["auto", "off"], ...] = ("auto", "off")


def judge_graphs(asked: GraphOptions, models: Sequence[Path]) -> tuple[GraphRow, ...]:
    """Return a row for each model with llama.cpp's choice of attention, and one without flash attention if that graph
    has other operations. Raises the errors of `verify_graph`."""
    rows = []
    for model in models:
        seen: set[str] = set()
        for flash in _FLASH:
            report = verify_graph(model, replace(asked, flash=flash))
            operations = {each.operation for each in report.operations} | {n.operation for n in report.not_judged}
            if operations <= seen:
                continue
            seen |= operations
            rows.append(_row(model, flash, report))
    return tuple(rows)


def _row(model: Path, flash: str, report: GraphReport) -> GraphRow:
    first: dict[str, str] = {}
    for wrong in report.wrong:
        first.setdefault(
            wrong.operation, f"{wrong.operation} {wrong.node}: {wrong.wrong} of {wrong.elements} wrong, "
            f"{wrong.utilisation:.3g} times the bound",
        )  # fmt: skip
    return GraphRow(
        model=printable(model.name, 100), architecture=report.architecture, flash=flash, nodes=report.judged,
        outputs=sum(each.elements for each in report.operations), verdict=report.verdict,
        operations={
            each.operation: float(f"{each.utilisation:.3g}") for each in report.operations
            if not each.fell_back and not each.wrong and not each.exact
        },
        wrong=tuple(first.values()), fell_back=tuple(sorted({e.operation for e in report.fallen_back})),
        not_judged=tuple(sorted({f"{n.operation}: {n.why}" for n in report.not_judged})),
    )  # fmt: skip
