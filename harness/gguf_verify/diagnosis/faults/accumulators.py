"""Faults of accumulators that are too narrow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..fault import Case, Variants, fault
from ..operands import Doubles, Predicted


def to_half(v: Doubles) -> Doubles:
    """Round to float32 and then to half."""
    with np.errstate(all="ignore"):
        return v.astype(np.float32).astype(np.float16).astype(np.float64)


def to_bfloat16(v: Doubles) -> Doubles:
    """Round to float32 and then to bfloat16, to nearest even."""
    with np.errstate(all="ignore"):
        bits = v.astype(np.float32).view(np.uint32)
        return (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _narrow(case: Case, narrow: Callable[[Doubles], Doubles]) -> Variants:
    right, p = case.right, case.parts
    # A result near a midpoint may go either way, which no bound covers: see NEARLY in `diagnose`.
    yield "rounded at the end", Predicted(narrow(right.exact), right.bound)
    if case.quantized:
        first, second = p.terms()
        with np.errstate(all="ignore"):
            yield "each term rounded", Predicted((narrow(first) + second).sum(axis=0), right.bound)
        if not p.half_products:
            sums = np.matmul(p.a.transpose(1, 0, 2), p.q.transpose(1, 2, 0))
            scale = p.e.T[:, :, None] * p.d.T[:, None, :]
            with np.errstate(all="ignore"):
                rounded = (scale * narrow(sums) + second).sum(axis=0)
            yield "integer sums rounded before they are scaled", Predicted(rounded, right.bound)
        total = np.zeros(right.exact.shape)
        for t, minimum in zip(first, second, strict=True):
            wide = total + (t + minimum)
            total = narrow(wide)
        yield "rounded after each block", Predicted(total, right.bound)
        yield "rounded after each block but the last", Predicted(wide, right.bound)
        if second.any():
            total = np.zeros(right.exact.shape)
            for t, minimum in zip(first, second, strict=True):
                total = narrow(narrow(total + t) + minimum)
            yield "rounded after each product", Predicted(total, right.bound)
    else:
        w = case.fmt.decode(case.rows.reshape(len(case.rows), -1, case.fmt.block_bytes)).reshape(len(case.rows), -1)
        a, values = p.a.reshape(len(p.a), -1), w.astype(np.float64)
        total = np.zeros(right.exact.shape)
        for i in range(values.shape[1]):
            total = narrow(total + np.multiply.outer(a[:, i], values[:, i]))
        yield "rounded after each value", Predicted(total, right.bound)


@fault(
    "half-accumulator",
    "sums are rounded to half",
    "accumulate and store in float32",
)
def half_accumulator(case: Case) -> Variants:
    return _narrow(case, to_half)


@fault(
    "bfloat16-accumulator",
    "sums are rounded to bfloat16",
    "accumulate and store in float32",
)
def bfloat16_accumulator(case: Case) -> Variants:
    return _narrow(case, to_bfloat16)
