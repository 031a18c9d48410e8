"""Reader for untrusted `.npy` files: nothing is unpickled, and NumPy does not parse their headers. Type, shape and size
are checked before data are read."""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import UsageError
from .files import open_regular
from .numbers import CODES_OF_FILES, number_type
from .text import printable

_MAGIC = b"\x93NUMPY"
#: Version → bytes of the length of the header.
_WIDTHS = {b"\x01\x00": 2, b"\x02\x00": 4}
_MOST_HEADER = 4096
_KEYS = {"descr", "fortran_order", "shape"}
#: Exceptions when reading a file that is no array; the header is a Python literal.
_UNREADABLE = OSError, ValueError, EOFError, SyntaxError, RecursionError, MemoryError


class Stored(NamedTuple):
    """Where an array lies in a file: its type, shape, the offset of its data in bytes, and its order."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    order: Literal["C", "F"] = "C"


@contextlib.contextmanager
def open_array(
    name: str, given: Path | str | npt.NDArray[Any], shape: tuple[int | None, int], types: tuple[str, ...]
) -> Iterator[npt.NDArray[Any]]:
    """Yield an array, or that of an `.npy` file, memory-mapped.

    Args:
        name: of the array, for messages.
        shape: the required shape; None where any number is accepted.
        types: accepted dtype names.

    Raises UsageError.
    """
    if isinstance(given, np.ndarray):
        _check(name, given.dtype, given.shape, shape, types)
        yield given
        return
    stored = npy_header(name, Path(given))
    _check(name, stored.dtype, stored.shape, shape, types)
    yield map_numbers(name, stored)


def map_numbers(name: str, stored: Stored) -> npt.NDArray[Any]:
    """Return the array, memory-mapped. Raises UsageError if the file is too short, or cannot be mapped."""
    path, dtype, shape, offset, order = stored
    size = prod(shape) * dtype.itemsize
    try:
        if path.stat().st_size < offset + size:
            raise UsageError(f"{name}: {printable(str(path))} ends before the end of its data")
        return np.memmap(path, dtype, "r", offset, shape, order) if size else np.zeros(shape, dtype)
    except _UNREADABLE as error:
        raise _unreadable(name, path, error) from None


def is_npy(path: Path) -> bool:
    """Whether a file begins as those in NumPy's format do. False for one that cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, ValueError):
        return False


def npy_header(name: str, path: Path) -> Stored:
    """Return the array of an `.npy` file. Raises UsageError."""
    try:
        if not path.is_file():
            raise UsageError(
                f"{printable(str(path))} is not a file" if path.exists() else f"no file {printable(str(path))}"
            )
        with open_regular(path) as file:
            said = _literal(file)
            at = file.tell()
        if not isinstance(said, dict) or said.keys() != _KEYS or not isinstance(said["fortran_order"], bool):
            raise ValueError("its header is not that of an array")
        shape = said["shape"]
        if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
            raise ValueError("its header has no shape")
    except _UNREADABLE as error:
        raise _unreadable(name, path, error) from None
    try:
        dtype = number_type(said["descr"], CODES_OF_FILES)
    except ValueError:
        kind = printable(str(said["descr"]), 60)
        raise UsageError(f"{printable(str(path))} holds {kind}, which is not a number type") from None
    return Stored(path, dtype, shape, at, "F" if said["fortran_order"] else "C")


def _unreadable(name: str, path: Path, error: BaseException) -> UsageError:
    return UsageError(f"{name}: cannot read {printable(str(path))}: {first_line(error)}")


def _literal(file: BinaryIO) -> Any:
    """Return the header as a Python value. Raises what `_UNREADABLE` lists."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it does not begin as an .npy file")
    version = file.read(2)
    if version not in _WIDTHS:
        raise ValueError(f"its format {tuple(version)} is not known")
    length = int.from_bytes(file.read(_WIDTHS[version]), "little")
    if length > _MOST_HEADER:
        raise ValueError(f"its header has {length:,} bytes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(file.read(length).decode("latin-1").strip())


def _check(
    name: str, dtype: np.dtype[Any], held: tuple[int, ...], shape: tuple[int | None, int], types: tuple[str, ...]
) -> None:
    wanted = " or ".join(types)
    if dtype.newbyteorder("=").name not in types:
        raise UsageError(f"{name} holds {printable(str(dtype), 60)}, not {wanted}")
    fits = len(held) == 2 and all(have >= 0 and want in (None, have) for want, have in zip(shape, held, strict=True))
    if not fits:
        dimensions = ", ".join("any number" if want is None else str(want) for want in shape)
        raise UsageError(f"{name} has the shape {held[:8]}; the tensor and its rows need [{dimensions}]")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return printable((str(error).splitlines() or [type(error).__name__])[0], 200)
