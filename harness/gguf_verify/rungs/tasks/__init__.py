"""The rungs of kernels that multiply nothing. They are one rung, `judge`, with three descriptions: `values` of
dequantizers, `codes` of quantizers, and `packing` of repackers. `large` makes calls with indices of 2^31 and more."""

from ..interface import Rung
from .codes import Codes
from .packing import Packing
from .values import Values

VALUES = Rung(
    "values", 2, "Is every value of every block the one that the kernel's author says?", ("values",), Values.climb,
    ("dequantize",),
)  # fmt: skip
CODES = Rung(
    "codes", 2, "Is every byte of quantized activations the one that the encoding says?", ("blocks",), Codes.climb,
    ("quantize",),
)  # fmt: skip
PACKING = Rung(
    "packing", 2, "Are the packed weights the whole rows, so that they can be had again?", ("blocks",), Packing.climb,
    ("repack",),
)  # fmt: skip

__all__ = ["CODES", "PACKING", "VALUES"]
