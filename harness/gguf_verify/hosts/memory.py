"""Memory of launches: fill patterns and, on the CPU host, pages without access rights and reserved addresses."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault

#: A NaN that no arithmetic produces: an output element that still holds it was never written.
POISON = np.uint32(0x7FC0DEAD)
#: The same in half and in bfloat16.
POISON_16 = np.uint16(0x7FAD)
#: Bytes of a guard on each side of an operand.
GUARD_BYTES = 4096
ALIGNMENT = 16
#: The return value of mmap on failure, and a flag that Python does not define (asm-generic/mman-common.h).
_FAILED, _MAP_FIXED = 2**64 - 1, 0x10


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def between_walls(nbytes: int, wall_before: bool = False) -> npt.NDArray[np.uint8]:
    """Return uint8[nbytes], aligned to 16, next to a page without access rights.

    It ends less than 16 bytes before such a page, or begins behind one (`wall_before`). Another one lies on the other
    side, less than a page away. Raises EnvironmentFault.
    """
    room = -(-nbytes // ALIGNMENT) * ALIGNMENT
    inside = max(1, -(-room // mmap.PAGESIZE)) * mmap.PAGESIZE
    return _mapped(inside, 0 if wall_before else inside - room, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def mapped_between_walls(handle: int, at: int, nbytes: int, private: bool = False) -> npt.NDArray[np.uint8]:
    """Map uint8[nbytes] of a memory file, from `at` on, between two pages without access rights.

    The offset in a page is the same as in the file. Writes to a private mapping do not reach the file. Raises
    EnvironmentFault.
    """
    first = at // mmap.PAGESIZE * mmap.PAGESIZE
    inside = max(1, -(-(at + nbytes - first) // mmap.PAGESIZE)) * mmap.PAGESIZE
    return _mapped(inside, at - first, nbytes, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED, handle, first)


def _mapped(inside: int, begin: int, nbytes: int, kind: int, handle: int = -1, first: int = 0) -> npt.NDArray[np.uint8]:
    """Map `inside` bytes between two pages without access rights; return `nbytes` of them from `begin` on.

    Args:
        kind: flags of mmap.
        handle, first: the file, and the place in it.
    """
    libc, page = _libc(), mmap.PAGESIZE
    start = libc.mmap(None, inside + 2 * page, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start in (None, _FAILED):
        raise EnvironmentFault("the memory does not suffice")
    made = libc.mmap(start + page, inside, mmap.PROT_READ | mmap.PROT_WRITE, kind | _MAP_FIXED, handle, first)
    if made != start + page:
        libc.munmap(start, inside + 2 * page)
        raise EnvironmentFault("the memory does not suffice")
    whole: Any = (ctypes.c_uint8 * nbytes).from_address(start + page + begin)
    weakref.finalize(whole, libc.munmap, start, inside + 2 * page)  # arrays over it keep it
    return np.ctypeslib.as_array(whole)


@contextmanager
def addresses(nbytes: int) -> Iterator[int]:
    """Reserve `nbytes` of addresses without access rights, which take no memory; yield the first.

    Raises EnvironmentFault.
    """
    libc = _libc()
    start = libc.mmap(None, nbytes, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if start in (None, _FAILED):
        raise EnvironmentFault(f"this process may not have {nbytes:,} bytes of addresses")
    try:
        yield start
    finally:
        libc.munmap(start, nbytes)
