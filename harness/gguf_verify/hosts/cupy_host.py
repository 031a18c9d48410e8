"""An NVIDIA GPU as a host, through CuPy: NVRTC compiles kernels for it, CuPy loads them as a RawModule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..results.environment import HostInfo
from ..support.arrays import Library, register
from ..support.cache import kept, taken
from ..support.errors import EnvironmentFault, KernelFault
from ..support.sealed import sealed_path
from . import compute_sanitizer, nvrtc
from .ahead import Ahead
from .author_cubin import author_cubin
from .base import Artefact, Grid, Host, Placed, Source, check_guards, poisoned
from .compilation import Compilation, ForeignUnit
from .compute_sanitizer import UNCHECKED
from .cupy_rounding import CupyRounding
from .driver import Walled, resident_blocks, start_overlapping
from .kept import Kept
from .kinds import gpu
from .memory import GUARD_BYTES
from .sanitized_host import SanitizedHost
from .schedule import Schedule
from .staging import PIECE, Staging

#: The kernel that fills shared memory; tools exclude it.
_FILLER = Path(__file__).with_name("fill_shared.cu")
#: Blocks per multiprocessor, and their threads, that fill its shared memory: more blocks than it holds at a time.
_FILLERS, _THREADS = 8, 256
#: Bytes of weights from which packed weights are compared with them on the GPU.
_ON_CARD = 1 << 17
#: The fraction of the GPU's free memory for file contents that are cached there from one upload to the next.
_ORIGINALS = 0.05
#: Bytes of the GPU's memory for another process: the context, some tensors, and their float64 values.
_PROCESS = 8 << 30
#: Bytes of NaN behind a buffer that does not begin at an allocation's start.
_BEHIND = 4096
#: Bytes of poison that are kept on the GPU, whole words.
_POISON = 1 << 20
#: Most attempts to compile sources that change meanwhile.
_MOST_TRIES = 3


def room(cupy: Any) -> int:
    """Return the free bytes of the GPU's memory, or CuPy's limit for this process if that is less."""
    free, limit = int(cupy.cuda.runtime.memGetInfo()[0]), int(cupy.get_default_memory_pool().get_limit())
    return min(free, limit) if limit else free


class _Output:
    """Device memory with a guard of `guard` bytes before and behind it."""

    def __init__(self, memory: Any, guard: int = 0) -> None:
        self.memory, self.guard = memory, guard


class CupyHost(Host):
    """Runs kernels on the current CUDA device. Raises EnvironmentFault if there is none."""

    name = "gpu"
    compiles_ahead = True

    def __init__(self) -> None:
        fault = gpu.gpu_fault()
        if fault is not None:
            raise EnvironmentFault(f"the GPU host cannot be used: {fault}", "host-not-usable")
        import cupy

        self._cupy = cupy
        self._device = cupy.cuda.Device()
        self._staging = Staging(cupy, self._device)
        self._originals = Kept(int(room(cupy) * _ORIGINALS))
        register(cupy.ndarray, Library(cupy, CupyRounding(self)))
        self.sm: str = self._device.compute_capability
        self._functions: dict[tuple[str, ...], Any] = {}
        self._ahead = Ahead(lambda of: self._cubin(of.root, of.file, of.target or self.sm, of.defines, False))
        self._modules: dict[str, Any] = {}
        self._poison: Any = None
        #: The kernel of `_FILLER`, if it was passed compiled.
        self._filler: Any = None

    def info(self) -> HostInfo:
        name = self._cupy.cuda.runtime.getDeviceProperties(self._device.id)["name"].decode()
        driver = self._cupy.cuda.runtime.driverGetVersion()
        major, minor = nvrtc.version()
        return HostInfo(
            name=self.name,
            device=name,
            sm=self.sm,
            driver=f"{driver // 1000}.{driver % 1000 // 10}",
            nvrtc=f"{major}.{minor}",
            cupy=self._cupy.__version__,
            chosen=self.chosen,
        )

    def processes_beside(self) -> int:
        return room(self._cupy) // _PROCESS

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        target = target or self.sm
        held = (str(root), file, entry, target, self.placement, *(f"{k}={v}" for k, v in defines.items()))
        if held not in self._functions:
            cubin = self._ahead.taken(Source(root, file, entry, defines, target)) if self.placement == "pool" else None
            if cubin is None:
                cubin = self._cubin(root, file, target, defines, self.placement != "pool")
            self._functions[held] = self._function(cubin, entry)
        return self._functions[held]

    def _function(self, cubin: bytes, entry: str) -> Any:
        digest = hashlib.sha256(cubin).hexdigest()
        with self._faults(), sealed_path(cubin) as path:
            module = self._modules.setdefault(digest, self._cupy.RawModule(path=path))
            function = module.get_function(entry)
            function.kernel  # noqa: B018 - CuPy only reads a module's file when its first kernel is used
            return function

    def compile_ahead(self, sources: Iterable[Source]) -> None:
        self._ahead.begin(replace(source, target=source.target or self.sm) for source in sources)

    def close(self) -> None:
        self._ahead.close()

    def build_all(self, unit: ForeignUnit, schedule: Schedule | None = None) -> tuple[dict[str, Artefact], Compilation]:
        cubin, names, compilation = author_cubin(unit, self.sm, schedule is not None)
        parts = {"code": cubin}
        if schedule is not None:
            parts["filler"] = self._cubin(_FILLER.parent, _FILLER.name, self.sm, {}, True)
        return {entry: Artefact(names[entry], parts) for entry in unit.entries}, compilation

    def load_placed(self, placed: Placed) -> Any:
        if "filler" in placed.parts:
            self._filler = self._function(Path(placed.parts["filler"]).read_bytes(), UNCHECKED)
        return self._function(Path(placed.parts["code"]).read_bytes(), placed.entry)

    def _cubin(self, root: Path, file: str, target: str, defines: dict[str, str], lines: bool) -> bytes:
        """Compile every entry of a file. Raises EnvironmentFault."""
        for _ in range(_MOST_TRIES):
            key = nvrtc.cubin_key(root, file, target, defines, lines)
            if key is not None and (cubin := taken(key, ".cubin")) is not None:
                return cubin
            made = nvrtc.compile_cubin(root, file, target, defines, lines)
            if key is None:  # the files that it read are not known: it cannot be cached
                return made
            if nvrtc.cubin_key(root, file, target, defines, lines) == key:
                return kept(key, ".cubin", made)
        raise EnvironmentFault("the sources of a kernel changed during compilation")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Convert CUDA's errors. After an illegal address, every call fails."""
        cuda = self._cupy.cuda
        try:
            yield
        except (cuda.driver.CUDADriverError, cuda.runtime.CUDARuntimeError) as error:
            raise KernelFault(f"CUDA failed: {str(error).splitlines()[0]}") from None
        except cuda.memory.OutOfMemoryError as error:
            raise EnvironmentFault(f"the GPU's memory does not suffice: {str(error).splitlines()[0]}") from None

    def offers(self, schedule: Schedule) -> bool:
        """Return whether the schedule is checked: a GPU chooses the order of threads itself."""
        return schedule.checked and self.check_fault() is None

    def scheduled(self, schedule: Schedule) -> Host:
        return SanitizedHost(self)

    def check_fault(self) -> str | None:
        return compute_sanitizer.fault()

    def blind_to(self) -> str | None:
        return compute_sanitizer.blind_to()

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Any:
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        original = self._original(raw)
        if original is None:
            return self._placed(raw)
        with self._faults():
            memory = self._empty(raw.nbytes)
            memory[...] = original
            return memory

    def _original(self, raw: npt.NDArray[np.uint8]) -> Any:
        """Return a copy on the GPU of a file's bytes, which no kernel gets; None if none is cached."""
        if self.placement != "pool" or raw.flags.writeable or raw.nbytes < 2 * PIECE:
            return None
        return self._originals.of("bytes", raw, raw.nbytes, lambda: self._placed(raw))

    def placed(self, values: npt.NDArray[Any]) -> Any:
        """Return a CuPy array with these values, among CuPy's others. Raises CUDA's errors."""
        if values.nbytes < 2 * PIECE:
            return self._cupy.asarray(values)
        there = self._cupy.empty(values.shape, values.dtype)
        self._staging.copy(np.ascontiguousarray(values).reshape(-1).view(np.uint8), there)
        return there

    def _placed(self, raw: npt.NDArray[np.uint8]) -> Any:
        with self._faults():
            memory = self._empty(raw.nbytes)
            self._staging.copy(raw, memory)
            return memory

    def _empty(self, nbytes: int) -> Any:
        """Return uint8[nbytes] on the GPU, placed according to `placement`."""
        cuda = self._cupy.cuda
        if self.placement == "pool":
            if not self.begins:
                return self._cupy.empty(nbytes, np.uint8)
            begins, ends = self.begins, self.begins + nbytes
            whole = self._cupy.empty(ends + _BEHIND, np.uint8)
            whole[:begins] = whole[ends:] = 0xFF  # NaN in every type
            return whole[begins:ends]
        if self.placement == "alone":
            memory: Any = cuda.memory.Memory(max(1, nbytes))
            at = memory.ptr
        else:
            cuda.runtime.free(0)  # initializes CUDA, which the driver calls need: only runtime calls do that
            memory = Walled(nbytes, self._device.id, self.placement == "before")
            at = memory.address
            memory = cuda.memory.UnownedMemory(at, nbytes, memory)
        pointer = cuda.memory.MemoryPointer(memory, 0)
        return self._cupy.ndarray(nbytes, np.uint8, pointer)

    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        with self._faults():
            return np.asarray(self._cupy.asnumpy(buffer))

    def output(self, nbytes: int, what: str = "output") -> _Output:
        if self.placement == "pool":
            with self._faults():
                return _Output(self._poisoned(nbytes), GUARD_BYTES)
        if self.placement == "alone" and self.fill is None:  # memory that is never written, for initcheck
            with self._faults():
                return _Output(self._empty(nbytes))
        return _Output(self._placed(poisoned(nbytes, self.fill)[GUARD_BYTES:-GUARD_BYTES]))

    def _poisoned(self, nbytes: int) -> Any:
        """Return `poisoned` on the GPU, copied from a part of it that lies there."""
        if self._poison is None:
            self._poison = self._cupy.asarray(poisoned(_POISON + 3))
        memory, part = self._empty(nbytes + 2 * GUARD_BYTES), self._poison.data
        words = nbytes // 4 * 4
        first = min(words, _POISON)
        memory.data.copy_from_device_async(part, GUARD_BYTES + first)
        for at in range(first, words, _POISON):
            size = min(_POISON, words - at)
            (memory.data + (GUARD_BYTES + at)).copy_from_device_async(part + GUARD_BYTES, size)
        behind = nbytes - words + GUARD_BYTES
        (memory.data + (GUARD_BYTES + words)).copy_from_device_async(part + (self._poison.size - behind), behind)
        return memory

    def begin(self, output: _Output, content: npt.NDArray[np.uint8]) -> None:
        with self._faults():
            output.memory[output.guard : output.guard + len(content)].set(content)

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        values = [a.memory[a.guard :] if isinstance(a, _Output) else a for a in args]
        with self._faults():
            if self.shared_fill is not None:
                self._fill_shared(self.shared_fill, kernel.shared_size_bytes + shared)
            if shared:
                kernel.max_dynamic_shared_size_bytes = shared
            self._start(kernel, grid, block, values, shared, overlaps)
            self._device.synchronize()

    def _fill_shared(self, byte: int, own: int) -> None:
        """Fill the shared memory of the next launch: a block's maximum, then the size of a block of that launch.

        For that size the GPU may partition its memory differently.
        """
        filler = self._filler or self.load(_FILLER.parent, _FILLER.name, UNCHECKED, {})
        attributes = self._device.attributes
        most: int = attributes["MaxSharedMemoryPerBlockOptin"]
        filler.max_dynamic_shared_size_bytes = most
        for size in filter(None, (most, min(own, most))):
            blocks = (_FILLERS * attributes["MultiProcessorCount"], 1, 1)
            given = np.uint32(byte * 0x01010101), np.uint32(size // 4)
            filler(blocks, (_THREADS, 1, 1), given, shared_mem=size)

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        with self._faults():
            if shared:
                kernel.max_dynamic_shared_size_bytes = shared
            processors: int = self._device.attributes["MultiProcessorCount"]
            return resident_blocks(kernel.kernel.ptr, threads, shared, processors)

    def _start(self, kernel: Any, grid: Grid, block: Grid, values: Sequence[Any], shared: int, overlaps: bool) -> None:
        if overlaps and int(self.sm) >= 90:
            addresses = [np.uint64(v.data.ptr) if isinstance(v, self._cupy.ndarray) else v for v in values]
            stream = self._cupy.cuda.get_current_stream().ptr
            start_overlapping(kernel.kernel.ptr, grid, block, addresses, shared, stream)
        else:
            kernel(grid, block, tuple(values), shared_mem=shared)

    def side_by_side(self, output: _Output, rows: npt.NDArray[np.uint8]) -> tuple[Any, Any]:
        if not output.guard or rows.nbytes < _ON_CARD:
            return super().side_by_side(output, rows)
        with self._faults():
            guards = output.memory[: output.guard], output.memory[-output.guard :]
            before, after = (self._cupy.asnumpy(part) for part in guards)
        check_guards(before, after)
        raw = np.ascontiguousarray(rows).reshape(-1)
        original = self._original(raw)
        return output.memory[output.guard : -output.guard], self._placed(raw) if original is None else original

    def download(self, output: _Output) -> npt.NDArray[np.uint8]:
        return super().download(output) if output.guard else self._read(output)

    def _read(self, output: _Output) -> npt.NDArray[np.uint8]:
        with self._faults():
            return np.asarray(self._cupy.asnumpy(output.memory))
