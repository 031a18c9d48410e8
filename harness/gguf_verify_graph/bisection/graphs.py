"""Whether two builds of llama.cpp make the same graph of a model: nodes are compared by operation, name, sizes, sources
and parameters. Each node may be right in both builds, and the text still be nonsense, where a graph has another
parameter or lacks a node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from gguf_verify.backend_results import GraphStep

#: ggml's name of a node that llama.cpp gave none: its number, which shifts where a node before it comes or goes.
_NUMBERED = re.compile(r"\bnode_\d+\b")
#: Differences that are listed; the rest is counted.
_MOST = 20


def differences(before: Sequence[GraphStep], after: Sequence[GraphStep]) -> Iterator[str]:
    """How the second graph differs from the first, in the order of the graphs, each difference in a line. None where
    one of them is not known."""
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
    """The first differences, and how many follow."""
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
