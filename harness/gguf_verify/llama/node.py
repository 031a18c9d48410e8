"""A node of a ggml graph as computed: the operation, its parameters, its actual inputs and its output.

Indices are in NumPy's order, the slowest first: a tensor with ggml's sizes ne = (ne0, ne1, ne2, ne3) is
data[ne3, ne2, ne1, ne0].
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import tensor_type

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
Sizes = tuple[int, int, int, int]

#: `enum ggml_type` of ggml.h: the types that are plain numbers. A bfloat16 is stored as its 16 bits.
F32, F16, I8, I16, I32, I64, F64, BF16 = 0, 1, 24, 25, 26, 27, 28, 30
NUMBERS: dict[int, np.dtype[Any]] = {
    F32: np.dtype("<f4"), F16: np.dtype("<f2"), I8: np.dtype("<i1"), I16: np.dtype("<i2"), I32: np.dtype("<i4"),
    I64: np.dtype("<i8"), F64: np.dtype("<f8"), BF16: np.dtype("<u2"),
}  # fmt: skip
#: Number of bytes of `op_params` of a ggml_tensor.
PARAMETER_BYTES = 64


#: The functions that parameter 0 selects, by operation: `enum ggml_unary_op` and `enum ggml_glu_op` of ggml.h, v0.5.0.
NUMBERED: dict[str, tuple[str, ...]] = {
    "UNARY": (
        "ABS", "SGN", "NEG", "STEP", "TANH", "ELU", "RELU", "SIGMOID", "GELU", "GELU_QUICK", "SILU", "HARDSWISH",
        "HARDSIGMOID", "EXP", "EXPM1", "SOFTPLUS", "GELU_ERF", "XIELU", "FLOOR", "CEIL", "ROUND", "TRUNC",
    ),
    "GLU": ("REGLU", "GEGLU", "SWIGLU", "SWIGLU_OAI", "GEGLU_ERF", "GEGLU_QUICK", "SWIGLU_CLAMP"),
}  # fmt: skip


class NoDefinition(Exception):
    """Raised when no definition covers a node: its types, its parameters or its device are not supported."""


@dataclass(frozen=True, eq=False)
class Operand:
    """An input or the output of a node.

    Args:
        name: in the graph, or in the model's file.
        type_id: ggml's number of the type.
        ne: sizes, the fastest dimension first, as in ggml.
        nb: bytes from one index to the next, in the same order; for blocks, nb[0] is the size of a block.
        span: the bytes from its first element to the end of its last, uint8[span_bytes].
    """

    name: str
    type_id: int
    ne: Sizes
    nb: Sizes
    span: Bytes = field(repr=False)

    @staticmethod
    def of(array: Array, type_id: int | None = None, name: str = "") -> Operand:
        """Return a contiguous operand of numbers [..., ne0] with at most four dimensions.

        With `type_id` the array has the bytes of blocks uint8[..., row bytes], or the bits of bfloat16.
        """
        known = next((t for t, d in NUMBERS.items() if d == array.dtype), None) if type_id is None else type_id
        if known is None:
            raise ValueError(f"ggml has no type for {array.dtype}")
        whole = np.ascontiguousarray(array).reshape((1,) * (4 - array.ndim) + array.shape)
        ne3, ne2, ne1, ne0 = whole.shape
        if known not in NUMBERS:
            fmt = block_format(known)
            ne0 = ne0 // fmt.block_bytes * fmt.block_size
        ne = (ne0, ne1, ne2, ne3)
        return Operand(name, known, ne, contiguous(known, ne), whole.reshape(-1).view(np.uint8))

    @staticmethod
    def blank(type_id: int, *shape: int, name: str = "") -> Operand:
        """Return contiguous zeros of a shape in NumPy's order, in values: the form of a requested result."""
        ne0, ne1, ne2, ne3 = (*shape[::-1], 1, 1, 1, 1)[:4]
        ne = (ne0, ne1, ne2, ne3)
        nb = contiguous(type_id, ne)
        return Operand(name, type_id, ne, nb, np.zeros(nb[3] * ne[3], np.uint8))

    def permuted(self, *axes: int) -> Operand:
        """Return the values with dimensions exchanged as by ggml_permute: dimension i becomes dimension axes[i]."""
        ne0, ne1, ne2, ne3 = (self.ne[axes.index(i)] for i in range(4))
        nb0, nb1, nb2, nb3 = (self.nb[axes.index(i)] for i in range(4))
        return replace(self, ne=(ne0, ne1, ne2, ne3), nb=(nb0, nb1, nb2, nb3))

    @property
    def type(self) -> str:
        """Return ggml's name of the type."""
        known = tensor_type(self.type_id)
        return f"type {self.type_id}" if known is None else known.name

    @property
    def shape(self) -> Sizes:
        """Return the sizes in values, the slowest dimension first."""
        return self.ne[::-1]

    @property
    def blocks(self) -> bool:
        """Return whether the elements are blocks of a quantized type."""
        return self.type_id not in NUMBERS

    @property
    def contiguous(self) -> bool:
        """Return whether the elements are stored without gaps."""
        expected = contiguous(self.type_id, self.ne)
        return all(n == 1 or a == b for n, a, b in zip(self.ne, self.nb, expected, strict=True))

    @cached_property
    def data(self) -> Array:
        """Return a view of the span: the stored numbers [ne3, ne2, ne1, ne0], or the bytes of rows of blocks
        uint8[ne3, ne2, ne1, row bytes].

        Raises NoDefinition for an unknown type, and if the span lacks bytes.
        """
        if not self.span_is_whole():
            raise NoDefinition(f"{self.name or 'an operand'} without some of its bytes")
        shape, strides = list(self.shape), list(self.nb[::-1])
        dtype = NUMBERS.get(self.type_id, np.dtype(np.uint8))
        if self.blocks:
            fmt = block_format(self.type_id)
            shape[3], strides[3] = shape[3] // fmt.block_size * fmt.block_bytes, 1
        size = len(self.span) // dtype.itemsize * dtype.itemsize
        flat = self.span[:size].view(dtype)
        return np.lib.stride_tricks.as_strided(flat, shape, strides, writeable=False)

    @cached_property
    def values(self) -> Doubles:
        """Return float64[ne3, ne2, ne1, ne0]: numbers unchanged, blocks as decoded by llama.cpp's `to_float`."""
        data = self.data
        if self.type_id == BF16:
            return (data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if not self.blocks:
            return data.astype(np.float64)
        fmt = block_format(self.type_id)
        rows = np.ascontiguousarray(data).reshape(-1, fmt.block_bytes)
        return fmt.decode(rows).reshape(self.shape).astype(np.float64)

    def span_is_whole(self) -> bool:
        """Return whether the span has all bytes that sizes and steps reach."""
        return len(self.span) >= span_bytes(self.type_id, self.ne, self.nb)


@dataclass(frozen=True, eq=False)
class Node:
    """A node of a graph.

    Args:
        op: ggml's name of the operation, such as "MUL" or "UNARY".
        variant: the variant of UNARY and GLU, such as "SILU"; otherwise "".
        parameters: the bytes of `op_params`.
        sources: src[0], src[1] and so on; None for a missing source before the last one.
        output: the computed output.
        backend: ggml's name of the backend that computed it, such as "CPU" or "Vulkan".
        device: ggml's name of the device, such as "Vulkan0".
        view_of: number of the source that the output is a view of, and so overwrites; None if it has its own memory.
        name: in the graph.
    """

    op: str
    sources: tuple[Operand | None, ...]
    output: Operand
    parameters: bytes = bytes(PARAMETER_BYTES)
    variant: str = ""
    backend: str = "CPU"
    device: str = "CPU"
    view_of: int | None = None
    name: str = ""

    @property
    def operation(self) -> str:
        """Return the name in reports: "MUL", "UNARY SILU"."""
        return f"{self.op} {self.variant}".strip()

    def source(self, i: int) -> Operand:
        """Return a source. Raises NoDefinition if the node has no such source."""
        found = self.sources[i] if i < len(self.sources) else None
        if found is None:
            raise NoDefinition(f"{self.operation} has no src[{i}]")
        return found

    def optional(self, i: int) -> Operand | None:
        """Return a source that may be absent."""
        return self.sources[i] if i < len(self.sources) else None

    def integer(self, i: int) -> int:
        """Return parameter i of `op_params` as an int32."""
        return int(np.frombuffer(self.parameters, "<i4")[i])

    def number(self, i: int) -> float:
        """Return parameter i of `op_params` as a float32."""
        return float(np.frombuffer(self.parameters, "<f4")[i])

    def floats(self, *operands: int) -> None:
        """Check that these sources and the output are float32. Raises NoDefinition."""
        for each in (self.output, *(self.source(i) for i in operands)):
            if each.type_id != F32:
                raise NoDefinition(f"{self.operation} of {each.type}")


def parameters(*values: float) -> bytes:
    """Return `op_params` with int32 (given as int) and float32 (given as float) values in order."""
    raw = b"".join(np.asarray(v, "<f4" if isinstance(v, float) else "<i4").tobytes() for v in values)
    return raw.ljust(PARAMETER_BYTES, b"\0")


def demand(holds: bool, what: str) -> None:
    """Raise NoDefinition with this message unless the condition holds."""
    if not holds:
        raise NoDefinition(what)


def block_format(type_id: int) -> BlockFormat:
    """Return the format of a quantized type. Raises NoDefinition for other types."""
    known = tensor_type(type_id)
    if known is None or not isinstance(known.format, BlockFormat):
        raise NoDefinition(f"tensors of {known.name if known else f'type {type_id}'}")
    return known.format


def element_bytes(type_id: int) -> int:
    """Return the bytes of a number, or of a block. Raises NoDefinition."""
    return NUMBERS[type_id].itemsize if type_id in NUMBERS else block_format(type_id).block_bytes


def contiguous(type_id: int, ne: Sizes) -> Sizes:
    """Return the steps nb of a contiguous tensor. Raises NoDefinition."""
    size = element_bytes(type_id)
    per = 1 if type_id in NUMBERS else block_format(type_id).block_size
    row = ne[0] // per * size
    return (size, row, row * ne[1], row * ne[1] * ne[2])


def span_bytes(type_id: int, ne: Sizes, nb: Sizes) -> int:
    """Return the bytes from the first element to the end of the last one (`ggml_nbytes`); 0 without elements."""
    if not prod(ne):
        return 0
    per = 1 if type_id in NUMBERS else block_format(type_id).block_size
    steps = sum((n - 1) * b for n, b in zip(ne[1:], nb[1:], strict=True))
    return element_bytes(type_id) + (ne[0] // per - 1) * nb[0] + steps
