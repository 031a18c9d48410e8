"""Faults in a kernel's process: their one-line descriptions, and the place in the author's code."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.errors import HarnessError, KernelFinding, NotRun, TraceFrame
from ...support.paths import PACKAGE
from ...support.text import visible

MOST_TEXT = 300
#: Most frames of a traceback in a message, counted from the innermost.
MOST_FRAMES = 16
#: Folder of Python's standard library.
_STANDARD_LIBRARY = Path(contextlib.__file__).parent


class Fault(Exception):
    """A fault of the kernel, described in one line.

    Args:
        finding: for a `KernelFinding`, its kind and lines.
        not_run: whether the host cannot run the call as a GPU does, so that the kernel is not at fault.
        cause: a key shared by further faults of the same cause; "" if there is none.
        trace: frames of an exception.
    """

    def __init__(
        self, words: str, finding: dict[str, Any] | None = None, cause: str = "", trace: Sequence[TraceFrame] = ()
    ) -> None:
        super().__init__(words)
        self.cause, self.trace = cause, trace
        self.finding = finding
        self.not_run = False

    @classmethod
    def of(cls, error: HarnessError) -> Fault:
        """Convert an error of the host."""
        if isinstance(error, KernelFinding):
            return cls(str(error), {"kind": error.kind, "lines": list(error.lines)[:8]})
        fault = cls(str(error))
        fault.not_run = isinstance(error, NotRun)
        return fault


def one_line(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    with contextlib.suppress(Exception):
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[0][:MOST_TEXT]}" if lines else type(error).__name__
    return type(error).__name__


def raised(who: str, error: BaseException, more: str = "") -> Fault:
    """Return the fault for an exception in a function of the kernel's author.

    It names the innermost place in the author's own code, and holds the traceback's frames outside this package.
    """
    frames: list[TraceFrame] = []
    with contextlib.suppress(Exception):
        found = traceback.extract_tb(error.__traceback__)
        frames = [_frame(f) for f in found if not Path(f.filename).is_relative_to(PACKAGE)]
    own = [frame for frame in frames if frame.own]
    cause = f"{type(error).__name__} {f'at {own[-1].place}' if own else f'of {who}'}"
    at = f"; at {own[-1].place}: {own[-1].code}" if own else ""
    return Fault(f"{who} raised {one_line(error)}{more}{at}", None, cause[:MOST_TEXT], frames[-MOST_FRAMES:])


def _frame(frame: traceback.FrameSummary) -> TraceFrame:
    path = Path(frame.filename)
    installed = {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(_STANDARD_LIBRARY)
    return TraceFrame(
        f"{path.name}:{frame.lineno} in {frame.name}"[:MOST_TEXT], (frame.line or "")[:100], not installed
    )


def frames_of(places: Sequence[str], texts: Mapping[str, str], what: str = "") -> tuple[TraceFrame, ...]:
    """Return the lines of source at which a checked build found something, each once; unknown ones are skipped.

    Args:
        places: FILE:LINE, where FILE has no folder, and words after it.
        texts: the author's files: name → text.
        what: what is there, in words.
    """
    found: dict[str, TraceFrame] = {}
    for place in places:
        file, _, number = place.partition(" ")[0].rpartition(":")
        named = [text for name, text in texts.items() if Path(name).name == file]
        lines = named[0].splitlines() if len(named) == 1 and number.isdecimal() else []
        if 0 < int(number if lines else 0) <= len(lines):
            at = f"{file}:{number}"
            place = f"{at} ({what})" if what else at
            found[at] = TraceFrame(visible(place, 200), visible(lines[int(number) - 1].strip(), 100), True)
    return tuple(found.values())


def unchanged(what: str, now: npt.NDArray[Any], before: npt.NDArray[Any], who: str) -> None:
    """Raise Fault if an array that only this process has was modified."""
    a, b = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (now, before))
    if not np.array_equal(a, b):
        wrong = np.flatnonzero(a != b) if a.size == b.size else np.zeros(1, int)
        raise Fault(f"{who} modified its {what}: {len(wrong)} bytes, the first at {wrong[0]}")
