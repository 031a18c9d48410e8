"""Where the time goes: seconds of each stage of a call, measured where the stage is, added up by whoever reports.

A stage inside another one takes its time from it, so that stages add up to no more than the time that passed. Each
thread has a clock of its own; the time of a stage is that of the thread that waits for it.
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

#: Name → what is counted there, in the order in which reports show them.
STAGES: dict[str, str] = {
    "llama.cpp": "waiting for llama.cpp's process",
    "compile": "compiling and loading kernels",
    "pack": "uploading weights that a kernel takes packed, with the packing",
    "upload": "copying operands to where the kernel runs",
    "quantize": "quantizing activations, by the kernel's quantizer",
    "launch": "multiplying; on a GPU only the launch itself",
    "download": "copying outputs back; on a GPU also waiting for the launch",
    "foreign process": "calls of a foreign kernel in its process, with transfers",
    "exact product": "computing what outputs are judged by",
    "judging": "judging outputs",
}


class _Clock(threading.local):
    """Of one thread: seconds by stage, and the stages that are open."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.open: list[list[float]] = []  # of each open stage: the time that inner ones took


_CLOCK = _Clock()


class stage:
    """`with stage("upload"):` counts the time of the block. The name is one of `STAGES`."""

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
    """A function whose calls are a stage."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with stage(name):
                return function(*args, **kwargs)

        return call

    return decorate


def seconds() -> dict[str, float]:
    """Stage → seconds that this thread has spent in it so far."""
    return dict(_CLOCK.seconds)


def since(before: Mapping[str, float]) -> dict[str, float]:
    """Stage → seconds since `seconds()` returned `before`, of the stages that were entered, in `STAGES`' order."""
    spent = {name: _CLOCK.seconds.get(name, 0.0) - before.get(name, 0.0) for name in STAGES}
    return {name: value for name, value in spent.items() if value > 0}
