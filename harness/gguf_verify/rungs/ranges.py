"""Activations whose products a kernel's outputs can hold: generated ones would overflow a half."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat
from ..semantics.definition import Semantics

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: A quarter of the largest half: offsets and minima that are multiplied apart, and what is fused, may add to a product.
_MOST = 2.0**14
_VALUES = 1 << 22


def representable(semantics: Semantics, fmt: WeightFormat, rows: Bytes, x: Floats) -> Floats:
    """Tokens float32[M, K], some of them multiplied by powers of two, whose outputs and partial sums with weights
    uint8[N, row bytes] are finite in the type of the definition's outputs and sums: |Σ w·a| ≤ max_k |a|·Σ |w|."""
    narrow = "float16" in (semantics.output, semantics.accumulation.name)
    if not narrow or not isinstance(fmt, BlockFormat) or not x.size or not rows.size:
        return x
    step, most = max(1, _VALUES // x.shape[1]), 0.0
    for start in range(0, len(rows), step):
        blocks = rows[start : start + step].reshape(-1, rows.shape[1] // fmt.block_bytes, fmt.block_bytes)
        size = np.abs(fmt.decode(blocks).astype(np.float64)).reshape(len(blocks), -1).sum(axis=1)
        most = max(most, float(size[np.isfinite(size)].max(initial=0.0)))
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(_MOST / (most * np.abs(x.astype(np.float64)).max(axis=1))))
    less = np.where(np.isfinite(exponent), np.minimum(exponent, 0), 0).astype(np.int32)
    with np.errstate(under="ignore"):
        return np.ldexp(x, less[:, None])
