"""Weights of any type to halves, on a host: kernels/dequantize/halves.cu."""

from __future__ import annotations

from typing import Any

import numpy as np

from gguf_verify.formats import BlockFormat
from gguf_verify.hosts.base import Host, Source
from gguf_verify.support.paths import kernel_root

FILE, ENTRY = "dequantize/halves.cu", "dequantize"
_THREADS, _MOST_BLOCKS = 256, 1 << 16


class Dequantizer:
    """The kernel on a host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @staticmethod
    def source(fmt: BlockFormat) -> Source:
        """What `launch` loads."""
        return Source(kernel_root(), FILE, ENTRY, fmt.macros)

    def launch(self, fmt: BlockFormat, weights: Any, halves: Any, values: int) -> None:
        """Write `values` halves, of as many weights from the beginning of a buffer. Raises KernelFault."""
        kernel, slices = self._host.load(kernel_root(), FILE, ENTRY, fmt.macros), values // 32
        grid = (min(-(-slices * 4 // _THREADS), _MOST_BLOCKS), 1, 1)
        self._host.launch(kernel, grid, (_THREADS, 1, 1), [weights, halves, np.int64(slices)])
