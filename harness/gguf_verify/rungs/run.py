"""What all rungs of one run share: the model, the kernel, the llama.cpp processes and the options."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..formats import ElementFormat, WeightFormat
from ..gguf import Model, Tensor
from ..gguf.matrices import may_be_matrix
from ..kernels.interface import Candidate
from ..llama import Gemm, Gpu, Llama, LlamaRefused
from ..results import Options, RungResult
from ..semantics import Semantics, llama_cpu_semantics
from ..semantics.cuda import NoDefinition, llama_cuda_semantics
from ..support.errors import EnvironmentFault, UsageError
from ..support.progress import progress_bar
from .session import Session

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")

#: Where llama.cpp runs.
REFERENCES = ("cpu", "gpu")


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
        return llama_cpu_semantics(fmt) if isinstance(fmt, ElementFormat) else self.kernel.definition

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


__all__ = ["REFERENCES", "LlamaRefused", "Matrix", "Run"]
