"""Captured arrays, as engines write them: NumPy's format, safetensors, or plain numbers.

The files are foreign. Type, shape and size are checked before data are read, and data are mapped, not loaded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..audit.safetensors import Entry, read_header
from ..gguf.mapped import Mapped
from ..semantics.definition import Output
from ..support.errors import HarnessError, UsageError
from ..support.files import open_regular
from ..support.npy import Stored, first_line, is_npy, map_numbers, npy_header
from ..support.text import counted, printable, quoted

#: The types of values, by the endings of files of plain numbers, which are little-endian.
PLAIN: dict[str, Output] = {".f32": "float32", ".f16": "float16", ".bf16": "bfloat16"}
#: How they lie in a file. NumPy lacks bfloat16: its bits are read.
_NUMBERS: dict[Output, np.dtype[Any]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
_OF_SAFETENSORS: dict[str, Output] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_SAFETENSORS = ".safetensors"
#: The most values of bfloat16, which are copied to float32.
_MOST_COPIED = 1 << 30


@dataclass(frozen=True)
class Captured:
    """A captured array.

    Args:
        values: two dimensions, float32 or float16.
        type: that the engine stored: "float32", "float16" or "bfloat16".
        note: how it was read, if not as a plain matrix of the documented shape; "" otherwise.
    """

    values: npt.NDArray[Any]
    type: Output
    note: str = ""


@contextlib.contextmanager
def open_captured(
    name: str, given: Path | str | npt.NDArray[Any], columns: int, shape: tuple[int, int] | None = None
) -> Iterator[Captured]:
    """Yield a captured array with `columns` columns, and any number of rows.

    An array whose first dimension has that size, and not its last one, is transposed. Leading dimensions of size 1 are
    dropped, and an array of one dimension is a single row.

    Args:
        name: "x" or "y": in messages, and the name of the tensor that is read from a safetensors file of several.
        given: the array, or a file: `.npy`, `.safetensors` (or `FILE.safetensors:TENSOR`), or plain numbers (`PLAIN`).
        shape: that of a file of plain numbers. None: its rows follow each other. With a shape, a file without a known
            ending holds float32.

    Raises UsageError.
    """
    if isinstance(given, np.ndarray):
        yield _captured(name, given, given.dtype.newbyteorder("=").name, given.shape, columns, "")
        return
    with contextlib.ExitStack() as files:
        try:
            stored, type_, kind = _found(name, str(given), columns, shape, files)
        except UsageError:
            raise
        except HarnessError as error:
            raise UsageError(f"{name}: {error}") from None
        _expect_type(name, type_)
        _turned(name, stored.shape, columns)
        if type_ == "bfloat16" and prod(stored.shape) > _MOST_COPIED:
            raise UsageError(f"{name} has {prod(stored.shape):,} values of bfloat16: write it as float32")
        yield _captured(name, map_numbers(name, stored), type_, stored.shape, columns, kind)


def _captured(
    name: str, values: npt.NDArray[Any], type_: str, held: tuple[int, ...], columns: int, kind: str
) -> Captured:
    """Raises UsageError if the type or the shape is wrong."""
    output = _expect_type(name, type_)
    shape, transposed = _turned(name, held, columns)
    values = values.reshape(shape)
    if type_ == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    notes = [kind] if kind else []
    if transposed:
        values = values.T
        notes.append(f"transposed, from {shape[0]} x {shape[1]}")
    return Captured(values, output, f"{name}: {', '.join(notes)}" if notes else "")


def _expect_type(name: str, type_: str) -> Output:
    """Return the type of the values. Raises UsageError for another one."""
    for known in _NUMBERS:
        if known == type_:
            return known
    raise UsageError(f"{name} holds {printable(type_, 60)}, not {' or '.join(_NUMBERS)}")


def _turned(name: str, held: tuple[int, ...], columns: int) -> tuple[tuple[int, int], bool]:
    """Return an array's shape in two dimensions, and whether it is transposed. Raises UsageError."""
    two = held
    while len(two) > 2 and two[0] == 1:
        two = two[1:]
    two = (1, *two) if len(two) == 1 else two
    if len(two) != 2 or columns not in two:
        raise UsageError(f"{name} has the shape {held[:8]}; the tensor and its rows need [any number, {columns}]")
    return (two[0], two[1]), two[1] != columns


# ---- files -----------------------------------------------------------------------------------------------------------


def _found(
    name: str, given: str, columns: int, shape: tuple[int, int] | None, files: contextlib.ExitStack
) -> tuple[Stored, str, str]:
    """Return where a file's array is, its type, and the file's kind unless it is NumPy's. Raises HarnessError."""
    path, _, tensor = given.partition(f"{_SAFETENSORS}:")
    if tensor or given.endswith(_SAFETENSORS):
        mapped = files.enter_context(contextlib.closing(Mapped(Path(path + _SAFETENSORS if tensor else path))))
        chosen, entry = _of_safetensors(name, mapped, tensor)
        type_ = _expect_type(name, _OF_SAFETENSORS.get(entry.dtype, entry.dtype))
        stored = Stored(mapped.path, _NUMBERS[type_], entry.shape, entry.offset)
        return stored, type_, f"{type_} tensor {quoted(chosen)} of a safetensors file"
    file = Path(given)
    ending = PLAIN.get(file.suffix.lower())
    if ending is None and (shape is None or is_npy(file)):
        if file.suffix != ".npy" and file.is_file() and not is_npy(file):
            known = ", ".join((".npy", _SAFETENSORS, *PLAIN))
            raise UsageError(
                f"{name}: {printable(given)} is no .npy file. Other kinds need their ending ({known}), or plain "
                "float32 numbers their --shape"
            )
        stored = npy_header(name, file)
        return stored, stored.dtype.newbyteorder("=").name, ""
    type_ = ending or "float32"
    return _plain(name, file, type_, columns, shape), type_, f"plain {type_} numbers"


def _plain(name: str, path: Path, type_: Output, columns: int, shape: tuple[int, int] | None) -> Stored:
    dtype = _NUMBERS[type_]
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: cannot read {printable(str(path))}: {first_line(error)}") from None
    held = (size // (columns * dtype.itemsize), columns) if shape is None else shape
    if prod(held) * dtype.itemsize != size:
        wanted = f"rows of {columns}" if shape is None else f"{shape[0]} x {shape[1]}"
        raise UsageError(f"{name}: {printable(str(path))} has {counted(size, 'bytes')}, not {wanted} {type_} numbers")
    return Stored(path, dtype, held, 0)


def _of_safetensors(name: str, mapped: Mapped, tensor: str) -> tuple[str, Entry]:
    """Return the tensor that is named, or else the one called `name`, or the only one. Raises HarnessError."""
    tensors, shown = read_header(mapped), printable(str(mapped.path))
    wanted = tensor or (name if name in tensors or len(tensors) != 1 else next(iter(tensors)))
    if wanted not in tensors:
        some = ", ".join([quoted(each) for each in tensors][:5]) or "none"
        more = ", …" if len(tensors) > 5 else ""
        raise UsageError(f"{name}: {shown} has no tensor {quoted(wanted)}; it has: {some}{more} (FILE:TENSOR chooses)")
    return wanted, tensors[wanted]
