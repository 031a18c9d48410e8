"""Launches: how a kernel gets its weights and is run. A launch is a stateless value that kernels can share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from .interface import Weights
from .site import MAX_GRID, Site

#: `Launch.multiply` or `Launch.multiply_values`.
Multiply = Callable[[Site, Weights, Any, Any, int], None]


class Launch(ABC):
    """The steps from bytes to outputs.

    A launch that packs weights, tiles activations or launches more than one function overrides the methods; the
    function of each step comes from `Site.function`.
    """

    #: The layout of the weights that `prepare` makes: launches with the same layout can share them.
    layout: ClassVar[str] = "file"
    #: Whether a source has separate code for GPUs before sm_90 that the CPU host can also run.
    knows_older: ClassVar[bool] = False

    def prepare(self, site: Site, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Any:
        """Return `weights.buffer` for `multiply`, from uint8[N, row bytes]; here, the file's bytes unchanged."""
        return site.host.upload(rows, "weights")

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int] | None:
        """See `Kernel.tile`."""
        return None

    @abstractmethod
    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        """Compute float32[m, N] into the buffer `out` from the buffer `x` of activations in the kernel's encoding.

        Raises KernelFault.
        """

    def multiply_values(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        """Like `multiply`, from activations float32[m, K], including their quantization. Raises KernelFault.

        A launch that quantizes in a step of its own overrides this. Its bits must equal those of the two steps here.
        """
        self.multiply(site, weights, site.quantized(x, m * weights.k // 32), out, m)


class OneLaunch(Launch):
    """A launch of gemm(w, x, y, M, N, K) on blocks of `threads` threads, numbered in one dimension."""

    threads: int

    @abstractmethod
    def blocks(self, m: int, n: int) -> int:
        """Return the number of blocks for [m, n] outputs."""

    def multiply(self, site: Site, weights: Weights, x: Any, out: Any, m: int) -> None:
        args = [weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k)]
        grid = (self.blocks(m, weights.n), 1, 1)
        site.host.launch(site.function("gemm", weights.fmt), grid, (self.threads, 1, 1), args)


@dataclass(frozen=True)
class ThreadAnOutput(OneLaunch):
    """Thread i computes output i = m·N + n. If the grid has fewer threads, each computes several outputs."""

    threads: int = 256

    def blocks(self, m: int, n: int) -> int:
        return min(-(-m * n // self.threads), MAX_GRID)


THREAD_AN_OUTPUT = ThreadAnOutput()


@dataclass(frozen=True)
class Tiles(OneLaunch):
    """A block computes `tokens` × `rows` outputs.

    Tiles are numbered along the tokens first, so that blocks that run at the same time share rows of W. More than 2^31
    - 1 tiles would be terabytes of outputs.
    """

    tokens: int
    rows: int
    threads: int = 256

    def blocks(self, m: int, n: int) -> int:
        return -(-m // self.tokens) * -(-n // self.rows)

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int]:
        return self.tokens, self.rows
