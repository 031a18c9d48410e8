"""Devices of the backends that have no file of their own, such as Vulkan's.

Their definitions are inferred from outputs, which another package does (`gguf_verify_graph.other_backends`): it knows
the products of llama.cpp's graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .interface import Backend, BackendKind

if TYPE_CHECKING:
    from ..library import Llama
    from .device import Device


def _started(name: str, kind: BackendKind, llama: Llama, properties: Any) -> Backend:
    from ...support.errors import EnvironmentFault
    from ...support.plugins import REFERENCES, load

    backend = load(REFERENCES, "others")
    if backend is None:
        raise EnvironmentFault(f"{name} as a reference needs the package gguf_verify_graph, which is not installed")
    started = backend(name, kind, llama, properties)
    assert isinstance(started, Backend)
    return started


def _device(device: Any) -> Device:
    from ..worker.registry_device import RegistryDevice

    return RegistryDevice(device)


OTHERS = BackendKind("", "another backend of llama.cpp", _started, _device)
