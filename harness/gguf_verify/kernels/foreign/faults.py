"""What a kernel's process says of a fault, in one line, and where in its author's code it was."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.errors import HarnessError, KernelFinding
from ...support.paths import PACKAGE

MOST_TEXT = 300
#: Frames of the author's own code that a message names.
_MOST_FRAMES = 3


class Fault(Exception):
    """The kernel is to blame; one line says for what.

    Args:
        finding: of a `KernelFinding`, its kind and lines.
        cause: what further faults of the same cause have in common; "" where nothing does.
    """

    def __init__(self, words: str, finding: dict[str, Any] | None = None, cause: str = "") -> None:
        super().__init__(words)
        self.cause = cause
        self.finding = finding

    @classmethod
    def of(cls, error: HarnessError) -> Fault:
        """What the host said."""
        if isinstance(error, KernelFinding):
            return cls(str(error), {"kind": error.kind, "lines": list(error.lines)[:8]})
        return cls(str(error))


def one_line(error: BaseException) -> str:
    """Its type and the first line of its message."""
    with contextlib.suppress(Exception):
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0][:MOST_TEXT]}" if lines else type(error).__name__
    return type(error).__name__


def raised(who: str, error: BaseException, more: str = "") -> Fault:
    """That a function of the kernel's author raised, in a line, with the frames of the traceback that are not of this
    package or of installed ones: the innermost first, with its line of source."""
    frames = []
    with contextlib.suppress(Exception):
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_of_author(f.filename)][-_MOST_FRAMES:]
    places = [f"{Path(f.filename).name}:{f.lineno} in {f.name}: {(f.line or '')[:100]}" for f in reversed(frames)]
    at = "".join(f"; {'called from' if i else 'at'} {place}" for i, place in enumerate(places))
    cause = f"{type(error).__name__} at {places[0]}" if places else f"{type(error).__name__} of {who}"
    return Fault(f"{who} raised {one_line(error)}{more}{at}", cause=cause[:MOST_TEXT])


def _is_of_author(file: str) -> bool:
    path = Path(file)
    return not path.is_relative_to(PACKAGE) and not {"site-packages", "dist-packages"} & set(path.parts)


def unchanged(what: str, now: npt.NDArray[Any], before: npt.NDArray[Any], who: str) -> None:
    """Raises Fault where somebody wrote into an array that only this process has."""
    a, b = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (now, before))
    if not np.array_equal(a, b):
        wrong = np.flatnonzero(a != b) if a.size == b.size else np.zeros(1, int)
        raise Fault(f"{who} modified its {what}: {len(wrong)} bytes, the first at {wrong[0]}")


__all__ = ["MOST_TEXT", "Fault", "one_line", "raised", "unchanged"]
