"""The scan of one tensor in pieces for a thread pool, and the sum of their results.

`kernels/emulator/scan.hpp` does the work: llama.cpp and this project each decode a batch of blocks, which is counted
before it leaves the cache.
"""

from __future__ import annotations

import ctypes as c
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...support import protocol

if TYPE_CHECKING:
    from .. import ggml
else:

    class _Late:
        """The bindings, imported on first use: scans without llama.cpp need none."""

        def __getattr__(self, name: str) -> Any:
            from .. import ggml

            return getattr(ggml, name)

    ggml = _Late()

Bytes = npt.NDArray[np.uint8]
#: Figures by name, and arrays.
Result = tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]
MAX_RULES, MAX_BAD = 8, 21
#: As in kernels/emulator/scan.hpp.
RUN_BYTES, DEAD_ROWS = 4096, 16
#: Limit of hashed rows: 8 bytes each for the hash and as many for the order.
MAX_HASHED_ROWS = 1 << 23
#: Rows longer than this, in bytes, are read in pieces: a buffer must not grow with the file.
LONG_ROW = 1 << 23
_CHUNK_BYTES = 1 << 17  # fits into the L2 cache, with the pages that it is copied from
_SHARE_BYTES = 1 << 22  # per thread at a time
_ANNOUNCED = 1 << 26  # bytes of one piece requested from the disk at a time
SMALL_BYTES = 1 << 15  # a smaller piece is scanned faster than a thread can take it


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
        *((name, c.c_int64) for name in ("zeros_at_start", "zeros_at_end", "runs")),
        ("first_runs", c.c_int64 * 2 * MAX_BAD),
        ("repeats", c.c_int64),
        ("first_repeats", c.c_int64 * 2 * MAX_BAD),
    ]  # fmt: skip


#: The arguments of `scan_file`.
_SCAN_FILE: Sequence[Any] = [
    c.c_int, c.c_int64, c.c_int64, c.c_int64, c.c_void_p, c.c_int64, c.c_void_p, c.c_void_p, c.c_int, c.c_void_p,
    c.c_int64, c.c_void_p, c.c_void_p, c.c_int64, c.c_void_p,
]  # fmt: skip
_INFINITY = float("inf")
#: Number of entries in the cache of sampled block indices.
_MOST_PICKED = 256

_SUMS = ("blocks", "zero_scales", "zero_blocks", "subnormal_scales", "negative_scales", "not_finite", "differing")


class Unusable(Exception):
    """The file is not the one that the parent opened, or is not what the call needs."""


@dataclass(frozen=True)
class Part:
    """Bytes of a file: mapped, uint8[nbytes], and as a descriptor and offset."""

    mapped: Bytes
    fd: int
    start: int


@dataclass(frozen=True)
class Kind:
    """A type to scan.

    Args:
        type, block_bytes, block_size: ggml's type, and the block's size in bytes and in values.
        library: kernels/emulator/scan.hpp, compiled for the type: the content of a shared library.
        rules: (all of, one of, none of) masks of codes.
        drawn: number of sampled blocks to return per tensor.
    """

    type: int
    block_bytes: int
    block_size: int
    library: bytes
    rules: Sequence[Sequence[int]] = ()
    drawn: int = 0


class Job(NamedTuple):
    """A tensor to scan: its bytes, its type, and the bytes per row."""

    part: Part
    kind: Kind
    row_bytes: int


class Rule(c.Structure):
    """`scan::Rule`."""

    _fields_ = [("all", c.c_uint32), ("any", c.c_uint32), ("none", c.c_uint32)]


class Prepared:
    """Data shared by the scans of all tensors of one type.

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
        """Return the indices of the sampled blocks in a tensor of `blocks` blocks."""
        found = self._picked.get(blocks)
        if found is None:
            found = np.asarray(protocol.evenly(blocks, self._drawn), np.int64)
            if len(self._picked) < _MOST_PICKED:
                self._picked[blocks] = found
        return found


class Runs:
    """Runs of bytes of a tensor that are zero or repeat, joined from those of its pieces. The result equals that of
    `scan::ZeroRuns` and `scan::Repeats` on the whole tensor."""

    def __init__(self, nbytes: int, row_bytes: int) -> None:
        self._nbytes, self._row_bytes = nbytes, row_bytes
        self._open: int | None = 0  # start of the run that continues in the next piece
        self._at_start, self._runs, self._first = 0, 0, list[tuple[int, int]]()
        self._repeats = list[tuple[int, int]]()

    def add(self, t: Tally, start: int, stop: int) -> None:
        """Add the tally of the next piece, which covers these bytes."""
        for first, last in t.first_repeats[: t.repeats]:
            if self._repeats and self._repeats[-1][1] == first:
                first = self._repeats.pop()[0]
            self._repeats.append((first, last))
        long = [run for run in self._repeats[:-1] if run[1] - run[0] >= RUN_BYTES]  # shorter ones cannot continue
        self._repeats = [*long[:MAX_BAD], *self._repeats[-1:]]
        if self._open is None:
            self._open = start
        if t.zeros_at_start == stop - start:
            return
        self._close(start + t.zeros_at_start)
        self._first += [(first, last) for first, last in t.first_runs[: min(t.runs, MAX_BAD)]]
        self._runs += t.runs
        self._open = stop - t.zeros_at_end if t.zeros_at_end else None

    def _close(self, stop: int) -> None:
        start, rows = self._open, self._row_bytes
        if start == 0:
            self._at_start = stop
        if not start or stop - start < RUN_BYTES:
            return
        if stop - start > DEAD_ROWS * rows or start % rows or stop % rows:
            self._first.append((start, stop))
            self._runs += 1

    def figures(self) -> dict[str, Any]:
        """Return the results under the names of `files.Scan`."""
        whole = self._open == 0
        return {
            "zeros_at_start": self._nbytes if whole else self._at_start,
            "zeros_at_end": 0 if self._open is None else self._nbytes - self._open,
            "runs": self._runs, "first_runs": [list(run) for run in self._first[:MAX_BAD]],
            "repeats": [list(run) for run in self._repeats if run[1] - run[0] >= RUN_BYTES][:MAX_BAD],
        }  # fmt: skip


class Scanning:
    """The scan of one tensor. Any thread may tally a piece, in any order; tallies are added in the pieces' order."""

    def __init__(self, job: Job, ready: Prepared, buffer: Callable[[int], Bytes], threads: int) -> None:
        self._job, self._ready, self._buffer = job, ready, buffer
        nbytes, row_bytes = len(job.part.mapped), job.row_bytes
        n_rows = nbytes // row_bytes
        self._hashes = np.empty(n_rows, np.uint64) if 1 < n_rows <= MAX_HASHED_ROWS else None
        # pieces are whole rows unless these are too long for a buffer, so that rows are hashed while in the cache
        self._by_row = self._hashes is not None and row_bytes <= LONG_ROW
        unit = row_bytes if self._by_row else job.kind.block_bytes
        self._step = max(1, _CHUNK_BYTES // unit) * unit
        # Pieces have about the same size, and a small tensor is one piece: each takes Python some 0.1 ms.
        pieces = max(1, round(nbytes / _SHARE_BYTES)) if threads > 1 else 1
        self._share = -(-nbytes // (pieces * self._step)) * self._step
        self.starts = range(0, nbytes, self._share)
        self._picked = ready.picked(nbytes // job.kind.block_bytes)
        self._blocks = np.empty((len(self._picked), job.kind.block_bytes), np.uint8)
        self._added = 0
        self._total: Tally | None = None
        self._zeros = Runs(nbytes, row_bytes)

    def size(self, start: int) -> int:
        """Return the size in bytes of the piece at `start`."""
        return min(self._share, len(self._job.part.mapped) - start)

    def announce(self, start: int) -> None:
        """Have the disk read a piece, or the first bytes of a large one, ahead: threads that take pieces in turns do
        not look like sequential reading to the system, so it reads nothing ahead by itself."""
        nbytes = min(self.size(start), _ANNOUNCED)
        if nbytes >= SMALL_BYTES:
            part = self._job.part
            os.posix_fadvise(part.fd, part.start + start, nbytes, os.POSIX_FADV_WILLNEED)

    def tally(self, start: int) -> Tally:
        """Tally one piece. Raises Unusable."""
        job, ready = self._job, self._ready
        out = Tally(
            first_subnormal=-1, least_scale=_INFINITY, most_scale=-_INFINITY, least_min=_INFINITY, most_min=-_INFINITY
        )
        hashes = self._hashes
        target = pointer(hashes[start // job.row_bytes :]) if hashes is not None and self._by_row else None
        failed = ready.scan_file(
            job.part.fd,
            job.part.start + start,
            self.size(start),
            start // job.kind.block_bytes,
            pointer(self._buffer(self._step)),
            self._step,
            ready.to_float,
            ready.rules,
            ready.n_rules,
            c.byref(out),
            job.row_bytes,
            target,
            pointer(self._picked),
            len(self._picked),
            pointer(self._blocks),
        )
        if failed < 0:
            raise Unusable("the file has shrunk since it was opened")
        if failed:
            raise OSError(failed, os.strerror(failed))
        return out

    def add(self, t: Tally) -> bool:
        """Add the next piece's tally; returns whether it was the last."""
        total = self._total
        start = self.starts[self._added]
        self._zeros.add(t, start, start + self.size(start))
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
        """Return the result for `FileScanner.scans`, once all tallies are added."""
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
            "duplicate_rows": duplicate_rows, "duplicate": duplicate, **self._zeros.figures(),
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
            self._ready.converter(pointer(blocks), pointer(values), values.size)
        elif values.nbytes == blocks.nbytes:
            values[:] = blocks.view(np.float32)  # F32 needs no conversion
        return values

    def _duplicates(self) -> tuple[int | None, list[int] | None]:
        hashes, data, row_bytes = self._hashes, self._job.part.mapped, self._job.row_bytes
        n_rows = len(data) // row_bytes
        if hashes is None:
            return (0, None) if n_rows < 2 else (None, None)
        if not self._by_row:
            self._ready.scanner.hash_rows(
                c.c_void_p(pointer(data)),
                c.c_int64(n_rows),
                c.c_int64(row_bytes),
                c.c_void_p(pointer(hashes)),
            )
        ascending = np.sort(hashes)  # ten times faster than argsort, which is rarely needed
        if not (ascending[1:] == ascending[:-1]).any():
            return 0, None
        order = np.argsort(hashes, kind="stable")
        pair = np.zeros(2, np.int64)
        self._ready.scanner.count_duplicates.restype = c.c_int64
        found = self._ready.scanner.count_duplicates(
            c.c_void_p(pointer(data)),
            c.c_int64(n_rows),
            c.c_int64(row_bytes),
            c.c_void_p(pointer(hashes)),
            c.c_void_p(pointer(order)),
            c.c_void_p(pointer(pair)),
        )
        return int(found), [int(pair[0]), int(pair[1])] if found else None


_NOTHING = np.empty((0, 0), np.uint8)


def pointer(array: npt.NDArray[Any]) -> int:
    """Return the address of a contiguous array."""
    return int(array.ctypes.data)


def _span(least: float, most: float) -> list[float] | None:
    return [float(least), float(most)] if least <= most else None
