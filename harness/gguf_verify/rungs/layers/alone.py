"""One call of the layers rung that is made alone (`--only-call`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...checks import ALONE
from ...results.calls import Call
from ..calls import calling
from ..exact import ExactProducts
from ..generated_inputs import every_size
from ..judging import CHUNK_OUTPUTS, KERNEL
from .call import OTHER_M as OTHER_TOKENS
from .call import Activations, cut_trials, with_more_tokens
from .gemm import OTHER_M, SHARED, GemmJudge

Floats = npt.NDArray[np.float32]


def judge_alone(judged: GemmJudge, only: Call, exact: ExactProducts) -> None:
    """Make and judge one call alone, of a GEMM or at another shape of it. Raises KernelFault."""
    values = with_more_tokens(judged.gemm.x, max(OTHER_TOKENS), judged.run.options.seed)
    if only.kind == "cut":
        for number, trial in enumerate(cut_trials(judged.matrix, values)):
            if number == only.number:
                judged.try_shape(trial, number, only)
        return
    if only.kind in ("quantizer", "every-size"):
        if only.kind == "every-size":
            x, m = every_size(judged.matrix.tensor.k), len(judged.gemm.x)
        elif only.number:
            trials = list(cut_trials(judged.matrix, values))[only.number - 1 :]
            if not trials:
                return
            x, m = trials[0].x, len(judged.gemm.x)
        else:
            x, m = (judged.gemm.x, only.m) if only.m == len(judged.gemm.x) else (values[: only.m], only.m)
        judged.check_quantizer(Activations.of(judged.semantics, x), only, m)
        judged.result.count(ALONE)
        return
    m = only.m if only.kind == "other-m" else len(judged.gemm.x)
    x = values[:m] if only.kind == "other-m" else judged.gemm.x
    made = _made(judged, only, x)
    step = max(1, CHUNK_OUTPUTS // m)
    for start in range(0, len(judged.matrix.rows), step):
        span = slice(start, start + step)
        rows, theirs = judged.matrix.rows[span], None
        if only.kind in ("reference", "shared"):
            theirs = judged.expected(judged.llama, rows, judged.llama_bytes)
        if only.kind == "reference" and theirs is not None:
            judged.judge_llama(span, theirs)
        elif only.kind == "shared" and made is not None and theirs is not None:
            expected = judged.expected(judged.semantics, rows, judged.shared_bytes)
            judged.judge_kernel(SHARED, made, span, expected, judged.shared_bytes)
            if judged.run.backend.compared:
                judged.compare_directly(made, span, expected, theirs)
        elif made is not None:
            taken = judged.own if only.kind == "own" else Activations.of(judged.semantics, x)
            expected = exact.product(
                judged.semantics, judged.matrix.fmt, rows, taken.encoded, judged.calls.at(m)[0].order
            )
            side, detail = (KERNEL, "") if only.kind == "own" else (OTHER_M, f" at M={m}")
            judged.judge_kernel(side, made, span, expected, taken.encoded, taken.values, detail)
    judged.result.count(ALONE)


def _made(judged: GemmJudge, only: Call, x: Floats) -> Floats | None:
    """The kernel's output; None if the call is llama.cpp's. Raises KernelFault."""
    if only.kind == "reference":
        return None
    with calling(only):
        kernel, weights = judged.calls.at(len(x))
        return kernel.gemm(weights, judged.shared_bytes) if only.kind == "shared" else kernel.product(weights, x)
