"""Origins: the source tensors that quantized tensors were made from, in any kind of file."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import FLOAT_TYPES, TensorType, decode_elements
from .file import Tensor
from .mapped import Mapped


@dataclass(frozen=True, slots=True)
class Origin:
    """Rows of values in a mapped file, in the order of a GGUF file or in a different one.

    Args:
        name: the tensor's name in GGUF.
        type: ggml's type of the values.
        shape: in ggml's order, the row length first.
        offset: absolute byte offset of the data in their file.
        mapped: that file.
        order: int64[rows]: for each row of the GGUF tensor, the row of this one that it was made from; None if the
            order is the same.
        called: the tensor's name in its own file, if different.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    mapped: Mapped = field(repr=False, compare=False)
    order: npt.NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    called: str = ""

    @classmethod
    def of(cls, tensor: Tensor) -> Origin:
        """Return the origin for a tensor of a GGUF file."""
        return cls(tensor.name, tensor.type, tensor.shape, tensor.offset, tensor.mapped)

    @property
    def k(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def n_rows(self) -> int:
        return prod(self.shape[1:])

    @property
    def row_bytes(self) -> int:
        return self.k // self.type.block_size * self.type.block_bytes

    @property
    def nbytes(self) -> int:
        return self.n_rows * self.row_bytes

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Return rows start to stop of the GGUF tensor, float32[stop - start, K].

        Raises MalformedFile if the file has shrunk, ValueError for a type that is not decoded here.
        """
        raw = self.mapped.read()[self.offset : self.offset + self.nbytes].reshape(self.n_rows, self.row_bytes)
        picked = raw[start:stop] if self.order is None else raw[self.order[start:stop]]
        packed = np.ascontiguousarray(picked).reshape(-1)
        if self.type.name in FLOAT_TYPES:
            values = decode_elements(self.type.name, packed)
        elif self.type.format is not None:
            values = self.type.format.decode(packed.reshape(-1, self.type.block_bytes))
        else:
            raise ValueError(f"{self.type.name} is not decoded here")
        return values.reshape(stop - start, self.k)
