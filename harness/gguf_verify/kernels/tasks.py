"""Kernels that multiply nothing but belong to those that do: dequantizers, quantizers of activations, repackings.

Each is a `Candidate` that says by `computes` what it does. It has no `Kernel` of a product; `of` is never asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat
from ..hosts.schedule import Schedule
from ..support.errors import UsageError
from .interface import Candidate
from .launches import LargeCall

Bytes = npt.NDArray[np.uint8]
#: Why no call of a kernel in Python is tried with indices of 2^31 and more.
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
        """This kernel, its launches under a schedule; None where its host cannot choose one (or cannot check)."""
        return None


class Dequantizer(Task):
    """It gives the values of weights.

    Args:
        output: the type of its values, one of `semantics.dequantization.OUTPUTS`.
        flushes: it is built with fast math, which may take subnormal numbers for zero.
    """

    computes = "dequantize"
    output: str
    flushes: bool

    @abstractmethod
    def arithmetic(self, fmt: BlockFormat) -> str:
        """The arithmetic that it declares for a type, one of `semantics.dequantization.ARITHMETICS`."""

    def large(self, fmt: BlockFormat, blocks: Bytes, n: int, k: int) -> LargeCall | str:
        """A call for n rows of k columns, in which blocks uint8[…, block bytes] repeat; or why it cannot be made, in
        words."""
        return UNSEEN

    @abstractmethod
    def dequantize(self, fmt: BlockFormat, rows: Bytes) -> Floats:
        """The values of rows uint8[N, row bytes] as float32[N, K], which hold those of its output type. Raises
        KernelFault; EnvironmentFault under a schedule."""


class Quantizer(Task):
    """It gives the bytes of activations.

    Args:
        encoding: the name of the encoding that it makes.
        takes: the type of the activations that it is given, one of `semantics.dequantization.OUTPUTS`.
        ordered: it adds the sums s in the encoder's order.
        fast_math: it is built with approximate division.
    """

    computes = "quantize"
    encoding: str
    takes: str
    ordered: bool
    fast_math: bool

    def large(self, x: Floats, m: int, k: int) -> LargeCall | str:
        """A call for m tokens of k columns, in which values float32[…] repeat; or why it cannot be made, in words."""
        return UNSEEN

    @abstractmethod
    def quantize(self, x: Floats) -> Bytes:
        """uint8[M, row bytes] of activations float32[M, K], which hold values of `takes`. Raises KernelFault;
        EnvironmentFault under a schedule."""


@dataclass(frozen=True)
class Packed:
    """What a packing made: its array, of any shape and type, as bytes.

    Args:
        bytes: uint8[…], in C's order.
        shape, dtype: of the array.
    """

    bytes: Bytes
    shape: tuple[int, ...]
    dtype: str


class Repacker(Task):
    """It lays weights out anew.

    Args:
        unpacks: it brings a function that takes what it packed apart again.
    """

    computes = "repack"
    unpacks: bool

    @abstractmethod
    def pack(self, fmt: BlockFormat, rows: Bytes) -> Packed:
        """What it makes of rows uint8[N, row bytes]. Raises KernelFault; EnvironmentFault under a schedule."""

    @abstractmethod
    def unpack(self, fmt: BlockFormat, packed: Packed, n: int, k: int) -> Bytes:
        """The rows uint8[n, row bytes] of n rows and k columns that its author's function makes of what was packed, in
        a process that never had the rows. Raises KernelFault; EnvironmentFault under a schedule."""

    def forget(self) -> None:
        """Let `unpack` know nothing of what it took apart before."""
