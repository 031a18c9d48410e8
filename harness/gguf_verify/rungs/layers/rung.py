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

from ...gguf.matrices import may_be_matrix
from ...llama import LlamaRefused
from ...results.rungs import RungResult
from ..calls import begin_alone, end_alone
from ..course import Course
from ..interface import Rung, Steps
from ..run import Run
from .merge import Merge
from .plan import Plan


def check(run: Run, result: RungResult) -> Steps:
    """Judge every GEMM with weights. Raises EnvironmentFault if llama.cpp crashes."""
    only = begin_alone(run, result)
    matrices = {t.name: t for t in run.selected() if may_be_matrix(t) and t.nbytes}
    seen: set[str] = set()
    try:
        if matrices:
            merge = Merge(run, result)
            course = Course(run, matrices)
            plan = Plan(run, matrices, course, lambda: merge.known, seen)
            for step, found in run.judges.each(run, plan.steps()):
                result.join(step.said)
                if step.task is not None:
                    merge.add(plan, step.task, found)
                yield merge.first_wrong
            if only is None:
                course.leave(result)
                merge.report()
                plan.report(result)
    except LlamaRefused as error:
        result.leave_all("GEMMs", str(error), error.culprit)
    if only is not None:
        end_alone(result, only)
        return
    result.skip("vectors", run.vectors(seen))
    run.leave_idle(result)


RUNG = Rung(
    "layers", 3, "Does each GEMM of the real graph, on its real activations, give llama.cpp's output?", ("outputs",),
    check,
)  # fmt: skip
