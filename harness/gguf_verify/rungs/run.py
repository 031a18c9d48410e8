"""The run that all stages share: the model, the kernel, the options, and llama.cpp's processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..checks import BESIDE
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..gguf.hyper_parameters import why_meaningless
from ..gguf.matrices import may_be_matrix, rows_of_matrix
from ..gguf.model import Model
from ..hosts.cupy_arrays import arrays_for
from ..kernels.interface import Candidate
from ..llama.backends import Backend, start
from ..llama.gemms import Gemm
from ..llama.library import Llama
from ..llama.process import FileRefused
from ..results.calls import Call
from ..results.environment import FileInfo, Observed
from ..results.options import Options
from ..results.rungs import RungResult
from ..semantics.definition import Semantics
from ..semantics.definitions import llama_cpu_semantics
from ..semantics.device import Device
from ..semantics.order import Order
from ..semantics.screen import screened
from ..semantics.sums import Product
from ..support.arrays import get
from ..support.errors import HarnessError, UsageError
from ..support.progress import Steps, progress_bar
from .budget import Budget
from .pool import Pool
from .session import Session, opened_llama

if TYPE_CHECKING:
    from tqdm import tqdm

T = TypeVar("T")

#: Bytes of weights, times tokens, from which a product is computed on a device, if there is one.
_WORTH_A_DEVICE = 1 << 20
#: Outputs that NumPy judges wherever they were computed: each of some 200 steps costs a call on a device.
_FEW_OUTPUTS = 1 << 16


class Resources:
    """The open resources of a run: each is opened when it is first used, and closed with the run."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Any] = {}
        self._begun: dict[Hashable, Callable[[], Any]] = {}

    def begin(self, name: str, opened: Callable[[], Any]) -> None:
        """Let a resource be what is being opened already; `opened` waits for it."""
        self._begun[name] = opened

    def get(self, name: Hashable, opened: Callable[[], T]) -> T:
        """The resource of this name; `opened` opens it."""
        if name not in self._open:
            self._open[name] = self._begun.pop(name, opened)()
        found: T = self._open[name]
        return found

    def close(self, *names: str) -> None:
        """Close the resources of these names, if they are open. They are opened anew when they are used again."""
        for name in names:
            if (begun := self._begun.pop(name, None)) is not None:
                with suppress(HarnessError):  # nobody used it
                    self._open[name] = begun()
            resource = self._open.pop(name, None)
            if hasattr(resource, "close"):
                resource.close()


@dataclass(frozen=True)
class Run:
    """One verification of one model with one kernel.

    No stage changes it: one that runs another form of the kernel, or has less time, makes a `replace`d run, which
    shares the resources.

    Args:
        resources: what is open.
        judges: where the tasks that rungs plan are judged.
        budget: the time that the run may take.
        seconds_of_tokens: an estimate of the time of the tokens rung; 0 if there is none.
    """

    model: Model
    kernel: Candidate
    options: Options = field(default_factory=Options)
    resources: Resources = field(default_factory=Resources)
    judges: Pool = field(default_factory=Pool)
    budget: Budget = field(default_factory=Budget)
    seconds_of_tokens: float = 0.0

    @property
    def only(self) -> Call | None:
        """The one call that this run makes (`--only-call`), if it makes only one. Raises UsageError."""
        return Call.parse(self.options.only_call) if self.options.only_call else None

    @property
    def library(self) -> Llama:
        """A llama.cpp process without a model, which decodes, quantizes and computes single products. Raises
        EnvironmentFault."""
        return self.resources.get("library", lambda: opened_llama(self.options))

    @property
    def backend(self) -> Backend:
        """The backend of llama.cpp that is the reference. Raises EnvironmentFault if it cannot be used here."""
        return self.resources.get("backend", lambda: start(self.options.reference, self.library))

    @property
    def versions(self) -> dict[str, Any]:
        """`Llama.versions`."""
        return self.resources.get("versions", lambda: self.library.versions())

    @property
    def session(self) -> Session:
        """A llama.cpp process with the model. Raises LlamaRefused, also if keys of the file have no meaning."""
        return self.resources.get("session", self._load)

    def _load(self) -> Session:
        why = why_meaningless(self.model)
        if why is not None:
            raise FileRefused(why)
        with Steps(self.options.progress) as step:
            step("llama.cpp loads the model")
            return Session(self.model, self.options, self.backend)

    @property
    def exact_on(self) -> tuple[Device | None, str]:
        """The device of exact products (None for NumPy), and its description. Raises EnvironmentFault."""
        options, host = self.options, self.kernel.host.name
        return self.resources.get("exact_on", lambda: arrays_for(options.exact_on, host, options.seed))

    def device_for(self, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8]) -> Device | None:
        """The device that computes the product of these weights and activations. Raises EnvironmentFault."""
        device, _ = self.exact_on
        return None if device is None or rows.nbytes * len(x) < _WORTH_A_DEVICE else device

    def rows_of(self, matrix: Matrix, span: slice | npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
        """Rows of a matrix, uint8[n, row bytes]; a device knows afterwards that they are these."""
        rows, (device, _) = matrix.rows[span], self.exact_on
        if device is not None and not isinstance(span, slice):
            device.take_from(rows, matrix.rows, span)
        return rows

    def product(
        self, semantics: Semantics, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8],
        order: Order | None = None,
    ) -> Product:  # fmt: skip
        """The exact product that outputs are judged by (`semantics.screened`), where `device_for` says; that of few
        outputs is NumPy's in the end. Raises what that raises."""
        device = self.device_for(rows, x)
        made = screened(semantics, fmt, rows, x, order, self.options.threads, device)
        return made if device is None or made.exact.size > _FEW_OUTPUTS else made.placed(get)

    def close(self) -> None:
        """End the processes that were started."""
        self.resources.close("backend", "library", "session")

    def close_session(self) -> None:
        """End the process that holds the model, if it was started."""
        self.resources.close("session")

    @property
    def observed_here(self) -> Observed:
        """The observations of the kernel's processes, which this process has started."""
        return Observed(self.kernel.opened, self.kernel.executed())

    def semantics(self, fmt: WeightFormat) -> Semantics:
        """The declared semantics of what multiplies such weights: the run's kernel, or, where they are not quantized,
        that of their type."""
        return llama_cpu_semantics(fmt) if isinstance(fmt, ElementFormat) else self.kernel.definition

    def uncovered(self, tensor: Tensor) -> str | None:
        """Why a matrix cannot be multiplied, or None where it can."""
        fmt = tensor.type.weights
        if fmt is None:
            return f"type {tensor.type.name} is not covered"
        if not self.kernel.covers(fmt):
            return f"kernel {self.kernel.name} does not cover type {fmt.name}"
        if not self.kernel.is_under_test(fmt):
            return None
        # each of the tensor's matrices (experts) has its second dimension as rows
        why = self.kernel.domain.outside(rows_of_matrix(tensor), tensor.k, self.kernel.host.sm)
        return None if why is None else f"kernel {self.kernel.name} is not called: {why}"

    def wants(self, name: str) -> bool:
        """Whether `--tensor` selects this tensor."""
        return matches(self.options.tensor, name)

    def leave_idle(self, result: RungResult) -> None:
        """Record that the kernel under test was never called, if only kernels beside it were."""
        beside = [kind for kind in result.checked if kind.endswith(BESIDE)]
        if beside and not any(map(result.checked.get, result.substance)):
            kinds = sorted({t.type.name for t in self.selected() if may_be_matrix(t)})
            result.leave_all(
                result.substance[0],
                f"kernel {self.kernel.name} was never called: it multiplies none of the types that are here "
                f"({', '.join(kinds)}), and kernels of this project that stand beside it are not what is verified",
            )

    def selected(self) -> list[Tensor]:
        """Tensors to look at. Raises UsageError where the pattern selects none."""
        chosen = [t for name, t in self.model.tensors.items() if self.wants(name)]
        if self.options.tensor is not None and not any(may_be_matrix(t) for t in chosen):
            raise UsageError(f"no {'matrix' if chosen else 'tensor'} matches {self.options.tensor!r}")
        return chosen

    def vectors(self, products: Container[str] = ()) -> int:
        """The number of selected tensors that are not matrices (norms, biases): those of one dimension, integers; but
        not those that are one row of a product."""
        return sum(not may_be_matrix(t) and t.name not in products for t in self.selected())

    def bar(self, what: str, total: int | None, unit: str, initial: int = 0) -> tqdm[Any]:
        """A progress bar on standard error, for steps that take more than a second."""
        return progress_bar(what, total, unit, self.options.progress, initial)

    def progress(self, what: str, items: Iterable[T], total: int | None = None, unit: str = "it") -> Iterator[T]:
        """The items, with a bar."""
        with self.bar(
            what, total if total is not None else len(items) if isinstance(items, Sized) else None, unit
        ) as bar:
            for item in items:
                yield item
                bar.update()

    @property
    def blocks_are(self) -> str:
        """The origin of the blocks that the probe plan lays out anew, for the envelope."""
        return "the model's"

    def file_info(self, wait: bool = True) -> FileInfo:
        """The file, for the report; see `Model.info`."""
        return self.model.info(wait)

    def row_bytes(self, tensor: Tensor) -> npt.NDArray[np.uint8]:
        """The tensor's rows as they lie in the file, uint8[N, row bytes], without a copy."""
        return tensor.raw.reshape(tensor.n_rows, tensor.row_bytes)

    def matrix(self, result: RungResult, gemm: Gemm) -> Matrix | None:
        """The matrix of a GEMM, as it lies in the file; None if it is not known, which the result records."""
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
        n, k = gemm.y.shape[1], gemm.x.shape[1]
        rows = self.row_bytes(tensor)[gemm.first_row : gemm.first_row + n]
        if len(rows) != n or tensor.k != k:
            result.leave(gemm.tensor, f"llama.cpp multiplies {n} rows of {k} values from row {gemm.first_row}")
            return None
        why = self.backend.undefined(gemm, fmt, rows)
        if why is not None:
            result.leave(gemm.tensor, why)
            return None
        return Matrix(tensor, fmt, rows)

    def bytes_of(self, gemm: Gemm) -> int:
        """Bytes of the weights that a GEMM multiplies."""
        tensor = self.model.tensors.get(gemm.tensor)
        return 0 if tensor is None else gemm.y.shape[1] * tensor.row_bytes

    def matrix_bytes(self) -> int:
        """Bytes of the selected matrices."""
        return sum(t.nbytes for t in self.selected() if may_be_matrix(t))

    def n_matrices(self) -> int:
        """The number of matrices in the selected tensors: about the GEMMs of the graph, for a progress bar."""
        return sum(prod(t.shape[2:]) for t in self.selected() if may_be_matrix(t))


def matches(pattern: str | None, name: str) -> bool:
    """Whether `--tensor` of this pattern selects a tensor of this name."""
    return pattern is None or re.search(pattern, name) is not None


class Matrix(NamedTuple):
    """A matrix of weights: a tensor, or one of its matrices; `rows` are uint8[N, row bytes]."""

    tensor: Tensor
    fmt: WeightFormat
    rows: npt.NDArray[np.uint8]
