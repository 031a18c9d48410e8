"""Passes over the tensors of a file in llama.cpp's process: scans, and comparisons with llama.cpp's quantization of a
source."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ..support.array_types import Bytes, Floats
from ..support.errors import EnvironmentFault
from ..support.protocol import ProtocolError
from . import answers

if TYPE_CHECKING:
    from ..gguf.file import Tensor
    from ..gguf.origin import Origin
    from .process import Arrays, LlamaProcess


_NO_CODES = np.zeros(256, np.uint8)
_NO_CODES.flags.writeable = False


class Scan(answers.Figures, frozen=True, kw_only=True):
    """Statistics of a tensor's blocks. In F32, F16 and BF16 each element counts as a block that is its own scale.

    Args:
        blocks: number of blocks in the tensor.
        zero_scales: blocks with d = 0.
        zero_blocks: blocks whose values are all zero.
        subnormal_scales: blocks with |d| below the smallest normal number of its type; `first_subnormal` is the index
            of the first, or -1.
        negative_scales: blocks with d < 0.
        not_finite: blocks with a scale, minimum or value that is not finite; `first_not_finite` holds the indices of
            the first 21.
        differing: blocks that are decoded differently from llama.cpp; `first_differing` likewise.
        obeying: number of blocks with d ≠ 0 that obey each rule.
        codes: unsigned[256], the number of occurrences of each code; signed ones count from -128. The dtype is only as
            wide as needed, because a file can hold very many tensors: sum into int64.
        scale: least and greatest |d| that is finite and not zero; None if there is none.
        minimum: least and greatest finite m, for types that store one.
        duplicate_rows: number of rows that equal an earlier one; None if there are too many rows to tell.
        duplicate: the first such row and the row that it equals.
        zeros_at_start, zeros_at_end: number of zero bytes at the start and the end; all bytes if all are zero.
        runs: number of runs of at least 4096 zero bytes between those, except up to 16 whole rows; `first_runs` holds
            start and stop of the first 21, in bytes of the tensor.
        repeats: start and stop of the first 21 runs of at least 4096 bytes that are not zero and repeat after at most
            64 bytes.
    """

    codes: npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class ScannerOf:
    """The scanner of a type.

    Args:
        library: kernels/emulator/scan.hpp, compiled for the type: the content of a shared library. The process loads
            these bytes, and needs no access to a cache.
        rules: masks of codes (all of, one of, none of); the scan counts the blocks that obey each.
        drawn: number of sampled blocks to return per tensor, `protocol.evenly` from the first to the last.
    """

    library: bytes
    rules: Sequence[tuple[int, int, int]] = ()
    drawn: int = 0


@dataclass(frozen=True)
class Scanned:
    """A scan; the sampled blocks, uint8[n, block_bytes], and llama.cpp's values of them, float32[n, block_size]; and
    its values of the first blocks that differ, float32[n, block_size]."""

    scan: Scan
    blocks: Bytes
    theirs: Floats
    theirs_differing: Floats


@dataclass(frozen=True)
class Requantized:
    """A tensor compared with llama.cpp's quantization of its source.

    Args:
        differing: number of blocks that differ.
        first: index of the first one, or -1.
        block: llama.cpp's version of that block.
        energy: Σx² of the source's values; 0 if nothing was quantized, None if it is not finite.
        error, made_error: Σ(x - y)² of the tensor, and of llama.cpp's version; likewise.
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
    """Calls of a llama.cpp process that read tensors of files mapped in this process."""

    def __init__(self, process: LlamaProcess) -> None:
        self._process = process

    def scans(
        self,
        tensors: Sequence[Tensor],
        scanners: Mapping[str, ScannerOf],
        threads: int = 1,
        on_bytes: Callable[[int], object] = lambda _n: None,
    ) -> Generator[list[Scanned]]:
        """Decode every block of the tensors by our decoder and llama.cpp's, compare the bits, and count.

        Results come in order, several at a time. A caller that does not take all of them ends the process.

        Args:
            scanners: scanner of each type that occurs, by the type's name.
            on_bytes: called with the number of bytes scanned since the last call.

        Raises LlamaRefused if a file changed since it was opened, MalformedFile if it has shrunk.
        """
        by_id = {id(t.mapped): t.mapped for t in tensors}
        files = list(by_id.values())
        number_of = {of: i for i, of in enumerate(by_id)}
        types = {t.type.name: t.type for t in tensors}
        numbers = {name: i for i, name in enumerate(types)}
        table = np.array(
            [(number_of[id(t.mapped)], numbers[t.type.name], t.offset, t.nbytes, t.row_bytes) for t in tensors],
            np.int64,
        ).reshape(-1, 5)
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
                "scans",
                {"tensors": table, "libraries": libraries},
                {"files": of_files, "kinds": kinds, "threads": threads},
            )
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
            for mapped in files:  # a truncated file kills the process: then report the file
                mapped.read()
            raise
        finally:
            if not over:
                self._process.abandon()

    def requantize(
        self,
        tensor: Tensor,
        source: Origin,
        threads: int = 1,
        on_bytes: Callable[[int], object] = lambda _n: None,
        importance: Floats | None = None,
        through: int | None = None,
    ) -> Requantized:
        """Quantize the source's rows to the tensor's type, as `llama_model_quantize` does, and compare the bytes.

        Args:
            importance: float32[matrices, K], or None. If llama.cpp makes the type only with an importance matrix, all
                columns then count the same.
            through: ggml's number of a type to round the values to first, F16 or BF16; None for none.

        Raises LlamaRefused as `scans` does.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        if importance is not None:
            arrays["importance"] = np.ascontiguousarray(importance, np.float32)
        if source.order is not None:
            arrays["order"] = np.ascontiguousarray(source.order, np.int64)
        result, out = self._pass(
            "requantize",
            tensor,
            on_bytes,
            source,
            arrays,
            n_rows=tensor.n_rows,
            k=tensor.k,
            threads=threads,
            through=through,
        )
        made = self._process.typed("requantize", result, answers.Made)
        with self._process.valid("requantize"):
            blocks = tensor.nbytes // tensor.type.block_bytes
            (block,) = out
            answers.expect(block, np.uint8, tensor.type.block_bytes if made.differing else None)
            if max(made.differing, made.zeros) > blocks or not (made.differing > 0) <= (0 <= made.first < blocks):
                raise ProtocolError("more blocks than the tensor has")
        return Requantized(block=block.tobytes(), **msgspec.structs.asdict(made))

    def _pass(
        self,
        call: str,
        tensor: Tensor,
        on_bytes: Callable[[int], object],
        source: Origin,
        arrays: dict[str, npt.NDArray[Any]],
        **arguments: Any,
    ) -> tuple[object, Arrays]:
        """Make a call about a tensor and its source; returns the result and the arrays."""
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
            for mapped in (tensor.mapped, source.mapped):  # a truncated file kills the process
                mapped.read()
            raise


def _scanned(
    tensors: Sequence[Tensor],
    scanners: Sequence[ScannerOf],
    figures: list[answers.Figures],
    codes: npt.NDArray[np.int64],
    blocks: Bytes,
    theirs: Floats,
    theirs_differing: Floats,
) -> list[Scanned]:
    """Split a message of several tensors' scans. Raises ProtocolError or ValueError if it is invalid."""
    answers.expect(codes, np.int64, len(figures), 256)
    answers.expect(blocks, np.uint8, None)
    for floats in (theirs, theirs_differing):
        answers.expect(floats, np.float32, None)
    if codes.size and codes.min() < 0:
        raise ProtocolError("negative counts")
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
                scan,
                blocks[:nbytes].reshape(some, kind.block_bytes),
                theirs[:values].reshape(some, kind.block_size),
                theirs_differing[:of_bad].reshape(bad, kind.block_size),
            )
        )
        blocks, theirs, theirs_differing = blocks[nbytes:], theirs[values:], theirs_differing[of_bad:]
    return out
