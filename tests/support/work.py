"""How much work a call does, counted rather than timed: the same on any machine, whatever runs beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(call: Callable[[], object]) -> int:
    """Lines of Python that a call runs in this thread, each turn of a loop anew, and its calls of built-in functions.

    What one built-in function does by itself counts as one step.
    """
    count = 0

    def line(_frame: FrameType, event: str, _arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def built_in(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal count
        count += event == "c_call"

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(line)
    sys.setprofile(built_in)
    try:
        call()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return count
