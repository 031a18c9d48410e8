"""Look-up of the device of ggml's registry given by `--reference`."""

from __future__ import annotations

from typing import Any

from .. import ggml
from ..backends.device import NoDevice


class UnknownDevice(Exception):
    """The registry has no device with this name."""


def find(reference: str) -> Any:
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
