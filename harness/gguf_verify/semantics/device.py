"""The interface of a device that computes exact products in place of NumPy: see `support.arrays`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..support.arrays import Array

T = TypeVar("T")


class Device(Protocol):
    """A GPU with its own arrays, whose results are compared with NumPy's (`agreement`)."""

    def put(self, values: npt.NDArray[Any]) -> Array:
        """Copy a NumPy array to the GPU. Raises EnvironmentFault if its memory does not suffice."""

    def faults(self) -> AbstractContextManager[None]:
        """Return a context that converts the GPU's errors to EnvironmentFault."""

    def rows(self, values: int, outputs: int) -> int:
        """Return the number of rows to process at a time, for weights with these values and outputs a row."""

    def kept(self, kind: str, w: npt.NDArray[np.uint8], nbytes: int, make: Callable[[], T | None]) -> T | None:
        """Return the result of `make` for weights of a type, cached if possible; None if not cached or not made.

        Only results for read-only weights are cached, while there is room, and for the last others.

        Args:
            nbytes: bytes of the result of `make`.
        """

    def take_from(self, rows: npt.NDArray[np.uint8], w: npt.NDArray[np.uint8], numbers: npt.NDArray[np.intp]) -> None:
        """Note, until the next call, that `rows` are the rows of weights with these numbers."""

    def origin(self, kind: str, rows: npt.NDArray[np.uint8]) -> tuple[Any, npt.NDArray[np.intp]] | None:
        """Return the cached result of the weights that rows were taken from, and the rows' numbers; None if there is
        none.
        """

    def sample(self, rows: int, read: bool = False) -> npt.NDArray[np.intp]:
        """Return which of this many rows NumPy computes, too: others each time, and none for some products.

        Args:
            read: these rows are read now, for any number of products.
        """
