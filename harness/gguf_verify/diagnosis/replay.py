"""Diagnosis of a kernel that can run again, on a part of its inputs small enough to replay faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..kernels.interface import Kernel
from ..semantics.definition import Semantics
from ..support.errors import KernelFault
from .diagnose import Diagnosis, diagnose, most
from .operands import Bytes, Floats


def diagnose_kernel(
    kernel: Kernel,
    fmt: WeightFormat,
    semantics: Semantics,
    rows: Bytes,
    x: npt.NDArray[Any],
    y: Floats,
    at: tuple[int, int],
    threads: int = 1,
    blocks: Sequence[int] = (),
) -> Diagnosis:
    """Diagnose the kernel's outputs y float32[M, N].

    The first rows and tokens are multiplied again, so that strides and tiles are those of a whole product. If these
    outputs are correct, the window of y around `at` is diagnosed instead, without its surroundings.

    Args:
        at: (m, n) of a wrong output.
        rows, x: as for `diagnose`.
        blocks: likewise.
    """
    tokens, few = most(fmt, rows)
    few_rows, few_x = np.ascontiguousarray(rows[:few]), np.ascontiguousarray(x[:tokens])
    whole = len(rows) <= few and len(x) <= tokens
    try:
        if whole:
            again = y
        elif len(few_rows) in kernel.domain.n and len(few_x) in kernel.domain.m:
            weights = kernel.upload(fmt, few_rows)
            again = (kernel.product if x.dtype == np.float32 else kernel.gemm)(weights, few_x)
        else:
            again = None
    except KernelFault:
        again = None
    if again is not None:
        found = diagnose(again, fmt, semantics, few_rows, few_x, blocks, threads)
        if found.wrong or whole:
            return found
    m, n = (i // size * size for i, size in zip(at, (tokens, few), strict=True))
    part = np.ascontiguousarray(y[m : m + tokens, n : n + few])
    return diagnose(part, fmt, semantics, rows[n : n + few], x[m : m + tokens], blocks, threads)
