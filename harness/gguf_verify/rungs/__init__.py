"""The rungs of a verification, from bytes to tokens: each checks one claim about a run and returns a `RungResult`.

A rung is one module (or package) here that defines a `Rung`. Rungs may import everything below them: the audit,
diagnosis, kernels, llama.cpp, semantics, the container and the formats; not reports, nights or the command line.
"""

from __future__ import annotations

from ..support.registry import members
from .interface import Rung
from .run import Run

#: By name, in the order in which they are climbed.
RUNGS: dict[str, Rung] = {r.name: r for r in sorted(members(__name__, Rung), key=lambda rung: rung.order)}

__all__ = ["RUNGS", "Run", "Rung"]
