"""Faults of integer sums that are too narrow."""

from __future__ import annotations

import numpy as np

from ..fault import Case, Fault, Variants
from ..operands import Doubles, Predicted


def _wrapped(v: Doubles, bits: int) -> Doubles:
    half = 2.0 ** (bits - 1)
    return np.asarray(np.mod(v + half, 2 * half) - half)


def _narrow(case: Case) -> Variants:
    p = case.parts
    scale = p.e.T[:, :, None] * p.d.T[:, None, :]
    second = p.s.T[:, :, None] * p.m.T[:, None, :]

    def with_sums(sums: Doubles) -> Predicted:
        return Predicted((scale * sums + second).sum(axis=0), case.right.bound)

    a, q = p.a.transpose(1, 0, 2), p.q.transpose(1, 2, 0)
    sums = np.matmul(a, q)
    for bits in (16, 8):
        low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1
        if sums.min(initial=0.0) < low or sums.max(initial=0.0) > high:
            yield f"sums of {p.q.shape[2]} products wrap at {bits} bits", with_sums(_wrapped(sums, bits))
            yield f"sums of {p.q.shape[2]} products saturate at {bits} bits", with_sums(np.clip(sums, low, high))
    pairs = np.zeros_like(sums)
    saturates = False
    for i in range(0, p.q.shape[2], 2):  # as maddubs adds them
        pair = np.matmul(a[..., i : i + 2], q[:, i : i + 2])
        saturates |= bool((np.abs(pair) > 32767).any())
        pairs += np.clip(pair, -32768, 32767)
    if saturates:
        yield "pairs of products saturate at 16 bits", with_sums(pairs)


INTEGERS_TOO_NARROW = Fault(
    id="integers-too-narrow",
    words="integer sums overflow",
    fix="add products of codes in 32 bits",
    applies=lambda c: c.quantized and not c.parts.half_products,
    variants=_narrow,
)
