"""Site: the environment of a kernel's launches, a host and the kernel's sources compiled for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..formats.tensor_types import WeightFormat
from ..hosts.base import Host
from ..support.errors import EnvironmentFault
from ..support.stages import stage

#: The sources that quantize activations to Q8_1 and round them to half, below `kernels/`.
QUANTIZER, ROUNDING = "quantize/q8_1.cu", "quantize/float16.cu"
#: The most blocks in the first dimension of a grid (CUDA Programming Guide, compute capabilities).
MAX_GRID = 2**31 - 1
_THREADS = 256


@dataclass(frozen=True)
class Cards:
    """The GPUs that a kernel supports. The CPU host runs any kernel.

    Args:
        minimum: the lowest compute capability, as a number such as 80.
        exact: the one architecture with the kernel's instructions, e.g. "90a", whose code runs on no other.
    """

    minimum: int = 75
    exact: str | None = None

    def target(self, sm: str) -> str | None:
        """Return the architecture to compile for on a GPU of capability `sm` ("90"), or None if it cannot run."""
        if self.exact is not None:
            return self.exact if sm == self.exact.rstrip("af") else None
        return sm if int(sm) >= self.minimum else None

    def __str__(self) -> str:
        return f"sm_{self.exact}" if self.exact is not None else f"sm_{self.minimum} or later"

    def target_or_fault(self, kernel: str, sm: str) -> str:
        """Return `target`. Raises EnvironmentFault if the kernel of this name cannot run."""
        found = self.target(sm)
        if found is None:
            raise EnvironmentFault(f"kernel {kernel} needs a GPU of {self}; this one is sm_{sm}")
        return found


#: Every GPU that CUDA 13 compiles for.
ANY_CARD = Cards()


@dataclass(frozen=True)
class Site:
    """Everything that a launch needs of its kernel.

    Args:
        host: where it runs.
        root: the folder of the sources.
        kernel: the kernel's name, for messages.
        file: its source, below `root`.
        cards: the GPUs that it supports.
        macros: weight type → the macros of the source.
        quantizes: its activations are Q8_1 blocks, so float32 ones are quantized first.
        halves: its activations are halves, so float32 ones are rounded first.
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
        """Bytes of 32 activations in the kernel's encoding."""
        return 36 if self.quantizes else 64 if self.halves else 128

    def function(
        self, entry: str, fmt: WeightFormat, file: str | None = None, macros: dict[str, str] | None = None
    ) -> Any:
        """Compile the function `entry` of the kernel's source, or of another `file`, for weights of a type.

        Args:
            macros: further macros, in addition to those of the kernel and the type.

        Raises EnvironmentFault if it does not compile or this GPU cannot run it.
        """
        sm = self.host.sm
        target = None if sm is None else self.cards.target_or_fault(self.kernel, sm)
        with stage("compile"):
            return self.host.load(self.root, file or self.file, entry, self.macros(fmt) | (macros or {}), target)

    def quantized(self, x: Any, n_blocks: int) -> Any:
        """Return a buffer of `n_blocks` · 32 activations in the kernel's encoding, from a buffer of float32.

        Returns x itself if the kernel takes float32.
        """
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
