"""Positions of blocks in tensors and files, and the look-up of a requested block.

A tensor of an element type (F32, F16, …) has no blocks: there, a "block" is a window of 32 elements of a row, of which
the last may be shorter.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from itertools import islice
from typing import NamedTuple

from ..gguf.file import GgufFile, Tensor
from ..gguf.model import Model
from ..gguf.records import Range
from ..support.errors import UsageError
from ..support.text import printable, quoted

#: Number of elements in a window of a tensor without blocks.
WINDOW = 32

_SUGGESTED, _SEARCHED = 3, 10_000


class Place(NamedTuple):
    """A block of the tensor, and its absolute byte offset in the file."""

    row: int
    block: int
    offset: int


class Grid(NamedTuple):
    """The division of a tensor into blocks: values and bytes of a whole block, and blocks per row."""

    values: int
    nbytes: int
    per_row: int


def grid(tensor: Tensor) -> Grid:
    """Return the division into blocks of the type, or into windows of elements."""
    kind = tensor.type
    if kind.quantized:
        return Grid(kind.block_size, kind.block_bytes, tensor.blocks_per_row)
    return Grid(WINDOW, WINDOW * kind.block_bytes, -(-tensor.k // WINDOW))


def _place(tensor: Tensor, row: int, block: int) -> Place:
    return Place(row, block, tensor.offset + row * tensor.row_bytes + block * grid(tensor).nbytes)


def extent(tensor: Tensor, row: int, block: int) -> tuple[int, int, int]:
    """Return absolute offset, end, and number of values of a block. Raises IndexError if the block does not exist."""
    cut = grid(tensor)
    if not (0 <= row < tensor.n_rows and 0 <= block < cut.per_row):
        raise IndexError(f"row {row}, block {block} of {quoted(tensor.name)}")
    start = _place(tensor, row, block).offset
    stop = min(start + cut.nbytes, tensor.offset + (row + 1) * tensor.row_bytes)
    return start, stop, min(cut.values, tensor.k - block * cut.values)


def neighbour(tensor: Tensor, flat: int) -> Place | None:
    per_row = grid(tensor).per_row
    return _place(tensor, *divmod(flat, per_row)) if 0 <= flat < tensor.n_rows * per_row else None


def parse_offset(text: str) -> int:
    """Parse a byte offset: decimal, or hexadecimal after 0x. Raises UsageError."""
    if re.fullmatch(r"[0-9]{1,20}", text):
        return int(text)
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        return int(text, 16)
    raise UsageError(f"--offset must be a byte offset in the file, such as 107184 or 0x1a2b0, not {quoted(text)}")


def find_block(
    model: Model,
    tensor_name: str | None = None,
    row: int | None = None,
    block: int | None = None,
    offset: int | None = None,
    part: int = 0,
) -> tuple[Tensor, int, int]:
    """Find the requested block: tensor, row, and block in the row.

    Args:
        tensor_name: as in the file, or as `printable` shows it.
        row: row of the tensor; without it, `block` counts through the whole tensor.
        block: 0 by default.
        offset: instead, an absolute byte offset in the file: find the block that holds this byte.
        part: index of the file that `offset` refers to, in a split model.

    Raises UsageError, in one line, for anything that does not exist, with the alternatives; for a byte outside the
    tensors' data, with the field that owns it.
    """
    if offset is not None:
        if not (tensor_name is None and row is None and block is None):
            raise UsageError("--offset selects the block alone: remove --tensor, --row and --block")
        return _at_offset(model, offset, part)
    if tensor_name is None:
        raise UsageError("which block? --tensor NAME --block B, --tensor NAME --row R --block B, or --offset BYTE")
    tensor = _named(model, tensor_name)
    name, cut = quoted(tensor.name), grid(tensor)
    total = tensor.n_rows * cut.per_row
    what = "block" if tensor.type.quantized else "window"
    if not total:
        raise UsageError(f"{name} holds no values")
    if row is None:
        _in_range(what, block or 0, total, name)
        return tensor, *divmod(block or 0, cut.per_row)
    _in_range("row", row, tensor.n_rows, name)
    _in_range(what, block or 0, cut.per_row, f"row {row} of {name}")
    return tensor, row, block or 0


def _in_range(what: str, number: int, count: int, owner: str) -> None:
    if not 0 <= number < count:
        allowed = f"{what}s 0 to {count - 1}" if count > 1 else f"{what} 0 only"
        raise UsageError(f"there is no {what} {number} in {owner}, which has {allowed}")


def _named(model: Model, name: str) -> Tensor:
    tensor = model.tensors.get(name)
    if tensor is not None:
        return tensor
    if not model.tensors:
        raise UsageError(f"there is no tensor {quoted(name)}: the file has none")
    # A name that no shell can pass on is given in its escaped form, which is unique. Only `_SEARCHED` names are
    # compared, because a hostile file may have a great many.
    shown = {printable(other): other for other in islice(model.tensors, _SEARCHED)}
    if name in shown:
        return model.tensors[shown[name]]
    near = [other for other in shown if name and name.casefold() in other.casefold()]
    near = near or difflib.get_close_matches(name, shown, _SUGGESTED)
    if near:
        hint = "did you mean " + " or ".join(quoted(shown[other]) for other in near[:_SUGGESTED]) + "?"
    else:
        hint = f"the file has {len(model.tensors)}, of which {quoted(next(iter(model.tensors)))} is the first"
    raise UsageError(f"there is no tensor {quoted(name)}: {hint}")


def _at_offset(model: Model, offset: int, part: int) -> tuple[Tensor, int, int]:
    if not 0 <= part < len(model.parts):
        raise UsageError(f"there is no part {part + 1}: the model has {len(model.parts)}")
    file = model.parts[part]
    if not 0 <= offset < file.size:
        raise UsageError(
            f"byte {offset} is outside {printable(file.path.name, 64)}, which has bytes 0 to {file.size - 1}"
        )
    owned = _owner(file, offset)
    if owned.kind != "data":
        raise UsageError(f"byte {offset} is {describe_byte(file, offset)}, not a tensor's data")
    tensor = model.tensors[owned.owner]
    row, rest = divmod(offset - tensor.offset, tensor.row_bytes)
    return tensor, row, rest // grid(tensor).nbytes


def _owner(file: GgufFile, offset: int) -> Range:
    return file.byte_map[bisect_right(file.byte_map, offset, key=lambda owned: owned.start) - 1]


def describe_byte(file: GgufFile, offset: int) -> str:
    """Describe the field that owns a byte of the file. Raises IndexError for a byte outside the file."""
    if not 0 <= offset < file.size:
        raise IndexError(f"byte {offset} of {file.size}")
    owned = _owner(file, offset)
    extent = f"(bytes {owned.start} to {owned.stop - 1})"
    owner = quoted(owned.owner)
    match owned.kind:
        case "key":
            return f"the key {owner} {extent}"
        case "value type" | "element type" | "element count" | "value":
            return f"the {owned.kind} of key {owner} {extent}"
        case "tensor name":
            return f"the name of tensor {owner} {extent}"
        case "dimensions" | "type" | "offset":
            return f"the {owned.kind} of tensor {owner} {extent}"
        case "data":
            return f"data of tensor {owner} {extent}"
        case "padding":
            return f"padding after the {'data of tensor ' + owner if owned.owner else 'header'} {extent}"
        case "gap":
            return f"in a gap between tensors {extent}"
        case "trailing":
            return f"after the last tensor {extent}"
        case kind:
            return f"the {kind} in the file's header {extent}"
