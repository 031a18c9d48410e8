"""A GGUF file in memory: its tensors as views of the mapped bytes, its metadata, and its byte map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import TracebackType

from ..formats.tensor_types import TensorType
from ..support.address import Address
from ..support.text import printable
from .mapped import Bytes, Mapped
from .records import Finding, Range
from .storage import ByteMap


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the file, as rows of blocks.

    Args:
        name: as in the file; pass it through `printable` before showing it.
        type: its ggml type.
        shape: in ggml's order, the row length first; () for a single value.
        offset: absolute byte offset of the data in its file.
        part: index of that file in a split model.
        ranges: the byte map of that file.
        at: index of the tensor's name in `ranges`.
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
        """Rows: the product of all dimensions but the first."""
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
        """The data, `uint8[nbytes]`, a view of the file.

        Raises MalformedFile if the file has shrunk since it was opened.
        """
        return self.mapped.part(self.offset, self.offset + self.nbytes)

    def blocks(self, start_row: int, stop_row: int) -> Bytes:
        """Return `uint8[stop_row - start_row, blocks_per_row, block_bytes]`, a view of the file.

        Raises IndexError for rows that the tensor does not have, MalformedFile if the file has shrunk.
        """
        if not 0 <= start_row <= stop_row <= self.n_rows:
            raise IndexError(f"rows {start_row} to {stop_row} of {printable(self.name)}, which has {self.n_rows}")
        start = self.offset + start_row * self.row_bytes
        flat = self.mapped.part(start, start + (stop_row - start_row) * self.row_bytes)
        return flat.reshape(stop_row - start_row, self.blocks_per_row, self.type.block_bytes)

    def block_offset(self, row: int, block: int) -> int:
        """Return the absolute byte offset of a block in its file. Raises IndexError if there is no such block."""
        if not (0 <= row < self.n_rows and 0 <= block < self.blocks_per_row):
            raise IndexError(
                f"row {row}, block {block} of {printable(self.name)}, which has {self.n_rows} rows of "
                f"{self.blocks_per_row} blocks"
            )
        return self.offset + row * self.row_bytes + block * self.type.block_bytes


@dataclass
class GgufFile:
    """The contents of one file. If the parser refused the file, what it had read before.

    Args:
        mapped: its bytes.
        part: its index in a split model.
        version: the GGUF version; 0 if it was not read.
        alignment: in bytes.
        data_offset: absolute byte offset that tensor offsets are relative to; without a tensor, the end of the header.
        metadata: scalars as int, float, bool or str; arrays as read-only NumPy arrays of their type, arrays of strings
            as `Strings`, arrays of arrays as nested lists. Bytes that are not UTF-8 become surrogates. Values beyond 64
            MiB in total (a str counts four bytes per character) are views of the file: see `Metadata`; a string among
            them is a memoryview of its UTF-8.
        value_ranges: the byte range of each key's value.
        tensors: in the order of their descriptions.
        byte_map: ascending ranges that hold every byte of the file exactly once.
        findings: everything wrong with it, including the refusal.
        refused: the finding that ended reading, or None.
        header_end: absolute byte offset of the first byte after the part of the header that was read.
        address: the address of the original, if the file is a copy.
    """

    mapped: Mapped
    part: int = 0
    version: int = 0
    alignment: int = 32
    data_offset: int = 0
    metadata: Mapping[str, object] = field(default_factory=dict)
    value_ranges: Mapping[str, Range] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    byte_map: ByteMap = field(default_factory=ByteMap)
    findings: tuple[Finding, ...] = ()
    refused: Finding | None = None
    header_end: int = 0
    address: Address | None = None

    @property
    def shown(self) -> str:
        """The name of the file in reports, not escaped."""
        return str(self.address or self.path)

    @property
    def path(self) -> Path:
        return self.mapped.path

    @property
    def size(self) -> int:
        return self.mapped.size

    @property
    def buffer(self) -> Bytes:
        """The bytes, `uint8[size]`, a view. Raises MalformedFile if the file has shrunk since it was opened."""
        return self.mapped.read()

    def close(self) -> None:
        self.mapped.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
