"""The layers rung: does each GEMM of the real graph, on its real activations, give llama.cpp's output?

For each matrix of weights that llama.cpp multiplies for the prompt (MUL_MAT; each expert of a MUL_MAT_ID, with the rows
that were routed to it), let y_l be llama.cpp's output, y_k the kernel's, and o_k, o_l the exact products of the two
declared definitions:

    y_k - y_l = (y_k - o_k) + (o_k - o_l) + (o_l - y_l)

The first and the last term must be within their bounds; the middle one, the gap between the definitions, is exactly
known and is reported. The kernel also runs on llama.cpp's own activation bytes, where the two outputs are compared
directly. Weights that are not quantized are multiplied by a kernel of their own and have one definition, so that the
middle term is zero; "llama.cpp's activation bytes" are then its rounded activations, widened to float32, which the
kernel's own rounding leaves as they are.

If a backend of llama.cpp has several paths to a product, the graph is evaluated in as many passes as show all of them
(`llama.backends`). llama.cpp is judged on its own activation bytes. If its quantizer may differ from IEEE division, the
bytes are compared with the quantizer's definition: see `semantics.fast_math`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...gguf.matrices import may_be_matrix
from ...llama.process import LlamaRefused
from ...results.margins import Side
from ...results.rungs import RungResult
from ...semantics.definition import Semantics
from ..calls import begin_alone, end_alone
from ..exact import ExactProducts
from ..explain import Explanations, WrongOutput
from ..interface import Rung, Steps
from ..judging import llama_side
from ..known import Known
from ..llama_quantizers import Quantizers
from ..run import Run
from .later import later, leave_later
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
        if task.known.is_outdated(self.known, found.part, kind):
            task = replace(task, known=self.known)
            found = judges.again(self._run, task)
        if plan.own_alone:
            self.join(task, found)
            return
        # in this order, because what other schedules show may keep the probes from being made
        if not plan.schedules.right(kind, task.schedules, found.at_schedules):
            task = replace(task, schedules=not task.schedules, known=self.known)
            found = judges.again(self._run, task)
        if not plan.probes.right(kind, task.probes, found.at_probes):
            task = replace(task, probes=not task.probes, known=self.known)
            found = judges.again(self._run, task)
        self.join(task, found)

    def join(self, task: GemmTask, found: GemmFound) -> None:
        """Join the findings of a task."""
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


def check(run: Run, result: RungResult) -> Steps:
    """Judge every GEMM with weights. Raises EnvironmentFault if llama.cpp crashes."""
    only = begin_alone(run, result)
    matrices = {t.name: t for t in run.selected() if may_be_matrix(t) and t.nbytes}
    seen: set[str] = set()
    try:
        if matrices:
            merge = Merge(run, result)
            plan = Plan(run, matrices, lambda: merge.known, seen, own_alone=run.budget.limited)
            for step, found in run.judges.each(run, plan.steps()):
                result.join(step.said)
                if step.task is not None:
                    merge.add(plan, step.task, found)
                yield merge.first_wrong
            if only is None:
                merge.report()
                plan.report(result)
                if plan.own_alone:
                    leave_later(run, result)
    except LlamaRefused as error:
        result.leave_all("GEMMs", str(error), error.culprit)
    if only is not None:
        end_alone(result, only)
        return
    result.skip("vectors", run.vectors(seen))
    run.leave_idle(result)


RUNG = Rung(
    "layers", 3, "Does each GEMM of the real graph, on its real activations, give llama.cpp's output?", ("outputs",),
    check, own=True, turn=2, later=later,
)  # fmt: skip
