"""The CPU as a host: the C++ compiler compiles CUDA C++ against `kernels/emulator/cuda_on_cpu.hpp`."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..results import HostInfo
from ..support.errors import KernelFault
from .base import GUARD_BYTES, Grid, Host, HostKind, poisoned
from .compiler import compiler, compiler_version, cpu_name, shared_library

#: How a launch ended, `cuda_on_cpu::Outcome`.
_STUCK, _OUTSIDE_SHARED = 1, 2


class _Buffer:
    """Bytes at an address; `offset` skips an output's leading guard."""

    def __init__(self, array: npt.NDArray[np.uint8], offset: int = 0) -> None:
        self.array = array
        self.offset = offset

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data) + self.offset


def _aligned(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A copy at an address that is a multiple of 16. A part of a mapped file may begin anywhere."""
    room = np.empty(array.size + 15, np.uint8)
    at = -room.ctypes.data % 16
    room[at : at + array.size] = array
    return room[at : at + array.size]


class CpuHost(Host):
    """Runs kernels on `threads` cores.

    Args:
        threads: operating-system threads of a launch; 0 takes every core that this process may use.
        flags: further flags of the compiler, such as a sanitizer's.
    """

    name = "cpu"

    def __init__(self, threads: int = 0, flags: Sequence[str] = ()) -> None:
        self.threads: int = threads or len(os.sched_getaffinity(0))
        self._flags = tuple(flags)
        self._functions: dict[tuple[Path, tuple[str, ...]], Any] = {}

    def info(self) -> HostInfo:
        return HostInfo(
            name=self.name, device=cpu_name(), threads=self.threads, compiler=compiler_version(), chosen=self.chosen
        )

    def check(self) -> None:
        compiler()

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        options = [f"-D{k}={v}" for k, v in defines.items()]
        key = (file, entry, *options)
        if (root, key) not in self._functions:
            unit = f'#include "{file}"\nCPU_KERNEL({entry})\n'
            function = getattr(shared_library(root, unit, (*self._flags, *options)), f"{entry}_launch")
            function.restype = ctypes.c_int
            self._functions[root, key] = function
        return self._functions[root, key]

    def upload(self, array: npt.NDArray[Any]) -> _Buffer:
        buffer = _Buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return buffer if buffer.address % 16 == 0 else _Buffer(_aligned(buffer.array))

    def contents(self, buffer: _Buffer) -> npt.NDArray[np.uint8]:
        return buffer.array

    def output(self, nbytes: int) -> _Buffer:
        return _Buffer(poisoned(nbytes), GUARD_BYTES)

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        values = [np.uint64(a.address) if isinstance(a, _Buffer) else a for a in args]
        cells = [np.array(v) for v in values]
        pointers = (ctypes.c_void_p * len(cells))(*(c.ctypes.data for c in cells))
        three = ctypes.c_uint * 3
        outcome = kernel(three(*grid), three(*block), pointers, shared, self.threads)
        if outcome == _STUCK:
            raise KernelFault("threads of a block wait at a barrier that the others never reach")
        if outcome == _OUTSIDE_SHARED:
            self._outside_shared(f"the kernel wrote outside its {shared} bytes of dynamic shared memory")

    def _outside_shared(self, said: str) -> None:
        raise KernelFault(said)

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        return 3  # few, so that blocks go on to further work, as on a card

    def _read(self, output: _Buffer) -> npt.NDArray[np.uint8]:
        return output.array


CPU = HostKind("cpu", "the CPU, which emulates a card", 0, CpuHost, lambda: None, emulated=True)
