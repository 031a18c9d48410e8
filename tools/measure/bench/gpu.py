"""A GPU with queued launches, and timing of launches in a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.hosts.base import Source
from gguf_verify.hosts.cupy_host import CupyHost
from gguf_verify.support.paths import kernel_root

#: Bytes of weights that no GPU's second-level cache holds: that of an H200 has 50 MB.
ROTATED_BYTES = 160_000_000
#: Warm-up before the timed graphs: minimum number of graphs, and minimum time in µs.
WARM_UP, WARM_UP_US = 2, 20_000.0
_EMPTY_LAUNCHES, _FEW = 100, 64
#: CUDA's number of the attribute, in kHz.
_CLOCK_RATE = 13


class Queue(CupyHost):
    """A GPU whose launches are queued in a stream and not awaited; outputs have neither guards nor poison."""

    def upload(self, array: Any, what: str = "input") -> Any:
        return array if isinstance(array, self._cupy.ndarray) else super().upload(array)

    def output(self, nbytes: int, what: str = "output") -> Any:
        return self._cupy.empty(nbytes, np.uint8)

    def launch(
        self, kernel: Any, grid: Any, block: Any, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        if shared:
            kernel.max_dynamic_shared_size_bytes = shared
        self._start(kernel, grid, block, args, shared, overlaps)

    def download(self, output: Any) -> npt.NDArray[np.uint8]:
        return np.asarray(self._cupy.asnumpy(output))

    def side_by_side(self, output: Any, rows: npt.NDArray[np.uint8]) -> tuple[Any, Any]:
        return output, self.upload(rows)

    def await_compilers(self) -> None:
        """Wait for the compilations of `compile_ahead`: other threads would delay the launches that are measured."""
        self._ahead.finish()

    def faults(self) -> AbstractContextManager[None]:
        """Convert CUDA errors to KernelFault, and out-of-memory errors to EnvironmentFault."""
        return self._faults()

    def code(self, source: Source) -> bytes:
        """Return the compiled code of a source, with all of its kernels. Raises EnvironmentFault."""
        return self._cubin(source.root, source.file, source.target or self.sm, source.defines, False)

    @property
    def cupy(self) -> Any:
        """Return the CuPy module."""
        return self._cupy

    @property
    def clock_ghz(self) -> float:
        """Return the GPU's highest clock."""
        return float(self._cupy.cuda.runtime.deviceGetAttribute(_CLOCK_RATE, self._device.id)) / 1e6

    @property
    def multiprocessors(self) -> int:
        return int(self._device.attributes["MultiProcessorCount"])


def copies_of(nbytes: int) -> int:
    """Return the number of copies of a matrix that are multiplied in turn, so that no cache holds them."""
    return max(2, -(-ROTATED_BYTES // nbytes))


def rounds_of(m: int) -> int:
    """Return the number of products per copy in a graph: more for few tokens, so the graph's own launch is
    negligible."""
    return 4 if m <= _FEW else 1


def median_us(work: Callable[[], object], products: int, repeat: int, cupy: Any) -> float:
    """Return the median time of one product, from events before and after all of them, after the GPU has warmed up."""
    stream = cupy.cuda.get_current_stream()

    def once() -> float:
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        work()
        stop.record(stream)
        stop.synchronize()
        return 1e3 * float(cupy.cuda.get_elapsed_time(start, stop))

    warm, graphs = 0.0, 0
    while graphs < WARM_UP or warm < WARM_UP_US:
        warm, graphs = warm + once(), graphs + 1
    return statistics.median(once() / products for _ in range(repeat))


def graph_us(works: Sequence[Callable[[], object]], repeat: int, cupy: Any) -> float:
    """Return the microseconds per work in a CUDA graph of all of them. Each runs once before, so nothing is compiled or
    allocated in the graph."""
    stream, graph = _captured(works, cupy)
    with stream:
        return median_us(lambda: graph.launch(stream), len(works), repeat, cupy)


def few_us(works: Sequence[Callable[[], object]], cupy: Any) -> float:
    """Return an estimate of the microseconds per work, from the second launch of a graph of all of them."""
    stream, graph = _captured(works, cupy)
    with stream:
        return once_us(lambda: graph.launch(stream), cupy) / len(works)


def _captured(works: Sequence[Callable[[], object]], cupy: Any) -> tuple[Any, Any]:
    """Return a stream, and a graph of these works."""
    cupy.cuda.Device().synchronize()  # they were prepared in another stream
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for work in works:
            work()
        stream.synchronize()
        stream.begin_capture()
        for work in works:
            work()
        return stream, stream.end_capture()


def once_us(work: Callable[[], object], cupy: Any) -> float:
    """Return the microseconds of the second launch of one work by itself."""
    work()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return 1e3 * float(cupy.cuda.get_elapsed_time(start, stop))


def copy_tbs(cupy: Any, repeat: int) -> float:
    """Return the rate at which a device copy reads and writes, in TB/s."""
    a, b = cupy.empty(1 << 30, np.uint8), cupy.empty(1 << 30, np.uint8)
    return 2 * (1 << 30) / median_us(lambda: cupy.copyto(b, a), 1, repeat, cupy) / 1e6


def empty_us(queue: Queue, repeat: int) -> float:
    """Return the microseconds of an empty kernel in a graph of many that overlap as products do: the least time of a
    product."""
    empty = queue.load(kernel_root(), "probes/empty.cu", "empty", {}, queue.sm)
    works = [lambda: queue.launch(empty, (1, 1, 1), (32, 1, 1), [], overlaps=True)] * _EMPTY_LAUNCHES
    return graph_us(works, repeat, queue.cupy)
