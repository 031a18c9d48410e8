"""The ladder: the kernels that this project ships, one module per step, found through the registry.

A step of the ladder is a `KernelSpec` with its source in `kernels/gemm/`. Modules here import the records and launches
of `gguf_verify.kernels` and nothing above them.
"""

from __future__ import annotations

from ...support.registry import members
from ..spec import KernelSpec

#: Keyed by name, in the order of the ladder.
KERNELS: dict[str, KernelSpec] = {k.name: k for k in sorted(members(__name__, KernelSpec), key=lambda k: k.file)}

__all__ = ["KERNELS"]
