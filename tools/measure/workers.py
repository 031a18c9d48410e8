"""A map over processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gguf_verify.support import scratch


@contextmanager
def workers(count: int, start: Callable[..., object] | None = None, *arguments: Any) -> Iterator[Callable[..., Any]]:
    """A `map` over so many new processes, each of which calls `start` first; with one process, over this one.

    Answers come in order. Leaving the context ends the processes, whatever is left to do. They are spawned, since a
    fork of a process that has used CUDA cannot use it.
    """
    if count == 1:
        if start is not None:
            start(*arguments)
        yield map
        return
    begin = (str(scratch.top()), start, arguments)
    with multiprocessing.get_context("spawn").Pool(count, _begin, begin) as pool:
        yield pool.imap


def begin_worker(folder: Path) -> None:
    """What each process of a pool does first: it leaves signals to its parent, which ends it by SIGTERM, and uses its
    parent's scratch folder."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    scratch.join(folder)


def _begin(folder: str, start: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    begin_worker(Path(folder))
    if start is not None:
        start(*arguments)
