"""The rungs of kernels that multiply nothing: `dequantize`, `quantize` and `repack`. `calls` makes the calls that they
share, and `large` those with indices of 2^31 and more."""

from .dequantize import RUNG as VALUES
from .quantize import RUNG as CODES
from .repack import RUNG as PACKING

__all__ = ["CODES", "PACKING", "VALUES"]
