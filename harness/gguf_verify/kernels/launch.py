"""How the kernels of a family are given their weights and run, and on which cards. The launches hold no state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..formats import WeightFormat
from ..support.errors import EnvironmentFault

if TYPE_CHECKING:
    from .shipped import ShippedKernel, Weights

MAX_GRID = 2**31 - 1


@dataclass(frozen=True)
class Cards:
    """The GPUs that a kernel runs on; the CPU host runs any kernel.

    Args:
        minimum: the least compute capability, as a number such as 80.
        exact: the one architecture that has its instructions, such as "90a", whose code runs on no other.
    """

    minimum: int = 75
    exact: str | None = None

    def target(self, sm: str) -> str | None:
        """The architecture to compile for on a card of compute capability `sm` ("90"), or None where it cannot run."""
        if self.exact is not None:
            return self.exact if sm == self.exact.rstrip("af") else None
        return sm if int(sm) >= self.minimum else None

    def __str__(self) -> str:
        return f"sm_{self.exact}" if self.exact is not None else f"sm_{self.minimum} or later"

    def target_or_fault(self, kernel: str, sm: str) -> str:
        """`target`. Raises EnvironmentFault where the kernel of this name cannot run."""
        found = self.target(sm)
        if found is None:
            raise EnvironmentFault(f"kernel {kernel} needs a GPU of {self}; this one is sm_{sm}")
        return found


#: Every card that CUDA 13 compiles for.
ANY_CARD = Cards()


class Launch(ABC):
    """A family's way from bytes to outputs. One that packs weights, tiles activations or launches more than one kernel
    overrides the methods; the code of each step comes from `kernel.compiled`."""

    #: How `prepare` leaves the weights: launches of one layout can share them.
    layout: ClassVar[str] = "file"

    def prepare(self, kernel: ShippedKernel, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Any:
        """What `multiply` finds in `weights.buffer`, from uint8[N, row bytes]; here, the file's own bytes."""
        return kernel.host.upload(rows)

    @abstractmethod
    def multiply(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        """float32[m, N] into the buffer `out` from activations in the buffer `x`, as `ShippedKernel.quantize` makes
        them. Raises KernelFault."""

    def multiply_values(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        """`multiply` from activations float32[m, K], which are quantized on the way. Raises KernelFault.

        A family that quantizes in a step of its own overrides it; the bits are to be those of the two steps here.
        """
        self.multiply(kernel, weights, kernel.quantized(x, m * weights.k // 32), out, m)


class OneLaunch(Launch):
    """gemm(w, x, y, M, N, K) on blocks of `threads` threads, numbered in one dimension."""

    threads: int

    @abstractmethod
    def blocks(self, m: int, n: int) -> int:
        """Blocks that [m, n] outputs take."""

    def multiply(self, kernel: ShippedKernel, weights: Weights, x: Any, out: Any, m: int) -> None:
        args = [weights.buffer, x, out, np.int64(m), np.int64(weights.n), np.int64(weights.k)]
        grid = (self.blocks(m, weights.n), 1, 1)
        kernel.host.launch(kernel.compiled("gemm", weights.fmt), grid, (self.threads, 1, 1), args)


@dataclass(frozen=True)
class ThreadAnOutput(OneLaunch):
    """Output i = m·N + n belongs to thread i; where a grid holds fewer, threads go on to further outputs."""

    threads: int = 256

    def blocks(self, m: int, n: int) -> int:
        return min(-(-m * n // self.threads), MAX_GRID)


THREAD_AN_OUTPUT = ThreadAnOutput()


@dataclass(frozen=True)
class Tiles(OneLaunch):
    """A block computes `tokens` × `rows` outputs; tiles are numbered along the tokens first, so that blocks that run at
    a time share rows of W. Outputs for more than 2^31 - 1 tiles would be terabytes."""

    tokens: int
    rows: int
    threads: int = 256

    def blocks(self, m: int, n: int) -> int:
        return -(-m // self.tokens) * -(-n // self.rows)
