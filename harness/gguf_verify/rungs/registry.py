"""The registry of rungs, in the order in which they are climbed."""

from __future__ import annotations

from collections.abc import Sequence

from ..support.errors import UsageError
from ..support.near import nearest
from ..support.registry import members
from ..support.text import printable
from .interface import Rung

#: By name, in the order in which they are climbed.
RUNGS: dict[str, Rung] = {r.name: r for r in sorted(members(__package__, Rung), key=lambda rung: rung.order)}


def rungs_for(computes: str = "gemm") -> tuple[str, ...]:
    """The rungs of kernels that compute this, in order."""
    return tuple(rung.name for rung in RUNGS.values() if computes in rung.computes)


def known_rungs(names: Sequence[str]) -> None:
    """That there are such rungs, and at least one. Raises UsageError."""
    unknown = [name for name in names if name not in RUNGS]
    if unknown or not names:
        near = nearest(unknown[0], RUNGS) if unknown else ""
        said = f"no rung is called {', '.join(map(printable, unknown)) or '(none given)'}; {near}"
        raise UsageError(f"{said}there are: {', '.join(RUNGS)}", "unknown-rung")


def asked_rungs(names: Sequence[str] | None, computes: str) -> list[Rung]:
    """The rungs of these names, in order; None: all that are for such kernels. Raises UsageError where one is not."""
    fitting = rungs_for(computes)
    if wrong := [name for name in names or () if name not in fitting]:
        raise UsageError(
            f"the {wrong[0]} rung is not for a kernel that computes {computes!r}: its rungs are {', '.join(fitting)}"
        )
    return [RUNGS[name] for name in fitting if names is None or name in names]
