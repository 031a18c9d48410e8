"""Accuracy of a device's exponential, sine, quotient and so on: ggml's operations over all halves, or over floats.

Each function is computed for every input of a domain, and compared with float64, whose own error is negligible. The
largest error is reported in ulps of float32, and as a share of the error that `operations.arithmetic` declares for the
backend; above 1 the declaration is wrong. Results that are subnormal or overflow are judged, but not counted in ulps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from gguf_verify.backend_results import GraphOptions
from gguf_verify.llama.node import F32
from gguf_verify.support.array_types import Doubles, Floats
from gguf_verify.support.errors import LlamaFault
from gguf_verify.support.progress import progress_bar, under_way
from gguf_verify_graph.operations import Node, NoDefinition, Operand, judge, parameters
from gguf_verify_graph.operations.unary import VARIANTS

from .process import NodeProcess
from .records import FunctionRow

#: Inputs per node, and the step for a sample of floats. It is odd, so that all low bits of mantissas occur.
_AT_ONCE, _STEP = 1 << 20, 61
#: Bits of 2^-32, 1/2, 2 and 124.
_LEAST, _HALF, _TWO, _MOST = (int(np.float32(v).view(np.uint32)) for v in (2.0**-32, 0.5, 2.0, 124.0))
DOMAINS = ("halves", "floats")


@dataclass(frozen=True)
class Probe:
    """A function of one number, as an operation of ggml.

    Args:
        node: makes a node for inputs [1, n].
        exact: the function in float64.
    """

    node: Callable[[Operand], Node]
    exact: Callable[[Doubles], Doubles]


def _unary(variant: str) -> Callable[[Operand], Node]:
    raw = parameters(VARIANTS.index(variant))
    return lambda x: Node("UNARY", (x,), Operand.blank(F32, *x.shape), raw, variant)


def _operation(op: str) -> Callable[[Operand], Node]:
    return lambda x: Node(op, (x,), Operand.blank(F32, *x.shape))


def _reciprocal(x: Operand) -> Node:
    return Node("DIV", (Operand.of(np.ones(x.shape, np.float32)), x), Operand.blank(F32, *x.shape))


PROBES = {
    "1/x": Probe(_reciprocal, lambda x: 1 / x), "√x": Probe(_operation("SQRT"), np.sqrt),
    "exp x": Probe(_unary("EXP"), np.exp), "ln x": Probe(_operation("LOG"), np.log),
    "sin x": Probe(_operation("SIN"), np.sin), "cos x": Probe(_operation("COS"), np.cos),
    "tanh x": Probe(_unary("TANH"), np.tanh),
}  # fmt: skip


def inputs(domain: str) -> Iterator[tuple[str, Floats]]:
    """Yield inputs in groups, each with a description.

    These are all finite halves; or all floats with magnitudes from 1/2 to 2, and every 61st from 2^-32 to 124, of both
    signs.
    """
    if domain == "halves":
        halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
        yield "all halves", halves[np.isfinite(halves)]
        return
    for words, first, last, step in (
        ("all of sizes 1/2 to 2", _HALF, _TWO, 1),
        ("every 61st of sizes 2^-32 to 124", _LEAST, _MOST, _STEP),
    ):
        for start in range(first, last, _AT_ONCE * step // 2):
            x = np.arange(start, min(start + _AT_ONCE * step // 2, last), step, dtype=np.uint32).view(np.float32)
            yield words, np.concatenate([x, -x])


def judge_functions(asked: GraphOptions, domain: str, only: str) -> tuple[FunctionRow, ...]:
    """Return a row for each function and domain.

    Functions that the device does not support, or without a definition for all inputs, are omitted.

    Args:
        domain: one of `DOMAINS`; "" for no functions.
        only: part of the names of functions.

    Raises EnvironmentFault if llama.cpp cannot be used.
    """
    chosen = {name: probe for name, probe in PROBES.items() if only.lower() in name} if domain else {}
    rows: dict[tuple[str, str], _Worst] = {}
    process = NodeProcess(asked)
    try:
        with progress_bar("functions", len(chosen), " functions", asked.progress) as bar:
            for name, probe in chosen.items():
                under_way(bar, name)
                for words, x in inputs(domain):
                    node = _computed(process, probe.node(Operand.of(x.reshape(1, -1))))
                    if node is not None:
                        rows.setdefault((name, words), _Worst(name, words)).add(x, node, probe.exact)
                bar.update(1)
    finally:
        process.close()
    made = (rows[key].row() for key in sorted(rows))
    return tuple(row for row in made if row.inputs)


def _computed(process: NodeProcess, node: Node) -> Node | None:
    try:
        return process.compute(node)
    except LlamaFault:
        return None


class _Worst:
    """The largest errors of one function."""

    def __init__(self, function: str, domain: str) -> None:
        self._function, self._domain, self._inputs = function, domain, 0
        self._ulps, self._at, self._utilisation, self._wrong = 0.0, 0.0, 0.0, 0

    def add(self, x: Floats, made: Node, exact: Callable[[Doubles], Doubles]) -> None:
        """Add the outputs of a device for some inputs."""
        try:
            judged = judge(made)
        except NoDefinition:
            return
        self._inputs, self._wrong = self._inputs + x.size, self._wrong + judged.wrong
        self._utilisation = max(self._utilisation, judged.utilisation)
        y = made.output.values.reshape(-1)
        with np.errstate(all="ignore"):
            o = exact(x.astype(np.float64))
            normal = (np.abs(x) >= 2.0**-126) & (np.abs(o) >= 2.0**-126) & (np.abs(o) < 2.0**127)
            ulps = np.abs(y - o)[normal] / np.spacing(np.abs(o[normal]).astype(np.float32)).astype(np.float64)
        if ulps.size and ulps.max() > self._ulps:
            self._ulps, self._at = float(ulps.max()), float(x[normal][np.argmax(ulps)])

    def row(self) -> FunctionRow:
        """The record."""
        return FunctionRow(
            function=self._function, domain=self._domain, inputs=self._inputs, ulps=float(f"{self._ulps:.4g}"),
            at=self._at, utilisation=float(f"{self._utilisation:.3g}"), wrong=self._wrong,
        )  # fmt: skip
