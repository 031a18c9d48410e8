"""Passes over the tensors of a mapped file inside llama.cpp's process, which calls its functions without a copy.

Pieces of tensors go to a thread pool: ctypes releases Python's lock.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support.sealed import load_library
from .tensor_scan import SMALL_BYTES, Job, Part, Prepared, Result, Scanning, Tally, Unusable

Bytes = npt.NDArray[np.uint8]
#: Called with the number of bytes done since the last call.
Progress = Callable[[int], object]

_MOST_THREADS = 16  # more would be limited by memory bandwidth, and each takes memory
_AHEAD = 8  # queued pieces per thread, so that none waits between tensors
_TELL_BYTES = 1 << 26


class FileScanner:
    """Maps files and scans them.

    Args:
        alive: called from time to time with the progress, for the parent.
        llama: compare with llama.cpp's conversions; without, nothing is compared.
    """

    def __init__(self, alive: Progress, llama: bool = True) -> None:
        self._alive = alive
        self._llama = llama
        self._files: dict[str, tuple[list[int], Bytes, int]] = {}
        self._local = threading.local()
        self._libraries: dict[bytes, c.CDLL] = {}
        self._pool: ThreadPoolExecutor | None = None

    def part_of(self, path: str, identity: list[int], start: int, nbytes: int) -> Part:
        """Return some bytes of a file. Raises Unusable if the file does not have this identity."""
        with open(path, "rb") as file:
            now = os.fstat(file.fileno())
            if [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns] != identity:
                raise Unusable("the file changed after it was opened")
            held = self._files.get(path)
            if held is None or held[0] != identity:
                if held is not None:
                    os.close(held[2])
                whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
                held = self._files[path] = (identity, whole, os.dup(file.fileno()))
        return Part(held[1][start : start + nbytes], held[2], start)

    def scans(self, jobs: Iterable[Job], threads: int) -> Iterator[Result]:
        """Scan tensors, several at a time, and yield the results in order. Raises Unusable.

        Returns:
            figures by name; the number of occurrences of each code, int64[256]; the sampled blocks,
            uint8[n, block_bytes], and llama.cpp's values of them, float32[n, block_size]; and those of the first
            blocks that differ.
        """

        prepared: dict[int, Prepared] = {}

        def pieces() -> Iterator[tuple[Scanning, int]]:
            for job in jobs:
                ready = prepared.get(id(job.kind))
                if ready is None:
                    ready = prepared[id(job.kind)] = Prepared(job.kind, self._library(job.kind.library), self._llama)
                scanning = Scanning(job, ready, self._buffer, threads)
                for start in scanning.starts:
                    scanning.announce(start)
                    yield scanning, start

        waiting: deque[tuple[Scanning, int, Future[Tally]]] = deque()
        done = 0

        def settle(scanning: Scanning, start: int, tally: Tally) -> bool:
            nonlocal done
            done += scanning.size(start)
            if done >= _TELL_BYTES:
                self._alive(done)
                done = 0
            return scanning.add(tally)

        if threads > 1 and self._pool is None:
            self._pool = ThreadPoolExecutor(min(threads, _MOST_THREADS))
        try:
            for scanning, start in pieces():
                if threads == 1 or (not waiting and scanning.size(start) < SMALL_BYTES):
                    if settle(scanning, start, scanning.tally(start)):
                        yield scanning.result()
                    continue
                assert self._pool is not None
                while len(waiting) >= _AHEAD * threads:
                    first, at, future = waiting.popleft()
                    if settle(first, at, future.result()):
                        yield first.result()
                waiting.append((scanning, start, self._pool.submit(scanning.tally, start)))
            while waiting:
                first, at, future = waiting.popleft()
                if settle(first, at, future.result()):
                    yield first.result()
        finally:
            for _, _, future in waiting:
                future.cancel()

    def _buffer(self, size: int) -> Bytes:
        """Return this thread's buffer, with `size` bytes."""
        held: Bytes | None = getattr(self._local, "buffer", None)
        if held is None or len(held) < size:
            held = self._local.buffer = np.empty(size, np.uint8)
        return held[:size]

    def _library(self, content: bytes) -> c.CDLL:
        if content not in self._libraries:
            self._libraries[content] = load_library(content)
        return self._libraries[content]

    def spread(self, work: Callable[[int], Any], starts: Sequence[int], nbytes: int, threads: int) -> Iterator[Any]:
        """Yield the results of `work` for all starts in order; a bounded number is computed ahead."""
        done = 0

        def tell() -> None:
            nonlocal done
            done += nbytes
            if done >= _TELL_BYTES:
                self._alive(done)
                done = 0

        if threads == 1 or len(starts) == 1:
            for start in starts:
                yield work(start)
                tell()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(threads, _MOST_THREADS))
        waiting: list[Future[Any]] = []
        for start in starts:
            if len(waiting) >= 2 * min(threads, _MOST_THREADS):
                yield waiting.pop(0).result()
                tell()
            waiting.append(self._pool.submit(work, start))
        for future in waiting:
            yield future.result()
