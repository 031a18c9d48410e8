"""Memory layouts of the operands of a call, where a declaration differs from contiguous rows.

    [operands.activations]
    columns = "ceil(K, 512) * 512"     values in a row after padding with zeros
    stride = "K + 64"                  values (tokens or rows, if transposed) from one row to the next; the gap belongs
                                       to no row: it holds NaN and must not change
    transposed = true                  the first dimension changes fastest: blocks of activations lie as [K/32][M],
                                       outputs as [N][M]
    tail = 512                         zero bytes behind the last value that may be read
    alignment = 64                     alignment of its address in bytes; if not declared, 16, and in other runs that
                                       of its elements

    [operands.output]
    accumulate = true                  the product is added to the content of the output

    [operands.workspace]               any other name is scratch memory of the call
    scratch = "M * K / 32 * 36"        bytes that nothing has written
    zeroed = true                      they are zero
    constant = ["int32 N", "int32 0"]  in place of scratch: an input that holds these numbers
    alignment = 64                     as above

Operands of fused operations, such as `up`, and lists of experts have a `tail` and an `alignment`.

Columns and strides count values, not bytes; for blocks they must be whole numbers of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hosts.memory import ALIGNMENT, POISON_16
from ...support.errors import KernelFault, UsageError
from ...support.near import nearest
from .expressions import Expression
from .operands import Operand, Role, dtype_of

Bytes = npt.NDArray[np.uint8]

#: The operands of every product.
MATRICES = ("weights", "activations", "output")
#: Types of numbers in parameters and constants.
NUMBERS = ("int32", "uint32", "int64", "uint64", "float32")
_OF_MATRIX: dict[str, type] = {
    "columns": Expression, "stride": Expression, "transposed": bool, "tail": Expression, "accumulate": bool,
    "alignment": int,
}  # fmt: skip
_OF_OWN: dict[str, type] = {"scratch": Expression, "zeroed": bool, "constant": list, "alignment": int}
_OF_FURTHER: dict[str, type] = {"tail": Expression, "alignment": int}
#: Valid values of `alignment`: from that of a byte up to that of CUDA's allocations.
_ALIGNMENTS = tuple(1 << i for i in range(9))
_MOST_BYTES, _MOST_NUMBERS = 1 << 40, 1 << 10
#: Bytes of the largest field of blocks.
_WORD = 4


@dataclass(frozen=True)
class Unit:
    """The elements of a matrix: blocks of `values` numbers in `count` elements of a dtype, or single numbers."""

    dtype: str
    values: int = 1
    count: int = 1

    @property
    def nbytes(self) -> int:
        return dtype_of(self.dtype).itemsize * self.count

    @property
    def alignment(self) -> int:
        """The alignment in bytes that an element needs: of a number, its size. Blocks lie behind each other, and have
        no fields of more than 4 bytes: 4, or less where their size is not a multiple of it (2 for the 18 bytes of
        Q4_0)."""
        return dtype_of(self.dtype).itemsize if self.values == 1 else math.gcd(self.nbytes, _WORD)


@dataclass(frozen=True)
class Number:
    """A typed number, for a parameter or a constant. The value of a float32 is its literal."""

    kind: str
    value: Expression | float

    def plain(self, names: Mapping[str, int]) -> list[Any]:
        """Return type and value, for a message. Raises KernelFault if the type does not hold the value."""
        if isinstance(self.value, float):
            return [self.kind, self.value]
        value, limits = self.value.value(names), np.iinfo(self.kind)
        if not limits.min <= value <= limits.max:
            raise KernelFault(f"{self.value.source} is {value}, which exceeds {self.kind}")
        return [self.kind, value]


def number_of(declared: object) -> Number | None:
    """Parse "int32 EXPRESSION" or "float32 LITERAL"; None if it does not begin with a type. Raises UsageError."""
    kind, _, source = str(declared).strip().partition(" ")
    if kind not in NUMBERS or not source.strip():
        return None
    if kind != "float32":
        return Number(kind, Expression(source.strip()))
    try:
        with np.errstate(over="ignore"):
            value = float(np.float32(source))
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise UsageError(f"{ascii(source)[:60]} is not a number that fits float32")
    return Number(kind, value)


@dataclass(frozen=True)
class Layout:
    """The memory layout of a matrix of the product: see the docstring of this module."""

    columns: Expression | None = None
    stride: Expression | None = None
    transposed: bool = False
    tail: Expression | None = None
    accumulate: bool = False
    alignment: int | None = None

    def operand(self, name: str, role: Role, unit: Unit, rows: int, values: int, names: Mapping[str, int]) -> Operand:
        """Return the operand of a matrix [rows, values].

        Raises KernelFault if the declaration yields no valid layout at these sizes.
        """
        columns = self._of("columns", values, unit, values, names)
        outer, inner = (columns // unit.values, rows) if self.transposed else (rows, columns // unit.values)
        along = Unit(unit.dtype) if self.transposed else unit
        step = self._of("stride", inner * along.values, along, inner * along.values, names) // along.values
        tail = tail_of(self.tail, names)
        if not 0 <= tail <= _MOST_BYTES or outer * step * unit.nbytes > _MOST_BYTES:
            raise KernelFault(f"the declared layout of {name} takes more than 2^40 bytes")
        itemsize = dtype_of(unit.dtype).itemsize
        strides = None if step == inner else (step * unit.nbytes, itemsize)
        shape = outer, inner * unit.count
        return Operand(
            name, role, unit.dtype, shape, strides=strides, tail=tail, alignment=self.alignment or ALIGNMENT,
            least=unit.alignment if self.alignment is None else None,
        )  # fmt: skip

    def _of(self, key: str, least: int, unit: Unit, default: int, names: Mapping[str, int]) -> int:
        expression: Expression | None = getattr(self, key)
        if expression is None:
            return default
        value = expression.value(names)
        if value < least or value % unit.values:
            blocks = f", or is not a whole number of blocks of {unit.values}" if unit.values > 1 else ""
            sizes = ", ".join(f"{name}={names[name]}" for name in "MNK")
            raise KernelFault(
                f"at {sizes} the declared {key} {expression.source} is {value}, less than {least}{blocks}"
            )
        return value

    def content(self, operand: Operand, unit: Unit, matrix: Bytes) -> Bytes:
        """Return the bytes of an input, uint8[nbytes], from its matrix uint8[rows, row bytes]."""
        width = matrix.shape[1] // unit.nbytes
        units = operand.shape[0] if self.transposed else operand.shape[1] // unit.count
        if operand.strides is None and not self.transposed and not operand.tail and units == width:
            return np.ascontiguousarray(matrix).reshape(-1)
        out = np.zeros(operand.nbytes, np.uint8)
        if not matrix.size:
            return out
        end = operand.nbytes - operand.tail
        if operand.strides is not None:
            out[:end] = np.resize(np.array([POISON_16]).view(np.uint8), end)
        shape, element = (operand.shape[0], operand.shape[1] // unit.count), np.dtype((np.void, unit.nbytes))
        step = element.itemsize * shape[1] if operand.strides is None else operand.strides[0]
        there = np.ndarray(shape, element, out, strides=(step, element.itemsize))
        there[...] = np.zeros((), element)
        given = np.ascontiguousarray(matrix).view(element)
        if self.transposed:
            there[:width] = given.T
        else:
            there[:, :width] = given
        return out

    def matrix(self, made: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an output's array as rows of the product."""
        return made.T if self.transposed else made


def tail_of(tail: Expression | None, names: Mapping[str, int]) -> int:
    """Evaluate a `tail`. Raises KernelFault."""
    return 0 if tail is None else tail.value(names)


@dataclass(frozen=True)
class Further:
    """The memory layout of an operand of a fused operation, or of a list of experts."""

    tail: Expression | None = None
    alignment: int | None = None

    def operand(self, name: str, array: npt.NDArray[Any], names: Mapping[str, int]) -> tuple[Operand, Bytes]:
        """Return the operand and its content. An array of uint16 holds bfloat16. Raises KernelFault."""
        tail = tail_of(self.tail, names)
        if not 0 <= tail <= _MOST_BYTES:
            raise KernelFault(f"the declared tail of {name} takes {tail:,} bytes")
        dtype = "bfloat16" if array.dtype == np.uint16 else str(array.dtype)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        unit = Unit(dtype) if array.itemsize > 1 else Unit(dtype, names["BLOCK"], names["BYTES"])
        operand = Operand(
            name, "input", dtype, array.shape, tail=tail, alignment=self.alignment or ALIGNMENT,
            least=unit.alignment if self.alignment is None else None,
        )  # fmt: skip
        return operand, np.concatenate([content, np.zeros(tail, np.uint8)]) if tail else content


@dataclass(frozen=True)
class Own:
    """Scratch memory of a call, or an input that holds constants of one type."""

    scratch: Expression | None = None
    zeroed: bool = False
    constant: tuple[Number, ...] = ()
    alignment: int | None = None

    def operand(self, name: str, names: Mapping[str, int]) -> tuple[Operand, Bytes | None]:
        """Return the operand, and its content if it has one. Raises KernelFault."""
        if self.constant:
            kind = self.constant[0].kind
            values = np.array([number.plain(names)[1] for number in self.constant], kind)
            return Operand(name, "input", kind, values.shape, alignment=self.alignment or ALIGNMENT), values.view(
                np.uint8
            )
        assert self.scratch is not None
        nbytes = self.scratch.value(names)
        if not 0 <= nbytes <= _MOST_BYTES:
            raise KernelFault(f"{name} takes {nbytes:,} bytes: {self.scratch.source}")
        content = np.zeros(nbytes, np.uint8) if self.zeroed else None
        alignment = self.alignment or ALIGNMENT
        return Operand(name, "scratch", "uint8", (nbytes,), filled=self.zeroed, alignment=alignment), content


@dataclass(frozen=True)
class Layouts:
    """The `operands` of a declaration."""

    matrices: Mapping[str, Layout] = field(default_factory=dict)
    own: Mapping[str, Own] = field(default_factory=dict)
    further: Mapping[str, Further] = field(default_factory=dict)

    def of(self, name: str) -> Layout:
        """Return the layout of a matrix."""
        return self.matrices.get(name, Layout())

    @property
    def plain(self) -> bool:
        """Whether all operands have the default layout."""
        plain = Layout()
        return not self.own and all(replace(of, alignment=None) == plain for of in self.matrices.values())


def layouts_of(said: object) -> Layouts:
    """Parse the table `operands`. Raises UsageError."""
    if not isinstance(said, dict) or not all(isinstance(v, dict) for v in said.values()):
        raise UsageError("operands must be a table of tables, one for each operand")
    matrices = {name: Layout(**_typed(name, said[name], _OF_MATRIX)) for name in said if name in MATRICES}
    if any(layout.accumulate for name, layout in matrices.items() if name != "output"):
        raise UsageError("only the output can accumulate")
    if matrices.get("output", Layout()).columns is not None:
        raise UsageError("an output can have a stride, but no columns of zeros")
    further = {
        name: Further(**_typed(name, table, _OF_FURTHER))
        for name, table in said.items()
        if name not in MATRICES and table and not table.keys() - _OF_FURTHER.keys()
    }
    own = {name: _own(name, said[name]) for name in said if name not in (*MATRICES, *further)}
    return Layouts(matrices, own, further)


def _own(name: str, said: dict[str, Any]) -> Own:
    if not name.isidentifier():
        raise UsageError(f"operand {ascii(name)[:60]} is not a name")
    typed = _typed(name, said, _OF_OWN)
    if ("scratch" in typed) == ("constant" in typed):
        raise no_operand(name)
    numbers = [number_of(value) for value in typed.pop("constant", [])]
    kinds = {None if number is None else number.kind for number in numbers}
    if None in kinds or len(kinds) > 1 or len(numbers) > _MOST_NUMBERS:
        raise UsageError(f'constant of operand {name} must be a list of numbers of one type, such as ["int32 N"]')
    return Own(**typed, constant=tuple(number for number in numbers if number is not None))


def no_operand(name: str) -> UsageError:
    """Return the error for a table `operands.NAME` that describes no operand of a call."""
    return UsageError(f"operand {ascii(name)[:60]} needs either scratch = BYTES or constant = [NUMBERS]")


def _typed(name: str, said: dict[str, Any], keys: dict[str, type]) -> dict[str, Any]:
    """Return the keys of a table, with expressions parsed. Raises UsageError."""
    out: dict[str, Any] = {}
    for key, value in said.items():
        kind = keys.get(key)
        if kind is None:
            near = nearest(key, keys)
            raise UsageError(f"{ascii(key)[:60]} is not a key of operand {name}: {near}there are: {', '.join(keys)}")
        if kind is Expression:
            out[key] = Expression(value)
        elif key == "alignment" and (value not in _ALIGNMENTS or isinstance(value, bool)):
            raise UsageError(f"alignment of operand {name} must be one of {', '.join(map(str, _ALIGNMENTS))}")
        elif not isinstance(value, kind):
            raise UsageError(f"{key} of operand {name} is not {'true or false' if kind is bool else 'a list'}")
        else:
            out[key] = value
    return out
