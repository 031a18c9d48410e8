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
    """Provide a `map` over this number of new processes, each of which first calls `start`; one means this process.

    Results come in order. Leaving the context ends the processes, even if work remains. They are spawned, because a
    process that is forked after CUDA was used cannot use CUDA.
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
    """Initialize a process of a pool: leave signals to its parent, which ends it by SIGTERM, and use the parent's
    scratch folder."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    scratch.join(folder)


def _begin(folder: str, start: Callable[..., object] | None, arguments: tuple[Any, ...]) -> None:
    begin_worker(Path(folder))
    if start is not None:
        start(*arguments)
