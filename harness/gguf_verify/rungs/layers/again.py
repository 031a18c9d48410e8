"""The same product again and again on a card: does it have the same bits each time?

A card runs threads, warps and blocks in an order that nobody chooses, and in another one each time. A race may show in
one launch of a hundred, and then a run that makes each product once says nothing of it. An emulated card is asked for
other orders (`schedules`); a card is asked to do the same once more.

A kernel that declares no order and adds floats by atomic operations may give other bits, and functions of Python that
launch what nobody sees may be slow; these are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ...checks import AGAIN, ALONE
from ...diagnosis.experiments import Experiments
from ...gguf.matrices import label, matrix_of
from ...hosts.choice import HOSTS
from ...results.calls import Call
from ...results.failures import Failure
from ...results.rungs import RungResult
from ..calls import calling
from ..explain import Explanations, Place
from ..run import Matrix, Run
from ..schedules import difference
from .outputs import KernelCalls

Floats = npt.NDArray[np.float32]

#: How often a product is made again, at most, and outputs that these have together. A kernel in a process of its own
#: makes each product twice, and its operands are handed over each time.
_TIMES, _TIMES_APART, _OUTPUTS = 64, 8, 1 << 23


def check_again(
    run: Run, result: RungResult, matrix: Matrix, first_row: int, calls: KernelCalls, x: Floats,
    outputs: Mapping[int, Floats], explanations: Explanations, call: Call,
) -> None:  # fmt: skip
    """Make products of a matrix again, where a card makes them, and record the first one that has other bits.

    Args:
        matrix, first_row, calls: the weights, where they begin in their tensor, and the kernel on them.
        x: activations float32[M, K].
        outputs: by a number m of tokens, what the kernel gave for the first m of x, float32[m, N].
        explanations: of the rung.
        call: of which the calls are variants.

    Raises KernelFault.
    """
    if HOSTS[run.kernel.host.name].emulated:
        result.did("again", 0)  # other schedules show what chance would
        return
    for m, first in outputs.items():
        this = replace(call, m=m)
        with calling(this):
            kernel, weights = calls.at(m)
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
        result.fail(Failure(f"{name}: at {m} tokens: {found}", tensor.name, matrix=number, call=this))
        tried = Experiments(kernel, matrix.fmt, run.semantics(matrix.fmt), matrix.rows, x[:m], run.options.threads)
        explanations.add_fault(found, tried, Place(f"kernel made again, M={m}", tensor.name, name, this))
        return
