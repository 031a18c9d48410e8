"""The CPU as a host: CUDA C++ compiled by the C++ compiler over `kernels/host/cuda_on_cpu.hpp`."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EnvironmentFault, KernelFault
from .base import GUARD_BYTES, Grid, Host, cached_file, poisoned, store, tree_hash

# -ffp-contract=off: a fused multiply-add happens only where the kernel asks for one.
# -fno-strict-aliasing: kernels read packed bytes as words, as nvcc lets them.
# -O2 -ftree-vectorize beats -O3 here, which unrolls the short loops over a block before it could vectorize them.
_FLAGS = [
    "-std=c++17", "-O2", "-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fPIC", "-shared", "-pthread",
]  # fmt: skip


class _Buffer:
    """Bytes at an address; `offset` skips an output's leading guard."""

    def __init__(self, array: npt.NDArray[np.uint8], offset: int = 0) -> None:
        self.array = array
        self.offset = offset

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data) + self.offset


class CpuHost(Host):
    """Runs kernels on `threads` cores.

    Args:
        threads: operating-system threads a launch; 0 takes every core this process may use.
        flags: further compiler flags, such as a sanitizer's.
    """

    name = "cpu"

    def __init__(self, threads: int = 0, flags: Sequence[str] = ()) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._flags = [*_FLAGS, *flags]
        self._functions: dict[tuple[str, ...], Any] = {}

    @cached_property
    def compiler(self) -> str:
        """$CXX, or the first of c++, g++, clang++. Raises EnvironmentFault where there is none."""
        candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
        for name in candidates:
            if path := shutil.which(name):
                return path
        raise EnvironmentFault(f"no C++ compiler found (looked for {', '.join(candidates)}): the CPU host needs one")

    @cached_property
    def _compiler_version(self) -> str:
        done = subprocess.run([self.compiler, "--version"], capture_output=True, text=True, check=False)
        return (done.stdout.splitlines() or [self.compiler])[0]

    def describe(self) -> str:
        return f"cpu: {_cpu_name()}, {self.threads} threads, {self._compiler_version}"

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str]) -> Any:
        options = [f"-D{k}={v}" for k, v in defines.items()]
        key = (tree_hash(root), file, entry, *self._flags, *options, self._compiler_version, _cpu_name())
        if key not in self._functions:
            library = cached_file(key, ".so")
            if not library.exists():
                self._compile(root, file, entry, options, library)
            try:
                loaded = ctypes.CDLL(str(library))
            except OSError:  # a damaged cache entry: build it again, once
                self._compile(root, file, entry, options, library)
                try:
                    loaded = ctypes.CDLL(str(library))
                except OSError as error:
                    raise EnvironmentFault(f"a compiled kernel cannot be loaded: {error}") from None
            function = getattr(loaded, f"{entry}_launch")
            function.restype = ctypes.c_int
            self._functions[key] = function
        return self._functions[key]

    def _compile(self, root: Path, file: str, entry: str, options: list[str], library: Path) -> None:
        with tempfile.TemporaryDirectory(prefix="gguf-verify-") as folder:
            unit = Path(folder) / "unit.cpp"
            unit.write_text(f'#include "{file}"\nCPU_KERNEL({entry})\n')
            built = Path(folder) / "unit.so"
            command = [self.compiler, *self._flags, f"-I{root}", *options, str(unit), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
                raise EnvironmentFault(f"{self.compiler} could not compile {file}: {errors[0] if errors else '?'}")
            store(library, built.read_bytes())

    def upload(self, array: npt.NDArray[Any]) -> _Buffer:
        return _Buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def output(self, nbytes: int) -> _Buffer:
        return _Buffer(poisoned(nbytes), GUARD_BYTES)

    def launch(self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any]) -> None:
        values = [np.uint64(a.address) if isinstance(a, _Buffer) else a for a in args]
        cells = [np.array(v) for v in values]
        pointers = (ctypes.c_void_p * len(cells))(*(c.ctypes.data for c in cells))
        three = ctypes.c_uint * 3
        if kernel(three(*grid), three(*block), pointers, self.threads):
            raise KernelFault("threads of a block wait at a barrier that the others never reach")

    def _read(self, output: _Buffer) -> npt.NDArray[np.uint8]:
        return output.array


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        named = {k.strip(): v.strip() for k, v in fields.items()}
        return f"{named.get('model name', platform.machine())} ({platform.machine()})"
    except OSError:
        return platform.processor() or platform.machine()
