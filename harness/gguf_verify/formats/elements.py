"""Types of one floating-point number a weight: F32, F16, BF16. Little-endian, no scale, no block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Values that the rungs look at together and report as one block: a row's last ones may be fewer.
SLICE = 32


@dataclass(frozen=True)
class ElementFormat:
    """A type of weights that are not quantized, with as much of `BlockFormat`'s shape as products need.

    Args:
        name: ggml's name of the type.
        type_id: ggml's number of the type (`enum ggml_type`).
        block_bytes: of a value.
    """

    name: str
    type_id: int
    block_bytes: int
    block_size: int = 1
    #: What a report calls a block.
    unit: int = SLICE

    def decode(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """uint8[N, row bytes] as float32[N, K]."""
        return decode_elements(self.name, np.ascontiguousarray(rows).reshape(-1)).reshape(len(rows), -1)

    def finite(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Whether each value of uint8[…, block_bytes] is finite, bool[…]."""
        with np.errstate(invalid="ignore"):  # a signalling NaN
            values = self.decode(rows.reshape(-1, self.block_bytes))
            return np.asarray(np.isfinite(values).reshape(rows.shape[:-1]))


#: Types that llama.cpp multiplies with, by ggml's name.
ELEMENTS: dict[str, ElementFormat] = {
    f.name: f for f in (ElementFormat("F32", 0, 4), ElementFormat("F16", 1, 2), ElementFormat("BF16", 30, 2))
}


def decode_elements(name: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """F32, F16 or BF16 bytes as float32. Raises KeyError for any other type."""
    if name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view({"F32": "<f4", "F16": "<f2"}[name]).astype(np.float32)
