"""The task of one output that was grafted: it is judged by itself, in a run of the same model, kernel and options."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...gguf.matrices import label
from ...results.calls import Call
from ...results.failures import Failure
from ...results.rungs import PartialResult
from ...support.errors import KernelFault
from ..exact import Distances, ExactProducts
from ..explain import Attempts, Place, WrongCall
from ..judging import judge_whole
from ..known import Known
from ..run import Matrix, Run

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GraftTask:
    """One output of the kernel, which was grafted.

    Args:
        tensor: name of the weights.
        y: the output float32[M, N].
        x: the activations as the kernel's definition has them, uint8[M, row bytes].
        values: float32[M, K], where the kernel quantized them itself; None: it took x.
        who: whose output it is.
        call: that gave it.
        known: what the rung had found.
    """

    tensor: str
    y: Floats
    x: npt.NDArray[np.uint8]
    values: Floats | None
    who: str
    call: Call
    known: Known

    def judge(self, run: Run) -> GraftFound:
        """Judge it, whatever the kernel fuses behind its products. Raises EnvironmentFault."""
        plain = run.kernel.neutral()
        assert plain is not None
        return self._judged(replace(run, kernel=plain))

    def _judged(self, run: Run) -> GraftFound:
        tensor, call, part = run.model.tensors[self.tensor], self.call, self.known.part()
        fmt = tensor.type.weights
        assert fmt is not None
        matrix = Matrix(tensor, fmt, run.row_bytes(tensor)[call.first_row : call.first_row + call.n])
        kernel, semantics = run.kernel.of(fmt, call.m, call.n, call.k), run.semantics(fmt)
        exact, explanations = ExactProducts(run, part), self.known.explanations_in(part, run)
        found, name = GraftFound(part, explanations.attempts), label(tensor, call.first_row)
        taken = self.x if self.values is None else self.values
        try:
            wrong = judge_whole(run, part, matrix, call.first_row, self.y, semantics, self.x, kernel.order, exact, call)
            if wrong is not None:
                explanations.add(
                    WrongCall(
                        fmt, semantics, matrix.rows, taken, self.x, self.y, kernel.order, self.who, tensor.name, name,
                        *wrong, call=call, kernel=kernel,
                    )
                )  # fmt: skip
        except KernelFault as error:  # of its author's oracle, or where it is called again to explain a wrong output
            part.fail(Failure.of(error, f"{name}: {error}", tensor.name))
            from ...diagnosis.experiments import Experiments

            tried = Experiments(kernel, fmt, semantics, matrix.rows, taken, run.options.threads)
            explanations.add_fault(error, tried, Place(self.who, tensor.name, name, call))
            found.broken = True
        found.distances = exact.distances
        return found


@dataclass
class GraftFound:
    """The findings of one output: see `GemmFound`. `broken`: the kernel, or its author's oracle, broke its
    contract."""

    part: PartialResult
    attempts: Attempts
    distances: Distances | None = None
    broken: bool = False
