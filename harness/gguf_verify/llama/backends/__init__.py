"""The backends of llama.cpp that can be the reference, one file each; `BACKENDS` has them by the name which
`--reference` takes.

A backend's file may import semantics, formats and support; it is also imported in llama.cpp's process, so what only our
process needs is imported where it is used.
"""

from __future__ import annotations

from ...support.registry import members
from .device import Device, NoDevice
from .interface import Backend, BackendKind

BACKENDS: dict[str, BackendKind] = {kind.name: kind for kind in members(__name__, BackendKind)}

__all__ = ["BACKENDS", "Backend", "BackendKind", "Device", "NoDevice"]
