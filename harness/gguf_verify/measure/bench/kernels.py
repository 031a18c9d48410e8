"""What the kernels cost on a GPU, compared in one run with llama.cpp's CUDA backend, cuBLAS and the GPU's limits.

Before a kernel is timed, it must give the bits of the naive kernel for some rows of W, on the activations that are
timed (a kernel with another order of summation: the bits of the exact product in that order). Every product is then one
of many in a CUDA graph: it quantizes the activations, rearranges them if the kernel needs that, and multiplies them by
the next of several copies of the weights, which together are larger than the second-level cache. Where a kernel's
launches may overlap, they do: it loads its weights while the product before ends. A figure is the median over --repeat
graphs, divided by the number of products.

llama.cpp is timed where the installed llama-cpp-python has the CUDA backend: `ggml_mul_mat` of the same weights, in
graphs of as many nodes; it quantizes the activations too. cuBLAS is timed where PyTorch is installed. For the name of a
family (`q8_1`), the kernel that is chosen for each shape is timed, and a line says where another measured kernel is
faster.

--readme writes the tables between the markers of a Markdown file, and --plot draws a roofline (SVG or PNG; it needs
matplotlib). Both also take the JSON of earlier runs (--from), without a GPU.
"""

from __future__ import annotations

import argparse
import ctypes as c
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats import FORMATS, BlockFormat
from ...hosts.cupy_host import CupyHost
from ...kernels import FAMILIES, KERNELS, Weights, find_kernel, on_host
from ...kernels.packed import LEGACY
from ...kernels.shipped import ShippedKernel
from ...semantics import ASCENDING, SEMANTICS, product
from ...support.errors import KernelFault
from ...support.paths import kernel_root
from .. import markdown
from . import figures

#: Bytes of weights that no GPU's second-level cache holds.
ROTATED_BYTES = 240_000_000
#: Rows that are checked: tiles of the largest kernel, and a part of one.
CHECKED_ROWS = 300
#: Tokens that are checked where a kernel has another order, since NumPy computes the exact product slowly.
CHECKED_TOKENS = 20
#: Graphs that are run before those that are timed.
_WARM_UP = 3
_EMPTY_LAUNCHES = 100


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


def random_rows(rng: np.random.Generator, fmt: BlockFormat, n: int, k: int) -> npt.NDArray[np.uint8]:
    """Random codes under scales of the usual size, uint8[n, row bytes]."""
    rows = rng.integers(0, 256, (n, k // fmt.block_size, fmt.block_bytes), np.uint8)
    structs = fmt.view(rows)
    for name in ("d", "m"):
        if name in (structs.dtype.names or ()):
            structs[name] = rng.normal(0, 0.01, structs.shape)
    return rows.reshape(n, -1)


def median_us(work: Callable[[], object], products: int, repeat: int, cupy: Any) -> float:
    """The median time of one product, from events before and after all of them."""
    stream = cupy.cuda.get_current_stream()
    times = []
    for i in range(repeat + _WARM_UP):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        work()
        stop.record(stream)
        stop.synchronize()
        if i >= _WARM_UP:
            times.append(1e3 * float(cupy.cuda.get_elapsed_time(start, stop)) / products)
    return statistics.median(times)


class Ours:
    """The shipped kernels on one weight matrix, in several copies."""

    def __init__(self, queue: Queue, fmt: BlockFormat, rows: npt.NDArray[np.uint8]) -> None:
        self.queue, self.fmt, self.rows = queue, fmt, rows
        self.cupy = queue._cupy
        self.k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        self.copies = max(2, -(-ROTATED_BYTES // rows.nbytes))
        self._kept: dict[str, list[Weights]] = {}

    def weights(self, kernel: ShippedKernel) -> list[Weights]:
        """The copies, in the kernel's layout; kernels of one layout share them."""
        layout = kernel.spec.launch.layout
        if layout not in self._kept:
            self._kept.clear()  # a layout takes several gigabytes
            first = kernel.upload(self.fmt, self.rows)
            more = [Weights(self.fmt, first.n, first.k, first.buffer.copy()) for _ in range(self.copies - 1)]
            self._kept[layout] = [first, *more]
        return self._kept[layout]

    def check(self, kernel: ShippedKernel, x: Any) -> bool:
        """Whether the first rows' outputs have the right bits."""
        some = self.rows[:CHECKED_ROWS]
        on_gpu, values = ShippedKernel(kernel.spec, CupyHost()), self.cupy.asnumpy(x)
        if kernel.order == ASCENDING:
            naive = ShippedKernel(KERNELS[f"{kernel.semantics}_naive"], CupyHost())
            expected: Any = naive.gemm(naive.upload(self.fmt, some), naive.quantize(values))
        else:
            values = values[:CHECKED_TOKENS]
            semantics = SEMANTICS[kernel.semantics]
            expected = product(semantics, self.fmt, some, semantics.bytes_of(values), kernel.order).ordered
        got = on_gpu.product(on_gpu.upload(self.fmt, some), values)
        return got.tobytes() == np.asarray(expected).tobytes()

    def time(self, kernel: ShippedKernel, weights: list[Weights], x: Any, repeat: int) -> float:
        """Microseconds for a product."""
        cupy, m = self.cupy, len(x)
        out = self.queue.output(4 * m * weights[0].n)

        def once(of: Weights) -> None:
            kernel.spec.launch.multiply_values(kernel.site, of, x.view(np.uint8).reshape(-1), out, m)

        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for of in weights:
                once(of)
            stream.synchronize()
            stream.begin_capture()
            for of in weights:
                once(of)
            graph = stream.end_capture()
            return median_us(lambda: graph.launch(stream), len(weights), repeat, cupy)


class Llama:
    """`ggml_mul_mat` on llama.cpp's CUDA backend. Raises RuntimeError where there is none."""

    def __init__(self) -> None:
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        if not (folder / "libggml-cuda.so.0").exists():
            raise RuntimeError("the installed llama-cpp-python has no CUDA backend")
        self.base = c.CDLL(str(folder / "libggml-base.so.0"))
        self.cuda = c.CDLL(str(folder / "libggml-cuda.so.0"))
        pointers = (
            "ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph_custom",
            "ggml_backend_alloc_ctx_tensors", "ggml_backend_cuda_init",
        )  # fmt: skip
        for name in pointers:
            getattr(self._of(name), name).restype = c.c_void_p
        self.backend = c.c_void_p(self.cuda.ggml_backend_cuda_init(0))
        if not self.backend:
            raise RuntimeError("llama.cpp's CUDA backend finds no device")
        self.version = llama_cpp.__version__
        self._quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda _level, _text, _data: None)
        self.base.ggml_log_set(self._quiet, None)

    def _of(self, name: str) -> c.CDLL:
        return self.cuda if "cuda" in name else self.base

    def time(self, fmt: BlockFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.float32], repeat: int) -> float:
        """Microseconds for a product."""

        class Params(c.Structure):
            _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]

        base, (m, k), n = self.base, x.shape, len(rows)
        copies = max(2, -(-ROTATED_BYTES // rows.nbytes))
        base.ggml_init.argtypes = [Params]
        context = c.c_void_p(base.ggml_init(Params(64 << 20, None, True)))

        def new(kind: int, *ne: int) -> c.c_void_p:
            return c.c_void_p(base.ggml_new_tensor_2d(context, kind, *map(c.c_int64, ne)))

        weights = [new(fmt.type_id, k, n) for _ in range(copies)]
        activations = new(0, k, m)
        graph = c.c_void_p(base.ggml_new_graph_custom(context, c.c_size_t(copies + 8), c.c_bool(False)))
        for w in weights:
            base.ggml_build_forward_expand(graph, c.c_void_p(base.ggml_mul_mat(context, w, activations)))
        buffer = c.c_void_p(base.ggml_backend_alloc_ctx_tensors(context, self.backend))
        if not buffer:
            raise RuntimeError("llama.cpp's CUDA backend has not enough memory")
        inputs: list[tuple[c.c_void_p, npt.NDArray[Any]]] = [(w, rows) for w in weights]
        for tensor, array in [*inputs, (activations, np.ascontiguousarray(x))]:
            base.ggml_backend_tensor_set(tensor, c.c_void_p(array.ctypes.data), c.c_size_t(0), c.c_size_t(array.nbytes))
        times = []
        for i in range(repeat + 5):
            base.ggml_backend_synchronize(self.backend)
            start = time.perf_counter()
            if base.ggml_backend_graph_compute_async(self.backend, graph):
                raise RuntimeError("llama.cpp's CUDA backend failed")
            base.ggml_backend_synchronize(self.backend)
            if i >= 5:
                times.append(1e6 * (time.perf_counter() - start) / copies)
        base.ggml_backend_buffer_free(buffer)
        base.ggml_free(context)
        return statistics.median(times)


def cublas_us(m: int, n: int, k: int, repeat: int) -> dict[str, float]:
    """Microseconds of cuBLAS, through PyTorch, on halves, and on int8 where it takes the shape; {} without PyTorch."""
    try:
        import torch
    except ImportError:
        return {}
    out = {}
    copies = max(2, -(-ROTATED_BYTES // (2 * n * k)))
    with torch.inference_mode():
        a = torch.randn(m, k, device="cuda").half()
        b = [torch.randn(n, k, device="cuda").half() for _ in range(copies)]
        works: dict[str, Callable[[Any], Any]] = {"cuBLAS fp16": lambda w: a @ w.T}
        if m > 16:
            a8 = torch.randint(-127, 128, (m, k), device="cuda", dtype=torch.int8)
            b8 = [torch.randint(-127, 128, (n, k), device="cuda", dtype=torch.int8) for _ in range(copies)]
            works["cuBLAS int8"] = lambda w: torch._int_mm(a8, w.T)
        for name, work in works.items():
            matrices = b8 if "int8" in name else b
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for w in matrices:
                    work(w)
                stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    for w in matrices:
                        work(w)
                times = []
                for i in range(repeat + _WARM_UP):
                    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record(stream)
                    graph.replay()
                    stop.record(stream)
                    stop.synchronize()
                    if i >= _WARM_UP:
                        times.append(1e3 * start.elapsed_time(stop) / copies)
                out[name] = statistics.median(times)
    return out


def cublas_int8_peak(repeat: int) -> float | None:
    """TFLOP/s of a large int8 product, the most that the GPU's tensor cores reach; None without PyTorch."""
    found = cublas_us(8192, 8192, 8192, repeat).get("cuBLAS int8")
    return None if found is None else 2 * 8192**3 / found / 1e6


def copy_tbs(cupy: Any, repeat: int) -> float:
    """Bytes that a device copy reads and writes, in TB/s."""
    a, b = cupy.empty(1 << 30, np.uint8), cupy.empty(1 << 30, np.uint8)
    return 2 * (1 << 30) / median_us(lambda: cupy.copyto(b, a), 1, repeat, cupy) / 1e6


def empty_us(queue: Queue, repeat: int) -> float:
    """Microseconds of a kernel that does nothing, in a graph of many of them that overlap as products do: the time that
    no product can save."""
    cupy, empty = queue._cupy, queue.load(kernel_root(), "probes/empty.cu", "empty", {}, queue.sm)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for _ in range(_EMPTY_LAUNCHES):
            queue.launch(empty, (1, 1, 1), (32, 1, 1), [], overlaps=True)
        graph = stream.end_capture()
        return median_us(lambda: graph.launch(stream), _EMPTY_LAUNCHES, repeat, cupy)


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """All measurements, as JSON has them. Raises KernelFault where a kernel has other bits than it should."""
    queue = Queue()
    cupy, rng = queue._cupy, np.random.default_rng(args.seed)
    try:
        llama: Llama | None = Llama()
    except (RuntimeError, OSError, ImportError) as error:
        llama = None
        print(f"llama.cpp is not timed: {error}", file=sys.stderr)
    results: list[dict[str, Any]] = []

    def record(who: str, kind: str, m: int, n: int, k: int, us: float, nbytes: int, by: str | None = None) -> None:
        row = {"who": who, "type": kind, "M": m, "N": n, "K": k, "us": us, "TFLOP/s": 2 * m * n * k / us / 1e6,
               "TB/s of weights": nbytes / us / 1e6, "weight bytes": nbytes}  # fmt: skip
        results.append(row if by is None else {**row, "by": by})
        print(f"{who:<16} {kind:<5} M {m:<5} N {n:<6} K {k:<6} {us:9.1f} us  {row['TFLOP/s']:7.1f} TFLOP/s  "
              f"{row['TB/s of weights']:5.2f} TB/s  {by or ''}", flush=True)  # fmt: skip

    header = {
        "host": queue.describe(), "llama-cpp-python": llama.version if llama else None, "repeat": args.repeat,
        "copy TB/s": copy_tbs(cupy, args.repeat), "empty us": empty_us(queue, args.repeat),
        "int8 TFLOP/s": cublas_int8_peak(args.repeat),
    }  # fmt: skip
    print(f"{header['host']}\ndevice copy {header['copy TB/s']:.2f} TB/s, int8 {header['int8 TFLOP/s']} TFLOP/s, "
          f"an empty kernel {header['empty us']:.2f} us")  # fmt: skip
    for n, k in ((n, k) for k in args.k for n in args.n):
        for m in args.m if args.cublas else ():
            for who, us in cublas_us(m, n, k, args.repeat).items():
                record(who, "-", m, n, k, us, (1 if "int8" in who else 2) * n * k)
        for name in args.types:
            fmt = FORMATS[name]
            rows = random_rows(rng, fmt, n, k)
            ours = Ours(queue, fmt, rows)
            if llama:
                for m in args.m:
                    x = rng.standard_normal((m, k)).astype(np.float32)
                    record("llama.cpp", name, m, n, k, llama.time(fmt, rows, x, args.repeat), rows.nbytes)
            for kernel_name in args.kernels:
                whole = on_host(find_kernel(kernel_name), queue)
                for m in args.m:
                    kernel = whole.of(fmt, m, n, k)
                    if not kernel.covers(fmt) or kernel.spec.cards.target(str(queue.sm)) is None:
                        continue
                    if 2 * m * n * k * ours.copies > args.most * 1e12:  # a naive kernel would take minutes
                        continue
                    x = cupy.asarray(rng.standard_normal((m, k)).astype(np.float32))
                    if not ours.check(kernel, x):
                        raise KernelFault(f"{kernel.name} has other bits than it should, {name}, M {m}, N {n}, K {k}")
                    us = ours.time(kernel, ours.weights(kernel), x, args.repeat)
                    by = kernel.name if kernel_name in FAMILIES else None
                    record(kernel_name, name, m, n, k, us, rows.nbytes, by)
    return {"header": header, "results": results}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kernels`."""
    add = parser.add_argument
    names = [*FAMILIES, *KERNELS]
    add("--types", nargs="+", choices=sorted(FORMATS), default=sorted(LEGACY), metavar="TYPE", help="of weights")
    add("--n", nargs="+", type=int, default=[4096, 14336], help="rows of weights")
    add("--k", nargs="+", type=int, default=[4096], help="columns")
    add("-m", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64, 128, 512, 4096], help="tokens")
    add("--kernels", nargs="+", choices=names, default=["q8_1"], metavar="NAME", help="kernels and families")
    add("--repeat", type=int, default=20, help="graphs that are timed (%(default)s)")
    add("--most", type=float, default=200.0, help="skip a kernel whose graph would take more TFLOP than this")
    add("--no-cublas", dest="cublas", action="store_false", help="do not time cuBLAS")
    add("--seed", type=int, default=0, help="of weights and activations")
    add("--from", dest="earlier", nargs="+", type=Path, metavar="FILE.json", help="take these, and measure nothing")
    add("--json", type=Path, metavar="FILE", help="write the measurements")
    add("--plot", type=Path, metavar="FILE.svg", help="draw a roofline")
    add("--readme", type=Path, metavar="FILE.md", help="write the tables between this file's markers")


def run(args: argparse.Namespace) -> int:
    """Measure, print and write; returns the exit code."""
    data = figures.load(args.earlier) if args.earlier else measured(args)
    for line in figures.slower_choices(data):
        print(line)
    if args.json:
        args.json.write_text(json.dumps(data, indent=1))
    if args.plot:
        figures.roofline(data, args.plot)
    if args.readme:
        markdown.fill(args.readme, figures.tables(data), "bench")
    return 0
