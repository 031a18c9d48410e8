"""Where a kernel's launches run: a host, and the kernel's sources compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..formats import WeightFormat
from ..hosts.base import Host
from ..support.errors import EnvironmentFault
from ..support.stages import stage

#: The sources that quantize activations to Q8_1 and round them to half, below `kernels/`.
QUANTIZER, ROUNDING = "quantize/q8_1.cu", "quantize/float16.cu"
#: Most blocks in a grid's first dimension (CUDA Programming Guide, compute capabilities).
MAX_GRID = 2**31 - 1
_THREADS = 256


@dataclass(frozen=True)
class Cards:
    """The GPUs that a kernel runs on. The CPU host runs any kernel.

    Args:
        minimum: the least compute capability, as a number such as 80.
        exact: the one architecture that has the kernel's instructions, such as "90a", whose code runs on no other.
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


@dataclass(frozen=True)
class Site:
    """All that a launch needs of the kernel that it belongs to.

    Args:
        host: where it runs.
        root: the folder of the sources.
        kernel: the kernel's name, for messages.
        file: its source, below `root`.
        cards: the GPUs that it runs on.
        macros: what its source is compiled with for weights of a type.
        quantizes: whether its activations are Q8_1 blocks, so that float32 ones are quantized first.
        halves: whether its activations are halves, so that float32 ones are rounded first.
    """

    host: Host
    root: Path
    kernel: str
    file: str
    cards: Cards
    macros: Callable[[WeightFormat], dict[str, str]]
    quantizes: bool
    halves: bool = False

    @property
    def block_bytes(self) -> int:
        """Bytes of 32 activations as the kernel takes them."""
        return 36 if self.quantizes else 64 if self.halves else 128

    def function(
        self, entry: str, fmt: WeightFormat, file: str | None = None, macros: dict[str, str] | None = None
    ) -> Any:
        """The function `entry` of the kernel's source, or of another `file`, for weights of a type.

        Args:
            macros: further macros, beside those of the kernel and the type.

        Raises EnvironmentFault where it does not compile or this GPU cannot run it.
        """
        sm = self.host.sm
        target = None if sm is None else self.cards.target_or_fault(self.kernel, sm)
        with stage("compile"):
            return self.host.load(self.root, file or self.file, entry, self.macros(fmt) | (macros or {}), target)

    def quantized(self, x: Any, n_blocks: int) -> Any:
        """A buffer of `n_blocks` times 32 activations as the kernel takes them, from one of float32; x itself where it
        takes float32."""
        if self.halves:
            return self._rounded(x, n_blocks * 32)
        if not self.quantizes:
            return x
        with stage("quantize"):
            out = self.host.output(n_blocks * 36, "quantized activations")
            with stage("compile"):
                function = self.host.load(self.root, QUANTIZER, "quantize", {})
            grid = (min(-(-n_blocks // (_THREADS // 4)), MAX_GRID), 1, 1)
            self.host.launch(function, grid, (_THREADS, 1, 1), [x, out, np.int64(n_blocks)])
            return out

    def _rounded(self, x: Any, count: int) -> Any:
        with stage("quantize"):
            out = self.host.output(count * 2, "quantized activations")
            with stage("compile"):
                function = self.host.load(self.root, ROUNDING, "quantize", {})
            grid = (min(-(-count // _THREADS), MAX_GRID), 1, 1)
            self.host.launch(function, grid, (_THREADS, 1, 1), [x, out, np.int64(count)])
            return out
