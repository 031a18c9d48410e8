"""Placement of a model by the name of a device of ggml's registry."""

from __future__ import annotations

import ctypes as c
from typing import Any, Protocol

from .. import ggml
from .calls import CallFailed

#: More layers than any model has.
ALL_LAYERS = 1 << 20


class Placement(Protocol):
    """Decides where a model, its cache and its operations are placed."""

    def place_model(self, params: Any) -> None:
        """Set the placement of layers in `llama_model_params`."""

    def place_context(self, params: Any) -> None:
        """Set the placement of operations and the cache in `llama_context_params`."""


class OnDevice:
    """A device of the registry. Operations that it does not support run on the CPU. Raises CallFailed if there is none.

    Args:
        layers: number of the model's layers on the device; negative for all.
    """

    def __init__(self, name: str, layers: int) -> None:
        self._device = ggml.ggml_backend_dev_by_name(name.encode())
        if not self._device:
            known = ", ".join(str(d["name"]) for d in ggml.devices())
            raise CallFailed(f"llama.cpp has no device {name}; known devices: {known or 'none'}")
        # an accelerator of the CPU, such as BLAS, takes operations but holds no layers
        self._on_host = ggml.ggml_backend_dev_type(self._device) not in ggml.DEVICES_WITH_LAYERS
        self._layers = ALL_LAYERS if layers < 0 else layers
        self._listed = (c.c_void_p * 2)(self._device, None)

    def place_model(self, params: Any) -> None:
        if self._on_host:
            params.n_gpu_layers, params.main_gpu = 0, -1
            return
        params.devices = c.cast(self._listed, c.c_void_p)
        params.n_gpu_layers, params.main_gpu = self._layers, 0

    def place_context(self, params: Any) -> None:
        params.op_offload = params.offload_kqv = not self._on_host
