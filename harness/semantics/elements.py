"""Products with weights that are not quantized: F32, F16, BF16.

llama.cpp's CPU backend rounds the activations to the weights' type (its `vec_dot_type`) and sums exact products in
float32, in an order of its own (ggml-cpu/vec.cpp, ggml_vec_dot_f16, _bf16, _f32, v0.5.0). The bound is that of
`oracle.py` with one term a value.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats import decode_elements
from .oracle import UNIT_ROUNDOFF, Product, gamma
from .rounding import add_rounded

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_EXTRA_ROUNDINGS = 8
_TILE = 1 << 22


def round_to(kind: str, x: Floats) -> Floats:
    """Activations as the product of this type takes them: rounded to nearest even, float32 again."""
    if kind == "F16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    if kind == "BF16":
        bits = x.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(x), x, rounded.view(np.float32))
    return x


def element_product(kind: str, w: Bytes, x: Floats, ordered: bool = False) -> Product:
    """The product of weights uint8[N, row bytes] of a type of `FLOAT_TYPES` and activations float32[M, K].

    Args:
        ordered: also the bits of fused multiply-adds in ascending k.
    """
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = decode_elements(kind, np.ascontiguousarray(w).reshape(-1)).reshape(len(w), -1).astype(np.float64)
        a = round_to(kind, np.ascontiguousarray(x, np.float32)).astype(np.float64)
    m, k = a.shape
    n = len(values)
    exact, bound, spread = np.empty((m, n)), np.empty((m, n)), np.empty((m, n))
    result = np.zeros((m, n), np.float32) if ordered else None
    step = max(1, _TILE // max(1, m * k))
    with np.errstate(all="ignore"):
        for start in range(0, n, step):
            span = slice(start, start + step)
            part = values[span]
            exact[:, span] = a @ part.T
            bound[:, span] = gamma(k + _EXTRA_ROUNDINGS) * (np.abs(a) @ np.abs(part).T)
            term = a[:, None, :] * part[None]
            squares = np.cumsum(term, axis=-1) ** 2 + 2 * term**2
            # lanes hold, with random signs, the root of the sum of squares of what they added
            lanes = np.cumsum(term**2, axis=-1)
            spread[:, span] = UNIT_ROUNDOFF / np.sqrt(3) * np.sqrt((squares + lanes).sum(axis=-1))
        if result is not None:
            for i in range(k):
                result = add_rounded(np.multiply.outer(a[:, i], values[:, i]), result)
    return Product(exact, bound, spread, result)
