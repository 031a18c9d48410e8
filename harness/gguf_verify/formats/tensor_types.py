"""The types of a GGUF's tensors, by name and number, and the registries of their formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from ..support.partial_import import submodule
from ..support.registry import members
from .block import NO_TYPE_ID, BlockFormat
from .element import ElementFormat

#: The possible formats of a matrix of weights.
WeightFormat = BlockFormat | ElementFormat

_BLOCKS = sorted(members(__package__, BlockFormat), key=lambda f: f.type_id)

#: Weight formats that every rung covers, by ggml's name, in the order of ggml's numbers.
FORMATS: dict[str, BlockFormat] = {f.name: f for f in _BLOCKS if f.weights}

#: Formats of ggml for quantized activations.
ACTIVATION_FORMATS: dict[str, BlockFormat] = {f.name: f for f in _BLOCKS if f.activations and f.type_id != NO_TYPE_ID}

#: Types of one floating-point number per "block" that llama.cpp multiplies.
ELEMENTS: dict[str, ElementFormat] = {
    f.name: f for f in sorted(members(__package__, ElementFormat), key=lambda f: f.type_id)
}
FLOAT_TYPES = tuple(ELEMENTS)

#: Types to which llama.cpp quantizes whole files, without further input: their numbers (`enum llama_ftype`).
FILE_TYPES: dict[str, int] = {
    name: f.file_type
    for name, f in cast("dict[str, WeightFormat]", {**FORMATS, **ELEMENTS}).items()
    if f.file_type is not None and not f.not_quantized_alone
}


@dataclass(frozen=True)
class TensorType:
    """A ggml tensor type that a file may name; `block_bytes` is ggml's `type_size`."""

    name: str
    type_id: int
    block_size: int
    block_bytes: int

    @property
    def quantized(self) -> bool:
        return self.block_size > 1

    @property
    def format(self) -> BlockFormat | None:
        """The block format, if this project covers the type."""
        return FORMATS.get(self.name)

    @property
    def weights(self) -> WeightFormat | None:
        """The format of weights of this type, if this project covers their products."""
        return FORMATS.get(self.name) or ELEMENTS.get(self.name)

    @property
    def to_float(self) -> bool:
        """Whether llama.cpp is known to convert it to float32."""
        record = self.weights or ACTIVATION_FORMATS.get(self.name)
        return record.to_float if record is not None else self.quantized


def _table() -> dict[int, TensorType]:
    """Return every type that the gguf package knows, and the covered ones.

    gguf 0.19 does not know Q2_0, and gives Q8_1 40 bytes: the struct has had 36 since ggml made its two scales halves.
    """
    table = {
        int(t): TensorType(t.name, int(t), *sizes) for t, sizes in submodule("gguf.constants").GGML_QUANT_SIZES.items()
    }
    own = (FORMATS | ACTIVATION_FORMATS).values()
    return table | {f.type_id: TensorType(f.name, f.type_id, f.block_size, f.block_bytes) for f in own}


_TYPES = _table()

#: All types of one element per "block": they are not quantized.
ELEMENT_TYPES = tuple(t.name for t in _TYPES.values() if not t.quantized)
#: Types without a conversion in llama.cpp (`to_float` in ggml.c's `type_traits`).
NO_TO_FLOAT = tuple(t.name for t in _TYPES.values() if not t.to_float)


def tensor_type(type_id: int) -> TensorType | None:
    """Return the type of this number, or None for one that is unknown or was removed."""
    return _TYPES.get(type_id)


def decode_elements(name: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Decode bytes of a type of `ELEMENTS` to float32. Raises KeyError for any other type."""
    return ELEMENTS[name].read(raw)
