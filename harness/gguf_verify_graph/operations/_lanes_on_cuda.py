"""Products of half weights with one column of activations on CUDA (ggml-cuda/mmvf.cu, mul_mat_vec_f; llama.cpp v0.5.0).

A block of B threads, 32 to 256, has two lanes per thread: lane 2j + i adds up a[k]·w[k] for k = 2·(j + B·step) + i, in
halves. B is the smallest number that minimises the number of steps. The lanes are added in float32. With u = 2^-11, n
steps and the partial sums S of a lane:

    bound    ((1 + u)^(n+1) - 1)·Σ|a·w| + K·2^-24 + γ_16·Σ|a·w|, which includes underflow and rounding of products
    spread   1/√3 times the root of Σ (u·S)² + (u·a·w)², over all steps and lanes, and of 16·(2^-24)²·Σ|a·w|²
"""

from __future__ import annotations

import numpy as np

from gguf_verify.formats import ElementFormat, WeightFormat
from gguf_verify.llama.node import Bytes, Doubles, NoDefinition
from gguf_verify.semantics.declared import declared
from gguf_verify.semantics.narrow import HALF
from gguf_verify.semantics.sums import UNIT_ROUNDOFF, Product, gamma

from ._definition import Definition

_WARP, _MOST = 32, 256
#: Additions of lanes: five within a warp, five across warps, and some margin.
_ADDED = 16
#: Number of elements of an array of partial sums.
_AT_ONCE = 1 << 21
_TAKEN = declared("f16", accumulates="float16")
#: Largest number of columns (mmvf.cuh, MMVF_MAX_BATCH_SIZE); GPUs since Ampere allow one.
MOST_COLUMNS = 8


def threads_of(k: int) -> int:
    """Return B for rows of k values."""
    return min(range(_WARP, _MOST + 1, _WARP), key=lambda threads: (-(-k // (2 * threads)), threads))


def in_lanes(fmt: WeightFormat) -> Definition:
    """Return the definition for weights that are halves."""
    assert isinstance(fmt, ElementFormat)

    def multiplied(w: Bytes, a: Bytes) -> Product:
        weights, values = fmt.decode(w).astype(np.float64), _TAKEN.values_of(a).astype(np.float64)
        step = max(1, _AT_ONCE // max(1, values.size))
        parts = [_lanes(weights[start : start + step], values) for start in range(0, len(weights), step)]
        exact, bound, spread = (np.concatenate(of, axis=1) for of in zip(*parts, strict=True))
        return Product(exact, bound, spread, None)

    return Definition(_TAKEN, fmt, "f16, added in float16 by lanes", multiplied)


def _lanes(w: Doubles, a: Doubles) -> tuple[Doubles, Doubles, Doubles]:
    """Return the exact products [M, n], their bound and their spread."""
    k = a.shape[1]
    lanes = 2 * threads_of(k)
    w, a = (np.pad(v, ((0, 0), (0, -k % lanes))).reshape(len(v), -1, lanes) for v in (w, a))
    terms = a[:, None] * w[None]  # [M, n, steps, lanes]
    sums = np.cumsum(terms, axis=2)
    size, steps = np.abs(terms).sum(axis=(2, 3)), terms.shape[2]
    if not np.abs(terms).sum(axis=2).max(initial=0.0) < HALF.overflows:
        raise NoDefinition("sums in half that may overflow")
    lost = k * 2 * HALF.underflow
    bound = np.expm1((steps + 1) * np.log1p(HALF.unit)) * size + lost + gamma(_ADDED) * size
    squares = HALF.unit**2 * ((sums**2).sum(axis=(2, 3)) + (terms**2).sum(axis=(2, 3)))
    spread = np.sqrt((squares + _ADDED * (UNIT_ROUNDOFF * size) ** 2 + k * HALF.underflow**2) / 3)
    return terms.sum(axis=(2, 3)), bound, spread
