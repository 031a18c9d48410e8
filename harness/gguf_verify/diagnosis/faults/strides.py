"""Faults of strides: rows and blocks are read or written elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...formats.block import QK
from ..fault import Case, Variants, fault
from ..operands import Bytes, Predicted, activation_parts, weight_parts


def _gathered(raw: Bytes, stride: int) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Return rows of the same length, read `stride` bytes apart, and which of them lie within the array."""
    flat, (n, size) = raw.ravel(), raw.shape
    starts = np.arange(n) * stride
    inside = (starts >= 0) & (starts + size <= flat.size)
    return flat[np.where(inside, starts, 0)[:, None] + np.arange(size)], inside


def _with_weights(case: Case, rows: Bytes, known: npt.NDArray[np.bool_]) -> Predicted:
    q, d, m = weight_parts(case.semantics, case.fmt, rows)
    return replace(case.parts, q=q, d=d, m=m).limited(known)


@fault(
    "row-stride",
    "rows are read at the wrong stride",
    "a row has K/block size · block bytes",
)
def row_stride(case: Case) -> Variants:
    size, block = case.rows.shape[1], case.fmt.block_bytes
    strides = {size + block: "a block more", size - block: "a block less"}
    for align in (16, 32, 64, 128, 256):
        strides.setdefault(-(-size // align) * align, f"a multiple of {align} bytes")
    strides.setdefault(0, "nothing: every row is row 0")
    for stride, which in strides.items():
        if stride != size and len(case.rows) > 1 and stride >= 0:
            yield f"rows of weights apart by {which}", _with_weights(case, *_gathered(case.rows, stride))
    form = case.semantics.activations
    unit = 4 * QK if form is None else form.block_bytes
    size = case.x.shape[1]
    if len(case.x) > 1:
        for stride, which in ((size + unit, "a block more"), (size - unit, "a block less"), (0, "nothing")):
            x, known = _gathered(case.x, stride)
            a, e, s = activation_parts(case.semantics, case.fmt, x)
            wrong = replace(case.parts, a=a, e=e, s=s).limited(tokens=known)
            yield f"rows of activations apart by {which}", wrong


@fault(
    "block-stride",
    "blocks are read as if the struct were padded",
    "blocks are contiguous, without padding: check sizeof and alignment",
)
def block_stride(case: Case) -> Variants:
    n, size, block = len(case.rows), case.rows.shape[1], case.fmt.block_bytes
    flat = case.rows.ravel()
    for align in (4, 8, 16):
        padded = -(-block // align) * align
        if padded == block:
            continue
        for whole, which in ((False, "rows where they are"), (True, "rows too")):
            at = np.arange(size // block) * padded
            row = np.arange(n) * (size // block * padded if whole else size)
            starts = row[:, None] + at
            known = (starts + block <= flat.size).all(axis=1)
            index = np.where(known[:, None], starts, 0)[..., None] + np.arange(block)
            yield f"blocks of {padded} bytes, {which}", _with_weights(case, flat[index].reshape(n, size), known)


@fault(
    "transposed",
    "the output is written transposed",
    "y[m, n] is at m·N + n",
    applies=lambda c: min(c.right.exact.shape) > 1,
)
def transposed(case: Case) -> Variants:
    right = case.right
    shape = right.exact.shape
    yield "", Predicted(right.exact.T.reshape(shape), right.bound.T.reshape(shape))
