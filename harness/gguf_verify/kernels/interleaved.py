"""Interleaved weights of any type: strips of 32 rows whose lanes read adjacent bytes (kernels/interleaved.cuh).

As in `gguf_verify.kernels.packed`, the packed weights are decoded here and must equal the file's bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..support.arrays import contiguous
from .launch import Launch
from .packed import all_zero, check_packed
from .site import MAX_GRID, Site

Bytes = npt.NDArray[np.uint8]

#: Rows of a strip.
ROWS = 32
_PACK, _THREADS = "pack/interleaved.cu", 256


def pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield the start and size of each piece of a block of `nbytes`: 16 bytes as often as possible, then 8, 4, 2, 1."""
    at = 0
    for size in (16, 8, 4, 2, 1):
        while nbytes - at >= size:
            yield at, size
            at += size


def unpacked(fmt: BlockFormat, packed: Bytes, n: int) -> tuple[Bytes, bool]:
    """Return the rows uint8[n, row bytes] of interleaved strips uint8[strips, …], and whether the padding is zero."""
    strips = -(-n // ROWS)
    blocks = packed.reshape(strips, -1, ROWS * fmt.block_bytes)
    parts = [
        blocks[..., at * ROWS : (at + size) * ROWS].reshape(strips, blocks.shape[1], ROWS, size)
        for at, size in pieces(fmt.block_bytes)
    ]
    of_rows = np.concatenate(parts, axis=-1).transpose(0, 2, 1, 3)
    rows: Bytes = contiguous(of_rows).reshape(strips * ROWS, -1)
    return rows[:n], all_zero(rows[n:])


class Interleaved(Launch):
    """A launch that packs weights once; `gemm` reads the packed ones."""

    layout: ClassVar[str] = "interleaved strips"

    def prepare(self, site: Site, fmt: WeightFormat, rows: Bytes) -> Any:
        """Pack the weights. Raises KernelFault if the result does not hold the file's bytes."""
        assert isinstance(fmt, BlockFormat)
        host, (n, nbytes) = site.host, rows.shape
        strips, blocks = -(-n // ROWS), nbytes // fmt.block_bytes
        out = host.output(strips * ROWS * nbytes, "packed weights")
        grid = (min(-(-strips * ROWS * blocks // _THREADS), MAX_GRID), 1, 1)
        args = [host.upload(rows, "weights"), out, np.int64(n), np.int64(blocks)]
        host.launch(site.function("pack", fmt, _PACK), grid, (_THREADS, 1, 1), args)

        def holds(packed: Bytes, some: Bytes) -> bool:
            again, clean = unpacked(fmt, packed, len(some))
            return clean and all_zero(again ^ some)

        check_packed(host, out, rows, strips, ROWS, holds)
        return out
