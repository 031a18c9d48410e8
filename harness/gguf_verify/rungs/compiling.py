"""Kernels that a run will need are compiled while it begins, where a host can do that beside other work."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from ..formats import BlockFormat, WeightFormat
from ..gguf.matrices import may_be_matrix, rows_of_matrix
from ..hosts.base import Source
from .layers.shapes import OTHER_M
from .plan import plan
from .run import Run

#: Numbers of tokens beside those of the layers rung: of blocks, and of prompts.
_TOKENS = (*OTHER_M, 16, 32)
#: Rows of a column of blocks.
_ROWS = 2048


def compile_ahead(run: Run) -> None:
    """Begin to compile for the shapes of the model and of the probe plan. A guess: what is missed, or is not as it was
    guessed, is compiled where it is used."""
    host = run.kernel.host
    if host.compiles_ahead:
        threading.Thread(target=lambda: host.compile_ahead(_sources(run)), daemon=True).start()


def _sources(run: Run) -> Iterator[Source]:
    seen: set[tuple[WeightFormat, int, int, int]] = set()
    for problem in _problems(run):
        if problem in seen:
            continue
        seen.add(problem)
        try:
            yield from run.kernel.of(*problem).sources(*problem)
        except Exception:
            continue


def _problems(run: Run) -> Iterator[tuple[WeightFormat, int, int, int]]:
    """Type, M, N and K, in the order of the rungs."""
    chosen = [t for t in run.model.tensors.values() if run.wants(t.name) and may_be_matrix(t)]
    shapes = {(t.type.weights, rows_of_matrix(t), t.k) for t in chosen if run.uncovered(t) is None}
    formats = list(dict.fromkeys(fmt for fmt, _, _ in shapes if fmt is not None))
    for fmt in formats:
        yield from ((fmt, m, _ROWS, fmt.unit) for m in (2, 3))
    yield from ((fmt, m, n, k) for fmt, n, k in shapes if fmt is not None for m in _TOKENS)
    for fmt in formats:
        brief = run.options.probes == "brief"
        for probe in plan(run.kernel.domain, fmt.unit, isinstance(fmt, BlockFormat), run.options.seed, brief):
            yield from ((fmt, m, probe.n, probe.k) for m in probe.tokens)


__all__ = ["compile_ahead"]
