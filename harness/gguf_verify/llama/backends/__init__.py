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


def help_of_backends() -> str:
    """What each backend is, for a help text."""
    said = [f"{kind.name}: {kind.title}{kind.needs and f', which needs {kind.needs}'}" for kind in BACKENDS.values()]
    return "; ".join(said)


__all__ = ["BACKENDS", "Backend", "BackendKind", "Device", "NoDevice", "help_of_backends"]
