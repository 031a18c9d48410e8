"""Compilations in the background, for hosts whose compiler runs in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ..support.command_line import cores
from .base import Source

#: Most simultaneous compilations.
_MOST = 8


class Ahead:
    """Compiles sources in threads.

    Args:
        compiled: returns the code of a source; it releases Python's lock meanwhile.
    """

    def __init__(self, compiled: Callable[[Source], bytes]) -> None:
        self._compiled = compiled
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: dict[tuple[str, ...], Future[bytes]] = {}
        self._closed, self._lock = False, threading.Lock()

    def begin(self, sources: Iterable[Source]) -> None:
        """Begin compiling each source that was not begun, in this order."""
        for source in sources:
            with self._lock:
                if self._closed:
                    return
                self._pool = self._pool or ThreadPoolExecutor(max(1, min(_MOST, cores() - 1)))
                if source.key not in self._under_way:
                    self._under_way[source.key] = self._pool.submit(self._compiled, source)

    def taken(self, source: Source) -> bytes | None:
        """Return the code once it is compiled.

        None if compilation of this source was not requested, or has not started: then the caller compiles it. Raises
        the compiler's exception.
        """
        future = self._under_way.get(source.key)
        return None if future is None or future.cancel() else future.result()

    def finish(self) -> None:
        """Wait for all compilations; `taken` raises their exceptions."""
        with self._lock:
            begun = list(self._under_way.values())
        wait(begun)

    def close(self) -> None:
        """Start no further compilation, even if requested."""
        with self._lock:
            self._closed = True
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            self._under_way.clear()
