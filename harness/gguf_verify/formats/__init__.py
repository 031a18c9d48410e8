"""The formats of a GGUF tensor: one record a type that holds all that is known of it.

It imports `support` only. A module that is named after a type defines its record (`q4_0.py`: Q4_0) and nothing lists
the types by name: the registry finds records by their class. Every other module is a helper; a leading underscore marks
those that only records use. To add a type is to add such a module and `kernels/formats/<name>.cuh`, its CUDA header.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from ..support.partial_import import submodule
from ..support.registry import members
from .block import NO_TYPE_ID, QK, BlockFormat, decodes_rightly
from .element import SLICE, ElementFormat
from .layout import Field
from .llama_products import MMVQ_TOKENS, LlamaProducts

__all__ = [
    "ACTIVATION_FORMATS",
    "ELEMENTS",
    "ELEMENT_TYPES",
    "FILE_TYPES",
    "FLOAT_TYPES",
    "FORMATS",
    "MMVQ_TOKENS",
    "NO_TO_FLOAT",
    "QK",
    "SLICE",
    "BlockFormat",
    "ElementFormat",
    "Field",
    "LlamaProducts",
    "TensorType",
    "WeightFormat",
    "decode_elements",
    "decodes_rightly",
    "tensor_type",
]

#: What a matrix of weights may be of.
WeightFormat = BlockFormat | ElementFormat

_BLOCKS = sorted(members(__name__, BlockFormat), key=lambda f: f.type_id)

#: Weight formats that every rung covers, by ggml's name, in the order of ggml's numbers.
FORMATS: dict[str, BlockFormat] = {f.name: f for f in _BLOCKS if f.weights}

#: Formats of ggml that activations are quantized to.
ACTIVATION_FORMATS: dict[str, BlockFormat] = {f.name: f for f in _BLOCKS if f.activations and f.type_id != NO_TYPE_ID}

#: Types of one floating-point number a "block" that llama.cpp multiplies with.
ELEMENTS: dict[str, ElementFormat] = {
    f.name: f for f in sorted(members(__name__, ElementFormat), key=lambda f: f.type_id)
}
FLOAT_TYPES = tuple(ELEMENTS)

#: Types that llama.cpp quantizes whole files to, with nothing but the file: its number (`enum llama_ftype`).
FILE_TYPES: dict[str, int] = {
    name: f.file_type
    for name, f in cast("dict[str, WeightFormat]", {**FORMATS, **ELEMENTS}).items()
    if f.file_type is not None and not f.not_quantized_alone
}


@dataclass(frozen=True)
class TensorType:
    """A ggml tensor type as a file can name it; `block_bytes` is ggml's `type_size`."""

    name: str
    type_id: int
    block_size: int
    block_bytes: int

    @property
    def quantized(self) -> bool:
        return self.block_size > 1

    @property
    def format(self) -> BlockFormat | None:
        """The block format, where this project covers the type."""
        return FORMATS.get(self.name)

    @property
    def weights(self) -> WeightFormat | None:
        """The format of weights of this type, where this project covers their products."""
        return FORMATS.get(self.name) or ELEMENTS.get(self.name)

    @property
    def to_float(self) -> bool:
        """Whether llama.cpp converts it to float32, as far as this project knows the type."""
        record = self.weights or ACTIVATION_FORMATS.get(self.name)
        return record.to_float if record is not None else self.quantized


def _table() -> dict[int, TensorType]:
    """Every type that the gguf package knows, and the covered ones.

    gguf 0.19 does not know Q2_0, and gives Q8_1 40 bytes: the struct has had 36 since ggml made its two scales halves.
    """
    table = {
        int(t): TensorType(t.name, int(t), *sizes) for t, sizes in submodule("gguf.constants").GGML_QUANT_SIZES.items()
    }
    own = (FORMATS | ACTIVATION_FORMATS).values()
    return table | {f.type_id: TensorType(f.name, f.type_id, f.block_size, f.block_bytes) for f in own}


_TYPES = _table()

#: All types of one element a "block": they are not quantized.
ELEMENT_TYPES = tuple(t.name for t in _TYPES.values() if not t.quantized)
#: Types that llama.cpp has no conversion from (`to_float` in ggml.c's `type_traits`).
NO_TO_FLOAT = tuple(t.name for t in _TYPES.values() if not t.to_float)


def tensor_type(type_id: int) -> TensorType | None:
    """The type of this number, or None for one that is unknown or was removed."""
    return _TYPES.get(type_id)


def decode_elements(name: str, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Bytes of a type of `ELEMENTS` as float32. Raises KeyError for any other type."""
    return ELEMENTS[name].read(raw)
