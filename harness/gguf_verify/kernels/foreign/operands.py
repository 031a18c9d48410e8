"""The operands of a call, and the memory in which two processes see them: the verifier, whose memory it is, and the
kernel's process, which maps it.

A memory file has a fixed size: neither side can shrink it under the other. Each operand has pages of its own and lies
between guards of `GUARD_BYTES`; the kernel's process maps it between pages that cannot be accessed. A kernel may assume
that each operand begins at a multiple of `ALIGNMENT`, or of what its declaration promises, and nothing more: where it
begins beyond that differs between calls (`laid_out`).
"""

from __future__ import annotations

import fcntl
import itertools
import math
import mmap
import os
import zlib
from collections.abc import Sequence
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
#: The bytes of guards. Those of inputs are NaN in every type, so that an output that depends on them shows it.
_GUARD_FILL, _INPUT_GUARD_FILL = 0xA5, 0xFF
#: What outputs and scratch memory hold that nothing has written where their elements have no poison, and in a second
#: run something else. What may be of any type holds NaN of every type at first, so that it shows where it is multiplied
#: by zero.
_OTHER_FILLS = (0xFF, 0x52)
#: Where an operand lies: less than its alignment before a page that cannot be accessed; directly behind one; or apart
#: from both, with its guards between.
Wall = Literal["behind", "before", "apart"]


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype. It has none for bfloat16, whose bits are given."""
    return number_type("uint16" if name == "bfloat16" else name)


@dataclass(frozen=True)
class Operand:
    """One operand of a call, as messages name it.

    Args:
        name: "weights", "activations", "output", or another that the call's author chose.
        role: an input is written by the verifier alone; an output and scratch memory by the kernel, between guards. An
            output is poisoned before.
        dtype: NumPy's name, such as "float32"; or "bfloat16".
        shape: of the array.
        file: the number of the memory file.
        at: its first byte there.
        strides: bytes from element to element of each dimension; None: as C has them.
        tail: bytes behind the last element that belong to it.
        filled: whether an output or scratch memory holds something before the call that the kernel may read.
        alignment: it begins at a multiple of so many bytes.
        wall: where it lies among pages that cannot be accessed.
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
        """The byte that its guards hold."""
        return _INPUT_GUARD_FILL if self.role == "input" else _GUARD_FILL

    def bytes_in(self, memory: Bytes) -> Bytes:
        """Its bytes in those of its file."""
        return memory[self.at : self.at + self.nbytes]

    def whole_in(self, memory: Bytes) -> Bytes:
        """The same with its guards."""
        return memory[self.at - GUARD_BYTES : self.at + self.nbytes + GUARD_BYTES]

    @property
    def reach(self) -> tuple[int, int]:
        """The bytes of the file that the kernel's process maps, to which a wall is next: from where to where."""
        first = self.at if self.wall == "before" else self.at - GUARD_BYTES
        if self.wall == "behind":
            return first, self.at + -(-self.nbytes // self.alignment) * self.alignment
        return first, self.at + self.nbytes + GUARD_BYTES

    def array_in(self, memory: Bytes) -> npt.NDArray[Any]:
        """The array, in the bytes of its file."""
        return np.ndarray(self.shape, dtype_of(self.dtype), memory[self.at :], strides=self.strides)

    def unwritten(self, turn: int = 0) -> Bytes:
        """What it holds before anything has written it, uint8[nbytes]; in two turns of a call something else where no
        NaN shows it."""
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
        """For a message."""
        return dict(vars(self))

    @classmethod
    def of_plain(cls, said: dict[str, Any]) -> Operand:
        """What `plain` made."""
        strides = said["strides"]
        more = {"shape": tuple(said["shape"]), "strides": None if strides is None else tuple(strides)}
        return cls(**{**said, **more})


def _pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def laid_out(
    wanted: Sequence[Operand], file: int, wall: Wall = "apart", start: int = 0, key: int = 0
) -> tuple[tuple[Operand, ...], int]:
    """The operands at their places in a file, from a multiple of a page's size on; and the size that the file needs.

    Args:
        key: varies where in their pages operands begin that lie apart from walls.
    """
    placed = []
    for operand in wanted:
        start += _pages(GUARD_BYTES)
        at = start + _begins(operand, wall, key)
        placed.append(replace(operand, file=file, at=at, wall=wall))
        start += _pages(at - start + operand.nbytes + GUARD_BYTES)
    return tuple(placed), start


def _begins(operand: Operand, wall: Wall, key: int) -> int:
    """Where in a page an operand begins. Apart from walls and directly before one, that differs in the lowest bit that
    its alignment leaves open, and apart from walls in others, too, from operand to operand and from key to key."""
    unit = operand.alignment
    before_wall = -operand.nbytes // unit * unit % mmap.PAGESIZE
    if wall != "apart":
        return before_wall if wall == "behind" else 0
    steps = mmap.PAGESIZE // (2 * unit)
    drawn = zlib.crc32(f"{operand.name} {operand.nbytes} {key}".encode()) % steps
    return 2 * unit * drawn + (unit - before_wall) % (2 * unit)


_numbers = itertools.count(1)


class MemoryFile:
    """Memory of this process that another one may map. Its size is sealed. Raises EnvironmentFault."""

    def __init__(self, nbytes: int) -> None:
        from ...support.sealed import mapped_here  # late: a kernel's process makes no files, and must start fast

        self.number, self.nbytes, self.handle = next(_numbers), max(1, nbytes), -1
        try:
            self.handle = os.memfd_create("gguf-verify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(self.handle, self.nbytes)
                # else the other side could make reading it a fatal signal
                fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
                self.bytes = np.frombuffer(mapped_here(self.handle, self.nbytes), np.uint8)
            except BaseException:
                self.close()
                raise
        except (OSError, ValueError, OverflowError) as error:
            raise EnvironmentFault(f"no shared memory of {nbytes:,} bytes: {error}") from None

    def close(self) -> None:
        """The memory is freed once no array uses it, here and in the other process."""
        handle, self.handle = self.handle, -1
        self.bytes = np.zeros(0, np.uint8)
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


class Mapped:
    """An operand in the process that maps it, between pages that cannot be accessed.

    Args:
        handle: the file's descriptor.
        private: what is written to it is not written to the file.
    """

    def __init__(self, operand: Operand, handle: int, private: bool = False) -> None:
        self.operand, self._handle, self._private = operand, handle, private

    def copy(self) -> Mapped:
        """The same bytes at the same place among pages, which may be written."""
        return Mapped(self.operand, self._handle, True)

    @cached_property
    def _memory(self) -> tuple[Operand, Bytes]:
        """What is mapped, and the operand with its place in that. Raises EnvironmentFault."""
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
