"""The record of a type of one floating-point number per weight: little-endian, without a scale, without a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .layout import Bits, Field, each
from .llama_products import LlamaProducts

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Values that the rungs report as one block; the last block of a row may be shorter.
SLICE = 32
#: Why llama.cpp's CUDA backend has no definition for them (mmvf.cu, mmf.cu; cuBLAS may even add in half).
ON_CUDA = "llama.cpp's CUDA backend multiplies it by cuBLAS, or in ways chosen by shape"


@dataclass(frozen=True, kw_only=True)
class ElementFormat:
    """A type of weights that are not quantized, with the part of `BlockFormat`'s interface that products need.

    Args:
        name: ggml's name of the type.
        type_id: ggml's number of the type (`enum ggml_type`).
        file_type: llama.cpp's number of files of this main type (`enum llama_ftype`).
        words: the NumPy type of its bits as an integer.
        exponent, mantissa: the numbers of bits; the remaining bit is the sign.
        doc: a phrase that describes a value.
        read: uint8[n · bytes] → float32[n], exact.
        round: float32 → float32, rounded to nearest even to a value of the type.
        to_float: whether llama.cpp converts it to float32 (`to_float` in ggml.c's `type_traits`).
        llama: the definitions of llama.cpp's products with such weights.
    """

    name: str
    type_id: int
    file_type: int
    words: str
    exponent: int
    mantissa: int
    doc: str
    read: Callable[[Bytes], Floats]
    round: Callable[[Floats], Floats]
    to_float: bool = True
    llama: LlamaProducts
    not_quantized_alone: str = ""
    recipes: tuple[str, ...] = ()
    block_size: int = 1
    #: Values that the rungs report as one block.
    unit: int = SLICE

    @property
    def block_bytes(self) -> int:
        """Bytes of a value."""
        return np.dtype(self.words).itemsize

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value that is not subnormal."""
        return float(2.0 ** (2 - 2 ** (self.exponent - 1)))

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float((2 - 2.0**-self.mantissa) * 2.0 ** (2 ** (self.exponent - 1) - 1))

    @property
    def missing_range(self) -> bool:
        """Whether a float32 can exceed its range by more than a rounding."""
        return self.exponent < 8

    @property
    def missing_bits(self) -> int:
        """Low bits of a float32's mantissa that the type lacks."""
        return 23 - self.mantissa

    @property
    def macros(self) -> dict[str, str]:
        """The macros of a kernel for such weights: the struct, its header in kernels/formats, and its size."""
        header = f'"{self.name.lower()}.cuh"'
        return {"ELEMENT": self.name, "FORMAT_HEADER": header, "BLOCK_BYTES": str(self.block_bytes)}

    def field(self, count: int) -> Field:
        """Return `count` values as a field of a block, to display bits."""
        bits = Bits(1, "sign"), Bits(self.exponent, "exponent"), Bits(self.mantissa, "mantissa")
        return Field("x", self.words, count, self.doc, each(count, *bits))

    def decode(self, rows: Bytes) -> Floats:
        """Decode uint8[N, row bytes] to float32[N, K]."""
        return self.read(np.ascontiguousarray(rows).reshape(-1)).reshape(len(rows), -1)

    def finite(self, rows: Bytes) -> npt.NDArray[np.bool_]:
        """Return whether each value of uint8[…, block_bytes] is finite, bool[…]."""
        with np.errstate(invalid="ignore"):  # signalling NaN
            values = self.decode(rows.reshape(-1, self.block_bytes))
            return np.asarray(np.isfinite(values).reshape(rows.shape[:-1]))
