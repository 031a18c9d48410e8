"""A kernel with the operands of a call that failed, and further calls of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..kernels.interface import Kernel
from ..semantics.definition import Semantics
from ..semantics.exact import product
from ..semantics.gates import judge
from ..semantics.sums import Product
from .operands import Bytes, Floats

Bools = npt.NDArray[np.bool_]

#: Most multiplications of all calls of one experiment.
MOST_WORK = 1 << 27


@dataclass(frozen=True)
class Calls:
    """A kernel and the operands of a call that failed.

    Args:
        kernel, fmt, semantics: the kernel, the weights' format, and the definition that the kernel declares.
        rows: weights uint8[N, row bytes].
        x: float32[M, K] that the kernel quantizes itself, or uint8[M, row bytes] as it gets them.
        threads: for the exact products.
    """

    kernel: Kernel
    fmt: WeightFormat
    semantics: Semantics
    rows: Bytes
    x: npt.NDArray[Any]
    threads: int = 1

    def run(self, rows: Bytes, x: npt.NDArray[Any]) -> Floats:
        """Call the kernel. Returns float32[M, N]. Raises KernelFault."""
        rows, x = np.ascontiguousarray(rows), np.ascontiguousarray(x)
        k = rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size
        kernel = self.kernel.of(self.fmt, len(x), len(rows), k)
        weights = kernel.upload(self.fmt, rows)
        return kernel.product(weights, x) if x.dtype == np.float32 else kernel.gemm(weights, x)

    def exact(self, rows: Bytes, x: npt.NDArray[Any], definition: Semantics | None = None) -> Product:
        """Return the reference product of operands, by the declared definition or another one."""
        definition = definition or self.semantics
        taken = np.ascontiguousarray(definition.bytes_of(x) if x.dtype == np.float32 else x)
        return product(definition, self.fmt, np.ascontiguousarray(rows), taken, threads=self.threads)

    def wrong(self, y: Floats, exact: Product) -> Bools:
        """Return which outputs are wrong, among those with a finite exact value."""
        return np.asarray(judge(np.ascontiguousarray(y), exact).bad & np.isfinite(exact.exact))

    @property
    def k(self) -> int:
        """The number of columns."""
        return int(self.rows.shape[1] // self.fmt.block_bytes * self.fmt.block_size)

    def most(self, sizes: Sequence[int], other: int) -> int:
        """Return how many of `other` rows or tokens may be combined with these sizes."""
        return max(1, min(other, int(MOST_WORK // max(1, sum(sizes) * self.k))))

    def first_columns(self, units: int, start: int = 0) -> tuple[Bytes, npt.NDArray[Any]]:
        """Return rows and activations of only the first columns, or of those from unit `start` on."""
        all_units = self.k // self.fmt.unit
        rows, x = (
            np.ascontiguousarray(of[:, start * (of.shape[1] // all_units) :][:, : units * (of.shape[1] // all_units)])
            for of in (self.rows, self.x)
        )
        return rows, x


def others(own: int) -> list[int]:
    """Return sizes besides that of the call at which a fault is tried: small ones, parts of it, one less, twice as
    many.
    """
    return [n for n in sorted({1, 2, own // 3, own // 2, own - 1, 2 * own}) if n > 0 and n != own]
