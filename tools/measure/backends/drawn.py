"""Every operation on drawn inputs: computed by a device outside any model, and judged."""

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
    """What the nodes of one operation and variant come to."""

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
        """A node that was judged, and the finding that explains what is wrong."""
        self.nodes, self.outputs = self.nodes + 1, self.outputs + judged.elements
        self.exact, self.ambiguous = self.exact and judged.by_bits, self.ambiguous + judged.ambiguous
        if judged.passed:  # what a wrong output is off by is no figure of the definition
            before = self.definitions.get(judged.definition, 0.0)
            self.definitions[judged.definition] = max(before, float(f"{judged.utilisation:.3g}"))
            return
        self.wrong += 1
        if finding:
            self.explained[finding] = self.explained.get(finding, 0) + 1
        if not self.first or (not finding and self.wrong - 1 == sum(self.explained.values())):
            inputs = ", ".join(f"{s.type} {' × '.join(map(str, s.ne))}" for s in node.sources if s is not None)
            off = "" if math.isinf(judged.utilisation) else f", {judged.utilisation:.3g} of what is allowed"
            self.first = (
                f"{inputs}: {judged.wrong} of {judged.elements} wrong, got {judged.got:.6g}, expected "
                f"{judged.expected:.6g}{off}"
            )

    def row(self) -> OperationRow:
        """The record."""
        return OperationRow(**vars(self))


def judge_drawn(
    asked: GraphOptions, seeds: int, only: str, known: Sequence[Finding] = ()
) -> tuple[OperationRow, ...]:  # fmt: skip
    """A row for each operation and variant, by name.

    Args:
        asked: device, build and time limit.
        seeds: each operation draws with each of the seeds below.
        only: part of the names of operations.
        known: findings that explain wrong outputs.

    Raises EnvironmentFault where llama.cpp cannot be used.
    """
    sums: dict[str, _Sum] = {}
    chosen = [op for op in sorted(OPERATIONS) if only.upper() in op] if seeds else []
    process = NodeProcess(asked)
    try:
        with progress_bar("operations", len(chosen) * seeds, " draws", asked.progress) as bar:
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
    """The text with files in place of absolute paths, which tell where somebody compiled llama.cpp."""
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
