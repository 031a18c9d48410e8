"""Calls of single products on a backend, outside any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import ggml
from ..backends.device import NoDevice
from .calls import Call, Reply

if TYPE_CHECKING:
    from ..backends.device import Device


class Products:
    """The started backends, and products on them."""

    def __init__(self) -> None:
        self._devices: dict[str, Device] = {}

    def calls(self) -> dict[str, Call]:
        """Return the calls by name, for the methods of the same names of `gguf_verify.llama.library.Llama`."""
        return {
            "start_backend": self.start_backend, "activations": self.activations,
            "block_products": self.block_products, "multiply": self.multiply,
        }  # fmt: skip

    def device(self, backend: str) -> Device:
        """Return the device with this name for `--reference`, started once. Raises NoDevice, UnknownDevice."""
        if backend not in self._devices:
            from ..backends import kind_of

            found = find_device(backend)
            self._devices[backend] = kind_of(ggml.backend_of(found)).device(found)
        return self._devices[backend]

    def start_backend(self, backend: str) -> Reply:
        """Return a description of the device, or why it cannot be used here."""
        try:
            device, found = self.device(backend), find_device(backend)
        except NoDevice as error:
            return {"missing": str(error)}, ()
        except UnknownDevice as error:
            return {"unknown": str(error)}, ()
        return {
            "backend": ggml.backend_of(found), "device": ggml.device_name(found),
            "name": ggml.description_of(found), **device.properties(),
        }, ()  # fmt: skip

    def activations(self, definition: str, backend: str, x: npt.NDArray[np.float32]) -> Reply:
        """Quantize activations as a backend does for products of a definition."""
        return {}, (self.device(backend).activations(definition, x),)

    def block_products(
        self, type: int, threads: int, backend: str, w: npt.NDArray[np.uint8], x: npt.NDArray[np.float32]
    ) -> Reply:
        """Compute every block × block product, float32[K/32, M, N]."""
        return {}, (self.device(backend).block_products(type, w, x, threads),)

    def multiply(
        self, type: int, threads: int, backend: str, w: npt.NDArray[np.uint8], x: npt.NDArray[np.float32]
    ) -> Reply:
        """Compute one MUL_MAT: weights uint8[N, row bytes], activations float32[M, K] → float32[M, N]."""
        return {}, (self.device(backend).multiply(type, w, x, threads),)


# ---- devices that are references -------------------------------------------------------------------------------------
# Look-up of the device of ggml's registry given by `--reference`.


class UnknownDevice(Exception):
    """The registry has no device with this name."""


def find_device(reference: str) -> Any:
    """Find a device by ggml's name; "cpu" is the CPU, "gpu" the first GPU.

    Raises NoDevice if there is no GPU, UnknownDevice if no device has the name.
    """
    if reference == "cpu":
        return ggml.ggml_backend_dev_by_type(ggml.DEVICE_CPU)
    if reference == "gpu":
        for kind in ggml.DEVICES_WITH_LAYERS:
            if found := ggml.ggml_backend_dev_by_type(kind):
                return found
        raise NoDevice(f"llama.cpp finds no GPU: {_there()}")
    if found := ggml.ggml_backend_dev_by_name(reference.encode()):
        return found
    raise UnknownDevice(f"no device is called {reference[:100]}: {_there()}")


def _there() -> str:
    names = [str(device["name"]) for device in ggml.devices()]
    return f"there {'are' if len(names) > 1 else 'is'} {', '.join(names)}"
