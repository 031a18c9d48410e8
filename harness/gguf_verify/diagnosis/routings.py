"""Diagnosis of a failed kernel for experts by calls with routings of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..kernels.experts import experts_of
from ..kernels.interface import Kernel
from ..kernels.routing import ROUTINGS, Routing, routed
from ..results.diagnoses import FaultMatch
from ..semantics.definition import Semantics
from ..semantics.drawn import keys_of_slots
from ..semantics.epilogue import Epilogue
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.sums import Product
from .observed import observed
from .operands import Bytes

#: Tokens and rows of the calls.
_TOKENS, _ROWS = 6, 33
#: The simplest routing: every token goes to one expert, and no other is used.
_SAME = "one expert for all tokens"


def routing_fault(
    kernel: Kernel, fmt: WeightFormat, semantics: Semantics, rows: Bytes, x: npt.NDArray[Any]
) -> FaultMatch | None:
    """Return the fault, if some routings are correct and others wrong; otherwise None.

    Args:
        rows: weights uint8[N, row bytes] of the failed call.
        x: its activations, float32[M, K] or uint8[M, row bytes].

    Raises KernelFault.
    """
    taken = kernel.takes_experts
    if taken is None:
        return None
    n, m = (
        extent.up(size) or extent.down(size) or 0
        for extent, size in ((kernel.domain.n, _ROWS), (kernel.domain.m, _TOKENS))
    )
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
    outputs = {
        how: _outputs(kernel, fmt, weights, encoded, routing, taken.own_activations) for how, routing in calls.items()
    }
    wrong = {how: bad for how, y in outputs.items() if (bad := _wrong_slots(y, calls[how], whole))}
    right = [how for how in calls if how not in wrong]
    for how, slots in wrong.items():
        of_others = _operands_of_others(outputs[how], calls[how], slots, (semantics, fmt, weights, of_slots))
        if of_others is not None:
            return of_others
    if not wrong or not right:
        return None
    words = f"only some routings of tokens to experts are wrong: {'; '.join(wrong)}. Right: {'; '.join(right)}"
    return observed("window-of-routings", words)


def _outputs(
    kernel: Kernel, fmt: WeightFormat, weights: Bytes, x: Bytes, routing: Routing, own: bool
) -> npt.NDArray[np.float32]:
    """Return the outputs float32[slots, N]."""
    m, top_k = routing.ids.shape
    given = np.repeat(x, top_k, axis=0) if own else x
    y = kernel.routed(fmt, weights, np.ascontiguousarray(given), routing)
    return np.ascontiguousarray(y.reshape(m * top_k, -1))


def _wrong_slots(y: npt.NDArray[np.float32], routing: Routing, whole: Product) -> list[int]:
    """Return the slots with a wrong output; `whole` is the product of every slot with every expert."""
    columns = routing.ids.reshape(-1, 1).astype(np.intp) * y.shape[1] + np.arange(y.shape[1])
    slots = np.arange(len(y))[:, None]
    slots, columns = (np.broadcast_to(of, y.shape).ravel() for of in (slots, columns))
    judged = judge(np.ascontiguousarray(y.reshape(1, -1)), replace(whole, ordered=None).at(slots, columns))
    return [int(slot) for slot in np.flatnonzero(judged.bad.reshape(y.shape).any(axis=1))]


def _operands_of_others(
    y: npt.NDArray[np.float32],
    routing: Routing,
    wrong: list[int],
    operands: tuple[Semantics, WeightFormat, Bytes, Bytes],
) -> FaultMatch | None:
    """Return the fault that every wrong slot has its own product with another slot's fused operands; None if not."""
    semantics, fmt, weights, of_slots = operands
    if not isinstance(semantics.epilogue, Epilogue):
        return None
    names = [o.name for o in semantics.epilogue.operations if o.place in ("token", "output")]
    if not names:
        return None
    keys = keys_of_slots(of_slots, np.arange(len(of_slots)))
    found: dict[int, int] = {}
    for other in range(len(of_slots)):
        left = [slot for slot in wrong if slot not in found and slot != other]
        if left:
            whole = product(
                semantics, fmt, weights, of_slots, keys=np.repeat(keys[other : other + 1], len(keys), axis=0)
            )
            found |= dict.fromkeys({*left} - {*_wrong_slots(y, routing, whole)}, other)
    if len(found) < len(wrong):
        return None
    some = ", ".join(f"slot {slot} gets that of {other}" for slot, other in sorted(found.items())[:3])
    words = f"{' and '.join(names)} is another slot's, the product before it is right: {some}"
    return observed(
        "epilogue", words, "index it by the slot, which the sorted ids hold, not by the position in their list"
    )
