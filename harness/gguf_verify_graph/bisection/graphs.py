"""Comparison of the graphs that two builds of llama.cpp make of a model, by operation, name, sizes, sources and
parameters of each node. If a graph has another parameter or lacks a node, the output may be nonsense although every
node passes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from gguf_verify.backend_results import GraphStep

#: ggml's default name of a node: its number, which shifts if an earlier node is added or removed.
_NUMBERED = re.compile(r"\bnode_\d+\b")
#: Number of differences to list; the rest is counted.
_MOST = 20


def differences(before: Sequence[GraphStep], after: Sequence[GraphStep]) -> Iterator[str]:
    """Yield the differences of two graphs in the order of their nodes, one line each. None if one of them is
    unknown."""
    if not before or not after:
        return
    old_keys, new_keys = ([(step.operation, _unnumbered(step.node)) for step in graph] for graph in (before, after))
    for kind, a, a_end, b, b_end in SequenceMatcher(None, old_keys, new_keys, autojunk=False).get_opcodes():
        if kind == "equal":
            for old, new in zip(before[a:a_end], after[b:b_end], strict=True):
                yield from _of_node(old, new)
        else:
            yield from (f"{step.operation} {step.node}: no longer in the graph" for step in before[a:a_end])
            yield from (f"{step.operation} {step.node}: new in the graph" for step in after[b:b_end])


def listed(found: Sequence[str]) -> tuple[str, ...]:
    """Return the first differences, and a count of the rest."""
    beyond = len(found) - _MOST
    return (*found[:_MOST], *([f"… and {beyond:,} more differences"] if beyond > 0 else []))


def _of_node(old: GraphStep, new: GraphStep) -> Iterator[str]:
    what = f"{new.operation} {new.node}"
    for name in dict.fromkeys((*old.parameters, *new.parameters)):
        was, now = (step.parameters.get(name, "0") for step in (old, new))
        if was != now:
            yield f"{what}: {name} {was} → {now}"
    if _unnumbered(old.output) != _unnumbered(new.output):
        yield f"{what}: output {old.output} → {new.output}"
    for i, (was, now) in enumerate(zip_longest(old.sources, new.sources, fillvalue="")):
        if _unnumbered(was) != _unnumbered(now):
            yield f"{what}: src[{i}] {was or 'none'} → {now or 'none'}"


def _unnumbered(name: str) -> str:
    return _NUMBERED.sub("node", name)
