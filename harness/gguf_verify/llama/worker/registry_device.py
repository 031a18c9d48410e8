"""Any device of ggml's registry, driven directly: products outside a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import ggml
from ..backends.device import Device, NoDevice, Product
from .placement import ALL_LAYERS, OnDevice

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class RegistryDevice(Device):
    """A device, given by its address. Raises NoDevice if its backend does not start on it."""

    def __init__(self, device: Any) -> None:
        self.name = ggml.device_name(device)
        self._placed = OnDevice(self.name, ALL_LAYERS)
        self._backend = ggml.ggml_backend_dev_init(device, None)
        if not self._backend:
            raise NoDevice(f"cannot start llama.cpp's device {self.name}")

    def place_model(self, params: Any) -> None:
        self._placed.place_model(params)

    def place_context(self, params: Any) -> None:
        self._placed.place_context(params)

    def computed(self, t: Any) -> bool:
        return ggml.device_name(ggml.device_of(t)) == self.name

    def taken(self, product: Product, x: Floats, wanted: Sequence[int]) -> dict[int, Bytes]:
        """Return nothing: it is unknown whether and how such a device quantizes activations."""
        return {}

    def multiply(self, type: int, w: Bytes, x: Floats, threads: int = 1) -> Floats:
        out: Floats = self._products(type, w[None], x[None])[0]
        return out

    def block_products(self, type: int, w: Bytes, x: Floats, threads: int = 1) -> Floats:
        """Compute all in one operation. The blocks of a column are made contiguous, because not every backend
        multiplies views of quantized matrices."""
        traits = ggml.ggml_get_type_traits(type).contents
        nb = w.shape[1] // traits.type_size
        columns = w.reshape(len(w), nb, traits.type_size).transpose(1, 0, 2)
        parts = x.reshape(len(x), nb, traits.blck_size).transpose(1, 0, 2)
        return self._products(type, columns, parts)

    def _products(self, type: int, w: Bytes, x: Floats) -> Floats:
        """Compute products float32[B, M, N] of weights uint8[B, N, row bytes] and activations float32[B, M, K]."""
        (count, m, k), n = x.shape, w.shape[1]
        ctx = ggml.ggml_init(ggml.InitParams(4 << 20, None, True))
        try:
            wt = ggml.ggml_new_tensor_4d(ctx, type, k, n, count, 1)
            xt = ggml.ggml_new_tensor_4d(ctx, ggml.F32, k, m, count, 1)
            return self.computed_by(ctx, ((wt, w), (xt, x)), ggml.ggml_mul_mat(ctx, wt, xt), (count, m, n))
        finally:
            ggml.ggml_free(ctx)

    def computed_by(
        self, ctx: Any, given: Sequence[tuple[Any, npt.NDArray[Any]]], y: Any, shape: tuple[int, ...]
    ) -> Floats:
        """Compute a float32 tensor of a context from tensors with given values."""
        if not ggml.ggml_backend_dev_supports_op(ggml.ggml_backend_get_device(self._backend), y):
            raise RuntimeError(f"llama.cpp's device {self.name} does not support this product")
        graph = ggml.ggml_new_graph(ctx)
        ggml.ggml_build_forward_expand(graph, y)
        buffer = ggml.ggml_backend_alloc_ctx_tensors(ctx, self._backend)
        if not buffer:
            raise MemoryError(f"llama.cpp's device {self.name} is out of memory for a product")
        try:
            ggml.ggml_backend_buffer_clear(buffer, 0)
            for tensor, values in given:
                raw = np.ascontiguousarray(values)
                ggml.ggml_backend_tensor_set(tensor, ggml.pointer(raw), 0, raw.nbytes)
            if ggml.ggml_backend_graph_compute(self._backend, graph) != 0:
                raise RuntimeError(f"llama.cpp's device {self.name} failed to compute a product")
            out = np.empty(shape, np.float32)
            ggml.ggml_backend_tensor_get(y, ggml.pointer(out), 0, out.nbytes)
            return out
        finally:
            ggml.ggml_backend_buffer_free(buffer)
