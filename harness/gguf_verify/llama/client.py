"""The parent's side of llama.cpp: a child process whose crash, abort or hang becomes one clear line."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from ..support import protocol
from ..support.errors import EnvironmentFault, KernelFault
from ..support.processes import signal_name
from .child import Child

if TYPE_CHECKING:
    from ..gguf import Tensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: Seconds without a word from llama.cpp after which it counts as hung.
TIME_LIMIT = 900.0
_LOG_LINES, _LOG_WIDTH = 6, 200
#: Rows of activations that stand in for those of a matrix which got none.
_IDLE_ROWS = 4


class LlamaRefused(Exception):
    """llama.cpp says in an orderly way that it cannot do this (load this file, say)."""


@dataclass(frozen=True)
class Gemm:
    """One product with a matrix of weights as llama.cpp computed it: a MUL_MAT, one of several matrices of a batched
    one, or one expert of a MUL_MAT_ID with the rows that were routed to it.

    Args:
        tensor: name of the weights.
        node: name of the graph node.
        type_id: ggml type of the weights.
        x: activations, float32[M, K].
        y: llama.cpp's output, float32[M, N].
        quantized: x in each activation format that was asked for, uint8[M, row bytes], by ggml type; where the weights
            are F16 or BF16, instead x in their type.
        crc32: of the matrix as llama.cpp holds it, where it was asked for.
        first_row: the row of the tensor with which the matrix begins.
        idle: the node did not use this matrix: x are rows that it gave to others, y is empty.
        tokens: by which llama.cpp chose how to compute it: columns of a MUL_MAT, tokens of a MUL_MAT_ID.
        experts: it is part of a MUL_MAT_ID.
        on_gpu: llama.cpp computed it on its GPU.
    """

    tensor: str
    node: str
    type_id: int
    x: Floats
    y: Floats
    quantized: dict[int, Bytes]
    crc32: int | None
    first_row: int = 0
    idle: bool = False
    tokens: int = 0
    experts: bool = False
    on_gpu: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return len(self.x), self.y.shape[1], self.x.shape[1]


@dataclass(frozen=True)
class Gpu:
    """The GPU of llama.cpp's CUDA backend; `sm` is ten times its compute capability."""

    name: str
    sm: int


@dataclass(frozen=True)
class Evaluation:
    """What one pass over the graph gave.

    Args:
        logits: float32[tokens, vocabulary]; of a model that embeds, float32[tokens, width] or a reranker's score.
        lookup: weights of which rows were looked up, name → type.
        unsupported: products that could not be tapped, name → why.
        used: weights that other nodes than products and look-ups used, name → ggml's names of the operations.
    """

    logits: Floats
    lookup: dict[str, str]
    unsupported: dict[str, str]
    used: dict[str, list[str]]


@dataclass(frozen=True)
class Scan:
    """What the blocks of a tensor hold. In F32, F16 and BF16 each element counts as a block that is its own scale.

    Args:
        blocks: all of them.
        zero_scales: with d = 0.
        zero_blocks: whose values are all zero.
        subnormal_scales: with |d| below the smallest normal number of its type; `first_subnormal` is one or -1.
        negative_scales: with d < 0.
        not_finite: with a scale, minimum or value that is not finite; `first_not_finite` their numbers, 21 at most.
        differing: whose decode differs from llama.cpp's; `first_differing` likewise.
        obeying: blocks with d ≠ 0 that obey each rule.
        codes: int64[256], how often each code occurs; signed ones count from -128.
        scale: least and greatest |d| that is finite and not zero; None where there is none.
        minimum: least and greatest m that is finite, where the file stores one.
        duplicate_rows: rows that equal an earlier one; None where there are too many rows to tell.
        duplicate: the first such row and the row that it equals.
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
    codes: npt.NDArray[np.int64]
    scale: list[float] | None
    minimum: list[float] | None
    duplicate_rows: int | None
    duplicate: list[int] | None


@dataclass(frozen=True)
class ScannerOf:
    """What scans a type.

    Args:
        library: kernels/host/scan.hpp, compiled for it.
        rules: (all of, one of, none of) masks of codes; how many blocks obey each is counted.
        drawn: how many blocks of a tensor are wanted as they are, `protocol.evenly` from the first to the last.
    """

    library: Path
    rules: Sequence[tuple[int, int, int]] = ()
    drawn: int = 0


@dataclass(frozen=True)
class Scanned:
    """A scan; the drawn blocks, uint8[n, block_bytes], and llama.cpp's decode of them, float32[n, block_size]; and of
    the first that differ, float32[n, block_size]."""

    scan: Scan
    blocks: Bytes
    theirs: Floats
    theirs_differing: Floats


@dataclass(frozen=True)
class Requantized:
    """A tensor against what llama.cpp makes of its source: `differing` blocks, the number of the first one or -1, and
    that block as llama.cpp makes it."""

    differing: int
    first: int
    block: bytes


class Llama:
    """A llama.cpp process. Use it as a context manager: leaving it ends the process.

    Args:
        time_limit: seconds without an answer after which the process is killed and EnvironmentFault raised.
        verbose: let llama.cpp's log through to standard error.
        child: the process, where it has been started ahead.
    """

    def __init__(self, time_limit: float = TIME_LIMIT, verbose: bool = False, child: Child | None = None) -> None:
        self._time_limit = time_limit
        self._child = child or Child(verbose)
        self._link = self._child.link
        self._ready = select.poll()  # Connection.poll makes a selector for every call
        self._ready.register(self._link.fileno(), select.POLLIN)
        try:
            header, _ = self._receive("start")
            if "error" in header:
                raise EnvironmentFault(f"llama.cpp cannot be used: {header['error']}")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._child.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _call(self, call: str, arrays: dict[str, npt.NDArray[Any]] | None = None, **arguments: Any) -> Any:
        self._send(call, arrays or {}, arguments)
        header, out = self._receive(call)
        return self._result(call, header), out

    def _send(self, call: str, arrays: dict[str, npt.NDArray[Any]], arguments: dict[str, Any]) -> None:
        try:
            protocol.send(self._link, {"call": call, "names": list(arrays), **arguments}, *arrays.values())
        except OSError:
            raise self._death(call) from None

    def _receive(self, call: str) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
        try:
            if not self._ready.poll(1000 * self._time_limit):
                self._child.kill()
                raise EnvironmentFault(
                    f"llama.cpp hung in {call}: no answer for {self._time_limit:g} s{self._last_log()}"
                )
            return protocol.receive(self._link)
        except (EOFError, OSError):
            raise self._death(call) from None

    def _result(self, call: str, header: dict[str, Any]) -> Any:
        if "refused" in header:
            raise LlamaRefused(header["refused"] + self._last_log())
        if "error" in header:
            raise EnvironmentFault(f"llama.cpp's process failed in {call}: {header['error']}{self._last_log()}")
        return header["result"]

    def _death(self, call: str) -> EnvironmentFault:
        code = self._child.wait()
        assert code is not None
        how = signal_name(code) or f"exit code {code}"
        return EnvironmentFault(f"llama.cpp died in {call} ({how}){self._last_log()}")

    def _last_log(self) -> str:
        """The last lines that llama.cpp printed, on one line."""
        from ..gguf import printable  # late: llama.cpp's process shares this package and must start fast

        lines = [printable(line, _LOG_WIDTH) for line in self._child.last_lines(8192) if line.strip(" .")]
        return f"; it said: {' | '.join(lines[-_LOG_LINES:])}" if lines else ""

    # ---- the library ------------------------------------------------------------------------------------------------

    def versions(self) -> dict[str, Any]:
        """Versions of llama-cpp-python, llama.cpp and ggml, the build's features, and its table of types."""
        result, _ = self._call("hello")
        result["types"] = {int(k): v for k, v in result["types"].items()}
        return dict(result)

    def gpu(self) -> Gpu:
        """The first GPU of llama.cpp's CUDA backend; needed before it is used. Raises EnvironmentFault."""
        result, _ = self._call("gpu")
        if "missing" in result:
            raise EnvironmentFault(result["missing"])
        return Gpu(**result)

    def activations(self, semantics: str, x: Floats) -> Bytes:
        """Activations float32[M, K] as the CUDA backend quantizes them for products of one of its definitions,
        uint8[M, row bytes]."""
        _, (out,) = self._call("activations", {"x": x}, semantics=semantics)
        return np.asarray(out)

    def to_float(self, type_id: int, raw: Bytes, n: int) -> Floats:
        """llama.cpp's `to_float` of n values. Raises LlamaRefused for a type that it has none for (F32, integers)."""
        _, (out,) = self._call("to_float", {"raw": raw}, type=type_id, n=n)
        return np.asarray(out)

    def from_float(self, type_id: int, x: Floats) -> Bytes:
        """Activations float32[M, K] as llama.cpp's CPU backend quantizes them, uint8[M, row bytes]."""
        _, (out,) = self._call("from_float", {"x": x}, type=type_id)
        return np.asarray(out)

    def quantize(self, type_id: int, x: Floats, importance: Floats | None = None) -> Bytes:
        """`ggml_quantize_chunk`: weights float32[rows, K], importance float32[K] → uint8[rows, row bytes]."""
        _, (out,) = self._call("quantize", {"x": x} | ({} if importance is None else {"importance": importance}),
                               type=type_id)  # fmt: skip
        return np.asarray(out)

    def validate(self, type_id: int, raw: Bytes) -> bool:
        """`ggml_validate_row_data`."""
        result, _ = self._call("validate", {"raw": raw}, type=type_id)
        return bool(result["valid"])

    def block_products(self, type_id: int, w: Bytes, x: Floats, threads: int = 1, gpu: bool = False) -> Floats:
        """Every block × block product, float32[K/32, M, N], of weights uint8[N, row bytes] and float32[M, K]; of a type
        without blocks every product of 32 values, the last ones of fewer."""
        _, (out,) = self._call("block_products", {"w": w, "x": x}, type=type_id, threads=threads, gpu=gpu)
        return np.asarray(out)

    def multiply(self, type_id: int, w: Bytes, x: Floats, threads: int = 1, gpu: bool = False) -> Floats:
        """llama.cpp's product float32[M, N] of weights uint8[N, row bytes] and float32[M, K], outside any model."""
        _, (out,) = self._call("multiply", {"w": w, "x": x}, type=type_id, threads=threads, gpu=gpu)
        return np.asarray(out)

    def quantize_file(self, source: Path, target: Path, ftype: int, pure: bool, threads: int = 1) -> None:
        """`llama_model_quantize`. Raises LlamaRefused."""
        self._call(
            "quantize_file",
            source=os.path.abspath(source),
            target=os.path.abspath(target),
            ftype=ftype,
            pure=pure,
            threads=threads,
        )

    # ---- passes over a mapped file ----------------------------------------------------------------------------------

    def scans(
        self, tensors: Sequence[Tensor], scanners: Mapping[str, ScannerOf], threads: int = 1,
        on_bytes: Callable[[int], object] = lambda _n: None,
    ) -> Generator[list[Scanned]]:  # fmt: skip
        """Decode every block of tensors here and in llama.cpp, compare the bits, and tally what the blocks hold.

        Results come in order, some at a time, and all are to be taken: left in the middle, the process is ended.

        Args:
            scanners: by name, of each type that occurs.
            on_bytes: called with the bytes that were scanned since the last call.

        Raises LlamaRefused where a file is no longer the one that was opened, MalformedFile where it has shrunk.
        """
        files = list({os.path.abspath(t.mapped.path): t.mapped for t in tensors}.items())
        paths = {path: i for i, (path, _) in enumerate(files)}
        types = {t.type.name: t.type for t in tensors}
        numbers = {name: i for i, name in enumerate(types)}
        table = np.array(
            [
                (paths[os.path.abspath(t.mapped.path)], numbers[t.type.name], t.offset, t.nbytes, t.row_bytes)
                for t in tensors
            ], np.int64,
        ).reshape(-1, 5)  # fmt: skip
        kinds = [
            {
                "type": kind.type_id, "block_bytes": kind.block_bytes, "library": str(scanners[name].library),
                "rules": [list(r) for r in scanners[name].rules], "drawn": scanners[name].drawn,
            }
            for name, kind in types.items()
        ]  # fmt: skip
        over, at = False, 0
        try:
            self._send(
                "scans", {"tensors": table},
                {"files": [(path, m.identity) for path, m in files], "kinds": kinds, "threads": threads},
            )  # fmt: skip
            while True:
                header, arrays = self._receive("scan")
                if header.get("event") == "bytes":
                    on_bytes(header["n"])
                elif header.get("event") == "scan":
                    figures = header["figures"]
                    some = tensors[at : at + len(figures)]
                    at += len(figures)
                    yield _scanned(some, [scanners[t.type.name].drawn for t in some], figures, *arrays)
                else:
                    over = True
                    self._result("scan", header)
                    return
        except EnvironmentFault:
            over = True
            for _, mapped in files:  # the process dies of a file that was cut: then that is what is to be said
                mapped.read()
            raise
        finally:
            if not over:
                self._child.kill()
                self._child.hang_up()  # nobody may take what is left in it for the answer to another call

    def requantize(
        self, tensor: Tensor, source: Tensor, threads: int = 1, on_bytes: Callable[[int], object] = lambda _n: None
    ) -> Requantized:
        """Quantize the source's rows to the tensor's type, as `llama_model_quantize` does, and compare the bytes.

        Raises LlamaRefused as `scan` does, and where llama.cpp makes the type with an importance matrix only.
        """
        figures, (block,) = self._sweep(
            "requantize", tensor, on_bytes, source, n_rows=tensor.n_rows, k=tensor.k, threads=threads,
        )  # fmt: skip
        return Requantized(block=block.tobytes(), **figures)

    def _sweep(
        self,
        call: str,
        tensor: Tensor,
        on_bytes: Callable[[int], object],
        source: Tensor | None = None,
        **arguments: Any,
    ) -> Any:
        files = [tensor.mapped]
        if source is not None:
            files.append(source.mapped)
            arguments |= {
                "source": os.path.abspath(source.mapped.path), "source_identity": source.mapped.identity,
                "source_start": source.offset, "source_nbytes": source.nbytes, "source_type": source.type.type_id,
            }  # fmt: skip
        place = {
            "path": os.path.abspath(tensor.mapped.path), "identity": tensor.mapped.identity, "start": tensor.offset,
            "nbytes": tensor.nbytes, "type": tensor.type.type_id,
        }  # fmt: skip
        self._send(call, {}, {**place, **arguments})
        try:
            while True:
                header, arrays = self._receive(call)
                if header.get("event") != "bytes":
                    return self._result(call, header), arrays
                on_bytes(header["n"])
        except EnvironmentFault:
            for mapped in files:  # the process dies of a file that was cut: then that is what is to be said
                mapped.read()
            raise

    # ---- a model ----------------------------------------------------------------------------------------------------

    def open(self, path: Path, threads: int, repack: bool = False, gpu: bool = False) -> dict[str, Any]:
        """Load a model, all layers on the GPU or none. Raises LlamaRefused where llama.cpp does not take it, and
        EnvironmentFault where there is no GPU."""
        if gpu:
            self.gpu()
        result, _ = self._call("open", path=os.path.abspath(path), threads=threads, repack=repack, gpu=gpu)
        return dict(result)

    def make_context(self, n_ctx: int, n_batch: int | None = None) -> bool:
        """A context of n_ctx tokens, needed before tokens are evaluated; n_batch of them (all) fit in one batch.

        Returns:
            whether the model embeds: an encoder or an embedding model, which has no memory of past tokens or no decoder
            and does not generate. Its evaluations hold embeddings, not logits.
        """
        result, _ = self._call("make_context", n_ctx=n_ctx, n_batch=n_batch or n_ctx)
        return bool(result["embeds"])

    def read_source(self, tokens: list[int]) -> None:
        """What an encoder-decoder model has read before it writes. Each later call encodes it first, nodes tapped."""
        self._call("read_source", tokens=tokens)

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a prompt, with the special ones that the model asks for."""
        result, _ = self._call("tokenize", text=text)
        return list(result["tokens"])

    def pieces(self, tokens: list[int]) -> list[str]:
        """Each token's text."""
        result, _ = self._call("pieces", tokens=tokens)
        return list(result["pieces"])

    def generate(self, tokens: list[int], n: int, on_token: Callable[[], object] = lambda: None) -> list[int]:
        """n greedy tokens after a prompt, one at a time; the time limit is one token's."""
        self._send("generate", {}, {"tokens": tokens, "n": n})
        while True:
            header, _ = self._receive("generate")
            if header.get("event") != "token":
                return list(self._result("generate", header)["tokens"])
            on_token()

    def evaluate(self, tokens: list[int]) -> Evaluation:
        """Logits of all tokens in one batch, nothing tapped."""
        result, (logits,) = self._call("evaluate", tokens=tokens, mode="plain", options={})
        return Evaluation(logits, **result["seen"])

    def capture(
        self, tokens: list[int], activations: tuple[int, ...] = (), checksum: bool = False, idle: bool = False,
        position: int = 0,
    ) -> Iterator[Gemm | Evaluation]:  # fmt: skip
        """Each GEMM with weights as it is computed, then the Evaluation. llama.cpp waits while the caller works.

        Args:
            tokens: one batch.
            activations: ggml types in which each quantized GEMM's activations are wanted too, by llama.cpp's own
                quantizer; any at all: also those of others, in the weights' type. On a GPU: whichever format its
                products take.
            checksum: also the crc32 of the weights.
            idle: also matrices that a node holds and did not use: experts to which no token was routed.
            position: of the first token; those before it must have been evaluated last.
        """
        for node, answer in self._tapped("capture", tokens, activations, checksum, position):
            if isinstance(node, Evaluation):
                yield node
                return
            try:
                yield from node.gemms()
                if idle:
                    yield from node.idle()
            except GeneratorExit:
                self._abandon()
                raise
            answer(None)

    def _abandon(self) -> None:
        """Let the graph come to its end unobserved, after a capture that nobody follows any more."""
        with contextlib.suppress(OSError, EOFError, EnvironmentFault):
            while True:
                protocol.send(self._link, {"stop": True})
                header, _ = self._receive("evaluate")
                if "event" not in header:
                    return

    def graft(
        self, tokens: list[int], replace: Callable[[Gemm], Floats | None], activations: tuple[int, ...] = ()
    ) -> Evaluation:
        """Evaluate with `replace`'s output float32[M, N] in place of llama.cpp's own at each GEMM."""
        for node, answer in self._tapped("graft", tokens, activations, False):
            if isinstance(node, Evaluation):
                return node
            answer(node.joined([replace(gemm) for gemm in node.gemms()]))
        raise EnvironmentFault("llama.cpp ended a graft without a result")

    def _tapped(
        self, mode: str, tokens: list[int], activations: tuple[int, ...], checksum: bool, position: int = 0
    ) -> Iterator[tuple[_Node | Evaluation, Callable[[Floats | None], None]]]:
        options = {"activations": list(activations), "checksum": checksum}
        self._send("evaluate", {}, {"tokens": tokens, "mode": mode, "options": options, "position": position})

        def answer(y: Floats | None) -> None:
            try:
                protocol.send(self._link, {}, *([] if y is None else [np.ascontiguousarray(y, np.float32)]))
            except OSError:
                raise self._death("evaluate") from None

        while True:
            header, arrays = self._receive("evaluate")
            if header.get("event") != "gemm":
                result = self._result("evaluate", header)
                yield Evaluation(arrays[0], **result["seen"]), answer
                return
            x, y, matrix, row, *quantized = arrays
            yield _Node(header, x, y, matrix, row, dict(zip(header["activations"], quantized, strict=True))), answer


class _Node:
    """A product as the child reports it, taken apart into matrices.

    Args:
        header: the names, the type, each matrix's first row and crc32.
        x: activations, float32[rows, K].
        y: outputs, float32[rows, N].
        matrix, row: of each output row, the matrix and the row of x that made it, int32[rows].
        quantized: x in other formats.
    """

    def __init__(
        self, header: dict[str, Any], x: Floats, y: Floats, matrix: npt.NDArray[np.int32], row: npt.NDArray[np.int32],
        quantized: dict[int, Bytes],
    ) -> None:  # fmt: skip
        self._header, self._x, self._y, self._row, self._quantized = header, x, y, row, quantized
        order = np.argsort(matrix, kind="stable")
        starts = np.flatnonzero(np.diff(matrix[order], prepend=-1))
        #: The output rows of each matrix that made any.
        self._places = {int(matrix[rows[0]]): rows for rows in np.split(order, starts[1:]) if len(rows)}

    def gemms(self) -> Iterator[Gemm]:
        """Each matrix that the node used, in their order."""
        for matrix, places in self._places.items():
            yield self._gemm(matrix, self._row[places], self._y[places])

    def idle(self) -> Iterator[Gemm]:
        """Each matrix that it did not use, with some rows of x that others got."""
        rows = np.unique(np.linspace(0, len(self._x) - 1, _IDLE_ROWS).astype(int)) if len(self._x) else np.zeros(0, int)
        for matrix in range(len(self._header["first_rows"])):
            if matrix not in self._places:
                yield self._gemm(matrix, rows, self._y[:0], idle=True)

    def _gemm(self, matrix: int, rows: npt.NDArray[Any], y: Floats, idle: bool = False) -> Gemm:
        header, checksums = self._header, self._header.get("crc32")
        return Gemm(
            header["tensor"], header["node"], header["type"], self._x[rows], y,
            {kind: x[rows] for kind, x in self._quantized.items()}, None if checksums is None else checksums[matrix],
            header["first_rows"][matrix], idle, header["tokens"], header["experts"], header["on_gpu"],
        )  # fmt: skip

    def joined(self, given: list[Floats | None]) -> Floats | None:
        """The node's output with what was given for each of `gemms` in its rows, or None if nothing was."""
        if all(y is None for y in given):
            return None
        out = self._y.copy()
        for places, y in zip(self._places.values(), given, strict=True):
            if y is not None:
                if y.shape != (len(places), out.shape[1]):
                    raise KernelFault(f"an output of {y.shape} for {len(places)} rows of {out.shape[1]}")
                out[places] = y
        return out


def _scanned(
    tensors: Sequence[Tensor], drawn: Sequence[int], figures: list[dict[str, Any]], codes: npt.NDArray[np.int64],
    blocks: Bytes, theirs: Floats, theirs_differing: Floats,
) -> list[Scanned]:  # fmt: skip
    """Take apart what llama.cpp's process put together."""
    out = []
    for tensor, most, own, counts in zip(tensors, drawn, figures, codes, strict=True):
        kind = tensor.type
        some, bad = min(most, own["blocks"]), len(own["first_differing"])
        nbytes, values, of_bad = some * kind.block_bytes, some * kind.block_size, bad * kind.block_size
        scan = Scan(codes=counts, **own)
        out.append(
            Scanned(
                scan, blocks[:nbytes].reshape(some, kind.block_bytes), theirs[:values].reshape(some, kind.block_size),
                theirs_differing[:of_bad].reshape(bad, kind.block_size),
            )
        )  # fmt: skip
        blocks, theirs, theirs_differing = blocks[nbytes:], theirs[values:], theirs_differing[of_bad:]
    return out
