"""A kernel for experts that failed is called with routings of every kind: which are right, and which wrong?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import WeightFormat
from ..kernels.experts import experts_of
from ..kernels.interface import Kernel
from ..kernels.routing import ROUTINGS, Routing, routed
from ..results import FaultMatch
from ..semantics import Product, Semantics, judge, product
from ..semantics.drawn import keys_of_slots
from .observed import observed
from .operands import Bytes

#: Tokens and rows of the calls.
_TOKENS, _ROWS = 6, 33
#: The simplest routing: every token goes to one expert, which is the only one that is used.
_SAME = "one expert for all tokens"


def routing_fault(
    kernel: Kernel, fmt: WeightFormat, semantics: Semantics, rows: Bytes, x: npt.NDArray[Any]
) -> FaultMatch | None:  # fmt: skip
    """The fault, where some routings are right and others wrong; None else.

    Args:
        rows: weights uint8[N, row bytes] of the call that failed.
        x: its activations, float32[M, K] or uint8[M, row bytes].

    Raises KernelFault.
    """
    taken = kernel.takes_experts
    if taken is None:
        return None
    n, m = (extent.up(size) or extent.down(size) or 0 for extent, size in ((kernel.domain.n, _ROWS),
                                                                           (kernel.domain.m, _TOKENS)))  # fmt: skip
    count, top_k = taken.usual()
    if not m or not n or count < 2:
        return None
    stacked = experts_of(np.resize(rows, (n, rows.shape[1])), count, count)
    weights = stacked.stacked(np.resize(rows, (n, rows.shape[1])))
    values = np.resize(x, (m, x.shape[1]))
    encoded = semantics.bytes_of(values) if x.dtype == np.float32 else values
    of_slots = np.repeat(encoded, top_k, axis=0)
    whole = product(semantics, fmt, weights, of_slots, keys=keys_of_slots(of_slots, np.arange(m * top_k)))
    same = Routing(np.full((m, top_k), 1, np.int32), count)
    calls = {_SAME: same} | {how: routed(how, m, top_k, count, 1) for how in ROUTINGS}
    wrong = [how for how, routing in calls.items()
             if not _right(kernel, fmt, weights, encoded, routing, whole, taken.own_activations)]  # fmt: skip
    right = [how for how in calls if how not in wrong]
    if not wrong or not right:
        return None
    words = f"only some ways to send tokens to experts are wrong: {'; '.join(wrong)}. Right: {'; '.join(right)}"
    return observed("window-of-routings", words)


def _right(
    kernel: Kernel, fmt: WeightFormat, weights: Bytes, x: Bytes, routing: Routing, whole: Product, own: bool
) -> bool:  # fmt: skip
    m, top_k = routing.ids.shape
    given = np.repeat(x, top_k, axis=0) if own else x
    y = kernel.routed(fmt, weights, np.ascontiguousarray(given), routing).reshape(m * top_k, -1)
    n = y.shape[1]
    columns = routing.ids.reshape(-1, 1).astype(np.intp) * n + np.arange(n)
    slots = np.arange(m * top_k)[:, None]
    slots, columns = (np.broadcast_to(of, y.shape).ravel() for of in (slots, columns))
    return judge(np.ascontiguousarray(y.reshape(1, -1)), replace(whole, ordered=None).at(slots, columns)).passed


__all__ = ["routing_fault"]
