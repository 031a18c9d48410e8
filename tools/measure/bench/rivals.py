"""Alternatives for users, through PyTorch: cuBLAS, alone and after a dequantization, and vLLM's kernels.

Each is checked before it is timed. Weights are on the GPU as the file's bytes. Activations are halves, as in the usual
callers of these kernels, except for cuBLAS with int8.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gguf_verify.support.errors import KernelFault
from gguf_verify.support.paths import CHECKOUT

from .figures import DEQUANTIZED
from .gpu import Queue, copies_of, median_us, rounds_of
from .matrices import CHECKED_TOKENS, LIMIT_8_BITS, LIMIT_HALVES, Dequantizer, Matrix, ends, nmse

#: Where examples/engines/build.py leaves vLLM's kernels.
BUILT = CHECKOUT / "examples" / "engines" / "built"
VLLM, TRITON = "vLLM CUDA", "vLLM Triton"
VEC, MAT = "ggml_mul_mat_vec_a8", "ggml_mul_mat_a8"
#: Types that vLLM's kernels for many tokens multiply, and further ones that its others take (csrc/gguf/gguf_kernel.cu,
#: dequantize.cuh). For any other type, its dequantization calls a missing function.
MANY_TYPES = frozenset(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"))
MORE_TYPES = frozenset(
    ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS")
)  # fmt: skip
#: Triton compiles its kernels anew for each type and class of shapes, so only some types and M are timed.
TRITON_TYPES, TRITON_TOKENS = ("Q4_0", "Q8_0", "Q4_K", "Q6_K"), (1, 64, 512)
#: Largest number of tokens for vLLM's kernel for few tokens, and least number for the other; both are timed in between.
_FEW, _MANY = 16, 8


def torch_graph_us(works: Sequence[Callable[[], object]], repeat: int, cupy: Any) -> float:
    """Like `gpu.graph_us`, for works that allocate through PyTorch."""
    import torch

    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.ExternalStream(stream.cuda_stream):
        for work in works:
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()  # torch.cuda.graph would empty PyTorch's and Python's memory first, each time
        try:
            for work in works:
                work()
        finally:  # otherwise nothing else could run
            graph.capture_end()
        return median_us(graph.replay, len(works), repeat, cupy)


class Rivals:
    """The installed alternatives. Raises ImportError without PyTorch."""

    def __init__(self, queue: Queue) -> None:
        import torch

        self._torch, self._queue, self._cupy = torch, queue, queue.cupy
        self._dequantize = Dequantizer(queue)
        self.absent = {"Marlin, Machete": "they take no blocks of GGUF, and come with vLLM alone"}
        self._vllm = self._library()
        self._triton = self._triton_kernels()

    def _library(self) -> Any:
        try:
            self._torch.ops.load_library(str(BUILT / "_C_gguf.so"))
        except (OSError, RuntimeError) as error:
            self.absent[VLLM] = _first_line(error)
            return None
        return self._torch.ops._C_gguf

    def _triton_kernels(self) -> Any:
        package = types.ModuleType("vllm_gguf_plugin")  # its own __init__ imports all of vLLM
        package.__path__ = [str(BUILT / "vllm_gguf_plugin")]
        sys.modules.setdefault(package.__name__, package)
        try:
            return importlib.import_module("vllm_gguf_plugin.triton.gemm.interface").ggml_mul_mat_a8_triton
        except Exception as error:  # a foreign package may raise anything
            self.absent[TRITON] = _first_line(error)
            return None

    # ---- cuBLAS of weights that are not quantized --------------------------------------------------------------------

    def cublas(self, m: int, n: int, k: int, repeat: int) -> dict[str, float]:
        """Return the microseconds with halves, and with int8 if it supports the shape. Raises KernelFault."""
        torch = self._torch
        found = {}
        for name, dtype, nbytes in (("cuBLAS fp16", torch.float16, 2), ("cuBLAS int8", torch.int8, 1)):
            if dtype is torch.int8 and m <= 16:
                continue
            a, b = (self._operand(rows, k, dtype) for rows in (m, n))
            copies = [b, *(b.clone() for _ in range(copies_of(nbytes * n * k) - 1))]
            multiply = torch._int_mm if dtype is torch.int8 else torch.mm
            tokens, rows = ends(m, CHECKED_TOKENS), ends(n, CHECKED_TOKENS)
            exact = a[tokens].double().cpu().numpy() @ b[rows].double().cpu().numpy().T
            off = nmse(multiply(a, b.T)[tokens][:, rows].double().cpu().numpy(), exact)
            if not off <= LIMIT_HALVES:
                raise KernelFault(f"{name} is off by an NMSE of {off:.1e}, M {m}, N {n}, K {k}")
            works = [lambda w=w, a=a, multiply=multiply: multiply(a, w.T) for w in copies]
            found[name] = torch_graph_us(works * rounds_of(m), repeat, self._cupy)
        return found

    def _operand(self, rows: int, k: int, dtype: Any) -> Any:
        torch = self._torch
        if dtype is torch.int8:
            return torch.randint(-127, 128, (rows, k), device="cuda", dtype=dtype)
        return torch.randn(rows, k, device="cuda").to(dtype)

    # ---- quantized weights -------------------------------------------------------------------------------------------

    def of(self, matrix: Matrix) -> OfMatrix:
        """Return the alternatives that multiply such weights."""
        return OfMatrix(self, matrix)


class OfMatrix:
    """The rivals on several copies of one matrix."""

    def __init__(self, rivals: Rivals, matrix: Matrix) -> None:
        self._rivals, self._torch, self._matrix = rivals, rivals._torch, matrix
        count = copies_of(matrix.nbytes)
        self._raw = [matrix.on_gpu, *(matrix.on_gpu.copy() for _ in range(count - 1))]
        self._weights = [self._torch.as_tensor(w, device="cuda") for w in self._raw]
        self._x = self._torch.as_tensor(matrix.x.on_gpu, device="cuda").half()
        self._scratch = self._torch.empty(matrix.n, matrix.k, dtype=self._torch.float16, device="cuda")
        self._refused: set[str] = set()

    def names(self, m: int, all_of: bool) -> Iterator[tuple[str, str, Callable[[int], Any], float]]:
        """Yield each rival: name, variant, work on a copy, and limit of its NMSE; `all_of`: vLLM's products too."""
        rivals, fmt, n, k = self._rivals, self._matrix.fmt, self._matrix.n, self._matrix.k
        torch, x, scratch = self._torch, self._x[:m], self._scratch
        out = torch.empty(m, n, dtype=torch.float16, device="cuda")
        halves = rivals._cupy.asarray(scratch).reshape(-1).view(np.uint8)

        def ours(i: int) -> Any:
            rivals._dequantize.launch(fmt, self._raw[i].reshape(-1), halves, n * k)
            return torch.mm(x, scratch.T, out=out)

        yield DEQUANTIZED, "this project's kernel", ours, LIMIT_HALVES
        if (vllm := rivals._vllm) is not None and fmt.name in MANY_TYPES | MORE_TYPES:
            kind = fmt.type_id

            def theirs(i: int) -> Any:
                return torch.mm(x, vllm.ggml_dequantize(self._weights[i], kind, n, k, torch.float16).T, out=out)

            yield DEQUANTIZED, "vLLM's kernel", theirs, LIMIT_HALVES
            if all_of and m <= _FEW:
                yield VLLM, VEC, lambda i: vllm.ggml_mul_mat_vec_a8(self._weights[i], x, kind, n), LIMIT_8_BITS
            if all_of and m >= _MANY and fmt.name in MANY_TYPES:
                yield VLLM, MAT, lambda i: vllm.ggml_mul_mat_a8(self._weights[i], x, kind, n), LIMIT_8_BITS
        if (multiply := rivals._triton) is not None and fmt.name in TRITON_TYPES and m in TRITON_TOKENS:
            yield TRITON, "", lambda i: multiply(self._weights[i], x, fmt.type_id, n), LIMIT_HALVES

    def time(self, m: int, repeat: int, all_of: bool) -> Iterator[tuple[str, str, float | str]]:
        """Yield each rival: name, variant, and microseconds of a product of m tokens, or why it was not timed."""
        for name, how, work, limit in self.names(m, all_of):
            if (key := f"{name} {how}") in self._refused:
                continue
            try:
                off = self._matrix.off(m, lambda tokens, rows, work=work: _some(work(0), tokens, rows))
                if not off <= limit:
                    yield name, how, f"its outputs are off by an NMSE of {off:.1e}"
                    continue
                works = [lambda i=i, work=work: work(i) for i in range(len(self._raw))]
                yield name, how, torch_graph_us(works * rounds_of(m), repeat, self._rivals._cupy)
            except Exception as error:  # foreign kernels may raise anything for an unsupported type
                self._refused.add(key)
                yield name, how, _first_line(error)


def _some(y: Any, tokens: Any, rows: Any) -> Any:
    return y[tokens][:, rows].double().cpu().numpy()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
