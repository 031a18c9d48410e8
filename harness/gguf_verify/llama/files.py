"""Passes over the tensors of a file in llama.cpp's process: scans, and comparisons with what llama.cpp makes of a
source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault
from ..support.protocol import ProtocolError
from . import answers

if TYPE_CHECKING:
    from ..gguf.file import Tensor
    from ..gguf.origin import Origin
    from .process import Arrays, LlamaProcess

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_NO_CODES = np.zeros(256, np.uint8)
_NO_CODES.flags.writeable = False


@dataclass(frozen=True, slots=True)
class Scan:
    """What the blocks of a tensor hold. In F32, F16 and BF16 each element counts as a block that is its own scale.

    Args:
        blocks: how many the tensor has.
        zero_scales: blocks with d = 0.
        zero_blocks: blocks whose values are all zero.
        subnormal_scales: blocks with |d| below the smallest normal number of its type; `first_subnormal` is the number
            of one, or -1.
        negative_scales: blocks with d < 0.
        not_finite: blocks with a scale, minimum or value that is not finite; `first_not_finite` holds the numbers of
            the first 21.
        differing: blocks whose decode differs from llama.cpp's; `first_differing` likewise.
        obeying: how many blocks with d ≠ 0 obey each rule.
        codes: unsigned[256], how often each code occurs; signed ones count from -128. The type is no wider than the
            counts need, since a file can hold a great many tensors: sum into int64.
        scale: least and greatest |d| that is finite and not zero; None if there is none.
        minimum: least and greatest m that is finite, of types that store one.
        duplicate_rows: rows that equal an earlier one; None if there are too many rows to tell.
        duplicate: the first such row and the row that it equals.
        zeros_at_start, zeros_at_end: zero bytes that the tensor starts and ends with; all of them where there is no
            other.
        runs: runs of at least 4096 zero bytes between those, but for up to 16 whole rows; `first_runs` holds start and
            stop of the first 21, in bytes of the tensor.
        repeats: start and stop of the first 21 runs of at least 4096 bytes that are not zero and repeat after 64 or
            fewer.
    """

    blocks: int
    zero_scales: int
    zero_blocks: int
    subnormal_scales: int
    negative_scales: int
    not_finite: int
    differing: int
    first_not_finite: list[int]
    first_differing: list[int]
    first_subnormal: int
    obeying: list[int]
    codes: npt.NDArray[np.unsignedinteger[Any]]
    scale: list[float] | None
    minimum: list[float] | None
    duplicate_rows: int | None
    duplicate: list[int] | None
    zeros_at_start: int = 0
    zeros_at_end: int = 0
    runs: int = 0
    first_runs: list[list[int]] = field(default_factory=list)
    repeats: list[list[int]] = field(default_factory=list)


@dataclass(frozen=True)
class ScannerOf:
    """What scans a type.

    Args:
        library: kernels/emulator/scan.hpp, compiled for the type: the content of a shared library. The process loads
            these bytes, and needs no sight of a cache.
        rules: masks of codes (all of, one of, none of); the scan counts the blocks that obey each.
        drawn: how many blocks of a tensor are returned as they are, `protocol.evenly` from the first to the last.
    """

    library: bytes
    rules: Sequence[tuple[int, int, int]] = ()
    drawn: int = 0


@dataclass(frozen=True)
class Scanned:
    """A scan; the drawn blocks, uint8[n, block_bytes], and llama.cpp's decode of them, float32[n, block_size]; and its
    decode of the first blocks that differ, float32[n, block_size]."""

    scan: Scan
    blocks: Bytes
    theirs: Floats
    theirs_differing: Floats


@dataclass(frozen=True)
class Requantized:
    """A tensor against what llama.cpp makes of its source.

    Args:
        differing: blocks that differ.
        first: the number of the first one, or -1.
        block: that block as llama.cpp makes it.
        energy: Σx² of the source's values; 0 where nothing was quantized, None where it is not finite.
        error, made_error: Σ(x - y)² of the tensor, and of what llama.cpp makes; likewise.
        zeros: blocks of the tensor whose bytes are all zero.
    """

    differing: int
    first: int
    block: bytes
    energy: float | None = 0.0
    error: float | None = 0.0
    made_error: float | None = 0.0
    zeros: int = 0


class FilePasses:
    """Calls of a llama.cpp process that read tensors of files which this process has mapped."""

    def __init__(self, process: LlamaProcess) -> None:
        self._process = process

    def scans(
        self, tensors: Sequence[Tensor], scanners: Mapping[str, ScannerOf], threads: int = 1,
        on_bytes: Callable[[int], object] = lambda _n: None,
    ) -> Generator[list[Scanned]]:  # fmt: skip
        """Decode every block of the tensors here and in llama.cpp, compare the bits, and tally what the blocks hold.

        Results come in order, several at a time. A caller that does not take all of them ends the process.

        Args:
            scanners: what scans each type that occurs, by the type's name.
            on_bytes: called with the number of bytes that were scanned since the last call.

        Raises LlamaRefused if a file is no longer the one that was opened, MalformedFile if it has shrunk.
        """
        by_id = {id(t.mapped): t.mapped for t in tensors}
        files = list(by_id.values())
        number_of = {of: i for i, of in enumerate(by_id)}
        types = {t.type.name: t.type for t in tensors}
        numbers = {name: i for i, name in enumerate(types)}
        table = np.array(
            [
                (number_of[id(t.mapped)], numbers[t.type.name], t.offset, t.nbytes, t.row_bytes)
                for t in tensors
            ], np.int64,
        ).reshape(-1, 5)  # fmt: skip
        kinds = [
            {
                "type": kind.type_id, "block_bytes": kind.block_bytes, "block_size": kind.block_size,
                "library": len(scanners[name].library), "drawn": scanners[name].drawn,
                "rules": [list(r) for r in scanners[name].rules],
            }
            for name, kind in types.items()
        ]  # fmt: skip
        libraries = np.frombuffer(b"".join(scanners[name].library for name in types), np.uint8)
        paths = self._process.give(*([mapped] for mapped in files))
        of_files = [(*path, mapped.identity) for path, mapped in zip(paths, files, strict=True)]
        over, at = False, 0
        try:
            self._process.send(
                "scans", {"tensors": table, "libraries": libraries},
                {"files": of_files, "kinds": kinds, "threads": threads},
            )  # fmt: skip
            while True:
                header, arrays = self._process.receive("scan")
                if header.get("event") == "bytes":
                    on_bytes(self._process.typed("scan", header, answers.Progress).n)
                elif header.get("event") == "scan":
                    figures = self._process.typed("scan", header.get("figures"), list[answers.Figures])
                    some = tensors[at : at + len(figures)]
                    at += len(figures)
                    with self._process.valid("scan"):
                        found = _scanned(some, [scanners[t.type.name] for t in some], figures, *arrays)
                    yield found
                else:
                    over = True
                    self._process.result("scan", header)
                    return
        except EnvironmentFault:
            over = True
            for mapped in files:  # if a file was cut, the process dies of it: then report the file
                mapped.read()
            raise
        finally:
            if not over:
                self._process.abandon()

    def requantize(
        self, tensor: Tensor, source: Origin, threads: int = 1, on_bytes: Callable[[int], object] = lambda _n: None,
        importance: Floats | None = None, through: int | None = None,
    ) -> Requantized:  # fmt: skip
        """Quantize the source's rows to the tensor's type, as `llama_model_quantize` does, and compare the bytes.

        Args:
            importance: float32[matrices, K]; None for none. Where llama.cpp makes the type with an importance only,
                all columns count the same.
            through: ggml's number of a type that the values are rounded to first, F16 or BF16; None for none.

        Raises LlamaRefused as `scans` does.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        if importance is not None:
            arrays["importance"] = np.ascontiguousarray(importance, np.float32)
        if source.order is not None:
            arrays["order"] = np.ascontiguousarray(source.order, np.int64)
        result, out = self._pass(
            "requantize", tensor, on_bytes, source, arrays, n_rows=tensor.n_rows, k=tensor.k, threads=threads,
            through=through,
        )  # fmt: skip
        made = self._process.typed("requantize", result, answers.Made)
        with self._process.valid("requantize"):
            blocks = tensor.nbytes // tensor.type.block_bytes
            (block,) = out
            answers.expect(block, np.uint8, tensor.type.block_bytes if made.differing else None)
            if max(made.differing, made.zeros) > blocks or not (made.differing > 0) <= (0 <= made.first < blocks):
                raise ProtocolError("more blocks than the tensor has")
        return Requantized(block=block.tobytes(), **msgspec.structs.asdict(made))

    def _pass(
        self, call: str, tensor: Tensor, on_bytes: Callable[[int], object], source: Origin,
        arrays: dict[str, npt.NDArray[Any]], **arguments: Any,
    ) -> tuple[object, Arrays]:  # fmt: skip
        """A call about a tensor and its source; its result and its arrays."""
        (path,), (source_path,) = self._process.give([tensor.mapped], [source.mapped])
        arguments |= {
            "path": path, "identity": tensor.mapped.identity, "start": tensor.offset,
            "nbytes": tensor.nbytes, "type": tensor.type.type_id,
            "source": source_path, "source_identity": source.mapped.identity,
            "source_start": source.offset, "source_nbytes": source.nbytes, "source_type": source.type.type_id,
        }  # fmt: skip
        self._process.send(call, arrays, arguments)
        try:
            while True:
                header, arrays_back = self._process.receive(call)
                if header.get("event") != "bytes":
                    return self._process.result(call, header), arrays_back
                on_bytes(self._process.typed(call, header, answers.Progress).n)
        except EnvironmentFault:
            for mapped in (tensor.mapped, source.mapped):  # if a file was cut, the process dies of it
                mapped.read()
            raise


def _scanned(
    tensors: Sequence[Tensor], scanners: Sequence[ScannerOf], figures: list[answers.Figures],
    codes: npt.NDArray[np.int64], blocks: Bytes, theirs: Floats, theirs_differing: Floats,
) -> list[Scanned]:  # fmt: skip
    """Take apart one message of several tensors' scans. Raises ProtocolError or ValueError where it is none."""
    answers.expect(codes, np.int64, len(figures), 256)
    answers.expect(blocks, np.uint8, None)
    for floats in (theirs, theirs_differing):
        answers.expect(floats, np.float32, None)
    if codes.size and codes.min() < 0:
        raise ProtocolError("counts below zero")
    out = []
    most_codes = codes.max(axis=1, initial=0)
    for tensor, scanner, own, wide, largest in zip(tensors, scanners, figures, codes, most_codes, strict=True):
        kind = tensor.type
        own.check(tensor.nbytes // kind.block_bytes, tensor.n_rows, len(scanner.rules), tensor.nbytes)
        some, bad = min(scanner.drawn, own.blocks), len(own.first_differing)
        nbytes, values, of_bad = some * kind.block_bytes, some * kind.block_size, bad * kind.block_size
        counts = _NO_CODES if not largest else wide.astype(np.min_scalar_type(largest))
        scan = Scan(codes=counts, **msgspec.structs.asdict(own))
        out.append(
            Scanned(
                scan, blocks[:nbytes].reshape(some, kind.block_bytes), theirs[:values].reshape(some, kind.block_size),
                theirs_differing[:of_bad].reshape(bad, kind.block_size),
            )
        )  # fmt: skip
        blocks, theirs, theirs_differing = blocks[nbytes:], theirs[values:], theirs_differing[of_bad:]
    return out
