"""Shapes at which a checked build runs, with operands at no multiple of 16 bytes.

All calls have such operands (`kernels.foreign.addresses`), but an ordinary build on a CPU loads what a GPU refuses to
load, and runs threads in an order that may hide a race. So a checked build has to reach each part of the code: some
shapes of the plan, and those with which the code compares.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from ....formats.tensor_types import WeightFormat
from ....hosts.choice import HOSTS
from ....hosts.schedule import Schedule
from ....kernels.interface import Kernel
from ....support.errors import EnvironmentFault
from ...generated_inputs import representable
from ...index_limits import Shape
from ...plan import Probe
from ...run import Run
from .inputs import ProbeInputs

#: Shapes of either kind; their divisor if they are round; and the most multiplications.
_SHAPES, _ROUND, _MOST_WORK = 5, 64, 1 << 21
#: Cost of all calls at shapes with which the code compares, and of a thread, in multiply-adds.
_MOST_COMPARED, _OF_THREAD = 1 << 24, 32


def checked_build(run: Run, fmt: WeightFormat) -> Kernel | None:
    """The checked build of the kernel, all of whose operands are unaligned; None where none runs on a CPU."""
    kernel = run.kernel.of(fmt, 1, 1, fmt.unit)
    if not HOSTS[run.kernel.host.name].emulated or kernel.unaligned() is None:
        return None
    under = kernel.under(Schedule(checked=True))
    unaligned = None if under is None else under.unaligned()
    assert unaligned is None or isinstance(unaligned, Kernel)
    return unaligned


def check_unaligned(run: Run, fmt: WeightFormat, kernel: Kernel, probe: Probe, inputs: ProbeInputs) -> bool:
    """Make the call of a probe by a checked build; return whether it could be made. Raises KernelFault."""
    rows = inputs.weights(probe)
    x = representable(run.semantics(fmt), fmt, rows, inputs.values(probe, rows))
    try:
        kernel.product(kernel.upload(fmt, rows), x)
    except EnvironmentFault:  # there is no such build here
        return False
    return True


def affordable(
    probes: Iterable[Probe], kernel_of: Callable[[WeightFormat, int, int, int], Kernel], fmt: WeightFormat
) -> list[Probe]:
    """The probes that a checked build runs in a few seconds together, the cheapest of each comparison in turn."""
    costs = {probe: _cost(kernel_of(fmt, probe.tokens[0], probe.n, probe.k), fmt, probe) for probe in probes}
    turns, ranked = Counter[str](), list[tuple[int, int, Probe]]()
    for probe in sorted(costs, key=lambda one: costs[one]):
        ranked.append((turns[probe.because], costs[probe], probe))
        turns[probe.because] += 1
    found, left = list[Probe](), _MOST_COMPARED
    for _, cost, probe in sorted(ranked, key=lambda one: one[:2]):
        if cost <= left:
            left -= cost
            found.append(probe)
    return found


def _cost(kernel: Kernel, fmt: WeightFormat, probe: Probe) -> int:
    """Multiply-adds and threads of a call; a thread costs as much as some dozens."""
    (m,), n, k = probe.tokens, probe.n, probe.k
    launches = kernel.launches(fmt, m, n, k) or ()
    return m * n * k + _OF_THREAD * sum(one.blocks * math.prod(one.block) for one in launches)


def spread(shapes: Iterable[Shape]) -> list[Shape]:
    """Some of the shapes (M, N, K) that are cheap and far apart by their logarithms, from the largest M on; and as many
    with round N and K, which vectors and tiles take."""
    cheap = sorted({shape for shape in shapes if math.prod(shape) <= _MOST_WORK}, reverse=True)
    round_ones = [shape for shape in cheap if shape[1] % _ROUND == shape[2] % _ROUND == 0]
    found = list[Shape]()
    for candidates in (cheap, round_ones):
        sizes, chosen = np.log2(np.array(candidates, float).reshape(-1, 3)), list[int]()
        for _ in range(min(_SHAPES, len(candidates))):
            apart = ((sizes[:, None] - sizes[chosen]) ** 2).sum(axis=2)
            chosen.append(int(np.argmax(apart.min(axis=1))) if chosen else 0)
        found += [candidates[i] for i in chosen]
    return list(dict.fromkeys(found))
