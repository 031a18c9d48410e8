"""CUDA driver calls by ctypes that CuPy lacks.

They are a launch that may start before the previous one has ended, the number of blocks on a multiprocessor, and memory
between pages without access rights.
"""

from __future__ import annotations

import ctypes as c
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..support.errors import EnvironmentFault, KernelFault
from .base import Grid

_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_CLUSTER_WIDTH = 11  # CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
_CLUSTER_POLICY, _BALANCED = 15, 2  # CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE, …_LOAD_BALANCING


class _Attribute(c.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes at a multiple of 8."""

    _fields_ = [("id", c.c_int), ("pad", c.c_int), ("value", c.c_int), ("rest", c.c_char * 60)]


class _Config(c.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", c.c_uint * 3), ("block", c.c_uint * 3), ("shared", c.c_uint), ("stream", c.c_void_p),
        ("attributes", c.POINTER(_Attribute)), ("count", c.c_uint),
    ]  # fmt: skip


@cache
def _library() -> c.CDLL:
    return c.CDLL("libcuda.so.1")


def start_overlapping(function: int, grid: Grid, block: Grid, args: Sequence[Any], shared: int, stream: int) -> None:
    """Launch a CUfunction on a stream with NumPy scalars as arguments.

    It may start while the previous launch runs, and waits for that one's end itself (`griddepcontrol.wait`, sm_90 or
    later). Raises KernelFault if the launch fails.
    """
    cells = [np.array(a) for a in args]
    pointers = (c.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
    attribute = _Attribute(_STREAM_SERIALIZATION, 0, 1)
    config = _Config((c.c_uint * 3)(*grid), (c.c_uint * 3)(*block), shared, stream, c.pointer(attribute), 1)
    _ask("cuLaunchKernelEx", c.byref(config), c.c_void_p(function), pointers, None)


def resident_blocks(function: int, threads: int, shared: int, processors: int) -> int:
    """Return the blocks of a CUfunction that a GPU with this many multiprocessors holds at a time.

    With clusters it counts whole ones, and has them balanced: blocks of one cluster that share a multiprocessor are
    slower (one H100, N = 14336, K = 4096: eight tokens of Q4_1 17.0 instead of 19.2 µs, four of Q4_K 16.5 instead of
    17.4). Raises KernelFault if the driver refuses.
    """
    count, width = c.c_int(), c.c_int()
    _ask("cuFuncGetAttribute", c.byref(width), c.c_int(_CLUSTER_WIDTH), c.c_void_p(function))
    if width.value > 1:
        _ask("cuFuncSetAttribute", c.c_void_p(function), c.c_int(_CLUSTER_POLICY), c.c_int(_BALANCED))
        config = _Config((c.c_uint * 3)(width.value, 1, 1), (c.c_uint * 3)(threads, 1, 1), shared, None, None, 0)
        _ask("cuOccupancyMaxActiveClusters", c.byref(count), c.c_void_p(function), c.byref(config))
        return max(1, count.value) * width.value
    _ask(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
        c.byref(count),
        c.c_void_p(function),
        c.c_int(threads),
        c.c_size_t(shared),
    )
    return max(1, count.value) * processors


def _ask(name: str, *arguments: Any) -> None:
    if error := getattr(_library(), name)(*arguments):
        raise KernelFault(f"CUDA failed: {name} returned {error}")


class _Location(c.Structure):
    """CUmemLocation."""

    _fields_ = [("type", c.c_int), ("id", c.c_int)]


class _Properties(c.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", c.c_int), ("handles", c.c_int), ("location", _Location), ("win32", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    ]  # fmt: skip


class _Access(c.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", _Location), ("flags", c.c_int)]


_ON_DEVICE, _PINNED, _READ_WRITE = 1, 1, 3
_ALIGNMENT = 16


class Walled:
    """Device memory of `nbytes` at `address`, aligned to 16, next to an unmapped page.

    It ends less than 16 bytes before such a page, or begins behind one (`wall_before`); another one lies on the other
    side. An access to them ends the launch with an illegal address. Raises EnvironmentFault.
    """

    def __init__(self, nbytes: int, device: int, wall_before: bool) -> None:
        where = _Properties(_PINNED, 0, _Location(_ON_DEVICE, device))
        page = c.c_size_t()
        _call("cuMemGetAllocationGranularity", c.byref(page), c.byref(where), c.c_int(0))
        wall, room = page.value, -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        inside = max(1, -(-room // wall)) * wall
        start, handle = c.c_uint64(), c.c_uint64()
        _call(
            "cuMemAddressReserve",
            c.byref(start),
            c.c_size_t(inside + 2 * wall),
            c.c_size_t(0),
            c.c_uint64(0),
            c.c_uint64(0),
        )
        begin = c.c_uint64(start.value + wall)
        _call("cuMemCreate", c.byref(handle), c.c_size_t(inside), c.byref(where), c.c_uint64(0))
        _call("cuMemMap", begin, c.c_size_t(inside), c.c_size_t(0), handle, c.c_uint64(0))
        access = _Access(where.location, _READ_WRITE)
        _call("cuMemSetAccess", begin, c.c_size_t(inside), c.byref(access), c.c_size_t(1))
        self.address = begin.value if wall_before else begin.value + inside - room
        weakref.finalize(self, _unmap, start.value, begin.value, inside, inside + 2 * wall, handle.value)


def _unmap(start: int, begin: int, inside: int, whole: int, handle: int) -> None:
    library = _library()
    library.cuMemUnmap(c.c_uint64(begin), c.c_size_t(inside))
    library.cuMemRelease(c.c_uint64(handle))
    library.cuMemAddressFree(c.c_uint64(start), c.c_size_t(whole))


def _call(name: str, *arguments: Any) -> None:
    if error := getattr(_library(), name)(*arguments):
        raise EnvironmentFault(f"CUDA cannot place memory between walls: {name} returned {error}")
