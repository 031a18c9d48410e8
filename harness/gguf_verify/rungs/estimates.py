"""Estimates of the time that a run takes: before it begins from typical times, and later from its own.

A product of N·K weights and M tokens takes C + N·K·(A + B·M) seconds: A is that of its exact product and llama.cpp,
B that of the kernel. The constants were measured on two cores of a server, with `q8_1` on the CPU host. Other machines,
loads and kernels differ from that by a factor: the time of what was judged, divided by its estimate.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..gguf.matrices import may_be_matrix
from ..hosts.choice import HOSTS
from ..results.rungs import RungResult
from .plan import shapes_of
from .run import Run

#: C, A and B, in seconds; and the same of a GPU.
_CALL, _WEIGHT, _TERM = 0.08, 1.7e-7, 1.7e-9
_CALL_GPU, _WEIGHT_GPU, _TERM_GPU = 0.01, 5e-9, 1e-12
#: Seconds of a call of the probe plan beside that.
_PROBE = 0.01
#: Seconds of the bytes rung for each byte; of a tensor of the blocks rung, and for each of its blocks that is judged.
_BYTE, _TENSOR, _BLOCK, _MOST_BLOCKS = 4e-8, 0.05, 8e-6, 1 << 14
#: Bytes of a prompt for each of its tokens, before they are counted.
_OF_TOKEN = 4
#: Numbers of tokens at which the kernel multiplies each product of the graph, beside its own twice: one.
_ALONE = 1


@dataclass(frozen=True)
class Estimate:
    """Seconds that are left, and the same with `--effort quick`.

    Args:
        budget: seconds that the run may still take; None: without a limit.
    """

    left: float
    quick: float
    budget: float | None = None


class Estimates:
    """The estimates of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        emulated = HOSTS[run.kernel.host.name].emulated
        self._call, self._weight, self._term = (
            (_CALL, _WEIGHT, _TERM) if emulated else (_CALL_GPU, _WEIGHT_GPU, _TERM_GPU)
        )
        self._prompt = max(1, len(run.options.prompt.encode()) // _OF_TOKEN)
        tensors = [t for t in run.selected() if may_be_matrix(t) and t.nbytes and run.uncovered(t) is None]
        self._sizes = [(t.type.name, t.n_rows, t.k) for t in tensors]
        self._units = {t.type.name: t.type.weights.unit for t in run.selected() if t.type.weights is not None}
        self._nbytes = sum(part.size for part in run.model.parts)
        #: The time of what was judged, divided by its estimate.
        self.factor = 1.0

    def product(self, n: int, k: int, tokens: int) -> float:
        """Seconds of a product with this number of tokens in all calls together."""
        return self.factor * (self._call + n * k * (self._weight + tokens * self._term))

    def probes(self, kind: str, brief: bool) -> float:
        """Seconds of the probe plan for a type of weights, and of other schedules."""
        run = self._run
        if kind not in self._units:
            return 0.0
        shapes = shapes_of(run.kernel.domain, self._units[kind], run.options.seed, brief)
        each = (_PROBE + n * k * (self._weight + 2 * m * self._term) for m, n, k in shapes)
        return self.factor * sum(each)

    def measured(self, results: Iterable[RungResult]) -> None:
        """Correct the estimates by the products of these results."""
        for result in results:
            gemms = result.gemms
            if gemms and not result.envelopes:  # nothing but products of the graph
                self.factor, self._prompt = 1.0, gemms[0].m
                self.factor = result.seconds / sum(self.product(r.n, r.k, 2 * r.m + _ALONE) for r in gemms)

    def rung(self, name: str, brief: bool) -> float:
        """Seconds of a rung; 0 if nothing is known about it."""
        if name == "bytes":
            return self._nbytes * _BYTE
        if name == "blocks":
            return sum(_TENSOR + min(_MOST_BLOCKS, n * k // 32) * _BLOCK for _, n, k in self._sizes)
        if name == "layers":
            return self.own() + self.beside(brief)
        return self.tokens if name == "tokens" else 0.0

    @property
    def tokens(self) -> float:
        """Seconds of the tokens rung."""
        tokens = 2 * (self._prompt + self._run.options.n_predict - 1)
        return sum(self.product(n, k, tokens) for _, n, k in self._sizes)

    def own(self) -> float:
        """Seconds of the model's own products."""
        return sum(self.product(n, k, 2 * self._prompt + _ALONE) for _, n, k in self._sizes)

    def beside(self, brief: bool) -> float:
        """Seconds of what the layers rung does beside these."""
        from .layers.call import OTHER_M  # its package imports this module

        shapes = sum(self.product(n, k, sum(OTHER_M)) for _, n, k in {*self._sizes})
        return shapes + sum(self.probes(kind, brief) for kind in {kind for kind, _, _ in self._sizes})

    def of_rungs(self, names: Iterable[str]) -> Estimate:
        """The time of these rungs."""
        names, brief = list(names), self._run.options.probes == "brief"
        quick, budget = sum(self.rung(name, True) for name in names), self._run.budget
        left = quick if brief else sum(self.rung(name, False) for name in names)
        return Estimate(left, quick, max(0.0, budget.end - budget.clock()) if budget.limited else None)
