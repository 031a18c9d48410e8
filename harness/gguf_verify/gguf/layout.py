"""Layout checks: where the tensors' data are, and which field owns the bytes between them.

Writers use only one layout, and llama.cpp loads no other: the data start at `data_offset` and follow each other in the
order of the descriptions, each padded with zeros to the alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ..formats.tensor_types import TensorType
from ..support.text import counted, quoted
from .mapped import Mapped
from .records import Findings, Range, finding, refuse
from .storage import ByteMap

PIECE = 1 << 20  # bytes checked at a time
_ZEROS = bytes(256)  # ordinary padding, which can be frequent in a file


def align(position: int, alignment: int) -> int:
    """Return the next multiple of `alignment` at or after `position`."""
    return -(-position // alignment) * alignment


@dataclass(slots=True)
class Info:
    """A tensor's description.

    Args:
        name: as in the file.
        type: its type; `shape[0]` is a multiple of its block.
        shape: in ggml's order.
        offset: of the data from `data_offset`, as in the file.
        ranges: the file's byte map.
        at: index in it of the tensor's name, which dimensions, type and offset follow.
        start: absolute byte offset of the data, once they are located.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    ranges: ByteMap
    at: int
    start: int = 0

    @property
    def described(self) -> tuple[Range, ...]:
        """The byte ranges of name, dimensions, type and offset."""
        return self.ranges[self.at : self.at + 4]

    @property
    def nbytes(self) -> int:
        row = self.shape[0] if self.shape else 1
        return row // self.type.block_size * self.type.block_bytes * prod(self.shape[1:])

    @property
    def stop(self) -> int:
        return self.start + self.nbytes


class Layout:
    """Checks the data section.

    Args:
        mapped: the file.
        header_end: absolute byte offset after the last description.
        alignment: in bytes.
        alignment_at: the byte range of the alignment's value; None if the file has none.
        infos: the descriptions, in the file's order.
        ranges, findings: those of the header, to which those of the data section are added.
    """

    def __init__(
        self,
        mapped: Mapped,
        header_end: int,
        alignment: int,
        alignment_at: Range | None,
        infos: list[Info],
        ranges: ByteMap,
        findings: Findings,
    ) -> None:
        self.mapped = mapped
        self.bytes = mapped.read()
        self.view = self.bytes.data
        self.size = mapped.size
        self.header_end = header_end
        self.alignment = alignment
        self.alignment_at = alignment_at
        self.infos = infos
        self.data_offset = align(header_end, alignment) if infos else header_end
        self.located: list[Info] = []
        self.ranges = ranges
        self.findings = findings

    def warn(self, slug: str, start: int, stop: int, expected: str, found: str, owner: str = "") -> None:
        self.findings.add(finding(slug, start, stop, expected, found, owner))

    def locate(self) -> None:
        """Locate each tensor's data. Raises Refused if they are outside the file or not aligned."""
        if self.data_offset > self.size:
            at = self.alignment_at
            if at is not None and self.alignment > self.size:
                refuse(
                    "alignment-huge",
                    at.start,
                    at.stop,
                    f"an alignment within the file's {self.size} bytes",
                    f"alignment {self.alignment}",
                    at.owner,
                )
            refuse(
                "truncated",
                self.header_end,
                self.size,
                f"the data from byte {self.data_offset}, after padding",
                f"the file ends after {self.size:,} of at least {self.data_offset:,} bytes",
            )
        room = self.size - self.data_offset
        follows = 0  # where the next tensor's data start if contiguous
        for info in self.infos:
            size = info.nbytes
            cut = info.offset == follows and info.offset + size > room
            if cut:
                start = min(self.data_offset + info.offset, self.size)
                whole = self.data_offset + max(i.offset + i.nbytes for i in self.infos)
                refuse(
                    "data-truncated",
                    start,
                    self.size,
                    f"{counted(size, 'bytes')} of {quoted(info.name)} from byte {self.data_offset + info.offset}",
                    f"the file ends after {self.size:,} of at least {whole:,} bytes",
                    info.name,
                )
            if info.offset + size > room:
                at = info.described[3]
                wraps = ", which wraps past 2^64" if self.data_offset + info.offset + size >> 64 else ""
                refuse(
                    "offset-outside",
                    at.start,
                    at.stop,
                    f"an offset up to {max(room - size, 0)}, for the {counted(size, 'bytes')} of {quoted(info.name)}",
                    f"offset {info.offset}{wraps}",
                    info.name,
                )
            if info.offset % self.alignment:
                at = info.described[3]
                refuse(
                    "offset-misaligned",
                    at.start,
                    at.stop,
                    f"a multiple of {self.alignment} as the offset of {quoted(info.name)}",
                    f"offset {info.offset}",
                    info.name,
                )
            info.start = self.data_offset + info.offset
            follows = align(info.offset + size, self.alignment)
            self.located.append(info)

    def map(self) -> None:
        """Record every byte after the header as a tensor's data, padding, a gap or trailing bytes."""
        # Of two tensors at the same offset the empty one comes first: it shares no bytes with the other.
        ordered = sorted(self.located, key=lambda info: (info.start, info.nbytes))
        self.check_overlap(ordered)
        self.check_order()
        cursor = self.header_end
        last: Info | None = None
        for info in ordered:
            if info.start < cursor:
                continue  # an empty tensor within another's bytes; check_order has reported it
            self.fill_to(info.start, cursor, last)
            if info.nbytes:
                self.ranges.add(info.start, info.stop, "data", info.name)
            cursor, last = info.stop, info
        padded = align(cursor, self.alignment)
        if last is not None and cursor < padded and self.size < padded:
            self.warn(
                "padding-cut",
                cursor,
                self.size,
                f"padding after {quoted(last.name)} up to byte {padded}",
                f"the file ends at byte {self.size}",
                last.name,
            )
        self.fill_to(self.size, cursor, last, trailing=True)

    def check_overlap(self, ordered: list[Info]) -> None:
        reach: Info | None = None
        for info in ordered:
            if not info.nbytes:
                continue
            if reach is not None and info.start < reach.stop:
                # The later description is at fault: the earlier one was valid when it was read.
                late, early = (info, reach) if info.at > reach.at else (reach, info)
                self.located.clear()  # it is unknown which bytes belong to which tensor
                at = late.described[3]
                refuse(
                    "overlap",
                    at.start,
                    at.stop,
                    f"{quoted(late.name)} outside bytes {early.start} to {early.stop} of {quoted(early.name)}",
                    f"bytes {late.start} to {late.stop}",
                    late.name,
                )
            reach = info

    def check_order(self) -> None:
        reached = self.data_offset
        for info in self.located:
            if info.start < reached:
                at = info.described[3]
                self.warn(
                    "offset-order",
                    at.start,
                    at.stop,
                    f"data of {quoted(info.name)} after those of the tensor before, "
                    f"offset {reached - self.data_offset} or more",
                    f"offset {info.offset}",
                    info.name,
                )
            reached = max(reached, align(info.stop, self.alignment))

    def fill_to(self, stop: int, cursor: int, last: Info | None, trailing: bool = False) -> None:
        """Record the bytes from `cursor` to `stop`: padding to the alignment, then a gap or trailing bytes.

        `last` is the tensor before them, if any.
        """
        if cursor >= stop:
            return
        owner = last.name if last else ""
        padded = min(align(cursor, self.alignment), stop)
        if cursor < padded:
            self.ranges.add(cursor, padded, "padding", owner)
            self.check_padding(cursor, padded, owner)
        if padded == stop:
            return
        self.ranges.add(padded, stop, "trailing" if trailing else "gap", owner)
        if last is not None and not last.nbytes and last.start == padded:
            at = last.described[1]
            self.warn(
                "zero-with-data",
                padded,
                stop,
                f"no data for {quoted(last.name)}, of {at.note} elements",
                f"{counted(stop - padded, 'bytes')} at its offset",
                last.name,
            )
        elif trailing:
            self.warn(
                "trailing", padded, stop, f"the end of the file at byte {padded}", f"{stop - padded} more bytes", owner
            )
        else:
            self.warn(
                "gap",
                padded,
                stop,
                f"the next tensor at byte {padded}",
                f"{counted(stop - padded, 'bytes')} that no tensor owns",
                owner,
            )

    def check_padding(self, start: int, stop: int, owner: str) -> None:
        # Check in pieces and skip the holes of a sparse file, since a huge alignment makes huge padding.
        if stop - start <= len(_ZEROS) and self.view[start:stop] == _ZEROS[: stop - start]:
            return
        first = final = -1
        at = self.mapped.next_data(start) if stop - start > PIECE else start
        while at < stop:
            odd = np.flatnonzero(self.bytes[at : min(at + PIECE, stop)])
            if len(odd):
                first = at + int(odd[0]) if first < 0 else first
                final = at + int(odd[-1]) + 1
            at += PIECE
            if at < stop:
                at = self.mapped.next_data(at)
        if first >= 0:
            self.warn(
                "nonzero-padding",
                first,
                final,
                f"zeros from byte {start} to {stop}",
                f"0x{self.bytes[first]:02x} at byte {first}",
                owner,
            )
