"""A GPU as a host, through CuPy: kernels compiled by NVRTC for the card and loaded as a RawModule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import EnvironmentFault, KernelFault
from . import nvrtc
from .base import GUARD_BYTES, Grid, Host, cached_file, poisoned, store, tree_hash


@cache
def gpu_fault() -> str | None:
    """Why no GPU can be used, or None where one can."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (pip install gguf-verify[cuda13], or [cuda12])"
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            return "CUDA sees no device"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CUDA cannot be used: {str(error).splitlines()[0]}"
    return None


class _Output:
    """Device memory with guards around `nbytes`."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory


class CupyHost(Host):
    """Runs kernels on the current CUDA device. Raises EnvironmentFault where there is none."""

    name = "gpu"

    def __init__(self) -> None:
        fault = gpu_fault()
        if fault is not None:
            raise EnvironmentFault(f"the GPU host cannot be used: {fault}")
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self.sm = self._device.compute_capability
        self._functions: dict[tuple[str, ...], Any] = {}

    def describe(self) -> str:
        name = self._cupy.cuda.runtime.getDeviceProperties(self._device.id)["name"].decode()
        driver = self._cupy.cuda.runtime.driverGetVersion()
        major, minor = nvrtc.version()
        return (
            f"gpu: {name} (sm_{self.sm}), CUDA driver {driver // 1000}.{driver % 1000 // 10}, "
            f"NVRTC {major}.{minor}, CuPy {self._cupy.__version__}"
        )

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str]) -> Any:
        key = (
            tree_hash(root),
            file,
            entry,
            self.sm,
            *map(str, nvrtc.version()),
            *(f"{k}={v}" for k, v in defines.items()),
        )
        if key not in self._functions:
            cubin = cached_file(key, ".cubin")
            if not cubin.exists():
                store(cubin, nvrtc.compile_cubin(root, file, self.sm, defines))
            self._functions[key] = self._cupy.RawModule(path=str(cubin)).get_function(entry)
        return self._functions[key]

    def upload(self, array: npt.NDArray[Any]) -> Any:
        return self._cupy.asarray(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def output(self, nbytes: int) -> _Output:
        return _Output(self._cupy.asarray(poisoned(nbytes)))

    def launch(self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any]) -> None:
        values = [a.memory[GUARD_BYTES:] if isinstance(a, _Output) else a for a in args]
        try:
            kernel(grid, block, tuple(values))
            self._device.synchronize()
        except self._cupy.cuda.driver.CUDADriverError as error:
            raise KernelFault(f"the launch failed: {error}") from None
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise KernelFault(f"the launch failed: {error}") from None

    def _read(self, output: _Output) -> npt.NDArray[np.uint8]:
        return np.asarray(self._cupy.asnumpy(output.memory))
