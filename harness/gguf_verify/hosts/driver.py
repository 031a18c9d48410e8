"""Calls of the CUDA driver by ctypes that CuPy lacks: a launch that may start before the previous one has ended, and
the number of blocks that a multiprocessor holds."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..support.errors import KernelFault
from .base import Grid

_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


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
    """Launch a CUfunction on a stream with NumPy scalars as arguments. It may start while the previous launch runs, and
    itself waits for that one's end (`griddepcontrol.wait`, sm_90 or later). Raises KernelFault if the launch fails."""
    cells = [np.array(a) for a in args]
    pointers = (c.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
    attribute = _Attribute(_STREAM_SERIALIZATION, 0, 1)
    config = _Config((c.c_uint * 3)(*grid), (c.c_uint * 3)(*block), shared, stream, c.pointer(attribute), 1)
    error = _library().cuLaunchKernelEx(c.byref(config), c.c_void_p(function), pointers, None)
    if error:
        raise KernelFault(f"CUDA failed: cuLaunchKernelEx returned {error}")


def resident_blocks(function: int, threads: int, shared: int) -> int:
    """Blocks of a CUfunction that a multiprocessor holds at a time. Raises KernelFault if the driver refuses."""
    count = c.c_int()
    ask = _library().cuOccupancyMaxActiveBlocksPerMultiprocessor
    error = ask(c.byref(count), c.c_void_p(function), c.c_int(threads), c.c_size_t(shared))
    if error:
        raise KernelFault(f"CUDA failed: cuOccupancyMaxActiveBlocksPerMultiprocessor returned {error}")
    return count.value
