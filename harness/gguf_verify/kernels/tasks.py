"""Tasks: kernels that compute no product but belong to those that do: dequantizers, activation quantizers, repackers.

Each is a `Candidate` whose `computes` names its operation. It has no `Kernel` of a product; `of` is never called.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..hosts.schedule import Schedule
from ..support.errors import UsageError
from .interface import Candidate
from .launches import LargeCall

Bytes = npt.NDArray[np.uint8]
#: The reason that no call of a Python kernel is tried with indices of 2^31 and more.
UNSEEN = "its launches cannot be seen"
Floats = npt.NDArray[np.float32]


class Task(Candidate):
    """A kernel that computes no product."""

    @property
    def order_in_words(self) -> str:
        return "none"

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> NoReturn:
        raise UsageError(f"kernel {self.name} computes no products")

    def under(self, schedule: Schedule) -> Task | None:
        """Return this kernel run under a schedule; None if its host cannot set one (or cannot check)."""
        return None


class Dequantizer(Task):
    """A kernel that returns the values of weights.

    Args:
        output: the type of its values, one of `semantics.dequantization.OUTPUTS`.
        flushes: it is built with fast math, which may treat subnormal numbers as zero.
    """

    computes = "dequantize"
    output: str
    flushes: bool

    @abstractmethod
    def arithmetic(self, fmt: BlockFormat) -> str:
        """The arithmetic that it declares for a type, one of `semantics.dequantization.ARITHMETICS`."""

    def large(self, fmt: BlockFormat, blocks: Bytes, n: int, k: int) -> LargeCall | str:
        """Return a call for n rows of k columns, in which blocks uint8[…, block bytes] repeat; or why not, in words."""
        return UNSEEN

    @abstractmethod
    def dequantize(self, fmt: BlockFormat, rows: Bytes) -> Floats:
        """Return the values of rows uint8[N, row bytes] as float32[N, K], which hold values of its output type.

        Raises KernelFault; EnvironmentFault under a schedule.
        """


class Quantizer(Task):
    """A kernel that returns the bytes of activations.

    Args:
        encoding: the name of the encoding that it makes.
        takes: the type of its input activations, one of `semantics.dequantization.OUTPUTS`.
        ordered: it adds the sums s in the encoder's order.
        fast_math: it is built with approximate division.
    """

    computes = "quantize"
    encoding: str
    takes: str
    ordered: bool
    fast_math: bool

    def large(self, x: Floats, m: int, k: int) -> LargeCall | str:
        """Return a call for m tokens of k columns, in which values float32[…] repeat; or why not, in words."""
        return UNSEEN

    @abstractmethod
    def quantize(self, x: Floats) -> Bytes:
        """Return uint8[M, row bytes] of activations float32[M, K], which hold values of `takes`.

        Raises KernelFault; EnvironmentFault under a schedule.
        """


@dataclass(frozen=True)
class Packed:
    """The result of a packing: its array, of any shape and type, as bytes.

    Args:
        bytes: uint8[…], in C order.
        shape, dtype: of the array.
    """

    bytes: Bytes
    shape: tuple[int, ...]
    dtype: str


class Repacker(Task):
    """A kernel that rearranges weights in another layout.

    Args:
        unpacks: it has a function that undoes the packing.
    """

    computes = "repack"
    unpacks: bool

    @abstractmethod
    def pack(self, fmt: BlockFormat, rows: Bytes) -> Packed:
        """Pack rows uint8[N, row bytes]. Raises KernelFault; EnvironmentFault under a schedule."""

    @abstractmethod
    def unpack(self, fmt: BlockFormat, packed: Packed, n: int, k: int) -> Bytes:
        """Return the rows uint8[n, row bytes] that the author's function makes of packed weights, n rows of k columns.

        It runs in a process that never had the rows. Raises KernelFault; EnvironmentFault under a schedule.
        """

    def forget(self) -> None:
        """Clear everything that `unpack` remembers of earlier calls."""
