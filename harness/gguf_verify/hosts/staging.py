"""Copies of large arrays to a GPU, through pinned memory.

CUDA copies ordinary memory, such as a mapped file, in one thread, piece by piece through its own pinned memory. Here
several threads copy the pieces, each with its own buffer and stream, so that reading and sending overlap. The streams
are ordinary ones: each of their copies waits for earlier work of CuPy's stream, and later work of CuPy's stream waits
for them.
"""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.command_line import cores
from ..support.threads import each

#: Bytes of a piece; CUDA itself makes copies of fewer bytes than two pieces.
PIECE = 4 << 20
#: Most threads and buffers.
_MOST = 8


class Staging:
    """Buffers for copies to one GPU, allocated at first use."""

    def __init__(self, cupy: Any, device: Any) -> None:
        self._cupy, self._device = cupy, device
        self._threads = max(1, min(_MOST, cores() // 2))
        self._free: SimpleQueue[tuple[Any, npt.NDArray[np.uint8], Any]] | None = None

    def copy(self, raw: npt.NDArray[np.uint8], to: Any) -> None:
        """Copy bytes to the address of a CuPy array of the same size. Raises CUDA's errors."""
        if len(raw) < 2 * PIECE:
            to.set(raw)
            return
        if self._free is None:
            self._free = self._buffers()
        free, address = self._free, int(to.data.ptr)

        def piece(start: int) -> None:
            some = raw[start : start + PIECE]
            held = free.get()
            try:
                memory, buffer, stream = held
                np.copyto(buffer[: len(some)], some)
                with self._device:
                    runtime = self._cupy.cuda.runtime
                    kind = runtime.memcpyHostToDevice
                    runtime.memcpyAsync(address + start, memory.ptr, len(some), kind, stream.ptr)
                    stream.synchronize()
            finally:
                free.put(held)

        each(piece, range(0, len(raw), PIECE), self._threads)

    def _buffers(self) -> SimpleQueue[tuple[Any, npt.NDArray[np.uint8], Any]]:
        made: SimpleQueue[tuple[Any, npt.NDArray[np.uint8], Any]] = SimpleQueue()
        for _ in range(self._threads):
            memory = self._cupy.cuda.alloc_pinned_memory(PIECE)
            made.put((memory, np.frombuffer(memory, np.uint8, PIECE), self._cupy.cuda.Stream()))
        return made
