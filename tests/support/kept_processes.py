"""Processes of llama.cpp and gguf-py that audits and verifications in a process of the tests take over from each other.

Starting the three processes of an audit takes 0.6 s of processor time, reading a small file a tenth of that. Each
answer is still computed. A process is not taken over if it was ended or interrupted in a call, or if the environment or
the sandbox differs. `make test-all` starts all processes each time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gguf_verify.audit.reader_child import ReaderChild
from gguf_verify.audit.readers import MEMORY, READERS, TIME_LIMIT, Readers
from gguf_verify.llama import process
from gguf_verify.llama.child import Child
from gguf_verify.llama.library import Llama
from gguf_verify.processes import sandbox
from gguf_verify.support.errors import EnvironmentFault

_readers: dict[tuple[object, ...], ReaderChild] = {}
#: Conditions and process, the one that was left last at the end.
_llamas: list[tuple[tuple[object, ...], Child]] = []
#: Most processes of llama.cpp that are kept. A verification has two at once.
_MOST = 4


def conditions() -> tuple[object, ...]:
    """Return what a process that starts now depends on, beside its arguments."""
    environment = sorted((name, value) for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST")
    return (*environment, sandbox.current())


def end() -> None:
    """End all processes."""
    while _readers:
        _readers.popitem()[1].close()
    while _llamas:
        _llamas.pop()[1].close()


def taken(known: tuple[object, ...] | None) -> Child | None:
    """Return a process of llama.cpp that was left under these conditions, if there is one. It has sent its first
    message."""
    for left_under, child in _llamas[::-1]:
        if left_under == known and child.alive:
            _llamas.remove((left_under, child))
            return child
    return None


def _leave(known: tuple[object, ...], child: Child) -> None:
    """Leave a process to the next one; the one that was left first is ended where there are too many."""
    _llamas.append((known, child))
    if len(_llamas) > _MOST:
        _llamas.pop(0)[1].close()


class KeptReaders(Readers):
    """`Readers` whose processes are left to the next ones."""

    def __init__(
        self,
        time_limit: float = TIME_LIMIT,
        memory: int = MEMORY,
        names: Sequence[str] = READERS,
        build: Path | None = None,
    ) -> None:
        super().__init__(time_limit, memory, names, build)
        self._known = (*conditions(), build)
        self._idle = True
        found = ((name, _readers.pop((name, *self._known), None)) for name in names)
        self._children = {name: child for name, child in found if child is not None}
        with contextlib.suppress(EnvironmentFault):  # raised again when they read
            self._start()  # here, because they end with the thread that starts them

    def _read(self, *given: Any, **options: Any) -> Any:
        self._idle = False
        readings = super()._read(*given, **options)
        self._idle = True
        return readings

    def close(self) -> None:
        if self._idle:
            with self._lock:
                for name in [name for name, child in self._children.items() if child.alive]:
                    child = self._children.pop(name)
                    if _readers.setdefault((name, *self._known), child) is not child:
                        child.close()
        super().close()


class NoProcess:
    """In the place of a process of llama.cpp that was not needed yet, or was left to another one."""

    link, lanes = None, None

    def close(self) -> None:
        pass

    kill = hang_up = close


class KeptLlama(Llama):
    """`Llama` whose process is left to the next one. With arguments that concern the process, it is `Llama`."""

    def __init__(
        self,
        time_limit: float = process.TIME_LIMIT,
        verbose: bool = False,
        child: Child | None = None,
        build: Path | None = None,
    ) -> None:
        self._known = None if verbose or child is not None or build is not None else conditions()
        self._taken = taken(self._known)
        super().__init__(time_limit, verbose, child or self._taken, build)

    def reply(self, call: str, header: dict[str, Any], *arrays: npt.NDArray[Any]) -> None:
        self._idle = False
        super().reply(call, header, *arrays)

    def receive(self, call: str) -> tuple[dict[str, object], process.Arrays]:
        if call == "start" and self._taken is not None:  # it has said so to the one before
            self._idle = True
            return {"ready": True}, []
        self._idle = False
        header, arrays = super().receive(call)
        self._idle = not header.keys() & {"event", "error"}
        return header, arrays

    def abandon(self) -> None:
        self._idle = False
        super().abandon()

    def close(self) -> None:
        known, self._known = self._known, None
        if known is not None and self._idle and self._child.alive:
            _leave(known, self._child)
            self._child = NoProcess()  # type: ignore[assignment]
        super().close()
