"""Operands of a call, in memory that the verifier shares with the kernel's process.
A memory file has a fixed size: neither process can shrink it. Each operand has its own pages and lies between guards of
`GUARD_BYTES`; the kernel's process maps it between pages without access rights. The address of an operand is a multiple
of its alignment, and varies beyond that between calls (`laid_out`). Where the declaration has no alignment, it is
`ALIGNMENT`, or less in some runs (`addresses`).
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...hosts.memory import ALIGNMENT, GUARD_BYTES, POISON, POISON_16, mapped_between_walls
from ...support.errors import EnvironmentFault
from ...support.numbers import number_type

Bytes = npt.NDArray[np.uint8]
Role = Literal["input", "output", "scratch"]
#: Fill bytes of guards. Those of inputs are NaN in every type, so that an output that depends on them is NaN.
_GUARD_FILL, _INPUT_GUARD_FILL = 0xA5, 0xFF
#: Fill bytes of unwritten outputs without poison and of unwritten scratch memory, in the first and in later runs. The
#: first is NaN in every type, so that it shows even if it is multiplied by zero.
_OTHER_FILLS = (0xFF, 0x52)
#: Where an operand lies: less than its alignment before a page without access rights ("behind" it), directly after one
#: ("before" it), or apart from both, with its guards between.
Wall = Literal["behind", "before", "apart"]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype. NumPy has no bfloat16: its bits are uint16."""
    return number_type("uint16" if name == "bfloat16" else name)


@dataclass(frozen=True)
class Operand:
    """One operand of a call, as messages describe it.

    Args:
        name: "weights", "activations", "output", or a name that the kernel's author chose.
        role: an input is written by the verifier only; an output and scratch memory by the kernel, between guards. An
            output is poisoned before the call.
        dtype: NumPy's name, such as "float32"; or "bfloat16".
        shape: the shape of the array.
        file: the number of the memory file.
        at: the offset of its first byte in the file.
        strides: bytes between elements along each dimension; None: C order.
        tail: bytes behind the last element that belong to it.
        filled: whether an output or scratch memory has a content before the call that the kernel may read.
        alignment: its alignment in bytes.
        least: the alignment that its elements need, if none is declared; None: `alignment`.
        wall: where it lies relative to pages without access rights.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    file: int = 0
    at: int = 0
    strides: tuple[int, ...] | None = None
    tail: int = 0
    filled: bool = False
    alignment: int = ALIGNMENT
    least: int | None = None
    wall: Wall = "apart"

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to the end of its tail."""
        size = dtype_of(self.dtype).itemsize
        if self.strides is None or 0 in self.shape:
            return size * math.prod(self.shape) + self.tail
        return size + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + self.tail

    @property
    def guard_fill(self) -> int:
        """The fill byte of its guards."""
        return _INPUT_GUARD_FILL if self.role == "input" else _GUARD_FILL

    def bytes_in(self, memory: Bytes) -> Bytes:
        """Return its bytes in those of its file."""
        return memory[self.at : self.at + self.nbytes]

    def whole_in(self, memory: Bytes) -> Bytes:
        """Return its bytes and guards in those of its file."""
        return memory[self.at - GUARD_BYTES : self.at + self.nbytes + GUARD_BYTES]

    @property
    def reach(self) -> tuple[int, int]:
        """The range of the file that the kernel's process maps, up to the pages without access rights: (first, end)."""
        first = self.at if self.wall == "before" else self.at - GUARD_BYTES
        if self.wall == "behind":
            return first, self.at + -(-self.nbytes // self.alignment) * self.alignment
        return first, self.at + self.nbytes + GUARD_BYTES

    def array_in(self, memory: Bytes) -> npt.NDArray[Any]:
        """Return the array, in the bytes of its file."""
        return np.ndarray(self.shape, dtype_of(self.dtype), memory[self.at :], strides=self.strides)

    def unwritten(self, turn: int = 0) -> Bytes:
        """Return its content before anything has written it, uint8[nbytes].

        Where no NaN would show a read of it, the content differs between two runs of a call.
        """
        nbytes, size = self.nbytes, dtype_of(self.dtype).itemsize
        words = {4: POISON, 2: POISON_16}
        if self.role == "output" and size in words and not nbytes % size:
            return np.full(nbytes // size, words[size]).view(np.uint8)
        return np.full(nbytes, _OTHER_FILLS[turn % 2], np.uint8)

    def begin_in(self, memory: Bytes, content: Bytes) -> None:
        """Write its content, uint8[nbytes], and its guards."""
        memory[self.at - GUARD_BYTES : self.at] = self.guard_fill
        memory[self.at + self.nbytes : self.at + self.nbytes + GUARD_BYTES] = self.guard_fill
        self.bytes_in(memory)[:] = content

    def plain(self) -> dict[str, Any]:
        """Return its fields for a message."""
        return dict(vars(self))

    @classmethod
    def of_plain(cls, said: dict[str, Any]) -> Operand:
        """Rebuild an operand from the fields that `plain` returned."""
        strides = said["strides"]
        more = {"shape": tuple(said["shape"]), "strides": None if strides is None else tuple(strides)}
        return cls(**{**said, **more})


#: No operand at another address than a multiple of its alignment.
_ALIGNED: Mapping[str, int] = {}


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def laid_out(
    wanted: Sequence[Operand],
    file: int,
    wall: Wall = "apart",
    start: int = 0,
    key: int = 0,
    least: Mapping[str, int] = _ALIGNED,
) -> tuple[tuple[Operand, ...], int]:
    """Place operands in a file, beginning at a page boundary; return them and the size that the file needs.

    Args:
        key: varies the offsets within pages of operands apart from walls, and those of unaligned ones.
        least: operand → the bytes of which its address is a multiple, of those that begin at no multiple of their
            alignment, where they lie apart from walls.
    """
    placed = []
    for operand in wanted:
        start += _pages(GUARD_BYTES)
        at = start + _begins(operand, wall, key, least.get(operand.name, operand.alignment))
        placed.append(replace(operand, file=file, at=at, wall=wall))
        start += _pages(at - start + operand.nbytes + GUARD_BYTES)
    return tuple(placed), start


def leads_of(operands: Sequence[Operand], least: Mapping[str, int], key: int) -> dict[str, int]:
    """Return where operands apart from walls begin in their first pages: see `laid_out`."""
    placed, _ = laid_out(operands, 0, "apart", 0, key, least)
    return {operand.name: operand.at % mmap.PAGESIZE for operand in placed}


def _begins(operand: Operand, wall: Wall, key: int, least: int) -> int:
    """Return the offset of an operand in its page.

    Apart from walls and directly after one, the lowest bit that the alignment leaves open is set. Apart from walls,
    further bits vary with the operand and the key; and so do the lower bits of an unaligned address, at least one of
    which is set.
    """
    unit = operand.alignment
    before_wall = -operand.nbytes // unit * unit % mmap.PAGESIZE
    if wall in ("behind", "before"):
        return before_wall if wall == "behind" else 0
    steps = mmap.PAGESIZE // (2 * unit)
    # not a CRC, whose bits of two names differ by the same ones for each key
    digest = hashlib.blake2b(f"{operand.name} {operand.nbytes} {key}".encode(), digest_size=4).digest()
    drawn, how, multiple = int.from_bytes(digest[:2], "little"), digest[2], digest[3]
    halves, past = unit // least // 2, 0
    if halves:
        even = halves > 1 and how % 4 == 0  # seldom: what needs more is found by odd multiples
        past = least * (2 * (1 + multiple % (halves - 1)) if even else 1 + 2 * (multiple % halves))
    return 2 * unit * (drawn % steps) + (unit - before_wall) % (2 * unit) + past


_numbers = itertools.count(1)


class MemoryFile:
    """Shared memory of this process, with a sealed size. Raises EnvironmentFault."""

    def __init__(self, nbytes: int) -> None:
        from ...support.sealed import mapped_here  # late: a kernel's process makes no files and must start fast

        self.number, self.nbytes, self.handle = next(_numbers), max(1, nbytes), -1
        try:
            self.handle = os.memfd_create("gguf-verify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(self.handle, self.nbytes)
                # Without the seals the other process could shrink the file, and reading it would raise SIGBUS.
                fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
                self.bytes = np.frombuffer(mapped_here(self.handle, self.nbytes), np.uint8)
            except BaseException:
                self.close()
                raise
        except (OSError, ValueError, OverflowError) as error:
            raise EnvironmentFault(f"no shared memory of {nbytes:,} bytes: {error}") from None

    def close(self) -> None:
        """Close the file. Its memory is freed when no array uses it, here and in the other process."""
        handle, self.handle = self.handle, -1
        self.bytes = np.zeros(0, np.uint8)
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class Mapped:
    """An operand in the process that maps it, between pages without access rights.

    Args:
        handle: the file's descriptor.
        private: whether writes are kept from the file.
    """

    def __init__(self, operand: Operand, handle: int, private: bool = False) -> None:
        self.operand, self._handle, self._private = operand, handle, private

    def copy(self) -> Mapped:
        """Return the same bytes at the same offset in a page, in a private mapping that may be written."""
        return Mapped(self.operand, self._handle, True)

    @cached_property
    def _memory(self) -> tuple[Operand, Bytes]:
        """The mapped memory, and the operand with its place in it. Raises EnvironmentFault."""
        first, last = self.operand.reach
        memory = mapped_between_walls(self._handle, first, last - first, self._private)
        return replace(self.operand, at=self.operand.at - first), memory

    @property
    def array(self) -> npt.NDArray[Any]:
        operand, memory = self._memory
        return operand.array_in(memory)

    @property
    def bytes(self) -> Bytes:
        operand, memory = self._memory
        return operand.bytes_in(memory)
