"""The same product again and again on a GPU: does it have the same bits each time?

A GPU runs threads, warps and blocks in an arbitrary order, another one each time. A race may show in one launch of a
hundred, which a run that makes each product once would miss. An emulated GPU runs in other orders (`schedules`); a GPU
makes the same product again.

A kernel that declares no order and adds floats by atomic operations may give other bits, and functions of Python that
whose launches are not visible may be slow; these are skipped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...checks import AGAIN, ALONE
from ...gguf.matrices import label, matrix_of
from ...hosts.choice import HOSTS
from ...results.failures import Failure
from ...support.text import counted
from ..calls import calling
from ..explain import Explanations, Place
from ..schedules import difference
from .call import Outputs
from .gemm import GemmJudge

Floats = npt.NDArray[np.float32]

#: How often a product is made again, at most, and outputs that these have together. A kernel in a process of its own
#: makes each product twice, and its operands are handed over each time.
_TIMES, _TIMES_APART, _OUTPUTS = 64, 8, 1 << 23


def check_again(judged: GemmJudge, made: Outputs, explanations: Explanations) -> None:
    """Make the products for other numbers of tokens again, if a GPU makes them, and record the first one that has other
    bits.

    Args:
        made: the products.
        explanations: of the rung.

    Raises KernelFault.
    """
    run, result = judged.run, judged.result
    if HOSTS[run.kernel.host.name].emulated:
        result.did("again", 0)  # other schedules show what chance would
        return
    matrix, first_row, x = judged.matrix, judged.gemm.first_row, made.other.values
    for m, first in made.others.items():
        this = judged.call("again", m=m)
        with calling(this):
            kernel, weights = judged.calls.at(m)
            launched = kernel.launches(matrix.fmt, m, weights.n, weights.k)
            if not launched or (kernel.adds_floats and kernel.order is None):
                why = "adds floats by atomic operations, in any order" if launched else "its launches cannot be seen"
                result.omit("again", f"kernel {kernel.name}: {why}")
                continue
            times = _TIMES_APART if kernel.runs_on().own_process else _TIMES
            for time in range(1, min(times, _OUTPUTS // max(1, first.size)) + 1):
                y = kernel.product(weights, x[:m])
                result.count(AGAIN if run.only is None else ALONE)
                found = difference(y, first, f"when the product is made again, repetition {time}")
                if found is not None:
                    break
            else:
                continue
        name, tensor = label(matrix.tensor, first_row), matrix.tensor
        number = matrix_of(tensor, first_row)
        result.fail(Failure(f"{name}: at {counted(m, 'tokens')}: {found}", tensor.name, matrix=number, call=this))
        from ...diagnosis.experiments import Experiments

        tried = Experiments(kernel, matrix.fmt, run.semantics(matrix.fmt), matrix.rows, x[:m], run.options.threads)
        explanations.add_fault(found, tried, Place(f"kernel made again, M={m}", tensor.name, name, this))
        return
