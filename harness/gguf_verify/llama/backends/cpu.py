"""llama.cpp's CPU backend: one definition per format, given by the activation type of its `vec_dot`."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support.errors import EnvironmentFault
from .device import Bytes, Device, Floats, Product
from .interface import Backend, BackendKind

if TYPE_CHECKING:
    from ...formats.tensor_types import WeightFormat
    from ...semantics.definition import Semantics

#: Number of values that count as one block of a type without blocks.
_SLICE = 32


class CpuBackend(Backend):
    """The CPU backend. Its results do not depend on the number of tokens."""

    mapped = True

    def describe(self) -> str:
        return "CPU"

    def definition(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        from ...semantics.definitions import llama_cpu_semantics

        semantics = llama_cpu_semantics(fmt)
        expected = semantics.activations or fmt
        with self.llama.valid("hello"):
            actual = self.versions["types"][fmt.type_id]["vec_dot_type"]
        if actual != expected.type_id:
            raise EnvironmentFault(
                f"this llama.cpp multiplies {fmt.name} by activations of ggml type {actual}, "
                f"but the harness expects {expected.name}"
            )
        return semantics


class CpuDevice(Device):
    """The CPU in llama.cpp's process."""

    def __init__(self) -> None:
        from .. import ggml

        self._ggml = ggml

    def place_model(self, params: Any) -> None:
        params.n_gpu_layers, params.main_gpu = 0, -1  # -1: no GPU at all

    def place_context(self, params: Any) -> None:
        # llama.cpp with a GPU would otherwise compute large batches there, although the weights are in host memory
        params.op_offload = params.offload_kqv = False

    def multiply(self, type: int, w: Bytes, x: Floats, threads: int) -> Floats:
        g = self._ggml
        m, n = len(x), len(w)
        size = w.nbytes + 4 * x.nbytes + 4 * m * n + (8 << 20) + threads * (2 << 20)
        ctx = g.ggml_init(g.InitParams(size, None, False))
        try:
            wt, xt = self._operands(ctx, type, w, x)
            return self._computed(ctx, g.ggml_mul_mat(ctx, wt, xt), threads, (m, n))
        finally:
            g.ggml_free(ctx)

    def block_products(self, type: int, w: Bytes, x: Floats, threads: int) -> Floats:
        """Compute all in one op: W viewed as [32, N, K/32], X as [32, M, K/32]. If K is not a multiple of 32, a second
        op computes the last values."""
        g = self._ggml
        traits = g.ggml_get_type_traits(type).contents
        block = traits.blck_size if traits.blck_size > 1 else _SLICE
        nbytes = block // traits.blck_size * traits.type_size
        n, (m, k) = len(w), x.shape
        nb = -(-k // block)
        size = w.nbytes + 4 * x.nbytes + 4 * nb * m * n + (8 << 20) + threads * (2 << 20)
        ctx = g.ggml_init(g.InitParams(size, None, False))
        try:
            wt, xt = self._operands(ctx, type, w, x)
            parts = []
            for width, first, count in ((block, 0, k // block), (k % block, k // block, 1)):
                if width and count:
                    wv = g.ggml_view_3d(ctx, wt, width, n, count, w.shape[1], nbytes, first * nbytes)
                    xv = g.ggml_view_3d(ctx, xt, width, m, count, 4 * k, 4 * block, 4 * block * first)
                    parts.append(self._computed(ctx, g.ggml_mul_mat(ctx, wv, xv), threads, (count, m, n)))
        finally:
            g.ggml_free(ctx)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def taken(self, product: Product, x: Floats, wanted: Sequence[int]) -> dict[int, Bytes]:
        return {kind: self._ggml.from_float(kind, x) for kind in wanted}

    def _operands(self, ctx: Any, type: int, w: Bytes, x: Floats) -> tuple[Any, Any]:
        """Make tensors in a context that hold weights uint8[N, row bytes] and activations float32[M, K]."""
        g = self._ggml
        wt = g.ggml_new_tensor_2d(ctx, type, x.shape[1], len(w))
        xt = g.ggml_new_tensor_2d(ctx, g.F32, x.shape[1], len(x))
        c.memmove(wt.contents.data, g.pointer(w), w.nbytes)
        c.memmove(xt.contents.data, g.pointer(x), x.nbytes)
        return wt, xt

    def _computed(self, ctx: Any, y: Any, threads: int, shape: tuple[int, ...]) -> Floats:
        """Compute a float32 tensor of a context, and return its values."""
        g = self._ggml
        graph = g.ggml_new_graph(ctx)
        g.ggml_build_forward_expand(graph, y)
        if g.ggml_graph_compute_with_ctx(ctx, graph, threads) != 0:
            from ..worker.calls import CallFailed

            raise CallFailed("ggml_graph_compute failed")
        out = np.empty(shape, np.float32)
        c.memmove(g.pointer(out), y.contents.data, out.nbytes)
        return out


CPU = BackendKind("CPU", "llama.cpp's CPU backend", CpuBackend, lambda _device: CpuDevice())
