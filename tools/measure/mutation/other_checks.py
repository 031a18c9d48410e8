"""The checks that gguf-verify is compared with: the usual tests of kernels, on the same outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..inputs import Floats

NMSE_LIMIT, CLOSE_RTOL, CLOSE_ATOL, COSINE_LIMIT = 5e-4, 1e-2, 1e-2, 0.98


def nmse(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """Σ(y - o)² / Σ o², as in llama.cpp's test-backend-ops."""
    energy = float((o**2).sum())
    return float(((y - o) ** 2).sum()) / energy if energy else float("inf") if (y != o).any() else 0.0


def cosine(y: npt.NDArray[Any], o: npt.NDArray[Any]) -> float:
    """The cosine between whole outputs as vectors."""
    norm = float(np.linalg.norm(y)) * float(np.linalg.norm(o))
    return float((y * o).sum()) / norm if norm else float(not y.any() and not o.any())


def passed_by(y: Floats, values: npt.NDArray[np.float64], definition: npt.NDArray[np.float64]) -> dict[str, bool]:
    """Return whether each of OTHER_CHECKS accepts an output float32[M, N].

    Args:
        values: the product of the dequantized weights and the unquantized activations.
        definition: the exact product of the kernel's declared definition.
    """
    wide = y.astype(np.float64)
    passed = {}
    with np.errstate(all="ignore"):
        for against, o in (("values", values), ("definition", definition)):
            passed[f"nmse {against}"] = nmse(wide, o) <= NMSE_LIMIT
            passed[f"allclose {against}"] = bool(np.allclose(wide, o, rtol=CLOSE_RTOL, atol=CLOSE_ATOL))
            passed[f"cosine {against}"] = cosine(wide, o) >= COSINE_LIMIT
    return passed
