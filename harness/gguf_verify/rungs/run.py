"""What all rungs of one run share: the model, the kernel, the llama.cpp processes and the options."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..formats import ElementFormat, WeightFormat
from ..gguf import Model, Tensor, printable
from ..kernels.interface import Candidate
from ..llama import Gemm, Gpu, Llama, LlamaRefused
from ..results import RungResult
from ..semantics import SEMANTICS, Semantics, llama_cpu_semantics
from ..semantics.cuda import MMVQ_TOKENS, NoDefinition, llama_cuda_semantics
from ..support.errors import EnvironmentFault, UsageError
from ..support.progress import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")

DEFAULT_PROMPT = "The quick brown fox jumps over the lazy dog. Once upon a time there was"
DEFAULT_N_PREDICT = 32
#: Where llama.cpp runs.
REFERENCES = ("cpu", "gpu")


@dataclass
class Options:
    """What a user may choose; see the command line's help."""

    prompt: str = DEFAULT_PROMPT
    n_predict: int = DEFAULT_N_PREDICT
    threads: int = 1
    ctx_size: int = 0
    seed: int = 0
    tensor: str | None = None
    repack: bool = False
    reference: str = "cpu"
    time_limit: float = 900.0
    kernel_time_limit: float = 60.0
    verbose: bool = False
    progress: bool = True


@dataclass
class Run:
    """One verification of one model with one kernel."""

    model: Model
    kernel: Candidate
    options: Options = field(default_factory=Options)
    #: llama.cpp's, once `library` runs, where it is the reference.
    gpu: Gpu | None = field(default=None, init=False)

    @cached_property
    def library(self) -> Llama:
        """A llama.cpp process without a model: decoding, quantizing, single products. Raises EnvironmentFault, also
        where llama.cpp is to run on a GPU and cannot."""
        library = Llama(self.options.time_limit, self.options.verbose)
        try:
            self.gpu = library.gpu() if self.options.reference == "gpu" else None
        except BaseException:
            library.close()
            raise
        return library

    @cached_property
    def versions(self) -> dict[str, Any]:
        return self.library.versions()

    @property
    def reference(self) -> str:
        """Where llama.cpp runs, in words, once `library` does."""
        if self.gpu is None:
            return "CPU"
        return f"CUDA on {self.gpu.name}, compute capability {self.gpu.sm / 10:.1f}, all layers, fusion off"

    @cached_property
    def session(self) -> Session:
        """A llama.cpp process with the model. Raises LlamaRefused."""
        return Session(self.model.path, self.options)

    def close(self) -> None:
        """End the processes that were started."""
        for name in ("library", "session"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()

    def semantics(self, fmt: WeightFormat) -> Semantics:
        """The declared semantics of what multiplies such weights: the run's kernel, or, where they are not quantized,
        that of their type."""
        return SEMANTICS[fmt.name.lower()] if isinstance(fmt, ElementFormat) else self.kernel.definition

    def uncovered(self, tensor: Tensor) -> str | None:
        """Why a matrix cannot be multiplied, or None where it can."""
        fmt = tensor.type.weights
        if fmt is None:
            return f"type {tensor.type.name} is not covered"
        return None if self.kernel.covers(fmt) else f"kernel {self.kernel.name} does not cover type {fmt.name}"

    def llama_semantics(self, fmt: WeightFormat, tokens: int = 1, experts: bool = False) -> Semantics:
        """What llama.cpp computes for such weights; on its CUDA backend also for so many tokens, of a MUL_MAT_ID or
        not. Raises EnvironmentFault where the library says otherwise, NoDefinition where nobody says."""
        if self.options.reference == "gpu":
            versions = self.versions  # starts the library
            if "FORCE_CUBLAS = 1" in versions["system"]:
                raise EnvironmentFault("this llama.cpp was built to multiply by cuBLAS alone (GGML_CUDA_FORCE_CUBLAS)")
            assert self.gpu is not None
            return llama_cuda_semantics(fmt, tokens, self.gpu.sm, experts)
        semantics = llama_cpu_semantics(fmt)
        expected = semantics.activations or fmt
        actual = self.versions["types"][fmt.type_id]["vec_dot_type"]
        if actual != expected.type_id:
            raise EnvironmentFault(
                f"this llama.cpp multiplies {fmt.name} with activations of ggml type {actual}, "
                f"the harness knows {expected.name}"
            )
        return semantics

    def undefined(self, gemm: Gemm, fmt: WeightFormat) -> str | None:
        """Why what llama.cpp computed is not known exactly, or None where it is."""
        if self.options.reference == "gpu" and not gemm.on_gpu:
            return "llama.cpp's CUDA backend left it to the CPU"
        try:
            self.llama_semantics(fmt, gemm.tokens, gemm.experts)
        except NoDefinition as error:
            return f"unsupported with --reference gpu: {error}"
        return None

    def wants(self, name: str) -> bool:
        """Whether `--tensor` selects this tensor."""
        return self.options.tensor is None or re.search(self.options.tensor, name) is not None

    def selected(self) -> list[Tensor]:
        """Tensors to look at. Raises UsageError where the pattern selects none."""
        chosen = [t for name, t in self.model.tensors.items() if self.wants(name)]
        if self.options.tensor is not None and not any(may_be_matrix(t) for t in chosen):
            raise UsageError(f"no {'matrix' if chosen else 'tensor'} matches {self.options.tensor!r}")
        return chosen

    def vectors(self, products: Container[str] = ()) -> int:
        """How many of the selected tensors are no matrices (norms, biases): those of one dimension, integers; but not
        those that are one row of a product."""
        return sum(not may_be_matrix(t) and t.name not in products for t in self.selected())

    def bar(self, what: str, total: int | None, unit: str) -> tqdm[Any]:
        """A progress bar on standard error, for what takes more than a second."""
        return progress_bar(what, total, unit, self.options.progress)

    def progress(self, what: str, items: Iterable[T], total: int | None = None, unit: str = "it") -> Iterator[T]:
        """The items, with a bar."""
        with self.bar(
            what, total if total is not None else len(items) if isinstance(items, Sized) else None, unit
        ) as bar:
            for item in items:
                yield item
                bar.update()

    def row_bytes(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The tensor's rows as they lie in the file, uint8[N, row bytes], without a copy."""
        return tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)

    def matrix(self, result: RungResult, gemm: Gemm) -> Matrix | None:
        """What a GEMM multiplies, as it lies in the file; None where that is not known, which is said in the result."""
        tensor = self.model.tensors.get(gemm.tensor)
        if tensor is None:
            result.leave(gemm.tensor, "is no tensor of the file")
            return None
        why = self.uncovered(tensor)
        if why is not None:
            result.leave(gemm.tensor, why)
            return None
        fmt = tensor.type.weights
        assert fmt is not None
        why = self.undefined(gemm, fmt)
        if why is not None:
            result.leave(gemm.tensor, why)
            return None
        n, k = gemm.y.shape[1], gemm.x.shape[1]
        rows = self.row_bytes(tensor)[gemm.first_row : gemm.first_row + n]
        if len(rows) != n or tensor.k != k:
            result.leave(gemm.tensor, f"llama.cpp multiplies {n} rows of {k} values from row {gemm.first_row}")
            return None
        return Matrix(tensor, fmt, rows)

    def n_matrices(self) -> int:
        """How many matrices the selected tensors hold: GEMMs of the graph, about, for a progress bar."""
        return sum(prod(t.shape[2:]) for t in self.selected() if may_be_matrix(t))


class Matrix(NamedTuple):
    """A matrix of weights: a tensor, or one of its matrices; `rows` are uint8[N, row bytes]."""

    tensor: Tensor
    fmt: WeightFormat
    rows: npt.NDArray[np.uint8]


class Session:
    """The model in llama.cpp, its prompt, and llama.cpp's own greedy continuation."""

    def __init__(self, path: Path, options: Options) -> None:
        self.llama = Llama(options.time_limit, options.verbose)
        self.note: str | None = None
        #: What an encoder-decoder model reads.
        self.source: list[int] = []
        try:
            self.on_gpu = options.reference == "gpu"
            self.info = self.llama.open(path, options.threads, options.repack, self.on_gpu)
            self.prompt = self.llama.tokenize(options.prompt)
            if not self.prompt:
                raise UsageError("the prompt has no tokens")
            read = len(self.prompt)
            length = read + options.n_predict
            if self.on_gpu:  # room for a batch that MMVQ does not take
                length = max(length, 2 * MMVQ_TOKENS)
            #: An encoder or embedding model: it gives embeddings of the prompt's tokens and does not generate.
            self.embeds = self.llama.make_context(max(options.ctx_size, length), length)
            length = read + options.n_predict
            if self.embeds:
                length = read
            elif self.info["encoder"]:  # it reads the prompt and begins to write from nothing
                self.source = self.prompt
                self.llama.read_source(self.source)
                self.prompt = [self.info["decoder_start"]]
                if self.prompt[0] < 0:
                    raise LlamaRefused("the model names no token to begin with")
            trained = self.info["n_ctx_train"]
            if options.ctx_size and length > options.ctx_size:
                predicted = "" if self.embeds else f" and {options.n_predict} to predict"
                raise UsageError(f"{read} tokens of prompt{predicted} do not fit a context of {options.ctx_size}")
            if self.embeds and length > trained > 0:  # it may hold a table of so many positions
                raise UsageError(f"the prompt has {length} tokens, the model reads {trained} at most")
            if length > trained > 0:
                self.note = f"{length} tokens are more than the {trained} that the model was trained on"
        except BaseException:
            self.llama.close()
            raise
        self._n_predict = options.n_predict
        self._progress = options.progress

    def passes(self) -> Iterator[tuple[list[int], int]]:
        """Batches of tokens, and the position of each, whose GEMMs show all that llama.cpp does with a matrix.

        On the CPU the prompt. On a GPU also its first tokens one at a time, which take other kernels (MMVQ) than many
        do (MMQ); a short prompt is repeated until it is long enough for these. So is what an encoder-decoder model
        reads; when they are through, it has read the prompt again.
        """
        if not self.on_gpu:
            yield self.prompt, 0
        elif not self.source:
            yield _long(self.prompt), 0
            for i, token in enumerate(self.prompt[:MMVQ_TOKENS]):
                yield [token], 0 if self.embeds else i  # without memory each is the first
        else:
            try:
                for source in (_long(self.source), *([t] for t in self.source[:MMVQ_TOKENS])):
                    self.llama.read_source(source)
                    yield self.prompt if len(source) == 1 else _long(self.prompt), 0
            finally:
                with contextlib.suppress(EnvironmentFault):
                    self.llama.read_source(self.source)

    @cached_property
    def continuation(self) -> list[int]:
        """llama.cpp's greedy tokens after the prompt, computed one at a time."""
        bar = progress_bar("tokens: llama.cpp's own", self._n_predict, "token", self._progress)
        with bar:
            return self.llama.generate(self.prompt, self._n_predict, lambda: bar.update())

    def close(self) -> None:
        self.llama.close()


def _long(tokens: list[int]) -> list[int]:
    """Repeated until they are more than MMVQ takes."""
    return tokens * -(-(MMVQ_TOKENS + 1) // len(tokens))


def may_be_matrix(tensor: Tensor) -> bool:
    """Whether a tensor is there to be multiplied, as far as its description tells: quantized, or of numbers that are
    multiplied and of two dimensions."""
    return tensor.type.quantized or (isinstance(tensor.type.weights, ElementFormat) and len(tensor.shape) > 1)


def matrix_of(tensor: Tensor, row: int) -> int | None:
    """Which matrix (expert) of a tensor of three or more dimensions a row belongs to; None where it holds only one."""
    return row // tensor.shape[1] if len(tensor.shape) > 2 else None


def label(tensor: Tensor, row: int) -> str:
    """The name of a tensor, safe to print, and of the matrix with this row where it holds several."""
    matrix = matrix_of(tensor, row)
    kind = "expert" if "exps" in tensor.name else "matrix"  # llama.cpp's names: blk.0.ffn_up_exps.weight
    return printable(tensor.name, 64) + ("" if matrix is None else f" {kind} {matrix}")


def where(tensor: Tensor, row: int, token: int | None = None, block: int | None = None) -> str:
    """A place in words, safe to print; `row` counts through all matrices of the tensor."""
    text = f"{label(tensor, row)} row {row}"
    if matrix_of(tensor, row) is not None:
        text = f"{label(tensor, row)} row {row % tensor.shape[1]} (the tensor's row {row})"
    if block is not None:
        text += f" block {block}"
    return text if token is None else f"{text} token {token}"


__all__ = [
    "DEFAULT_N_PREDICT",
    "DEFAULT_PROMPT",
    "LlamaRefused",
    "Matrix",
    "Options",
    "Run",
    "Session",
    "label",
    "matrix_of",
    "may_be_matrix",
    "where",
]
