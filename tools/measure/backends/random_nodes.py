"""Every operation on random inputs (no model): computed by a device, and judged."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from gguf_verify.backend_results import GraphOptions
from gguf_verify.support.errors import LlamaFault
from gguf_verify.support.progress import progress_bar, under_way
from gguf_verify.support.text import printable
from gguf_verify_graph.operations import OPERATIONS, Judged, Node, NoDefinition, judge

from .explaining import explaining
from .page import Finding
from .process import NodeProcess
from .records import OperationRow


def judge_random_nodes(
    asked: GraphOptions, seeds: int, only: str, known: Sequence[Finding] = ()
) -> tuple[OperationRow, ...]:  # fmt: skip
    """Return a row for each operation and variant, sorted by name.

    Args:
        asked: device, build and time limit.
        seeds: each operation generates nodes with the seeds 0 to `seeds` - 1.
        only: part of the names of operations.
        known: findings that explain wrong outputs.

    Raises EnvironmentFault if llama.cpp cannot be used.
    """
    rows: dict[str, OperationRow] = {}
    chosen = [op for op in sorted(OPERATIONS) if only.upper() in op] if seeds else []
    process = NodeProcess(asked)
    try:
        with progress_bar("operations", len(chosen) * seeds, " seeds", asked.progress) as bar:
            for op in chosen:
                under_way(bar, op)
                for seed in range(seeds):
                    for node in OPERATIONS[op].draw(np.random.default_rng(seed)):
                        _one(
                            process,
                            node,
                            rows.setdefault(node.operation, OperationRow(operation=node.operation, explained={})),
                            known,
                        )
                    bar.update(1)
    finally:
        process.close()
    return tuple(rows[name] for name in sorted(rows))


def without_folders(text: str) -> str:
    """Remove the folders of absolute paths, which reveal where llama.cpp was compiled."""
    return re.sub(r"(?<![^\s'\"(])/(?:[^\s/:]+/)+", "…/", text)


def _one(process: NodeProcess, node: Node, into: OperationRow, known: Sequence[Finding]) -> None:
    try:
        made = process.compute(node)
    except LlamaFault as error:
        into.ended += 1
        into.said = into.said or printable(without_folders(str(error)), 300)
        return
    if made is None:
        into.unsupported += 1
        return
    try:
        judged = judge(made)
        _add(into, made, judged, "" if judged.passed else explaining(made, judged, known))
    except NoDefinition as error:
        why = printable(str(error), 200)
        into.not_judged[why] = into.not_judged.get(why, 0) + 1


def _add(row: OperationRow, node: Node, judged: Judged, finding: str) -> None:
    """Add a judged node, and the finding that explains its wrong outputs."""
    row.nodes, row.outputs = row.nodes + 1, row.outputs + judged.elements
    row.exact, row.ambiguous = row.exact and judged.by_bits, row.ambiguous + judged.ambiguous
    if judged.passed:  # the error of a wrong output is not a figure of the definition
        before = row.definitions.get(judged.definition, 0.0)
        row.definitions[judged.definition] = max(before, float(f"{judged.utilisation:.3g}"))
        return
    row.wrong += 1
    explained = row.explained or {}
    if finding:
        explained[finding] = explained.get(finding, 0) + 1
    row.explained = explained
    if not row.first or (not finding and row.wrong - 1 == sum(explained.values())):
        inputs = ", ".join(f"{s.type} {' × '.join(map(str, s.ne))}" for s in node.sources if s is not None)
        off = "" if math.isinf(judged.utilisation) else f", {judged.utilisation:.3g} times the bound"
        row.first = (
            f"{inputs}: {judged.wrong} of {judged.elements} wrong, got {judged.got:.6g}, expected "
            f"{judged.expected:.6g}{off}"
        )
