"""What is said of a call of the kernel whose outputs are wrong: where they are, and what explains them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..diagnosis.diagnose import Diagnosis
from ..diagnosis.localisation import Blame, along_k
from ..diagnosis.pattern import Map, pattern, utilisation
from ..diagnosis.replay import diagnose_kernel
from ..formats import WeightFormat
from ..kernels.interface import Kernel
from ..results import LocatedDiagnosis, OutputMap, RungResult
from ..semantics import Order, Product, Semantics, judge, product
from .judging import CHUNK_OUTPUTS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Diagnoses that a rung tries: each takes seconds, and one of errors of the order alone says nothing of what follows.
MOST_DIAGNOSES = 3
#: The verdict on outputs that are within the bound and do not have the bits of the declared order.
ORDER = "another order"
_OF_ORDER = (
    "the outputs are within the bound, but do not have the bits of the declared order: the block terms are added in "
    "another order, or rounded otherwise. Fix: declare no order, or add them in it with the same fused multiply-adds "
    "(kernels/common.cuh)"
)


@dataclass(frozen=True)
class WrongCall:
    """A call of the kernel with a wrong output, of whatever shape.

    Args:
        kernel, fmt, semantics: what multiplied, the weights' format, and the definition that the kernel declares.
        rows: weights uint8[N, row bytes].
        taken: the activations that the kernel took: float32[M, K] that it quantized itself, or uint8[M, row bytes].
        encoded: these as the kernel's definition has them, uint8[M, row bytes].
        y: float32[M, N].
        order: the declared order whose bits are required, if any.
        who: whose output it is, and at which M where it is not the graph's.
        tensor, where: name of the weights, and their name as it is shown.
        m, n: token and row of the first wrong element, the first row's.
        blames: what is to blame along K for the elements that were looked at.
    """

    kernel: Kernel
    fmt: WeightFormat
    semantics: Semantics
    rows: Bytes
    taken: Floats | Bytes
    encoded: Bytes
    y: Floats
    order: Order | None
    who: str
    tensor: str
    where: str
    m: int
    n: int
    blames: tuple[Blame, ...] = ()

    def exact(self, span: slice, threads: int) -> Product:
        """The exact product of these rows, which the output is judged by."""
        return product(self.semantics, self.fmt, self.rows[span], self.encoded, self.order, threads)


@dataclass(frozen=True)
class _Wrong:
    """Which outputs of [M, N] are wrong, and of these, which are so beyond their bits; the map of both."""

    map: Map
    bad: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]


class Explanations:
    """Of one rung: the diagnosis of the first wrong call that can be explained.

    Args:
        result: of the rung.
        threads: for exact products.
        draws: the rung's result also gets the map of the first wrong output.
    """

    def __init__(self, result: RungResult, threads: int, draws: bool = False) -> None:
        self._result, self._threads, self._draws = result, threads, draws
        self._left = MOST_DIAGNOSES

    def add(self, call: WrongCall) -> None:
        """Explain a call, where that says more than what is known. Raises KernelFault."""
        result, found = self._result, None
        if self._draws and result.heat_map is None:
            found = self._look(call)
            result.heat_map = _output_map(call, found.map)
        if self._left and (result.diagnosis is None or result.diagnosis.verdict == ORDER):
            self._left -= 1
            diagnosis = self._diagnosis(call, found or self._look(call))
            if result.diagnosis is None or (diagnosis is not None and diagnosis.verdict != ORDER):
                result.diagnosis = diagnosis

    def _look(self, call: WrongCall) -> _Wrong:
        """Judge the whole output again, over all its rows and tokens."""
        y = call.y
        grid = Map(*y.shape)
        bad, outside = np.zeros(y.shape, bool), np.zeros(y.shape, bool)
        step = max(grid.rows, CHUNK_OUTPUTS // len(y) // grid.rows * grid.rows)
        for start in range(0, len(call.rows), step):
            span = slice(start, start + step)
            expected = call.exact(span, self._threads)
            part = np.ascontiguousarray(y[:, span])
            bad[:, span] = judge(part, expected).bad
            outside[:, span] = judge(part, replace(expected, ordered=None)).bad & np.isfinite(expected.exact)
            grid.add(start, utilisation(part, expected), bad[:, span])
        return _Wrong(grid, bad, outside)

    def _diagnosis(self, call: WrongCall, found: _Wrong) -> LocatedDiagnosis | None:
        """What explains the output; None where nothing can be replayed, as without finite exact values."""
        words = (*pattern(found.bad), *along_k(call.blames))
        n_wrong, n_outputs = int(found.bad.sum()), found.bad.size
        if found.outside.any():
            at_n, at_m = (int(i) for i in np.argwhere(found.outside.T)[0])
            replayed = diagnose_kernel(
                call.kernel, call.fmt, call.semantics, call.rows, call.taken, call.y, (at_m, at_n), self._threads
            )
            if not replayed.wrong:
                return None
            said = replace(replayed, wrong=n_wrong, outputs=n_outputs, pattern=words)
            verdict, lines = said.verdict, tuple(said.lines)
        elif call.order is not None:
            said = Diagnosis(n_wrong, n_outputs)
            verdict, lines = ORDER, (_OF_ORDER, *words)
        else:
            return None
        return LocatedDiagnosis(
            tensor=call.tensor, where=call.where, who=call.who, row=call.n, token=call.m,
            block=call.blames[0].block if call.blames else None, verdict=verdict, wrong=n_wrong, outputs=n_outputs,
            definitions=said.definitions, faults=said.faults, nearest=said.nearest, lines=lines,
        )  # fmt: skip


def _output_map(call: WrongCall, grid: Map) -> OutputMap:
    return OutputMap(
        tensor=call.tensor, where=call.where, who=call.who, m=grid.m, n=grid.n, tokens_per_cell=grid.tokens,
        rows_per_cell=grid.rows, utilisation=grid.worst.tolist(), wrong=grid.wrong.tolist(),
    )  # fmt: skip


__all__ = ["MOST_DIAGNOSES", "ORDER", "Explanations", "WrongCall"]
