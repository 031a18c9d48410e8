"""Processes of llama.cpp and gguf-py that audits and rungs in a process of the tests take over from each other.

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
from gguf_verify.llama.files import FilePasses
from gguf_verify.llama.library import Llama
from gguf_verify.llama.model import LoadedModel
from gguf_verify.processes import sandbox
from gguf_verify.support.errors import EnvironmentFault

_readers: dict[tuple[object, ...], ReaderChild] = {}
_llamas: dict[tuple[object, ...], KeptLlama] = {}


def _conditions() -> tuple[object, ...]:
    environment = sorted((name, value) for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST")
    return (*environment, sandbox.current())


def end() -> None:
    """End all processes."""
    while _readers:
        _readers.popitem()[1].close()
    while _llamas:
        _llamas.popitem()[1].end()


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
        self._known = (*_conditions(), build)
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


class KeptLlama(Llama):
    """`Llama` whose process is left to the next one. With arguments that concern the process, it is `Llama`."""

    def __init__(
        self,
        time_limit: float = process.TIME_LIMIT,
        verbose: bool = False,
        child: Child | None = None,
        build: Path | None = None,
    ) -> None:
        self._known = None if verbose or child is not None or build is not None else _conditions()
        kept = None if self._known is None else _llamas.pop(self._known, None)
        if kept is None:
            super().__init__(time_limit, verbose, child, build)
        else:
            self.__dict__ |= {**kept.__dict__, "_time_limit": time_limit}
            self.files, self.model = FilePasses(self), LoadedModel(self)

    def reply(self, call: str, header: dict[str, Any], *arrays: npt.NDArray[Any]) -> None:
        self._idle = False
        super().reply(call, header, *arrays)

    def receive(self, call: str) -> tuple[dict[str, object], process.Arrays]:
        self._idle = False
        header, arrays = super().receive(call)
        self._idle = not header.keys() & {"event", "error"}
        return header, arrays

    def abandon(self) -> None:
        self._idle = False
        super().abandon()

    def close(self) -> None:
        if self._known is None or not self._idle or _llamas.setdefault(self._known, self) is not self:
            self.end()

    def end(self) -> None:
        super().close()
