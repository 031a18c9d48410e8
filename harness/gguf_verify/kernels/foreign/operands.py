"""The operands of a call, and the memory in which two processes see them: the verifier, whose memory it is, and the
kernel's process, which maps it.

A memory file has a fixed size: neither side can shrink it under the other. Each operand has pages of its own, so that a
host may map it between pages that cannot be accessed. What the kernel writes lies between guards of `GUARD_BYTES`.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...hosts.base import GUARD_BYTES, POISON
from ...hosts.memory import ALIGNMENT, mapped_between_walls
from ...support.errors import EnvironmentFault

Bytes = npt.NDArray[np.uint8]
Role = Literal["input", "output", "scratch"]
#: What guards hold, and what outputs and scratch memory hold that nothing has written: by the size of an element, a NaN
#: that no arithmetic produces, the same in half and bfloat16; otherwise, and in a second run, something else. What may
#: be of any type holds NaN of every type at first, so that it shows where it is multiplied by zero.
_GUARD_FILL = 0xA5
POISON_16 = np.uint16(0x7FAD)
_OTHER_FILLS = (0xFF, 0x52)
#: Where in its pages an input lies, so that a page which cannot be accessed is close: behind them, else before.
Wall = Literal["before", "behind"]


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype. It has none for bfloat16, whose bits are given."""
    return np.dtype("uint16" if name == "bfloat16" else name)


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

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to the end of its tail."""
        size = dtype_of(self.dtype).itemsize
        if self.strides is None or 0 in self.shape:
            return size * math.prod(self.shape) + self.tail
        return size + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True)) + self.tail

    @property
    def guard(self) -> int:
        """Bytes of its guards, before and behind it."""
        return 0 if self.role == "input" else GUARD_BYTES

    def bytes_in(self, memory: Bytes) -> Bytes:
        """Its bytes in those of its file."""
        return memory[self.at : self.at + self.nbytes]

    def whole_in(self, memory: Bytes) -> Bytes:
        """The same with its guards."""
        return memory[self.at - self.guard : self.at + self.nbytes + self.guard]

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
        if self.guard:
            memory[self.at - self.guard : self.at] = _GUARD_FILL
            memory[self.at + self.nbytes : self.at + self.nbytes + self.guard] = _GUARD_FILL
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
    wanted: Sequence[Operand], file: int, wall: Wall = "before", start: int = 0
) -> tuple[tuple[Operand, ...], int]:
    """The operands at their places in a file, from a multiple of a page's size on; and the size that the file needs."""
    placed = []
    for operand in wanted:
        room = _pages(max(1, operand.nbytes + 2 * operand.guard))
        at = start + operand.guard
        if operand.role == "input" and wall == "behind":
            at = start + room - -(-operand.nbytes // ALIGNMENT) * ALIGNMENT
        placed.append(replace(operand, file=file, at=at))
        start += room
    return tuple(placed), start


_numbers = itertools.count(1)


class MemoryFile:
    """Memory of this process that another one may map. Its size is sealed. Raises EnvironmentFault."""

    def __init__(self, nbytes: int) -> None:
        self.number, self.nbytes, self.handle = next(_numbers), max(1, nbytes), -1
        try:
            self.handle = os.memfd_create("gguf-verify", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(self.handle, self.nbytes)
                # else the other side could make reading it a fatal signal
                fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
                self.bytes = np.frombuffer(mmap.mmap(self.handle, self.nbytes), np.uint8)
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
    """An operand in the process that maps it.

    Args:
        handle: the file's descriptor.
        memory: the bytes of the file.
    """

    def __init__(self, operand: Operand, handle: int, memory: Bytes) -> None:
        self.operand, self._handle, self._memory = operand, handle, memory

    @property
    def array(self) -> npt.NDArray[Any]:
        return self.operand.array_in(self._memory)

    @property
    def bytes(self) -> Bytes:
        return self.operand.bytes_in(self._memory)

    def whole(self, between_walls: bool) -> Bytes:
        """Its bytes with its guards; `between_walls`: mapped once more, between pages that cannot be accessed. Raises
        EnvironmentFault."""
        whole = self.operand.whole_in(self._memory)
        if not between_walls:
            return whole
        return mapped_between_walls(self._handle, self.operand.at - self.operand.guard, len(whole))


__all__ = ["POISON_16", "Mapped", "MemoryFile", "Operand", "Role", "Wall", "dtype_of", "laid_out"]
