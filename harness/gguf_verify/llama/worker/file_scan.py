"""Passes over the tensors of a mapped file inside llama.cpp's process, where its functions are called without a copy.

`kernels/emulator/scan.hpp` does the work of `FileScanner.scans`: llama.cpp and this project each decode a batch of
blocks, which is tallied before it leaves the cache. Pieces go to a pool of threads: ctypes releases Python's lock.
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...support import protocol
from ...support.sealed import load_library

if TYPE_CHECKING:
    from .. import ggml
else:

    class _Late:
        """The bindings, loaded when they are first used: scans without llama.cpp use none."""

        def __getattr__(self, name: str) -> Any:
            from .. import ggml

            return getattr(ggml, name)

    ggml = _Late()

Bytes = npt.NDArray[np.uint8]
#: Figures by name, and arrays.
Result = tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]
#: Called with the number of bytes that were done since the last call.
Progress = Callable[[int], object]

MAX_RULES, MAX_BAD = 8, 21
#: Rows are hashed up to this number: 8 bytes each for the hash and as many for the order.
MAX_HASHED_ROWS = 1 << 23
#: Longer rows, in bytes, are read in pieces: a buffer for one must not grow with the file.
LONG_ROW = 1 << 23
_MOST_THREADS = 16  # memory is what is left to gain beyond, and each takes some
_CHUNK_BYTES = 1 << 19  # stays in the second cache
_SHARE_BYTES = 1 << 22  # of a thread at a time
_FLOATS = 1 << 20  # of a chunk that is quantized anew
_AHEAD = 8  # pieces for each thread, so that none waits for what lies between tensors
_ANNOUNCED = 1 << 26  # bytes of one piece that the disk is asked for at a time
_TELL_BYTES = 1 << 26
_SMALL_BYTES = 1 << 15  # a piece that is scanned before another thread has taken it


class Tally(c.Structure):
    """`scan::Tally` of kernels/emulator/scan.hpp."""

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


#: The arguments of `scan_file`.
_SCAN_FILE: Sequence[Any] = [
    c.c_int, c.c_int64, c.c_int64, c.c_int64, c.c_void_p, c.c_int64, c.c_void_p, c.c_void_p, c.c_int, c.c_void_p,
    c.c_int64, c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p,
]  # fmt: skip
_INFINITY = float("inf")
#: Numbers of drawn blocks that are remembered.
_MOST_PICKED = 256

_SUMS = ("blocks", "zero_scales", "zero_blocks", "subnormal_scales", "negative_scales", "not_finite", "differing")


class Unusable(Exception):
    """The file is not the one that the parent opened, or cannot be what was asked for."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file: mapped, uint8[nbytes], and as a file descriptor and the offset at which they start."""

    mapped: Bytes
    fd: int
    start: int


@dataclass(frozen=True)
class Kind:
    """A type that is scanned.

    Args:
        type, block_bytes, block_size: of ggml, in bytes, and in values.
        library: kernels/emulator/scan.hpp, compiled for the type: the content of a shared library.
        rules: (all of, one of, none of) masks of codes.
        drawn: how many blocks of a tensor are wanted as they are.
    """

    type: int
    block_bytes: int
    block_size: int
    library: bytes
    rules: Sequence[Sequence[int]] = ()
    drawn: int = 0


class Job(NamedTuple):
    """A tensor to scan: its bytes, its type, and the bytes of a row."""

    part: Part
    kind: Kind
    row_bytes: int


class Rule(c.Structure):
    """`scan::Rule`."""

    _fields_ = [("all", c.c_uint32), ("any", c.c_uint32), ("none", c.c_uint32)]


class FileScanner:
    """Maps files and runs over them.

    Args:
        alive: called now and then, so that the parent knows of the progress.
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
        """Some bytes of a file. Raises Unusable if it is not the file of that identity."""
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

    def scans(self, jobs: Iterable[Job], threads: int) -> Iterator[Result]:
        """Tally the blocks of tensors, several at a time, and return them in order. Raises Unusable.

        Returns:
            figures by name; how often each code occurs, int64[256]; the drawn blocks, uint8[n, block_bytes], and
            llama.cpp's decode of them, float32[n, block_size]; likewise of the first that differ.
        """

        prepared: dict[int, _Prepared] = {}

        def pieces() -> Iterator[tuple[_Scanning, int]]:
            for job in jobs:
                ready = prepared.get(id(job.kind))
                if ready is None:
                    ready = prepared[id(job.kind)] = _Prepared(job.kind, self._library(job.kind.library), self._llama)
                scanning = _Scanning(job, ready, self._buffer, threads)
                for start in scanning.starts:
                    scanning.announce(start)
                    yield scanning, start

        waiting: deque[tuple[_Scanning, int, Future[Tally]]] = deque()
        done = 0

        def settle(scanning: _Scanning, start: int, tally: Tally) -> bool:
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
                if threads == 1 or (not waiting and scanning.size(start) < _SMALL_BYTES):
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
        """This thread's buffer, cut to that size."""
        held: Bytes | None = getattr(self._local, "buffer", None)
        if held is None or len(held) < size:
            held = self._local.buffer = np.empty(size, np.uint8)
        return held[:size]

    def requantize(
        self, source: Bytes, source_type: int, target: Bytes, type_id: int, n_rows: int, k: int, threads: int,
        importance: npt.NDArray[np.float32] | None = None, order: npt.NDArray[np.int64] | None = None,
        through: int | None = None,
    ) -> tuple[dict[str, Any], Bytes]:  # fmt: skip
        """Quantize the rows of `source` with `ggml_quantize_chunk` and compare with `target`.

        Args:
            importance: float32[matrices, k], of as many matrices as the rows are of, one after the other; None for
                none. Where llama.cpp makes the type with an importance only, all columns count the same.
            order: int64[n_rows], the source's row for each row; None for the same order.
            through: a type that the values are rounded to first, F16 or BF16; None for none.

        Returns:
            `differing` blocks and the number of the `first`; `zeros`: blocks of the target that are all zeros;
            squared sums of the values (`energy`), of the target's `error` and of that of what llama.cpp makes
            (`made_error`); and the first differing block as llama.cpp makes it, uint8[block_bytes].
        """
        traits = ggml.ggml_get_type_traits(type_id).contents
        from_traits = ggml.ggml_get_type_traits(source_type).contents
        block_bytes = int(traits.type_size)
        quantized = bool(traits.is_quantized)
        if importance is None and source_type != type_id and ggml.ggml_quantize_requires_imatrix(type_id):
            importance = np.ones((1, k), np.float32)
        if k > _FLOATS and importance is None and order is None:
            # blocks do not know of rows: long ones are taken in pieces
            unit = max(int(traits.blck_size), int(from_traits.blck_size))
            pieces = k // unit
            per = max(1, _FLOATS // unit)
            while pieces % per:
                per -= 1
            n_rows, k = n_rows * (pieces // per), per * unit
        row_bytes, source_row = len(target) // n_rows, len(source) // n_rows
        of_matrix = n_rows if importance is None else n_rows // len(importance)
        step = max(1, _FLOATS // k)
        by_row = source.reshape(n_rows, source_row)

        def floats(raw: Bytes, kind: int, n: int) -> npt.NDArray[np.float32]:
            own = ggml.ggml_get_type_traits(kind).contents
            if kind == ggml.F32:
                return np.frombuffer(raw.tobytes(), np.float32)
            if not own.to_float:
                raise Unusable(f"llama.cpp has no conversion from ggml type {kind}")
            values = np.empty(n, np.float32)
            own.to_float(ggml.pointer(raw), ggml.pointer(values), n)
            return values

        def compare(start: int) -> tuple[int, int, Bytes, npt.NDArray[np.float64]]:
            rows = min(step, of_matrix - start % of_matrix)
            if order is None:
                raw = source[start * source_row : (start + rows) * source_row]
            else:
                raw = np.ascontiguousarray(by_row[order[start : start + rows]]).reshape(-1)
            theirs = target[start * row_bytes : (start + rows) * row_bytes]
            values = None
            if source_type == type_id and through is None:
                made = raw
            else:
                values = floats(raw, source_type, rows * k)
                if through is not None and through != source_type:
                    rounded = np.empty(rows * k * 2, np.uint8)
                    ggml.ggml_quantize_chunk(through, ggml.pointer(values), ggml.pointer(rounded), 0, rows, k, None)
                    values = floats(rounded, through, rows * k)
                made = np.empty(len(theirs), np.uint8)
                weights = None if importance is None else ggml.pointer(importance[start // of_matrix])
                ggml.ggml_quantize_chunk(type_id, ggml.pointer(values), ggml.pointer(made), 0, rows, k, weights)
            differs = np.flatnonzero((made != theirs).reshape(-1, block_bytes).any(axis=1))
            sums = np.zeros(4)
            if quantized and values is not None:
                sums[:3] = _sums(values, floats(theirs, type_id, rows * k), floats(made, type_id, rows * k))
                sums[3] = (~theirs.reshape(-1, block_bytes).any(axis=1)).sum()
            if not len(differs):
                return 0, -1, np.empty(0, np.uint8), sums
            at = int(differs[0])
            first = start * row_bytes // block_bytes + at
            return len(differs), first, made[at * block_bytes : (at + 1) * block_bytes].copy(), sums

        starts = [start for matrix in range(0, n_rows, of_matrix) for start in range(matrix, matrix + of_matrix, step)]
        total, first, block, sums = 0, -1, np.empty(0, np.uint8), np.zeros(4)
        for count, at, made, of_chunk in self._spread(compare, starts, step * row_bytes, threads):
            if count and first < 0:
                first, block = at, made
            total += count
            sums += of_chunk
        names = ("energy", "error", "made_error")
        known = {name: float(value) if np.isfinite(value) else None for name, value in zip(names, sums, strict=False)}
        return {"differing": total, "first": first, **known, "zeros": int(sums[3])}, block

    def _library(self, content: bytes) -> c.CDLL:
        if content not in self._libraries:
            self._libraries[content] = load_library(content)
        return self._libraries[content]

    def _spread(self, work: Callable[[int], Any], starts: Sequence[int], nbytes: int, threads: int) -> Iterator[Any]:
        """The results in order, of which a bounded number waits."""
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


class _Prepared:
    """What the scans of all tensors of one type share.

    Args:
        llama: compare with llama.cpp's conversion.
    """

    def __init__(self, kind: Kind, scanner: c.CDLL, llama: bool) -> None:
        self.scanner = scanner
        self.converter = ggml.ggml_get_type_traits(kind.type).contents.to_float if llama else None
        self.to_float = c.cast(self.converter, c.c_void_p) if self.converter else None
        self.rules = (Rule * MAX_RULES)(*(Rule(*r) for r in kind.rules))
        self.n_rules = len(kind.rules)
        self.scan_file = scanner.scan_file
        self.scan_file.argtypes = _SCAN_FILE
        self._drawn = kind.drawn
        self._picked: dict[int, npt.NDArray[np.int64]] = {}

    def picked(self, blocks: int) -> npt.NDArray[np.int64]:
        """The numbers of the blocks of a tensor of so many that are returned as they are."""
        found = self._picked.get(blocks)
        if found is None:
            found = np.asarray(protocol.evenly(blocks, self._drawn), np.int64)
            if len(self._picked) < _MOST_PICKED:
                self._picked[blocks] = found
        return found


class _Scanning:
    """One tensor's scan: any thread may tally a piece, in any order; tallies are added in the order of the pieces."""

    def __init__(self, job: Job, ready: _Prepared, buffer: Callable[[int], Bytes], threads: int) -> None:
        self._job, self._ready, self._buffer = job, ready, buffer
        nbytes, row_bytes = len(job.part.mapped), job.row_bytes
        n_rows = nbytes // row_bytes
        self._hashes = np.empty(n_rows, np.uint64) if 1 < n_rows <= MAX_HASHED_ROWS else None
        # whole rows, unless they are too long for a buffer, so that they are hashed while they are in the cache
        self._by_row = self._hashes is not None and row_bytes <= LONG_ROW
        unit = row_bytes if self._by_row else job.kind.block_bytes
        self._step = max(1, _CHUNK_BYTES // unit) * unit
        # pieces of about the same size, so that a small tensor is one: each takes Python some 0.1 ms
        pieces = max(1, round(nbytes / _SHARE_BYTES)) if threads > 1 else 1
        self._share = -(-nbytes // (pieces * self._step)) * self._step
        self.starts = range(0, nbytes, self._share)
        self._picked = ready.picked(nbytes // job.kind.block_bytes)
        self._blocks = np.empty((len(self._picked), job.kind.block_bytes), np.uint8)
        self._added = 0
        self._total: Tally | None = None

    def size(self, start: int) -> int:
        """Bytes of the piece that starts there."""
        return min(self._share, len(self._job.part.mapped) - start)

    def announce(self, start: int) -> None:
        """Have the disk read a piece, or the first bytes of a large one, before a thread waits for it: to the system,
        threads that read a file in turns do not read it in order, and it reads nothing ahead."""
        nbytes = min(self.size(start), _ANNOUNCED)
        if nbytes >= _SMALL_BYTES:
            part = self._job.part
            os.posix_fadvise(part.fd, part.start + start, nbytes, os.POSIX_FADV_WILLNEED)

    def tally(self, start: int) -> Tally:
        """Tally one piece. Raises Unusable."""
        job, ready = self._job, self._ready
        out = Tally(first_subnormal=-1, least_scale=_INFINITY, most_scale=-_INFINITY, least_min=_INFINITY,
                    most_min=-_INFINITY)  # fmt: skip
        hashes = self._hashes
        target = _pointer(hashes[start // job.row_bytes :]) if hashes is not None and self._by_row else None
        failed = ready.scan_file(
            job.part.fd, job.part.start + start, self.size(start), start // job.kind.block_bytes,
            _pointer(self._buffer(self._step)), self._step, ready.to_float, ready.rules, ready.n_rules, c.byref(out),
            job.row_bytes, target, _pointer(self._picked), len(self._picked), _pointer(self._blocks),
        )  # fmt: skip
        if failed < 0:
            raise Unusable("the file has shrunk since it was opened")
        if failed:
            raise OSError(failed, os.strerror(failed))
        return out

    def add(self, t: Tally) -> bool:
        """Add the next piece's tally; returns whether it was the last."""
        total = self._total
        if total is None:
            self._total = t
        else:
            for key, count in (("not_finite", t.not_finite), ("differing", t.differing)):
                held, some = getattr(total, f"first_{key}"), getattr(t, f"first_{key}")
                known = min(getattr(total, key), MAX_BAD)
                for i in range(min(count, MAX_BAD - known)):
                    held[known + i] = some[i]
            for name in _SUMS:
                setattr(total, name, getattr(total, name) + getattr(t, name))
            if total.first_subnormal < 0:
                total.first_subnormal = t.first_subnormal
            for name in ("obeying", "codes"):
                of_all = np.frombuffer(getattr(total, name), np.int64)
                of_all += np.frombuffer(getattr(t, name), np.int64)
            total.least_scale, total.most_scale = (
                min(total.least_scale, t.least_scale),
                max(total.most_scale, t.most_scale),
            )
            total.least_min, total.most_min = min(total.least_min, t.least_min), max(total.most_min, t.most_min)
        self._added += 1
        return self._added == len(self.starts)

    def result(self) -> Result:
        """What `FileScanner.scans` returns, once all is added."""
        duplicate_rows, duplicate = self._duplicates()
        total, kind = self._total, self._job.kind
        assert total is not None
        first = {
            f"first_{key}": list(getattr(total, f"first_{key}")[: min(getattr(total, key), MAX_BAD)])
            for key in ("not_finite", "differing")
        }
        figures = {
            **{name: getattr(total, name) for name in _SUMS}, **first, "first_subnormal": total.first_subnormal,
            "obeying": list(total.obeying[: self._ready.n_rules]),
            "scale": _span(total.least_scale, total.most_scale), "minimum": _span(total.least_min, total.most_min),
            "duplicate_rows": duplicate_rows, "duplicate": duplicate,
        }  # fmt: skip
        size, data = kind.block_bytes, self._job.part.mapped
        differing = [data[b * size : (b + 1) * size] for b in first["first_differing"]]
        theirs = self._decoded(np.concatenate(differing).reshape(-1, size) if differing else _NOTHING)
        codes = np.frombuffer(total.codes, np.int64)
        return figures, (codes, self._blocks, self._decoded(self._blocks), theirs)

    def _decoded(self, blocks: Bytes) -> npt.NDArray[np.float32]:
        values = np.zeros((len(blocks), self._job.kind.block_size), np.float32)
        if not len(blocks):
            return values
        if self._ready.converter:
            self._ready.converter(_pointer(blocks), _pointer(values), values.size)
        elif values.nbytes == blocks.nbytes:
            values[:] = blocks.view(np.float32)  # F32's own
        return values

    def _duplicates(self) -> tuple[int | None, list[int] | None]:
        hashes, data, row_bytes = self._hashes, self._job.part.mapped, self._job.row_bytes
        n_rows = len(data) // row_bytes
        if hashes is None:
            return (0, None) if n_rows < 2 else (None, None)
        if not self._by_row:
            self._ready.scanner.hash_rows(
                c.c_void_p(_pointer(data)), c.c_int64(n_rows), c.c_int64(row_bytes),
                c.c_void_p(_pointer(hashes)),
            )  # fmt: skip
        ascending = np.sort(hashes)  # ten times faster than their order, which is rarely needed
        if not (ascending[1:] == ascending[:-1]).any():
            return 0, None
        order = np.argsort(hashes, kind="stable")
        pair = np.zeros(2, np.int64)
        self._ready.scanner.count_duplicates.restype = c.c_int64
        found = self._ready.scanner.count_duplicates(
            c.c_void_p(_pointer(data)), c.c_int64(n_rows), c.c_int64(row_bytes), c.c_void_p(_pointer(hashes)),
            c.c_void_p(_pointer(order)), c.c_void_p(_pointer(pair)),
        )  # fmt: skip
        return int(found), [int(pair[0]), int(pair[1])] if found else None


_NOTHING = np.empty((0, 0), np.uint8)


def _pointer(array: npt.NDArray[Any]) -> int:
    """Address of a contiguous array."""
    return int(array.ctypes.data)


def _sums(x: npt.NDArray[np.float32], *others: npt.NDArray[np.float32]) -> list[float]:
    """Σx², and Σ(x - y)² for each y."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = x.astype(np.float64)
        return [float(np.dot(wide, wide)), *(float(np.dot(e, e)) for e in (wide - y for y in others))]


def _span(least: float, most: float) -> list[float] | None:
    return [float(least), float(most)] if least <= most else None
