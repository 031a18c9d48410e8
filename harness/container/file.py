"""One GGUF file in memory: its tensors as views of the mapped bytes, its metadata, its byte map."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from ..errors import MalformedFile
from ..formats import TensorType
from .records import Finding, Range
from .store import ByteMap
from .text import printable

Bytes = npt.NDArray[np.uint8]


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class Mapped:
    """A file's bytes, mapped read-only.

    Touching a page of a mapping that the file no longer has kills the process (SIGBUS), and no Python code can catch
    it. So `read` asks for the file's size before it hands out a view. A file cut in the very moment of use can still
    kill: whoever holds a view for long should take smaller ones.
    """

    def __init__(self, path: Path) -> None:
        """Raises MalformedFile for what is not a readable regular file."""
        self.path = path
        self._file: io.BufferedReader | None = None
        try:
            # Before opening: to open a FIFO waits for a writer.
            self._expect_regular(os.stat(path))
            # Not to wait for one that takes the file's place now.
            self._file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - held until close()
            opened = os.fstat(self._file.fileno())
            self._expect_regular(opened)
            self.size = opened.st_size
            #: Device, inode, size and time of change in ns: whether another process opens the same file.
            self.identity = [opened.st_dev, opened.st_ino, opened.st_size, opened.st_mtime_ns]
            # An empty file cannot be mapped.
            self._bytes: Bytes | None = (
                np.memmap(self._file, dtype=np.uint8, mode="r", shape=(self.size,))
                if self.size
                else np.zeros(0, dtype=np.uint8)
            )
        except MalformedFile:
            self.close()
            raise
        except (OSError, ValueError, OverflowError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise MalformedFile(f"{printable(str(path))}: cannot be read: {printable(reason)}") from error

    def _expect_regular(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise MalformedFile(f"{printable(str(self.path))}: {kind}, expected a GGUF file")

    def read(self) -> Bytes:
        """`uint8[size]`, a view. Raises MalformedFile if the file has shrunk, ValueError if it was closed."""
        if self._file is None or self._bytes is None:
            raise ValueError(f"{printable(str(self.path))} is closed")
        now = os.fstat(self._file.fileno()).st_size
        if now < self.size:
            raise MalformedFile(
                f"{printable(str(self.path))}: byte {now}: the file ends here now, but held {self.size} bytes when it "
                "was opened"
            )
        return self._bytes

    def next_data(self, position: int) -> int:
        """The first byte at or after `position` that is not in a hole of a sparse file; the size if there is none."""
        assert self._file is not None
        try:
            return min(os.lseek(self._file.fileno(), position, os.SEEK_DATA), self.size)
        except OSError as error:
            return self.size if error.errno == errno.ENXIO else position

    @property
    def changed(self) -> bool:
        """Whether the file is no longer what was opened: written to, cut, or another in its place."""
        if self._file is None:
            return False
        try:
            states = (os.fstat(self._file.fileno()), os.stat(self.path))
        except OSError:
            return True
        return any([s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns] != self.identity for s in states)

    def sha256(self) -> str:
        """Hex digest of the whole file, streamed through read(), not through the mapping."""
        self.read()
        assert self._file is not None
        self._file.seek(0)
        return hashlib.file_digest(self._file, "sha256").hexdigest()

    def close(self) -> None:
        """Lets go of the file; views that are still held keep their pages."""
        self._bytes = None
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file, as rows of blocks.

    Args:
        name: as it stands in the file; pass it through `printable` before showing it.
        type: ggml's type of it.
        shape: in ggml's order, the row length first; () for a single value.
        offset: absolute byte offset of the data in its file.
        part: index of that file in a split model.
        ranges: the byte map of that file.
        at: index in it of the tensor's name.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    ranges: ByteMap = field(repr=False, compare=False)
    at: int = field(repr=False, compare=False)
    mapped: Mapped = field(repr=False, compare=False)
    part: int = 0

    @property
    def described(self) -> tuple[Range, ...]:
        """The byte ranges of its name, dimensions, type and offset in the header."""
        return self.ranges[self.at : self.at + 4]

    @property
    def k(self) -> int:
        """Values in a row."""
        return self.shape[0] if self.shape else 1

    @property
    def n_rows(self) -> int:
        """Rows, of all higher dimensions together."""
        return prod(self.shape[1:])

    @property
    def blocks_per_row(self) -> int:
        return self.k // self.type.block_size

    @property
    def row_bytes(self) -> int:
        return self.blocks_per_row * self.type.block_bytes

    @property
    def nbytes(self) -> int:
        return self.n_rows * self.row_bytes

    @property
    def raw(self) -> Bytes:
        """`uint8[nbytes]`, a view of the file. Raises MalformedFile if the file has shrunk since it was opened."""
        return self.mapped.read()[self.offset : self.offset + self.nbytes]

    def blocks(self, start_row: int, stop_row: int) -> Bytes:
        """`uint8[stop_row - start_row, blocks_per_row, block_bytes]`, a view of the file.

        Raises IndexError for rows that the tensor does not have, MalformedFile as `raw` does.
        """
        if not 0 <= start_row <= stop_row <= self.n_rows:
            raise IndexError(f"rows {start_row} to {stop_row} of {printable(self.name)}, which has {self.n_rows}")
        start = self.offset + start_row * self.row_bytes
        flat = self.mapped.read()[start : start + (stop_row - start_row) * self.row_bytes]
        return flat.reshape(stop_row - start_row, self.blocks_per_row, self.type.block_bytes)

    def block_offset(self, row: int, block: int) -> int:
        """Absolute byte offset of a block in its file. Raises IndexError for one that the tensor does not have."""
        if not (0 <= row < self.n_rows and 0 <= block < self.blocks_per_row):
            raise IndexError(
                f"row {row}, block {block} of {printable(self.name)}, which has {self.n_rows} rows of "
                f"{self.blocks_per_row} blocks"
            )
        return self.offset + row * self.row_bytes + block * self.type.block_bytes


@dataclass
class GgufFile:
    """What one file says. After a refusal it holds what was read before.

    Args:
        mapped: its bytes.
        part: its index in a split model.
        version: GGUF version; 0 where it was not read.
        alignment: in bytes.
        data_offset: absolute byte offset that tensor offsets count from; the end of the header if no tensor exists.
        metadata: scalars as int, float, bool or str; arrays as read-only NumPy arrays of their type, of strings as
            `Strings`, of arrays as nested lists. Bytes that are not UTF-8 stand as surrogates. Values beyond 64 MiB
            in all (a str counts four bytes a character) are views of the file: see `Metadata`; a string among them
            is a memoryview of its UTF-8.
        value_ranges: where the value of each key stands.
        tensors: in the order of their descriptions.
        byte_map: every byte of the file exactly once, ascending.
        findings: everything wrong with it, the refusal included.
        refused: the finding that ended reading, or None.
    """

    mapped: Mapped
    part: int = 0
    version: int = 0
    alignment: int = 32
    data_offset: int = 0
    metadata: Mapping[str, object] = field(default_factory=dict)
    value_ranges: Mapping[str, Range] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    byte_map: Sequence[Range] = ()
    findings: tuple[Finding, ...] = ()
    refused: Finding | None = None

    @property
    def path(self) -> Path:
        return self.mapped.path

    @property
    def size(self) -> int:
        return self.mapped.size

    @property
    def buffer(self) -> Bytes:
        """`uint8[size]`, a view. Raises MalformedFile if the file has shrunk since it was opened."""
        return self.mapped.read()

    def close(self) -> None:
        self.mapped.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
