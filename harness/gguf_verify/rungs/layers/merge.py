"""The findings of all GEMMs of the graph, joined in the graph's order to the rung's result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...results.margins import Side
from ...results.rungs import RungResult
from ...semantics.definition import Semantics
from ..exact import ExactProducts
from ..explain import Explanations, WrongOutput
from ..judging import llama_side
from ..known import Known
from ..llama_quantizers import Quantizers
from ..run import Run
from .plan import Plan
from .task import GemmFound, GemmTask


class Merge:
    """All GEMMs of the rung."""

    def __init__(self, run: Run, result: RungResult) -> None:
        self._run, self._result = run, result
        self._exact = ExactProducts(run, result)
        self._explanations = Explanations(result, run.options.threads, draws=True, holds=bool(run.options.save_case))
        self._quantizers = Quantizers(run.backend)
        #: llama.cpp → one definition that it was judged by, and the gap to it in each GEMM.
        self._gaps: dict[Side, tuple[Semantics, list[float]]] = {}
        #: Tensor → the paths of the backend that were judged with it.
        self._paths: dict[str, set[str]] = {}

    @property
    def first_wrong(self) -> WrongOutput | None:
        """The first wrong call, if the run saves a case."""
        return self._explanations.attempts.first

    @property
    def known(self) -> Known:
        """The findings so far."""
        return Known.of(self._result, self._explanations)

    def add(self, plan: Plan, task: GemmTask, found: GemmFound) -> None:
        """Join the findings of the next task of the graph. A task whose prediction at dispatch was wrong is judged
        again."""
        kind, judges = self._run.model.tensors[task.gemm.tensor].type.name, self._run.judges
        # in this order, because what other schedules show may keep the probes from being made
        if not plan.schedules.right(kind, task.schedules, found.at_schedules):
            task = replace(task, schedules=not task.schedules, known=self.known)
            found = judges.again(self._run, task)
        if not plan.probes.right(kind, task.probes, found.at_probes):
            task = replace(task, probes=not task.probes, known=self.known)
            found = judges.again(self._run, task)
        self._join(task, found)

    def _join(self, task: GemmTask, found: GemmFound) -> None:
        run, gemm = self._run, task.gemm
        self._result.join(found.part)
        self._explanations.join(found.attempts)
        self._quantizers.join(found.quantized)
        self._exact.join(found.distances)
        if found.path is not None:
            self._paths.setdefault(gemm.tensor, set()).add(found.path)
        if found.gap is not None:
            matrix = run.matrix(self._result, gemm)
            assert matrix is not None
            definition = run.backend.definition_of(gemm, matrix.fmt, matrix.rows)
            side = llama_side(run.backend, definition)
            self._gaps.setdefault(side, (definition, []))[1].append(found.gap)

    def report(self) -> None:
        """Record the findings that depend on all GEMMs."""
        run, result = self._run, self._result
        self._exact.report()
        for name, paths in self._paths.items():
            for missing in sorted(set(run.backend.paths) - paths):
                result.leave(name, f"{missing} was not judged: no product of these graphs takes it there")
        for side, (definition, gaps) in self._gaps.items():
            path = run.backend.path(definition)
            if path is not None:
                result.figures[f"llama.cpp's GEMMs by {path}, {definition.name}"] = len(gaps)
            result.figures[f"gap to {side.name}, worst NMSE"] = max(gaps)
            result.figures[f"gap to {side.name}, median NMSE"] = float(np.median(gaps))
        self._quantizers.report(run, result)
