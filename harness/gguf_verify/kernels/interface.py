"""What the rungs ask of a kernel, whoever wrote it and wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat
from ..hosts.base import Host, Source, Written
from ..hosts.schedule import Schedule
from ..processes.sandbox import Sandbox
from ..results.environment import HostInfo, OpenedFiles
from ..semantics.definition import Semantics
from ..semantics.definitions import SEMANTICS
from ..semantics.order import Order
from .domain import EVERYTHING, Domain
from .experts import Taken
from .launches import Launched, Lies, SparseProduct
from .routing import Routing


@dataclass(frozen=True)
class Weights:
    """A weight matrix as a kernel takes it.

    Args:
        fmt: the type in the file.
        n, k: rows and columns.
        buffer: what `Kernel.upload` made of the rows' bytes; only that kernel, and others of its layout, can read it.
    """

    fmt: WeightFormat
    n: int
    k: int
    buffer: Any


class Candidate(ABC):
    """What a run verifies: one kernel, or a family of kernels, which names the kernel of each product.

    Args:
        host: where shipped kernels run: this one, or those that multiply types that are not quantized.
    """

    host: Host
    #: What it computes: a key of `kernels.tasks.COMPUTES`.
    computes: str = "gemm"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name that reports print."""

    @property
    @abstractmethod
    def semantics(self) -> str:
        """The definition of the product that it declares: a name of `gguf_verify.semantics.SEMANTICS`, or "own"."""

    @property
    def definition(self) -> Semantics:
        """That definition. A foreign kernel's also says which activations it takes, or is its author's oracle."""
        return SEMANTICS[self.semantics]

    @property
    def beside_definition(self) -> tuple[str, ...]:
        """What it declares beside the name of its definition, in words: roundings, fused operations, its domain …"""
        rounded = self.definition.rounded_words.removeprefix(", ")
        return tuple(filter(None, (rounded, self.domain.words and f"domain {self.domain.words}")))

    @property
    def judged_by(self) -> str | None:
        """The definition that judges it, in words, where it is not one of this project's as it stands."""
        return None

    @property
    @abstractmethod
    def order_in_words(self) -> str:
        """The order in which it declares that terms are added, for reports."""

    @property
    def code(self) -> tuple[str, ...]:
        """Which code is run, in words, one for each kind of code; none for a kernel of this project."""
        return ()

    @property
    def opened(self) -> OpenedFiles:
        """The files that its processes and its compilers have opened until now; none for a kernel of this project."""
        return OpenedFiles()

    @property
    def domain(self) -> Domain:
        """The products that it promises to compute."""
        return EVERYTHING

    def is_under_test(self, fmt: WeightFormat) -> bool:
        """Whether what `of` names for weights of this type is what the run verifies, and not a kernel of this project
        that only stands beside it, for matrices that are not quantized."""
        return isinstance(fmt, BlockFormat)

    @property
    def sandbox(self) -> Sandbox | None:
        """How its own process is confined; None for a kernel of this project."""
        return None

    @property
    def hints(self) -> tuple[str, ...]:
        """What its declaration may have wrong, by its source, each in a line: shown where it fails."""
        return ()

    def check_fault(self) -> str | None:
        """Why its launches cannot be checked for races and bad accesses here, or None."""
        return self.host.check_fault()

    def runs_on(self) -> HostInfo:
        """Where it runs."""
        return self.host.info()

    @abstractmethod
    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        """The kernel that multiplies activations [m, k] by weights [n, k] of a type."""

    @abstractmethod
    def covers(self, fmt: WeightFormat) -> bool:
        """Whether `of` has a kernel for weights of this type."""

    def neutral(self) -> Candidate | None:
        """This, where what it fuses behind its products gets operands that change nothing, so that they are plain; None
        where there are no such operands."""
        return self

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End the processes that it started."""


class Kernel(Candidate):
    """A kernel: it takes weights and activations and gives float32 outputs."""

    #: Whether a product of it added floats by atomic operations, as far as its host can tell: in an order that nobody
    #: chooses, so that bits may differ from product to product.
    adds_floats = False
    #: `Host.unset` of its products.
    unset: tuple[str, ...] = ()
    #: What it takes where it is a kernel for mixtures of experts: see `routed`.
    takes_experts: Taken | None = None

    @property
    @abstractmethod
    def order(self) -> Order | None:
        """The order in which it declares that it adds the terms of an output; None where it declares none."""

    @property
    def order_in_words(self) -> str:
        return "none" if self.order is None else str(self.order)

    @property
    def layout(self) -> str:
        """The name of the layout that `upload` makes: kernels of one layout share a matrix's weights."""
        return "file"

    def under(self, schedule: Schedule) -> Kernel | None:
        """This kernel, its launches under a schedule; None where its host cannot choose one (or cannot check). Weights
        that one of the two uploads are of no use to the other."""
        return None

    def launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...] | None:
        """What such products launch, which nothing is computed for; None where that cannot be seen. Raises
        KernelFault."""
        return None

    def sources(self, fmt: WeightFormat, m: int, n: int, k: int) -> Sequence[Source]:
        """What `upload`, `product`, `gemm` and `quantize` load for such operands, as far as that is known before they
        are called: for `Host.compile_ahead`."""
        return ()

    def only_launch(self, fmt: WeightFormat, m: int, n: int, k: int) -> Launched | str:
        """The last launch of `gemm` on such operands, whose thread blocks `alone` can run; or why it cannot, in words.
        Raises KernelFault."""
        return "its launches cannot be seen"

    def earlier(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...]:
        """The launches before `only_launch`, some of whose thread blocks `alone` runs, too: `SparseProduct.needs`."""
        return ()

    def lies(self, fmt: WeightFormat, m: int, n: int, k: int) -> Mapping[str, Lies]:
        """Where operands of `alone` lie that do not lie as rows one behind the other. Raises KernelFault."""
        return {}

    def alone(self, product: SparseProduct, number: int) -> Written:
        """What thread block `number` of the only launch, counted along x first, writes into the output float32[M, N].
        Raises KernelFault; EnvironmentFault where it takes too much memory."""
        raise NotImplementedError

    def together(self, product: SparseProduct) -> npt.NDArray[np.float32]:
        """The whole output of a product that is small enough, float32[M, N]. Raises KernelFault."""
        weights = self.upload(product.fmt, product.rows(range(product.n)))
        return self.gemm(weights, product.tokens(range(product.m)))

    def tail(self, fmt: WeightFormat, m: int, n: int, k: int, name: str) -> int:
        """Bytes of zeros behind an operand of what is fused behind the product. Raises KernelFault."""
        return 0

    def quantizer_launch(self, m: int, k: int) -> Launched | str | None:
        """As `only_launch`, of its quantizer; None where it launches none."""
        return None

    def quantizer_alone(self, values: npt.NDArray[np.float32], m: int, k: int, number: int) -> Written:
        """As `alone`, of its quantizer: the bytes of activations float32[m, k] in which `values` repeat."""
        raise NotImplementedError

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int] | None:
        """Tokens and rows of the outputs that one thread block computes; None where that is no rectangle, or not
        known."""
        return None

    @abstractmethod
    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """What `gemm` takes, uint8[M, row bytes], from activations float32[M, K]. Raises KernelFault."""

    @abstractmethod
    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        """Weights for any number of calls, from the file's rows uint8[N, row bytes].

        Raises UsageError where the kernel does not cover the type; KernelFault.
        """

    @abstractmethod
    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """float32[M, N] from activations as `quantize` returns them. Raises KernelFault."""

    @abstractmethod
    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32[M, N] from activations float32[M, K], which are quantized on the way. Raises KernelFault."""

    def routed(
        self, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8], routing: Routing
    ) -> npt.NDArray[np.float32]:
        """The products of the experts that tokens are sent to, float32[M, top_k, N]. Raises KernelFault.

        Args:
            rows: of all experts, uint8[E·N, row bytes].
            x: as `quantize` returns them, uint8[M, row bytes], or of each slot, uint8[M·top_k, row bytes].
        """
        raise NotImplementedError
