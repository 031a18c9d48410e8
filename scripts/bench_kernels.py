"""What the kernels cost on a GPU, beside llama.cpp's CUDA backend, cuBLAS and the card's ceilings, in one run.

    python scripts/bench_kernels.py [--types Q4_0 …] [--n 4096 14336] [--k 4096] [-m 1 16 512 4096] [--kernels NAME …]
                                    [--json FILE] [--markdown FILE]

Correctness first: each kernel must give the bits of the naive one (one with an order of its own, of the CPU host) on
the activations that are timed, for some rows of W, or nothing is timed. Then every product is one of many in a CUDA
graph: quantize the activations, rearrange them if the kernel wants that, multiply, each time by another copy of the
weights, together larger than the second cache. Where a kernel's launches may overlap, they do: its weights are asked
for while the product before ends. A figure is the median over --repeat graphs, divided by the products.

llama.cpp is timed where the installed llama-cpp-python has the CUDA backend (`ggml_mul_mat` of the same weights, in
graphs of as many nodes; it quantizes the activations too), cuBLAS where PyTorch is installed.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.errors import HarnessError
from harness.formats import FORMATS, BlockFormat
from harness.hosts import CpuHost
from harness.hosts.cupy_host import CupyHost
from harness.kernels import KERNELS, LEGACY, Kernel, Weights

#: Bytes of weights that the second cache of no card holds.
ROTATED_BYTES = 240_000_000
#: Rows that are checked: tiles of the largest kernel, and a part of one.
CHECKED_ROWS = 300


class Queue(CupyHost):
    """A GPU whose launches are put into a stream and not waited for; outputs have neither guards nor poison."""

    def upload(self, array: Any) -> Any:
        return array if isinstance(array, self._cupy.ndarray) else super().upload(array)

    def output(self, nbytes: int) -> Any:
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
    """Random codes under scales as models have them: uint8[n, row bytes]."""
    rows = rng.integers(0, 256, (n, k // fmt.block_size, fmt.block_bytes), np.uint8)
    structs = fmt.view(rows)
    for name in ("d", "m"):
        if name in (structs.dtype.names or ()):
            structs[name] = rng.normal(0, 0.01, structs.shape)
    return rows.reshape(n, -1)


def median_us(work: Callable[[], object], products: int, repeat: int, cupy: Any) -> float:
    """The median time of one product, by events around the whole."""
    stream = cupy.cuda.get_current_stream()
    times = []
    for i in range(repeat + 3):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        work()
        stop.record(stream)
        stop.synchronize()
        if i >= 3:
            times.append(1e3 * cupy.cuda.get_elapsed_time(start, stop) / products)
    return statistics.median(times)


class Ours:
    """The shipped kernels on one weight matrix, in several copies."""

    def __init__(self, queue: Queue, fmt: BlockFormat, rows: npt.NDArray[np.uint8]) -> None:
        self.queue, self.fmt, self.rows = queue, fmt, rows
        self.cupy = queue._cupy
        self.k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        self.copies = max(2, -(-ROTATED_BYTES // rows.nbytes))

    def weights(self, kernel: Kernel) -> list[Weights]:
        first = kernel.upload(self.fmt, self.rows)
        more = [Weights(self.fmt, first.n, first.k, first.buffer.copy()) for _ in range(self.copies - 1)]
        return [first, *more]

    def check(self, kernel: Kernel, x: Any) -> bool:
        """Whether the first rows' outputs have the right bits."""
        some = self.rows[:CHECKED_ROWS]
        naive = "f32_naive" if kernel.semantics == "f32" else "q8_1_naive"
        if kernel.ordered is True:
            other: Kernel = Kernel(KERNELS[naive], CupyHost())
        else:
            other, x = Kernel(kernel.spec, CpuHost()), x[:16]
        on_gpu = Kernel(kernel.spec, CupyHost())
        values = self.cupy.asnumpy(x)
        got = on_gpu.product(on_gpu.upload(self.fmt, some), values)
        expected = other.gemm(other.upload(self.fmt, some), on_gpu.quantize(values))
        return got.tobytes() == expected.tobytes()

    def time(self, kernel: Kernel, weights: list[Weights], x: Any, repeat: int) -> float:
        cupy, m = self.cupy, len(x)
        out = self.queue.output(4 * m * weights[0].n)

        def once(of: Weights) -> None:
            kernel.spec.launch.multiply_values(kernel, of, x.view(np.uint8).reshape(-1), out, m)

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
        """Microseconds a product."""

        class Params(c.Structure):
            _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]

        base, (m, k), n = self.base, x.shape, len(rows)
        copies = max(2, -(-ROTATED_BYTES // rows.nbytes))
        base.ggml_init.argtypes = [Params]
        context = c.c_void_p(base.ggml_init(Params(64 << 20, None, True)))
        new = lambda kind, *ne: c.c_void_p(base.ggml_new_tensor_2d(context, kind, *map(c.c_int64, ne)))  # noqa: E731
        weights = [new(fmt.type_id, k, n) for _ in range(copies)]
        activations = new(0, k, m)
        graph = c.c_void_p(base.ggml_new_graph_custom(context, c.c_size_t(copies + 8), c.c_bool(False)))
        for w in weights:
            base.ggml_build_forward_expand(graph, c.c_void_p(base.ggml_mul_mat(context, w, activations)))
        buffer = c.c_void_p(base.ggml_backend_alloc_ctx_tensors(context, self.backend))
        if not buffer:
            raise RuntimeError("llama.cpp's CUDA backend has no memory for it")
        for tensor, array in [*((w, rows) for w in weights), (activations, np.ascontiguousarray(x))]:
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
    """cuBLAS through PyTorch: halves, and bytes where it takes the shape; {} without PyTorch."""
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
                for i in range(repeat + 3):
                    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record(stream)
                    graph.replay()
                    stop.record(stream)
                    stop.synchronize()
                    if i >= 3:
                        times.append(1e3 * start.elapsed_time(stop) / copies)
                out[name] = statistics.median(times)
    return out


def copy_tbs(cupy: Any, repeat: int) -> float:
    """Bytes read and written a second by a device copy, in TB/s."""
    a, b = cupy.empty(1 << 30, np.uint8), cupy.empty(1 << 30, np.uint8)
    return 2 * (1 << 30) / median_us(lambda: cupy.copyto(b, a), 1, repeat, cupy) / 1e6


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All measurements, as data."""
    queue = Queue()
    cupy, rng = queue._cupy, np.random.default_rng(args.seed)
    try:
        llama: Llama | None = Llama()
    except (RuntimeError, OSError, ImportError) as error:
        llama = None
        print(f"llama.cpp is not timed: {error}", file=sys.stderr)
    results: list[dict[str, Any]] = []

    def record(who: str, kind: str, m: int, n: int, us: float, nbytes: int) -> None:
        results.append({"who": who, "type": kind, "M": m, "N": n, "K": args.k, "us": us,
                        "TFLOP/s": 2 * m * n * args.k / us / 1e6, "TB/s of weights": nbytes / us / 1e6})  # fmt: skip
        print(f"{who:<16} {kind:<5} M {m:<5} N {n:<6} {us:9.1f} us  {results[-1]['TFLOP/s']:7.1f} TFLOP/s  "
              f"{results[-1]['TB/s of weights']:5.2f} TB/s", flush=True)  # fmt: skip

    header = {"host": queue.describe(), "llama-cpp-python": llama.version if llama else None, "repeat": args.repeat,
              "copy TB/s": copy_tbs(cupy, args.repeat)}  # fmt: skip
    print(f"{header['host']}\ndevice copy {header['copy TB/s']:.2f} TB/s", flush=True)
    for n in args.n:
        for m in args.m:
            for who, us in cublas_us(m, n, args.k, args.repeat).items():
                record(who, "-", m, n, us, (1 if "int8" in who else 2) * n * args.k)
        for name in args.types:
            fmt = FORMATS[name]
            rows = random_rows(rng, fmt, n, args.k)
            ours = Ours(queue, fmt, rows)
            if llama:
                for m in args.m:
                    x = rng.standard_normal((m, args.k)).astype(np.float32)
                    record("llama.cpp", name, m, n, llama.time(fmt, rows, x, args.repeat), rows.nbytes)
            for kernel_name in args.kernels:
                spec = KERNELS[kernel_name]
                if not spec.covers(fmt) or spec.cards.target(str(queue.sm)) is None:
                    continue
                kernel = Kernel(spec, queue)
                weights = ours.weights(kernel)
                for m in args.m:
                    x = cupy.asarray(rng.standard_normal((m, args.k)).astype(np.float32))
                    if 2 * m * n * args.k * len(weights) > args.most * 1e12:  # a naive kernel would take minutes
                        continue
                    if not ours.check(kernel, x):
                        raise SystemExit(
                            f"{kernel_name} does not give the right bits for {name}, M {m}, N {n}: not timed"
                        )
                    record(kernel_name, name, m, n, ours.time(kernel, weights, x, args.repeat), rows.nbytes)
                del weights
    return {"header": header, "results": results}


def markdown(data: dict[str, Any]) -> str:
    """A table a type and N: TFLOP/s by M, and the ratio to llama.cpp."""
    lines = [f"{data['header']['host']}; device copy {data['header']['copy TB/s']:.2f} TB/s", ""]
    rows = data["results"]
    for kind, n in sorted({(r["type"], r["N"]) for r in rows if r["type"] != "-"}, key=str):
        ms = sorted({r["M"] for r in rows})
        lines += [f"**{kind}, N = {n}, K = {rows[0]['K']}**: µs, and llama.cpp's time over it", ""]
        lines += [f"| | {' | '.join(f'M={m}' for m in ms)} |", f"|---|{'---|' * len(ms)}"]
        at = {(r["who"], r["M"]): r["us"] for r in rows if (r["type"], r["N"]) == (kind, n)}
        for who in dict.fromkeys(w for w, _ in at):
            cells = []
            for m in ms:
                us, theirs = at.get((who, m)), at.get(("llama.cpp", m))
                ratio = f" ({theirs / us:.2f}×)" if us and theirs and who != "llama.cpp" else ""
                cells.append(f"{us:.1f}{ratio}" if us else "")
            lines.append(f"| {who} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", choices=sorted(FORMATS), default=sorted(LEGACY))
    parser.add_argument("--n", nargs="+", type=int, default=[4096, 14336])
    parser.add_argument("--k", type=int, default=4096)
    parser.add_argument("-m", nargs="+", type=int, default=[1, 8, 16, 64, 128, 512, 4096])
    parser.add_argument("--kernels", nargs="+", choices=sorted(KERNELS), default=[k for k in KERNELS if "q8_1" in k])
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--most", type=float, default=200.0, help="skip a kernel where a graph is more TFLOP than this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    try:
        data = run(args)
    except HarnessError as error:
        print(f"bench_kernels: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if args.json:
        args.json.write_text(json.dumps(data, indent=1))
    if args.markdown:
        args.markdown.write_text(markdown(data))


if __name__ == "__main__":
    main()
