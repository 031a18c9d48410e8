"""Time accounting: seconds of each stage of a call, measured where the stage is, summed by the reports.

The time of an inner stage is subtracted from the outer one, so that stages never add up to more than the elapsed time.
Each thread has its own clock; a stage counts for the thread that waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Stage → what it covers, in the order of the reports.
STAGES: dict[str, str] = {
    "llama.cpp": "waiting for llama.cpp's process",
    "compile": "compiling and loading kernels",
    "pack": "packing and uploading weights, for kernels that take them packed",
    "upload": "copying operands to where the kernel runs",
    "quantize": "quantizing activations with the kernel's quantizer",
    "launch": "multiplying; on a GPU only the launch itself",
    "download": "copying outputs back; on a GPU also waiting for the launch",
    "foreign process": "calls of a foreign kernel in its process, including transfers",
    "exact product": "computing reference results",
    "judging": "judging outputs",
}


class _Clock(threading.local):
    """One thread's seconds by stage, and its open stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.open: list[list[float]] = []  # for each open stage, the time of its inner stages


_CLOCK = _Clock()


class stage:
    """`with stage("upload"):` adds the time of the block to a stage. The name is one of `STAGES`."""

    __slots__ = ("_name", "_start")

    def __init__(self, name: str) -> None:
        assert name in STAGES
        self._name = name

    def __enter__(self) -> None:
        _CLOCK.open.append([0.0])
        self._start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        spent = time.perf_counter() - self._start
        (inner,) = _CLOCK.open.pop()
        _CLOCK.seconds[self._name] = _CLOCK.seconds.get(self._name, 0.0) + max(0.0, spent - inner)
        if _CLOCK.open:
            _CLOCK.open[-1][0] += spent


def counted(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that counts a function's calls as a stage."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with stage(name):
                return function(*args, **kwargs)

        return call

    return decorate


def seconds() -> dict[str, float]:
    """Return stage → seconds that this thread has spent in it so far."""
    return dict(_CLOCK.seconds)


def since(before: Mapping[str, float]) -> dict[str, float]:
    """Return stage → seconds since `seconds()` returned `before`, for stages with any time, in `STAGES`' order."""
    spent = {name: _CLOCK.seconds.get(name, 0.0) - before.get(name, 0.0) for name in STAGES}
    return {name: value for name, value in spent.items() if value > 0}
