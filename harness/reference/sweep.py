"""Passes over the tensors of a mapped file inside llama.cpp's process, where its functions are called without a copy.

`kernels/host/scan.hpp` does the work of `Sweeper.scan`; a batch of blocks is decoded by llama.cpp and by us and tallied
before it leaves the cache. Chunks go to a pool of threads: ctypes lets go of Python's lock.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import ggml

Bytes = npt.NDArray[np.uint8]
#: Called with the number of bytes that were done since the last call.
Progress = Callable[[int], object]

MAX_RULES, MAX_BAD = 8, 21
#: Rows are hashed up to this number: 8 bytes each for the hash and as many for the order.
MAX_HASHED_ROWS = 1 << 23
#: Longer rows, in bytes, are read in pieces: a buffer for one must not grow with the file.
LONG_ROW = 1 << 23
_MOST_THREADS = 16  # memory is what is left to gain beyond, and each takes some
_CHUNK_BYTES = 1 << 19  # stays in the second cache
_SHARE_BYTES = 1 << 23  # of a thread at a time
_FLOATS = 1 << 20  # of a chunk that is quantized anew


class Tally(c.Structure):
    """`scan::Tally` of kernels/host/scan.hpp."""

    _fields_ = [
        *((name, c.c_int64) for name in (
            "blocks", "zero_scales", "zero_blocks", "subnormal_scales", "negative_scales", "not_finite", "differing",
        )),
        ("first_not_finite", c.c_int64 * MAX_BAD),
        ("first_differing", c.c_int64 * MAX_BAD),
        ("first_subnormal", c.c_int64),
        ("obeying", c.c_int64 * MAX_RULES),
        ("codes", c.c_int64 * 256),
        *((name, c.c_float) for name in ("least_scale", "most_scale", "least_min", "most_min")),
    ]  # fmt: skip


_SUMS = ("blocks", "zero_scales", "zero_blocks", "subnormal_scales", "negative_scales", "not_finite", "differing")


class Unusable(Exception):
    """The file is not the one that the parent opened, or cannot be what was asked for."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file: mapped, uint8[nbytes], and as a file descriptor and the offset at which they start."""

    mapped: Bytes
    fd: int
    start: int


class Rule(c.Structure):
    """`scan::Rule`."""

    _fields_ = [("all", c.c_uint32), ("any", c.c_uint32), ("none", c.c_uint32)]


class Sweeper:
    """Maps files and runs over them.

    Args:
        alive: called now and then, so that the parent knows of the progress.
    """

    def __init__(self, alive: Progress) -> None:
        self._alive = alive
        self._files: dict[str, tuple[list[int], Bytes, int]] = {}
        self._local = threading.local()
        self._libraries: dict[str, c.CDLL] = {}
        self._pool: ThreadPoolExecutor | None = None

    def part_of(self, path: str, identity: list[int], start: int, nbytes: int) -> Part:
        """Some bytes of a file. Raises Unusable where it is not the one of that identity."""
        with open(path, "rb") as file:
            now = os.fstat(file.fileno())
            if [now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns] != identity:
                raise Unusable("the file was changed after it was opened")
            held = self._files.get(path)
            if held is None or held[0] != identity:
                if held is not None:
                    os.close(held[2])
                whole = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
                held = self._files[path] = (identity, whole, os.dup(file.fileno()))
        return Part(held[1][start : start + nbytes], held[2], start)

    def scan(
        self, part: Part, type_id: int, block_bytes: int, row_bytes: int, library: str,
        rules: Sequence[Sequence[int]], drawn: Sequence[int], threads: int,
    ) -> tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]:  # fmt: skip
        """Tally the blocks of a tensor. Raises Unusable.

        Returns:
            figures by name; how often each code occurs, int64[256]; the blocks of the ascending numbers `drawn`,
            uint8[n, block_bytes], and llama.cpp's decode of them, float32[n · block_size].
        """
        data = part.mapped
        scanner = self._library(library)
        to_float = c.cast(ggml.ggml_get_type_traits(type_id).contents.to_float, c.c_void_p)
        given = (Rule * MAX_RULES)(*(Rule(*r) for r in rules))
        n_rows = len(data) // row_bytes
        hashes = np.empty(n_rows, np.uint64) if 1 < n_rows <= MAX_HASHED_ROWS else None
        # whole rows where they are not too long for a buffer, so that they are hashed while they are in the cache
        by_row = hashes is not None and row_bytes <= LONG_ROW
        unit = row_bytes if by_row else block_bytes
        step = max(1, _CHUNK_BYTES // unit) * unit
        picked = np.asarray(drawn, np.int64)
        blocks = np.empty((len(picked), block_bytes), np.uint8)

        def tally(start: int) -> Tally:
            out = Tally(first_subnormal=-1, least_scale=np.inf, most_scale=-np.inf, least_min=np.inf, most_min=-np.inf)
            target = ggml.pointer(hashes[start // row_bytes :]) if hashes is not None and by_row else None
            failed = scanner.scan_file(
                part.fd, c.c_int64(part.start + start), c.c_int64(min(share, len(data) - start)),
                c.c_int64(start // block_bytes), c.c_void_p(ggml.pointer(self._buffer(step))), c.c_int64(step),
                to_float, given, len(rules), c.byref(out), c.c_int64(row_bytes), c.c_void_p(target),
                c.c_void_p(ggml.pointer(picked)), c.c_int64(len(picked)), c.c_void_p(ggml.pointer(blocks)),
            )  # fmt: skip
            if failed < 0:
                raise Unusable("the file has shrunk since it was opened")
            if failed:
                raise OSError(failed, os.strerror(failed))
            return out

        share = max(1, min(_SHARE_BYTES, len(data) // (2 * threads) if threads > 1 else len(data)) // step) * step
        merged, codes = _merge(self._spread(tally, range(0, len(data), share), share, threads))
        merged["obeying"] = merged["obeying"][: len(rules)]
        if hashes is not None and not by_row:
            scanner.hash_rows(
                c.c_void_p(ggml.pointer(data)), c.c_int64(n_rows), c.c_int64(row_bytes),
                c.c_void_p(ggml.pointer(hashes)),
            )  # fmt: skip
        merged["duplicate_rows"], merged["duplicate"] = self._duplicates(scanner, data, row_bytes, hashes)
        traits = ggml.ggml_get_type_traits(type_id).contents
        values = np.empty(len(picked) * int(traits.blck_size), np.float32)
        if len(picked):
            traits.to_float(ggml.pointer(blocks), ggml.pointer(values), values.size)
        return merged, (codes, blocks, values)

    def _buffer(self, size: int) -> Bytes:
        """This thread's, of that size."""
        held: Bytes | None = getattr(self._local, "buffer", None)
        if held is None or len(held) < size:
            held = self._local.buffer = np.empty(size, np.uint8)
        return held[:size]

    @staticmethod
    def _duplicates(
        scanner: c.CDLL, data: Bytes, row_bytes: int, hashes: npt.NDArray[np.uint64] | None
    ) -> tuple[int | None, list[int] | None]:
        n_rows = len(data) // row_bytes
        if hashes is None:
            return (0, None) if n_rows < 2 else (None, None)
        ascending = np.sort(hashes)  # ten times faster than their order, which is rarely needed
        if not (ascending[1:] == ascending[:-1]).any():
            return 0, None
        order = np.argsort(hashes, kind="stable")
        pair = np.zeros(2, np.int64)
        scanner.count_duplicates.restype = c.c_int64
        found = scanner.count_duplicates(
            c.c_void_p(ggml.pointer(data)), c.c_int64(n_rows), c.c_int64(row_bytes), c.c_void_p(ggml.pointer(hashes)),
            c.c_void_p(ggml.pointer(order)), c.c_void_p(ggml.pointer(pair)),
        )  # fmt: skip
        return int(found), [int(pair[0]), int(pair[1])] if found else None

    def requantize(
        self, source: Bytes, source_type: int, target: Bytes, type_id: int, n_rows: int, k: int, threads: int
    ) -> tuple[dict[str, Any], Bytes]:
        """Quantize the rows of `source` with `ggml_quantize_chunk` and compare with `target`.

        Returns:
            `differing` blocks and the number of the `first`; and that block as llama.cpp makes it, uint8[block_bytes].
        """
        traits = ggml.ggml_get_type_traits(type_id).contents
        from_traits = ggml.ggml_get_type_traits(source_type).contents
        block_bytes = int(traits.type_size)
        if k > _FLOATS:  # blocks do not know of rows: long ones are taken in pieces
            unit = max(int(traits.blck_size), int(from_traits.blck_size))
            pieces = k // unit
            per = max(1, _FLOATS // unit)
            while pieces % per:
                per -= 1
            n_rows, k = n_rows * (pieces // per), per * unit
        row_bytes, source_row = len(target) // n_rows, len(source) // n_rows
        step = max(1, _FLOATS // k)

        def compare(start: int) -> tuple[int, int, Bytes]:
            rows = min(step, n_rows - start)
            raw = source[start * source_row : (start + rows) * source_row]
            theirs = target[start * row_bytes : (start + rows) * row_bytes]
            if source_type == type_id:
                made = raw
            else:
                if source_type != ggml.F32 and not from_traits.to_float:
                    raise Unusable(f"llama.cpp has no conversion from ggml type {source_type}")
                if source_type == ggml.F32:
                    values = np.frombuffer(raw.tobytes(), np.float32)
                else:
                    values = np.empty(rows * k, np.float32)
                    from_traits.to_float(ggml.pointer(raw), ggml.pointer(values), values.size)
                made = np.empty(len(theirs), np.uint8)
                ggml.ggml_quantize_chunk(type_id, ggml.pointer(values), ggml.pointer(made), 0, rows, k, None)
            differs = np.flatnonzero((made != theirs).reshape(-1, block_bytes).any(axis=1))
            if not len(differs):
                return 0, -1, np.empty(0, np.uint8)
            at = int(differs[0])
            first = start * row_bytes // block_bytes + at
            return len(differs), first, made[at * block_bytes : (at + 1) * block_bytes].copy()

        total, first, block = 0, -1, np.empty(0, np.uint8)
        for count, at, made in self._spread(compare, range(0, n_rows, step), step * row_bytes, threads):
            if count and first < 0:
                first, block = at, made
            total += count
        return {"differing": total, "first": first}, block

    def _library(self, path: str) -> c.CDLL:
        if path not in self._libraries:
            self._libraries[path] = c.CDLL(path)
        return self._libraries[path]

    def _spread(self, work: Callable[[int], Any], starts: range, nbytes: int, threads: int) -> Iterator[Any]:
        """Results in order, with a bounded number of them waiting."""
        done = 0

        def tell() -> None:
            nonlocal done
            done += nbytes
            if done >= 1 << 26:
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


def _merge(tallies: Iterator[Tally]) -> tuple[dict[str, Any], npt.NDArray[np.int64]]:
    sums = dict.fromkeys(_SUMS, 0)
    first: dict[str, list[int]] = {"first_not_finite": [], "first_differing": []}
    subnormal = -1
    obeying = np.zeros(MAX_RULES, np.int64)
    codes = np.zeros(256, np.int64)
    least_scale = least_min = np.inf
    most_scale = most_min = -np.inf
    for t in tallies:
        for key, count in (("first_not_finite", t.not_finite), ("first_differing", t.differing)):
            first[key] += list(getattr(t, key))[: min(count, MAX_BAD - len(first[key]))]
        for name in _SUMS:
            sums[name] += getattr(t, name)
        subnormal = t.first_subnormal if subnormal < 0 else subnormal
        obeying += np.frombuffer(t.obeying, np.int64)
        codes += np.frombuffer(t.codes, np.int64)
        least_scale, most_scale = min(least_scale, t.least_scale), max(most_scale, t.most_scale)
        least_min, most_min = min(least_min, t.least_min), max(most_min, t.most_min)

    def span(least: float, most: float) -> list[float] | None:
        return [float(least), float(most)] if least <= most else None

    return {
        **sums, **first, "first_subnormal": subnormal, "obeying": [int(n) for n in obeying],
        "scale": span(least_scale, most_scale), "minimum": span(least_min, most_min),
    }, codes  # fmt: skip
