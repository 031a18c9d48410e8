"""Diagnosis of a kernel that can be run again: on a part of its inputs that is small enough to be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import KernelFault
from ..formats import WeightFormat
from ..kernels import Kernel
from ..semantics import Semantics
from .diagnose import MOST_TOKENS, Diagnosis, diagnose, most_rows
from .parts import Bytes, Floats


def diagnose_kernel(
    kernel: Kernel, fmt: WeightFormat, semantics: Semantics, rows: Bytes, x: npt.NDArray[Any], y: Floats,
    at: tuple[int, int], threads: int = 1, blocks: Sequence[int] = (),
) -> Diagnosis:  # fmt: skip
    """What explains the kernel's outputs y float32[M, N].

    The first rows and tokens are multiplied again, so that strides and tiles are those of a whole product; where these
    are right, the window of y around `at` is looked at, which knows nothing of its
    surroundings.

    Args:
        at: (m, n) of an output that is wrong.
        rows, x: as `diagnose` takes them.
        blocks: likewise.
    """
    most = most_rows(fmt, rows)
    few_rows, few_x = np.ascontiguousarray(rows[:most]), np.ascontiguousarray(x[:MOST_TOKENS])
    whole = len(rows) <= most and len(x) <= MOST_TOKENS
    try:
        weights = kernel.upload(fmt, few_rows)
        again = y if whole else (kernel.product if x.dtype == np.float32 else kernel.gemm)(weights, few_x)
    except KernelFault:
        again = None
    if again is not None:
        found = diagnose(again, fmt, semantics, few_rows, few_x, blocks, threads)
        if found.wrong or whole:
            return found
    m, n = (i // size * size for i, size in zip(at, (MOST_TOKENS, most), strict=True))
    part = np.ascontiguousarray(y[m : m + MOST_TOKENS, n : n + most])
    return diagnose(part, fmt, semantics, rows[n : n + most], x[m : m + MOST_TOKENS], blocks, threads)
