"""Calls that read tensors of a mapped file: scans, and comparisons with a source."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from ...support import protocol
from .calls import Call, CallFailed, Reply
from .file_scan import FileScanner
from .tensor_scan import Job, Kind, Part, Result, Unusable

#: Numbers of scans per message: the first has at most 16, each later one up to twice as many, up to 128. None covers
#: more than `_TOLD_BYTES` bytes. A message takes longer than a small scan.
_TOLD_AT_ONCE, _MOST_AT_ONCE, _TOLD_BYTES = 16, 128, 1 << 25
#: Bytes after which a file is checked for changes again; each tensor counts as some more.
_UNCHECKED, _CHECK_COST = 1 << 20, 1 << 13


class FilePasses:
    """Passes over files that stay mapped between calls."""

    def __init__(self, link: Connection, llama: bool = True) -> None:
        self._link = link
        self._scanner = FileScanner(lambda n: protocol.send(link, {"event": "bytes", "n": n}), llama)

    def calls(self) -> dict[str, Call]:
        """Return the calls by name, for the methods of the same names of `gguf_verify.llama.files.FilePasses`."""
        return {"scans": self.scans, "requantize": self.requantize}

    def _part(self, path: str, identity: list[int], start: int, nbytes: int) -> Part:
        try:
            return self._scanner.part_of(path, identity, start, nbytes)
        except (Unusable, OSError) as error:
            raise CallFailed(str(error)) from None

    def scans(
        self,
        files: list[tuple[str, list[int]]],
        kinds: list[dict[str, Any]],
        threads: int,
        tensors: npt.NDArray[np.int64],
        libraries: npt.NDArray[np.uint8],
    ) -> Reply:
        """Decode every block, compare, and count: see `FileScanner.scans`.

        Tensors are int64[n, 5]: index of the file and of the kind, offset, bytes, bytes per row. `libraries` holds the
        kinds' scanners, one after the other; "library" of a kind is the size of its scanner. Each event "scan" reports
        several tensors: figures of each, codes, and, one tensor's after the other, sampled blocks, their values, and
        the values of the first blocks that differ.
        """

        at = 0
        for kind in kinds:
            size = kind["library"]
            kind["library"] = libraries[at : at + size].tobytes()
            at += size

        def jobs() -> Iterator[Job]:
            of_kind = [Kind(**kind) for kind in kinds]
            whole: list[Part | None] = [None] * len(files)
            unchecked = 0
            for file, kind, start, nbytes, row_bytes in tensors.tolist():
                part = whole[file]
                unchecked += nbytes + _CHECK_COST
                if part is None or unchecked > _UNCHECKED:  # checking the file takes as long as a small scan
                    path, identity = files[file]
                    part, unchecked = self._part(path, identity, 0, identity[2]), 0
                    whole[file] = part
                yield Job(Part(part.mapped[start : start + nbytes], part.fd, start), of_kind[kind], row_bytes)

        done: list[Result] = []

        def tell() -> None:
            if done:
                codes, *others = zip(*(arrays for _, arrays in done), strict=True)
                flat = [np.concatenate([a.reshape(-1) for a in of]) for of in others]
                header = {"event": "scan", "figures": [figures for figures, _ in done]}
                protocol.send(self._link, header, np.stack(codes), *flat)
                done.clear()

        try:
            nbytes, at_once = 0, _TOLD_AT_ONCE
            for found, size in zip(self._scanner.scans(jobs(), threads), tensors[:, 3].tolist(), strict=True):
                done.append(found)
                nbytes += size
                if len(done) >= at_once or nbytes >= _TOLD_BYTES:
                    tell()
                    nbytes, at_once = 0, min(2 * at_once, _MOST_AT_ONCE)
        except (Unusable, OSError) as error:
            raise CallFailed(str(error)) from None
        finally:
            tell()  # also results before an error
        return {}, ()

    def requantize(
        self,
        path: str,
        identity: list[int],
        start: int,
        nbytes: int,
        type: int,
        source: str,
        source_identity: list[int],
        source_start: int,
        source_nbytes: int,
        source_type: int,
        n_rows: int,
        k: int,
        threads: int,
        through: int | None = None,
        importance: npt.NDArray[np.float32] | None = None,
        order: npt.NDArray[np.int64] | None = None,
    ) -> Reply:
        """Compare a tensor with llama.cpp's quantization of its source: see `requantizing.requantize`."""
        from .requantizing import requantize  # imported late: loads llama.cpp, which scans may not need

        target = self._part(path, identity, start, nbytes).mapped
        raw = self._part(source, source_identity, source_start, source_nbytes).mapped
        try:
            figures, block = requantize(
                raw,
                source_type,
                target,
                type,
                n_rows,
                k,
                importance,
                order,
                through,
                spread=partial(self._scanner.spread, threads=threads),
            )
        except Unusable as error:
            raise CallFailed(str(error)) from None
        return figures, (block,)
