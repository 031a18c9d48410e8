"""Weights and right kernels in NumPy, for tests of what is computed behind a product or beside others."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.rungs.generated_inputs import any_blocks

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def weights(fmt: BlockFormat, n: int, k: int) -> Bytes:
    """Rows of any codes under scales as models have them, uint8[n, row bytes]."""
    blocks = any_blocks(fmt, n * k // fmt.block_size, zlib.crc32(fmt.name.encode()))
    structs = fmt.view(blocks)
    rng = np.random.default_rng(1)
    for field in fmt.fields:
        if field.dtype == "<f2":
            structs[field.name] = rng.uniform(0.01, 0.03, structs.shape).astype(np.float16)
    if fmt is FORMATS["MXFP4"]:
        structs["e"] = rng.integers(120, 124, structs.shape)
    return blocks.reshape(n, -1)


def multiplied(fmt: BlockFormat, w: Bytes, x: Floats) -> Floats:
    """float32[M, N] of float32[M, K], as a kernel of `f32` may compute it: partial sums of eight lanes, added up."""
    values = fmt.decode(w.reshape(len(w), -1, fmt.block_bytes)).reshape(len(w), -1)
    total = np.zeros((len(x), len(w)), np.float32)
    for lane in range(8):
        of_lane = np.zeros_like(total)
        for at in range(lane, values.shape[1], 8):
            of_lane = of_lane + x[:, at, None] * values[None, :, at]
        total = total + of_lane
    return total
