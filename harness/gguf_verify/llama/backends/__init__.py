"""Backends of llama.cpp that can be the reference, one file each, by ggml's names of them.

`--reference` takes ggml's name of any device, or one of `SHORT`. The device's backend selects the file; devices of all
other backends belong to `others`.

A backend's file may import semantics, formats and support. It is also imported in llama.cpp's process, so modules that
only our process needs are imported where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...support.registry import members
from ..reference_names import SHORT, help_of_references, on_card
from .device import Device, NoDevice
from .interface import Backend, BackendKind

if TYPE_CHECKING:
    from ..library import Llama

BACKENDS: dict[str, BackendKind] = {kind.backend: kind for kind in members(__name__, BackendKind)}


def kind_of(backend: str) -> BackendKind:
    """Return the kind of devices that belong to a backend of ggml's registry."""
    return BACKENDS.get(backend, BACKENDS[""])


def start(reference: str, llama: Llama) -> Backend:
    """Start a device in a llama.cpp process, by its name or one of `SHORT`.

    Raises EnvironmentFault if it cannot be used here or reports too little, UsageError if there is no such device.
    """
    from ..answers import Started

    said = llama.start_backend(reference)
    kind = kind_of(llama.typed("start_backend", said, Started).backend)
    return kind.started(reference, kind, llama, llama.typed("start_backend", said, kind.says()))


__all__ = [
    "BACKENDS", "SHORT", "Backend", "BackendKind", "Device", "NoDevice", "help_of_references", "kind_of", "on_card",
    "start",
]  # fmt: skip
