"""Thread pools for work that releases Python's lock: NumPy, ctypes, reading and hashing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")

#: Number of threads → pool. Pools are kept: on a machine with many cores, starting the threads can take longer than a
#: small product.
_POOLS: dict[int, ThreadPoolExecutor] = {}
_LOCK = threading.Lock()
_HERE = threading.local()


def each(of: Callable[[S], T], items: Iterable[S], threads: int) -> list[T]:
    """Apply `of` to each item by at most `threads` threads; returns the results in order.

    A single item runs in the calling thread. So do all items if the caller is itself a thread of a pool: it must not
    wait for other threads of the pool.
    """
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
        for future in futures:  # after an exception, no other item may still be running
            if not future.cancel():
                future.exception()


def ahead(work: Callable[[], object]) -> None:
    """Start work early in a thread, if one can be started; it is repeated where its result is needed, which is where a
    failure is reported."""

    def quietly() -> None:
        with contextlib.suppress(Exception):
            work()

    with contextlib.suppress(RuntimeError):
        threading.Thread(target=quietly, daemon=True).start()


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """In this block a thread works, unless none can be started; what is yielded returns its result, or raises its
    exception. After the block, a result that nobody waited for is no longer needed: see `is_over`."""
    over = threading.Event()
    with ThreadPoolExecutor(1, initializer=initializer(over)) as pool:
        future = None
        with contextlib.suppress(RuntimeError):
            future = pool.submit(work)
        try:
            yield work if future is None else future.result
        finally:
            over.set()


def may_be_over() -> bool:
    """Whether what the calling thread does may become useless before its end."""
    return bool(_ends())


def is_over() -> bool:
    """Whether the result of the calling thread is no longer needed."""
    return any(over.is_set() for over in _ends())


def _ends() -> tuple[threading.Event, ...]:
    """Return the events each of which makes the work of the calling thread useless."""
    return getattr(_HERE, "ends", ())


def initializer(*over: threading.Event) -> Callable[[], None]:
    """Return the initializer of threads that work for the calling one. Their work is over when its work is, and when
    one of these events is set."""
    ends = (*_ends(), *over)

    def begin() -> None:
        _HERE.ends = ends

    return begin


def _begin() -> None:
    _HERE.shares = True


def _begin_in_child() -> None:
    _POOLS.clear()  # the threads exist only in the parent
    _LOCK.release()


# Hold the lock during a fork: in the child, a thread that held it would not exist, and never release it.
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_begin_in_child)
