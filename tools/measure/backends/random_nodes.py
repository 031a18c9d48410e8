"""Every operation on random inputs (no model): computed by a device, and judged."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

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


@dataclass
class _Sum:
    """The sums over the nodes of one operation and variant."""

    operation: str
    nodes: int = 0
    outputs: int = 0
    definitions: dict[str, float] = field(default_factory=dict)
    exact: bool = True
    ambiguous: int = 0
    wrong: int = 0
    first: str = ""
    explained: dict[str, int] = field(default_factory=dict)
    unsupported: int = 0
    ended: int = 0
    said: str = ""
    not_judged: dict[str, int] = field(default_factory=dict)

    def add(self, node: Node, judged: Judged, finding: str = "") -> None:
        """Add a judged node, and the finding that explains its wrong outputs."""
        self.nodes, self.outputs = self.nodes + 1, self.outputs + judged.elements
        self.exact, self.ambiguous = self.exact and judged.by_bits, self.ambiguous + judged.ambiguous
        if judged.passed:  # the error of a wrong output is not a figure of the definition
            before = self.definitions.get(judged.definition, 0.0)
            self.definitions[judged.definition] = max(before, float(f"{judged.utilisation:.3g}"))
            return
        self.wrong += 1
        if finding:
            self.explained[finding] = self.explained.get(finding, 0) + 1
        if not self.first or (not finding and self.wrong - 1 == sum(self.explained.values())):
            inputs = ", ".join(f"{s.type} {' × '.join(map(str, s.ne))}" for s in node.sources if s is not None)
            off = "" if math.isinf(judged.utilisation) else f", {judged.utilisation:.3g} times the bound"
            self.first = (
                f"{inputs}: {judged.wrong} of {judged.elements} wrong, got {judged.got:.6g}, expected "
                f"{judged.expected:.6g}{off}"
            )

    def row(self) -> OperationRow:
        """The record."""
        return OperationRow(**vars(self))


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
    sums: dict[str, _Sum] = {}
    chosen = [op for op in sorted(OPERATIONS) if only.upper() in op] if seeds else []
    process = NodeProcess(asked)
    try:
        with progress_bar("operations", len(chosen) * seeds, " seeds", asked.progress) as bar:
            for op in chosen:
                under_way(bar, op)
                for seed in range(seeds):
                    for node in OPERATIONS[op].draw(np.random.default_rng(seed)):
                        _one(process, node, sums.setdefault(node.operation, _Sum(node.operation)), known)
                    bar.update(1)
    finally:
        process.close()
    return tuple(sums[name].row() for name in sorted(sums))


def without_folders(text: str) -> str:
    """Remove the folders of absolute paths, which reveal where llama.cpp was compiled."""
    return re.sub(r"(?<![^\s'\"(])/(?:[^\s/:]+/)+", "…/", text)


def _one(process: NodeProcess, node: Node, into: _Sum, known: Sequence[Finding]) -> None:
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
        into.add(made, judged, "" if judged.passed else explaining(made, judged, known))
    except NoDefinition as error:
        why = printable(str(error), 200)
        into.not_judged[why] = into.not_judged.get(why, 0) + 1
