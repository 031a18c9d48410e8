"""Work that is shared out among threads, for what leaves Python's lock: NumPy, ctypes, reading and hashing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

#: Threads that are kept, since on a machine with many cores to start them can take longer than a small product:
#: number → pool.
_POOLS: dict[int, ThreadPoolExecutor] = {}
_LOCK = threading.Lock()
_HERE = threading.local()


def each(of: Callable[[S], T], items: Iterable[S], threads: int) -> list[T]:
    """What is made of each item, in order, by at most so many threads. One item is made by the caller, and so are all
    where the caller is such a thread itself, which must not wait for others."""
    held = list(items)
    if threads < 2 or len(held) < 2 or getattr(_HERE, "shares", False):
        return [of(item) for item in held]
    with _LOCK:
        if threads not in _POOLS:
            _POOLS[threads] = ThreadPoolExecutor(threads, initializer=_begin)
        pool = _POOLS[threads]
    futures = [pool.submit(of, item) for item in held]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:  # where one raised, none may still be at work when the caller goes on
            if not future.cancel():
                future.exception()


def ahead(work: Callable[[], object]) -> threading.Thread | None:
    """A thread for work that is done again where it is needed: a failure is reported there. None where a limit allows
    no further thread."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=quietly, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _begin() -> None:
    _HERE.shares = True


def _begin_in_child() -> None:
    _POOLS.clear()  # its threads are the parent's
    _LOCK.release()


# a thread that held the lock at that moment does not exist in the child, where nobody would ever open it
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_begin_in_child)
