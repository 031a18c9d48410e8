"""The formats of a GGUF tensor: which types exist, how large they are, and how the covered ones decode."""

from __future__ import annotations

from dataclasses import dataclass

from ..support.partial_import import submodule
from .block import BlockFormat, Field
from .elements import ELEMENTS, SLICE, ElementFormat, decode_elements
from .iquants import IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS
from .kquants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K
from .legacy import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q8_1_D4
from .microscaling import MXFP4, NVFP4
from .ternary import Q1_0, Q2_0, TQ1_0, TQ2_0

__all__ = [
    "ACTIVATION_FORMATS",
    "ELEMENTS",
    "ELEMENT_TYPES",
    "FLOAT_TYPES",
    "FORMATS",
    "IQ1_M",
    "IQ1_S",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "NVFP4",
    "Q1_0",
    "Q2_0",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "Q8_1",
    "Q8_1_D4",
    "Q8_K",
    "SLICE",
    "TQ1_0",
    "TQ2_0",
    "BlockFormat",
    "ElementFormat",
    "Field",
    "TensorType",
    "WeightFormat",
    "decode_elements",
    "tensor_type",
]

#: Weight formats that every rung covers, by ggml's name.
FORMATS: dict[str, BlockFormat] = {
    f.name: f
    for f in (
        Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
        Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
        IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS,
        TQ1_0, TQ2_0, Q1_0, Q2_0,
        MXFP4, NVFP4,
    )
}  # fmt: skip

#: Formats that activations are quantized to.
ACTIVATION_FORMATS: dict[str, BlockFormat] = {f.name: f for f in (Q8_0, Q8_1, Q8_K)}

#: Types of one floating-point number a "block" that llama.cpp multiplies with.
FLOAT_TYPES = tuple(ELEMENTS)
#: All types of one element a "block": not quantized.
ELEMENT_TYPES = (*FLOAT_TYPES, "F64", "I8", "I16", "I32", "I64")

#: What a matrix of weights may be of.
WeightFormat = BlockFormat | ElementFormat


@dataclass(frozen=True)
class TensorType:
    """A ggml tensor type as a file can name it; `block_bytes` is ggml's `type_size`."""

    name: str
    type_id: int
    block_size: int
    block_bytes: int

    @property
    def quantized(self) -> bool:
        return self.name not in ELEMENT_TYPES

    @property
    def format(self) -> BlockFormat | None:
        """The block format, where this project covers the type."""
        return FORMATS.get(self.name)

    @property
    def weights(self) -> WeightFormat | None:
        """The format of weights of this type, where this project covers their products."""
        return FORMATS.get(self.name) or ELEMENTS.get(self.name)


def _table() -> dict[int, TensorType]:
    """Every type that the gguf package knows, and the covered ones. (gguf 0.19 does not know Q2_0, and gives Q8_1 40
    bytes: the struct has had 36 since ggml made its two scales halves.)"""
    table = {
        int(t): TensorType(t.name, int(t), *sizes) for t, sizes in submodule("gguf.constants").GGML_QUANT_SIZES.items()
    }
    own = (FORMATS | ACTIVATION_FORMATS).values()
    return table | {f.type_id: TensorType(f.name, f.type_id, f.block_size, f.block_bytes) for f in own}


_TYPES = _table()


def tensor_type(type_id: int) -> TensorType | None:
    """The type of this number, or None for one that is unknown or was removed."""
    return _TYPES.get(type_id)
