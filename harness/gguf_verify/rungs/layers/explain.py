"""What is said of the first wrong GEMM: where its wrong outputs are, and what explains them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...diagnosis.diagnose import Diagnosis
from ...diagnosis.localisation import along_k
from ...diagnosis.pattern import Map, pattern, utilisation
from ...diagnosis.replay import diagnose_kernel
from ...gguf.matrices import label
from ...results import LocatedDiagnosis, OutputMap, RungResult
from ...semantics import judge
from ..judging import CHUNK_OUTPUTS
from .gemm import GemmJudge, WrongOutput

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
class _Wrong:
    """Which outputs of [M, N] are wrong, and of these, which are so beyond their bits; the map of both."""

    map: Map
    bad: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]


class Explanations:
    """Of one rung: the map of the first wrong GEMM, and the diagnosis of the first that can be explained."""

    def __init__(self, result: RungResult) -> None:
        self._result = result
        self._left = MOST_DIAGNOSES

    def add(self, judged: GemmJudge) -> None:
        """Explain a GEMM with a wrong output, where that says more than what is known. Raises KernelFault."""
        if judged.wrong is None:
            return
        result, found = self._result, None
        if result.heat_map is None:
            found = _look(judged, judged.wrong)
            result.heat_map = _output_map(judged, judged.wrong, found.map)
        if self._left and (result.diagnosis is None or result.diagnosis.verdict == ORDER):
            self._left -= 1
            diagnosis = _diagnosis(judged, judged.wrong, found or _look(judged, judged.wrong))
            if result.diagnosis is None or (diagnosis is not None and diagnosis.verdict != ORDER):
                result.diagnosis = diagnosis


def _look(judged: GemmJudge, wrong: WrongOutput) -> _Wrong:
    """Judge the whole output again, over all its rows and tokens."""
    y, rows = wrong.y, judged.matrix.rows
    grid = Map(*y.shape)
    bad, outside = np.zeros(y.shape, bool), np.zeros(y.shape, bool)
    step = max(grid.rows, CHUNK_OUTPUTS // len(y) // grid.rows * grid.rows)
    for start in range(0, len(rows), step):
        span = slice(start, start + step)
        expected = judged.exact_of_wrong(span)
        part = np.ascontiguousarray(y[:, span])
        bad[:, span] = judge(part, expected).bad
        outside[:, span] = judge(part, replace(expected, ordered=None)).bad & np.isfinite(expected.exact)
        grid.add(start, utilisation(part, expected), bad[:, span])
    return _Wrong(grid, bad, outside)


def _output_map(judged: GemmJudge, wrong: WrongOutput, grid: Map) -> OutputMap:
    tensor = judged.matrix.tensor
    return OutputMap(
        tensor=tensor.name, where=label(tensor, judged.gemm.first_row), who=wrong.who, m=grid.m, n=grid.n,
        tokens_per_cell=grid.tokens, rows_per_cell=grid.rows, utilisation=grid.worst.tolist(),
        wrong=grid.wrong.tolist(),
    )  # fmt: skip


def _diagnosis(judged: GemmJudge, wrong: WrongOutput, found: _Wrong) -> LocatedDiagnosis | None:
    """What explains the output; None where nothing can be replayed, as without finite exact values."""
    matrix = judged.matrix
    words = (*pattern(found.bad), *along_k(judged.blames))
    n_wrong, n_outputs = int(found.bad.sum()), found.bad.size
    if found.outside.any():
        at_n, at_m = (int(i) for i in np.argwhere(found.outside.T)[0])
        kernel, _ = judged.calls.at(len(wrong.y))
        replayed = diagnose_kernel(
            kernel, matrix.fmt, judged.semantics, matrix.rows, wrong.taken, wrong.y, (at_m, at_n),
            judged.run.options.threads,
        )  # fmt: skip
        if not replayed.wrong:
            return None
        said = replace(replayed, wrong=n_wrong, outputs=n_outputs, pattern=words)
        verdict, lines = said.verdict, tuple(said.lines)
    elif wrong.order is not None:
        said = Diagnosis(n_wrong, n_outputs)
        verdict, lines = ORDER, (_OF_ORDER, *words)
    else:
        return None
    return LocatedDiagnosis(
        tensor=matrix.tensor.name, where=label(matrix.tensor, judged.gemm.first_row), who=wrong.who, row=wrong.n,
        token=wrong.m, block=judged.blames[0].block if judged.blames else None, verdict=verdict, wrong=n_wrong,
        outputs=n_outputs, definitions=said.definitions, faults=said.faults, nearest=said.nearest, lines=lines,
    )  # fmt: skip
