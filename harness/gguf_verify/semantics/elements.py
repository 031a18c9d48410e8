"""Products with weights that are not quantized: F32, F16, BF16.

The definition: activations are rounded to nearest even to the weights' type (to half, to bfloat16, not at all), then o
= Σ_k a[k]·w[k]. This is llama.cpp's CPU backend on x86. There, `vec_dot_type` of each type is the type itself
(ggml-cpu.c, ggml_compute_forward_mul_mat; v0.5.0), and the products are those of vec.cpp (ggml_vec_dot_f16, _bf16,
_f32) or of llamafile/sgemm.cpp (tinyBLAS). They are summed in float32, by multiply-add with one rounding or two, over
lanes, in their own order; values that do not fill a vector are summed in double. (Builds for ARM with half arithmetic
add in half: no bound of float32 holds there, and llama.cpp's output fails it.)

    bound   γ_n·Σ|a·w| + τ,  n = K + 8
            Products of F16 and BF16 have 22 and 16 bits. They are exact in float32 unless they underflow, so a value
            costs one rounding. A value of F32 costs two: one of the product and one of the sum. A path to the output
            rounds a product at most once and a sum at most K - 1 + 8 times, whatever the order: n covers both.
            τ is for underflow: nothing for F16, whose products are at least 2^-48; K·2^-149 for F32; for BF16
            2^-126·(2K + Σ|a| + Σ|w|), because AVX512-BF16 (vdpbf16ps) treats subnormal operands as zero and flushes
            subnormal results. The records of the definitions hold its figures (`ElementRounding`).
    spread  u/√3·√Σ_k(S[k]² + 2·t[k]² + L[k]), see `exact`, by slices of 32 values. Only the last of the partial sums
            S within a slice is computed, and it stands for all 32. After i values of slice b, S is S[b-1] + p[i],
            where p goes from 0 to the slice's term t[b]. The mean square of S over i lies between those of S[b-1] and
            S[b], or misses them by the order of t[b]², of which 2 are added for each value. L[k], for the sums in
            lanes, is the sum of the squares of the products up to the slice's end. For activations of random signs
            the spread is accurate to a few per cent; in the first slices it is too wide.
    bits    fused multiply-adds in ascending k from +0, for kernels that declare that order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..formats.element import SLICE
from ..formats.tensor_types import ELEMENTS
from ..support.threads import each
from .accumulation import EXTRA_ROUNDINGS, OVERFLOWS
from .definitions import llama_cpu_semantics
from .order import Order
from .rounding import multiply_adds
from .sums import Doubles, Floats, Product, concatenated, gamma, in_float32_range, spread_of, walk

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

#: Elements of one (slices, M, N) working array; of one (M, N) array of a chain.
_TILE, _CHAIN = 1 << 18, 1 << 14


def round_to(kind: str, x: Floats) -> Floats:
    """Round activations as the product of this type does: to nearest even, as float32."""
    return ELEMENTS[kind].round(x)


def element_product(kind: str, w: Bytes, x: Floats, order: Order | None = None, threads: int = 1) -> Product:
    """Compute the product of weights uint8[N, row bytes] of a type of `FLOAT_TYPES` and activations float32[M, K].

    Args:
        order: also compute the bits of fused multiply-adds in this order, which is ascending k over the whole row.
        threads: the number of threads that share the rows of W.

    Raises ValueError for an order in parts, which no definition states.
    """
    if order is not None and order.part is not None:
        raise ValueError(f"no definition states the order {order} for {kind}")
    rounding = llama_cpu_semantics(ELEMENTS[kind]).elements
    assert rounding is not None
    with np.errstate(invalid="ignore"):  # signalling NaN
        a = round_to(kind, np.ascontiguousarray(x, np.float32))
    m, k = a.shape
    slices = _by_slice(a.astype(np.float64))
    with np.errstate(all="ignore"):
        squares = slices**2
        tiny = rounding.flushed * np.abs(a).sum(axis=1, dtype=np.float64)[:, None] + k * rounding.underflow

    def judged(rows: Bytes) -> Product:
        with np.errstate(all="ignore"):
            by_slice = _by_slice(ELEMENTS[kind].decode(rows).astype(np.float64)).transpose(0, 2, 1)
            term = np.matmul(slices, by_slice)
            exact, carried = walk(term)
            lanes = np.matmul(squares, by_slice**2)
            magnitude = np.matmul(np.abs(slices), np.abs(by_slice)).sum(axis=0)
            floor = tiny + rounding.flushed * np.abs(by_slice).sum(axis=(0, 1))
            bound = gamma(k + EXTRA_ROUNDINGS) * magnitude + floor
            if order is None:
                exact = np.where(magnitude + bound >= OVERFLOWS, np.copysign(np.inf, exact), exact)
            spread = spread_of(term, carried, lanes, slices.shape[2]) + floor
            return Product(exact, bound, spread, None, scale=np.sqrt(lanes.sum(axis=0)))

    whole = concatenated(_shared_out(judged, w, _TILE // max(1, m * len(slices)), threads))
    if order is None:
        return whole
    steps = np.ascontiguousarray(a.T)

    def chained(rows: Bytes) -> Floats:
        with np.errstate(all="ignore"):
            return multiply_adds(steps, np.ascontiguousarray(ELEMENTS[kind].decode(rows).T), rounding.exact)

    bits = _shared_out(chained, w, _CHAIN // max(1, m), threads)
    return in_float32_range(replace(whole, ordered=np.concatenate(bits, axis=1)))


def exact_elements(kind: str, w: Bytes, x: Floats, threads: int = 1) -> Doubles:
    """Compute only the exact result of `element_product`, float64[M, N]."""
    with np.errstate(all="ignore"):
        a = round_to(kind, np.ascontiguousarray(x, np.float32)).astype(np.float64)

    def one(rows: Bytes) -> Doubles:
        with np.errstate(all="ignore"):
            return np.asarray(a @ ELEMENTS[kind].decode(rows).astype(np.float64).T)

    return np.concatenate(_shared_out(one, w, 4 * _TILE // max(1, a.shape[1]), threads), axis=1)


def _shared_out(one: Callable[[Bytes], T], w: Bytes, step: int, threads: int) -> list[T]:
    """Apply `one` to `step` rows at a time, in order."""
    step = max(1, min(step, -(-len(w) // threads)))
    return each(one, [w[start : start + step] for start in range(0, len(w), step)], threads)


def _by_slice(values: Doubles) -> Doubles:
    """Reshape [rows, K] to [slices, rows, 32], the last one padded with zeros; a K below 32 is one slice."""
    rows, k = values.shape
    size = min(SLICE, max(1, k))
    if k % size or not k:
        values = np.pad(values, ((0, 0), (0, size - k % size)))
    return np.ascontiguousarray(values.reshape(rows, -1, size).transpose(1, 0, 2))
