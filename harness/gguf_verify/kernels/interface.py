"""The interface that rungs use to run any kernel, shipped or foreign, on any host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..hosts.base import Host, Source, Written
from ..hosts.schedule import Schedule
from ..processes.sandbox import Sandbox
from ..results.coverage import Execution
from ..results.environment import HostInfo, OpenedFiles
from ..semantics.definition import Semantics
from ..semantics.definitions import SEMANTICS
from ..semantics.order import Order
from .comparisons import CodeNumber, Compared, Observation
from .domain import EVERYTHING, Domain
from .experts import Taken
from .launches import Launched, Lies, SparseProduct
from .routing import Routing


@dataclass(frozen=True)
class Weights:
    """A weight matrix in the layout of a kernel.

    Args:
        fmt: the type in the file.
        n, k: rows and columns.
        buffer: the result of `Kernel.upload`; only that kernel, and others with the same layout, can read it.
    """

    fmt: WeightFormat
    n: int
    k: int
    buffer: Any


class Candidate(ABC):
    """The object of a run: one kernel, or a family of kernels, which chooses the kernel for each product.

    Args:
        host: where shipped kernels run: this kernel, or those for types that are not quantized.
    """

    host: Host
    #: The operation: a key of `kernels.tasks.COMPUTES`.
    computes: str = "gemm"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name for reports."""

    @property
    @abstractmethod
    def semantics(self) -> str:
        """The definition of the product that it declares: a key of `gguf_verify.semantics.SEMANTICS`, or "own"."""

    @property
    def definition(self) -> Semantics:
        """The definition itself.

        For a foreign kernel it also says which activations it takes, or is the author's oracle.
        """
        return SEMANTICS[self.semantics]

    @property
    def beside_definition(self) -> tuple[str, ...]:
        """Its further declarations, in words: roundings, fused operations, its domain …"""
        rounded = self.definition.rounded_words.removeprefix(", ")
        return tuple(filter(None, (rounded, self.domain.words and f"domain {self.domain.words}")))

    @property
    def judged_by(self) -> str | None:
        """The definition that judges it, in words, if it is not one of this project's unchanged; otherwise None."""
        return None

    @property
    @abstractmethod
    def order_in_words(self) -> str:
        """The order in which it declares to add terms, in words, for reports."""

    @property
    def code(self) -> tuple[str, ...]:
        """Descriptions of the code that is run, one for each kind of code; empty for a kernel of this project."""
        return ()

    @property
    def opened(self) -> OpenedFiles:
        """The files that its processes and compilers have opened so far; empty for a kernel of this project."""
        return OpenedFiles()

    def executed(self) -> Execution | None:
        """The code of its author that its processes have executed so far; None for a kernel of this project."""
        return None

    @property
    def texts(self) -> Mapping[str, str]:
        """The sources of its author that are observed: file → text."""
        return {}

    @property
    def impossible(self) -> Mapping[str, Mapping[int, str]]:
        """Places of these sources that no product in its domain reaches: file → line → what shows it."""
        return {}

    @property
    def domain(self) -> Domain:
        """The products that it promises to compute."""
        return EVERYTHING

    def is_under_test(self, fmt: WeightFormat) -> bool:
        """Return whether the run verifies the kernel that `of` returns for weights of this type.

        False for a kernel of this project that only stands in for matrices that are not quantized.
        """
        return isinstance(fmt, BlockFormat)

    @property
    def sandbox(self) -> Sandbox | None:
        """The confinement of its process; None for a kernel of this project."""
        return None

    @property
    def hints(self) -> tuple[str, ...]:
        """Possible errors in its declaration, judging by its source, one per line: shown if it fails."""
        return ()

    def check_fault(self) -> str | None:
        """Return why its launches cannot be checked here for races and invalid accesses, or None."""
        return self.host.check_fault()

    def runs_on(self) -> HostInfo:
        """Return the host that it runs on."""
        return self.host.info()

    @abstractmethod
    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        """Return the kernel that multiplies activations [m, k] by weights [n, k] of a type."""

    @abstractmethod
    def covers(self, fmt: WeightFormat) -> bool:
        """Return whether `of` has a kernel for weights of this type."""

    def neutral(self) -> Candidate | None:
        """Return this candidate with neutral operands for its fused operations, so that its products are plain.

        None if there are no such operands.
        """
        return self

    def alignments(self, fmt: WeightFormat) -> Mapping[str, int]:
        """Return the operands that began at no multiple of 16 in some calls: name → the bytes of which their addresses
        were a multiple. Empty for a kernel of this project, whose operands are aligned to 16."""
        return {}

    @property
    def address_limits(self) -> Mapping[str, str]:
        """The alignments that its calls turned out to need beyond those of the operands' types: as the headline of a
        pass names them → the verified range, the reason, and the cure."""
        return {}

    def unaligned(self) -> Candidate | None:
        """Return this candidate, all of whose operands begin at no multiple of 16; None if it has no such calls."""
        return None

    def try_every_address(self) -> None:  # noqa: B027 - most have none
        """Make each call with all combinations of aligned and unaligned operands from now on."""

    def restart(self) -> None:  # noqa: B027 - most have no process
        """End its process: the next call is the first one of another process."""

    def close(self) -> None:  # noqa: B027 - most have no process
        """End the processes that it started."""


class Kernel(Candidate):
    """A kernel: computes float32 outputs from weights and activations."""

    #: Whether one of its products added floats with atomic operations, as far as the host can tell: the order is then
    #: undefined, so bits may differ between products.
    adds_floats = False
    #: `Host.unset` of its products.
    unset: tuple[str, ...] = ()
    #: Whether `product` runs code of the kernel that `gemm` does not run, such as a quantizer. Otherwise, both make the
    #: same call.
    quantizes = True
    #: How its comparisons can be observed: see `compared`. None: they cannot.
    compares: Observation | None = None
    #: Integers in its code that may be compared with sizes, as far as `compared` has met the code.
    numbers: Sequence[CodeNumber] = ()
    #: Of a kernel that `compares` in calls: what the last call of `compared` cost, in multiply-adds.
    observed_cost = 0
    #: The number of comparisons in its code whose outcome is a value, and was the same in all calls of `compared`.
    one_sided = 0
    #: The arguments of a mixture-of-experts kernel, None for others: see `routed`.
    takes_experts: Taken | None = None

    @property
    @abstractmethod
    def order(self) -> Order | None:
        """The order in which it declares to add the terms of an output; None if it declares none."""

    @property
    def order_in_words(self) -> str:
        return "none" if self.order is None else str(self.order)

    @property
    def layout(self) -> str:
        """The name of the layout that `upload` makes: kernels with the same layout can share uploaded weights."""
        return "file"

    def under(self, schedule: Schedule) -> Kernel | None:
        """Return this kernel run under a schedule; None if its host cannot set one (or cannot check).

        Weights uploaded by one of the two kernels cannot be used by the other.
        """
        return None

    def launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...] | None:
        """Return the launches of such a product, without computing it; None if they cannot be seen.

        Raises KernelFault.
        """
        return None

    def sources(self, fmt: WeightFormat, m: int, n: int, k: int) -> Sequence[Source]:
        """Return the sources that such operands need, as far as known in advance: for `Host.compile_ahead`.

        They are those that `upload`, `product`, `gemm` and `quantize` load.
        """
        return ()

    def only_launch(self, fmt: WeightFormat, m: int, n: int, k: int) -> Launched | str:
        """Return the last launch of `gemm` on such operands, whose thread blocks `alone` can run; or why not, in words.

        Raises KernelFault.
        """
        return "its launches cannot be seen"

    def earlier(self, fmt: WeightFormat, m: int, n: int, k: int) -> tuple[Launched, ...]:
        """Return the launches before `only_launch`, of which `alone` also runs blocks: see `SparseProduct.needs`."""
        return ()

    def lies(self, fmt: WeightFormat, m: int, n: int, k: int) -> Mapping[str, Lies]:
        """Return the memory layouts of operands of `alone` that are not contiguous rows. Raises KernelFault."""
        return {}

    def alone(self, product: SparseProduct, number: int) -> Written:
        """Return what thread block `number` of the only launch writes to the output float32[M, N].

        Blocks are counted along x first. Raises KernelFault; EnvironmentFault if it needs too much memory.
        """
        raise NotImplementedError

    def compared(self, product: SparseProduct, numbers: Sequence[int]) -> Compared | None:
        """Return the comparisons in the author's code that such a product makes; None if they cannot be seen.

        Args:
            numbers: the thread blocks that run, of a kernel that `compares` in these.

        Raises KernelFault, EnvironmentFault.
        """
        return None

    def compared_in_launches(self, fmt: WeightFormat, m: int, n: int, k: int) -> Compared:
        """Return the comparisons in the declaration of the launches of such a product. Raises KernelFault."""
        return {}

    def unseen(self, fmt: WeightFormat) -> str:
        """Return the conversions to smaller types that are no comparisons, in words; "". Raises EnvironmentFault."""
        return ""

    def together(self, product: SparseProduct) -> npt.NDArray[np.float32]:
        """Return the whole output of a product that is small enough, float32[M, N]. Raises KernelFault."""
        weights = self.upload(product.fmt, product.rows(range(product.n)))
        return self.gemm(weights, product.tokens(range(product.m)))

    def tail(self, fmt: WeightFormat, m: int, n: int, k: int, name: str) -> int:
        """Return the bytes of zeros after a fused operand. Raises KernelFault."""
        return 0

    def quantizer_launch(self, m: int, k: int) -> Launched | str | None:
        """Like `only_launch`, for its quantizer; None if it launches none."""
        return None

    def quantizer_alone(self, values: npt.NDArray[np.float32], m: int, k: int, number: int) -> Written:
        """Like `alone`, for its quantizer: the bytes of activations float32[m, k] in which `values` repeat."""
        raise NotImplementedError

    def tile(self, fmt: WeightFormat, m: int, n: int) -> tuple[int, int] | None:
        """Return the tokens and rows of the outputs of a thread block; None if not a rectangle or not known."""
        return None

    @abstractmethod
    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Convert activations float32[M, K] to the input of `gemm`, uint8[M, row bytes]. Raises KernelFault."""

    @abstractmethod
    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        """Prepare weights for any number of calls, from the file's rows uint8[N, row bytes].

        Raises UsageError if the kernel does not cover the type; KernelFault.
        """

    @abstractmethod
    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Compute float32[M, N] from activations as `quantize` returns them. Raises KernelFault."""

    @abstractmethod
    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Compute float32[M, N] from activations float32[M, K], including their quantization. Raises KernelFault."""

    def routed(
        self, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8], routing: Routing
    ) -> npt.NDArray[np.float32]:
        """Compute the products with the experts that tokens are routed to, float32[M, top_k, N]. Raises KernelFault.

        Args:
            rows: of all experts, uint8[E·N, row bytes].
            x: as `quantize` returns them, uint8[M, row bytes], or one row per slot, uint8[M·top_k, row bytes].
        """
        raise NotImplementedError
