"""What the rungs ask of a kernel, whoever wrote it and wherever it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import WeightFormat
from ..hosts.base import Host
from ..semantics import SEMANTICS, Order, Semantics


@dataclass(frozen=True)
class Weights:
    """A weight matrix as a kernel takes it: N rows of K values."""

    fmt: WeightFormat
    n: int
    k: int
    buffer: Any


class Kernel(ABC):
    """A kernel: weights and activations in, float32 out.

    Args:
        host: where shipped kernels run: this one, or those of the types that are not quantized.
    """

    host: Host

    @property
    @abstractmethod
    def name(self) -> str:
        """For reports."""

    @property
    @abstractmethod
    def semantics(self) -> str:
        """The definition of the product that it declares, a name of `gguf_verify.semantics.SEMANTICS`."""

    @property
    def definition(self) -> Semantics:
        """That definition; of a kernel of somebody else's also what activations it takes, or its author's oracle."""
        return SEMANTICS[self.semantics]

    @property
    def judged_by(self) -> str | None:
        """What judges it, in words, where it is no definition of this project."""
        return None

    @property
    @abstractmethod
    def order(self) -> Order | None:
        """The order in which it declares that it adds the terms of an output; None where it declares none."""

    @property
    def order_in_words(self) -> str:
        """Its declared order, for reports."""
        return "none" if self.order is None else str(self.order)

    @property
    def any_shape(self) -> bool:
        """It promises any M and N, and any K of whole blocks, not only the shapes of a model."""
        return False

    @property
    def layout(self) -> str:
        """What `upload` makes: kernels that `of` gives for one matrix share the weights of one layout."""
        return "file"

    def describe(self) -> str:
        """Where it runs, in one line."""
        return self.host.describe()

    @property
    def chosen(self) -> str:
        """Who decided that it runs there."""
        return self.host.chosen

    @abstractmethod
    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        """The kernel that multiplies [m, k] by such weights [n, k]: this one, or the one beside it."""

    @abstractmethod
    def covers(self, fmt: WeightFormat) -> bool:
        """Whether this kernel, or the one beside it, multiplies such weights."""

    @abstractmethod
    def quantize(self, x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Activations `float32[M, K]` to what `gemm` takes, uint8[M, row bytes]. Raises KernelFault."""

    @abstractmethod
    def upload(self, fmt: WeightFormat, rows: npt.NDArray[np.uint8]) -> Weights:
        """Weights `uint8[N, row bytes]` in the file's layout, for any number of calls. Raises KernelFault."""

    @abstractmethod
    def gemm(self, weights: Weights, x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """`float32[M, N]` from activations as `quantize` returns them. Raises KernelFault."""

    @abstractmethod
    def product(self, weights: Weights, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """`float32[M, N]` from activations `float32[M, K]`, quantized on the way. Raises KernelFault."""

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """End what it started."""
