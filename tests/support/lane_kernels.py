"""Kernels that add up a product in SIMD lanes, in NumPy's float32."""

from __future__ import annotations

import numpy as np

from gguf_verify.formats.block import BlockFormat
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.values import Activations, term_values
from tests.support.exact_products import Bytes, Floats


def in_lanes(
    semantics: Semantics, fmt: BlockFormat, w: Bytes, x: Bytes, lanes: int = 8, first: int = 0
) -> Floats:  # fmt: skip
    """float32[M, N]: each lane takes a run of every block's values, adds d_w·d_a times their integer product, and its
    share of m·s; the lanes are added in a tree.

    Args:
        first: the block that it begins with; it goes on at the front.
    """
    values = term_values(fmt)
    nb = w.shape[1] // fmt.block_bytes * (fmt.block_size // values)
    a, blocks = Activations.of(semantics.encoding, x, values, nb), w.reshape(len(w), -1, fmt.block_bytes)
    q = semantics.term.codes(fmt, blocks).reshape(len(w), nb, lanes, values // lanes)
    q_a = a.q.reshape(nb, -1, lanes, values // lanes)
    d, least = semantics.term.scales(fmt, blocks)
    acc = np.zeros((lanes, q_a.shape[1], len(w)), np.float32)
    for b in np.roll(np.arange(nb), -first):
        sums = np.einsum("mlv,nlv->lmn", q_a[b], q[:, b]).astype(np.float32)
        acc += (a.d[b] * d[b]).astype(np.float32) * sums
        if semantics.uses_sum(fmt):
            acc += (a.s[b] * least[b]).astype(np.float32) / np.float32(lanes)
        elif fmt.has_min:
            acc += (a.d[b] * q_a[b].sum(axis=-1).T[..., None] * least[b]).astype(np.float32)
    while len(acc) > 1:
        acc = acc[0::2] + acc[1::2]
    return np.ascontiguousarray(acc[0])


def alternating(m: int, k: int, run: int) -> Floats:
    """float32[m, k]: runs of +c and of -c."""
    signs = np.where(np.arange(k) // run % 2, -1.0, 1.0)
    return np.asarray(signs * np.linspace(0.7, 1.9, m)[:, None], np.float32)


def with_late_outlier(x: Floats) -> Floats:
    """Small values, and a large one near the end."""
    x = x * np.float32(1e-2)
    x[:, -5] = 1e4
    return x


def of_one_block(w: Bytes, fmt: BlockFormat) -> Bytes:
    """Rows each of which repeats its first block."""
    return np.ascontiguousarray(np.tile(w[:, : fmt.block_bytes], (1, w.shape[1] // fmt.block_bytes)))
