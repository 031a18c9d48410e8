"""`ggml_mul_mat` on llama.cpp's CUDA backend, through the libraries of llama-cpp-python."""

from __future__ import annotations

import ctypes as c
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.support.errors import KernelFault

from .gpu import copies_of, rounds_of
from .matrices import LIMIT_8_BITS, Index, Matrix

#: The backend captures a graph as a CUDA graph after a few runs.
_WARM_UP = 4
_F32, _I32 = 0, 26
#: Bytes of the descriptions of tensors and of a graph.
_CONTEXT = 16 << 20


class _Params(c.Structure):
    _fields_ = [("mem_size", c.c_size_t), ("mem_buffer", c.c_void_p), ("no_alloc", c.c_bool)]


class LlamaCuda:
    """llama.cpp's CUDA backend. Raises RuntimeError if there is none."""

    name = "llama.cpp"

    def __init__(self) -> None:
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        if not (folder / "libggml-cuda.so.0").exists():
            raise RuntimeError("the installed llama-cpp-python has no CUDA backend")
        self.base, self.cuda = (c.CDLL(str(folder / f"libggml-{part}.so.0")) for part in ("base", "cuda"))
        pointers = (
            "ggml_init", "ggml_new_tensor_2d", "ggml_mul_mat", "ggml_new_graph_custom",
            "ggml_backend_alloc_ctx_tensors", "ggml_new_tensor_3d", "ggml_mul_mat_id",
        )  # fmt: skip
        for name in pointers:
            getattr(self.base, name).restype = c.c_void_p
        self.cuda.ggml_backend_cuda_init.restype = c.c_void_p
        self.base.ggml_init.argtypes = [_Params]
        self.base.ggml_backend_supports_op.restype = c.c_bool
        self.backend = c.c_void_p(self.cuda.ggml_backend_cuda_init(0))
        if not self.backend:
            raise RuntimeError("llama.cpp's CUDA backend finds no device")
        self.version = llama_cpp.__version__
        self._quiet = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(lambda _level, _text, _data: None)
        self.base.ggml_log_set(self._quiet, None)

    @contextmanager
    def weights(self, matrix: Matrix) -> Iterator[LlamaWeights]:
        """Provide copies of a matrix in the backend's memory. Raises RuntimeError if there is not enough."""
        made = LlamaWeights(self, matrix)
        try:
            yield made
        finally:
            made.close()

    def context(self, nbytes: int) -> c.c_void_p:
        return c.c_void_p(self.base.ggml_init(_Params(nbytes, None, True)))

    def new(self, context: c.c_void_p, kind: int, *ne: int) -> c.c_void_p:
        make = self.base.ggml_new_tensor_2d if len(ne) == 2 else self.base.ggml_new_tensor_3d
        return c.c_void_p(make(context, kind, *map(c.c_int64, ne)))

    def medians(self, context: c.c_void_p, products: Sequence[c.c_void_p], repeat: int) -> float:
        """Return the median microseconds of a product, in graphs of all of them. Raises RuntimeError."""
        base = self.base
        graph = c.c_void_p(base.ggml_new_graph_custom(context, c.c_size_t(len(products) + 8), c.c_bool(False)))
        for y in products:
            base.ggml_build_forward_expand(graph, y)
        times = []
        for i in range(repeat + _WARM_UP):
            base.ggml_backend_synchronize(self.backend)
            start = time.perf_counter()
            if base.ggml_backend_graph_compute_async(self.backend, graph):
                raise RuntimeError("llama.cpp's CUDA backend failed")
            base.ggml_backend_synchronize(self.backend)
            if i >= _WARM_UP:
                times.append(1e6 * (time.perf_counter() - start) / len(products))
        return statistics.median(times)

    def read(self, tensor: c.c_void_p, at: int, into: npt.NDArray[Any]) -> None:
        """Copy bytes of a tensor, from `at` on, into an array."""
        self.base.ggml_backend_tensor_get(
            tensor, c.c_void_p(into.ctypes.data), c.c_size_t(at), c.c_size_t(into.nbytes)
        )  # fmt: skip

    def allocated(self, context: c.c_void_p) -> c.c_void_p:
        buffer = c.c_void_p(self.base.ggml_backend_alloc_ctx_tensors(context, self.backend))
        if not buffer:
            raise RuntimeError("llama.cpp's CUDA backend has not enough memory")
        return buffer

    def put(self, tensor: c.c_void_p, array: npt.NDArray[Any]) -> None:
        given = np.ascontiguousarray(array)
        at = c.c_void_p(given.ctypes.data)
        self.base.ggml_backend_tensor_set(tensor, at, c.c_size_t(0), c.c_size_t(given.nbytes))


class LlamaWeights:
    """Copies of a matrix in the backend's memory."""

    def __init__(self, llama: LlamaCuda, matrix: Matrix) -> None:
        self._llama, self._matrix = llama, matrix
        self._context = llama.context(_CONTEXT)
        count = copies_of(matrix.nbytes)
        self._copies = [llama.new(self._context, matrix.fmt.type_id, matrix.k, matrix.n) for _ in range(count)]
        self._buffer = llama.allocated(self._context)
        llama.put(self._copies[0], matrix.rows)
        for other in self._copies[1:]:
            llama.base.ggml_backend_tensor_copy(self._copies[0], other)

    def close(self) -> None:
        self._llama.base.ggml_backend_buffer_free(self._buffer)
        self._llama.base.ggml_free(self._context)

    def time(self, m: int, repeat: int) -> float | None:
        """Return the microseconds of a checked product of m tokens; None if the backend has no kernel for the type.
        Raises KernelFault, RuntimeError."""
        llama, base, matrix = self._llama, self._llama.base, self._matrix
        context = llama.context(_CONTEXT)
        x = llama.new(context, _F32, matrix.k, m)
        products = [c.c_void_p(base.ggml_mul_mat(context, w, x)) for w in self._copies * rounds_of(m)]
        if not base.ggml_backend_supports_op(llama.backend, products[0]):
            base.ggml_free(context)
            return None
        buffer = llama.allocated(context)
        llama.put(x, matrix.x.values[:m])
        us = llama.medians(context, products, repeat)
        off = matrix.off(m, lambda tokens, rows: self._read(products[-1], tokens)[:, rows])
        base.ggml_backend_buffer_free(buffer)
        base.ggml_free(context)
        if not off <= LIMIT_8_BITS:
            raise KernelFault(f"llama.cpp's outputs are off by an NMSE of {off:.1e}: {matrix.fmt.name}, M {m}")
        return us

    def _read(self, y: c.c_void_p, tokens: Index) -> npt.NDArray[np.float32]:
        found = np.empty((len(tokens), self._matrix.n), np.float32)
        for row, token in zip(found, tokens, strict=True):
            self._llama.read(y, int(token) * row.nbytes, row)
        return found


class ExpertProduct:
    """`ggml_mul_mat_id` of the matrices of some experts, rows uint8[count·N, row bytes]. Raises RuntimeError."""

    def __init__(self, llama: LlamaCuda, fmt: BlockFormat, rows: npt.NDArray[np.uint8], count: int) -> None:
        self._llama, self._count, self._n = llama, count, len(rows) // count
        self._k = rows.shape[1] // fmt.block_bytes * fmt.block_size
        self._context = llama.context(_CONTEXT)
        self._weights = llama.new(self._context, fmt.type_id, self._k, self._n, count)
        self._buffer = llama.allocated(self._context)
        llama.put(self._weights, rows)

    def time(
        self, x: npt.NDArray[np.float32], routings: Sequence[npt.NDArray[np.int32]], repeat: int
    ) -> tuple[float, npt.NDArray[np.float32]]:  # fmt: skip
        """Return the microseconds of a product of float32[m, K], routed by each of ids[m, top_k] in turn, and the
        outputs of the last one, float32[m, top_k, N]. Raises RuntimeError."""
        llama, (m, top_k) = self._llama, routings[0].shape
        context = llama.context(_CONTEXT)
        given = llama.new(context, _F32, self._k, 1, m)
        ids = [llama.new(context, _I32, top_k, m) for _ in routings]
        products = [c.c_void_p(llama.base.ggml_mul_mat_id(context, self._weights, given, of)) for of in ids]
        buffer = llama.allocated(context)
        for tensor, array in ((given, x), *zip(ids, routings, strict=True)):
            llama.put(tensor, array)
        us, y = llama.medians(context, products, repeat), np.empty((m, top_k, self._n), np.float32)
        llama.read(products[-1], 0, y)
        llama.base.ggml_backend_buffer_free(buffer)
        llama.base.ggml_free(context)
        return us, y

    def close(self) -> None:
        """Free the weights' memory."""
        self._llama.base.ggml_backend_buffer_free(self._buffer)
        self._llama.base.ggml_free(self._context)
