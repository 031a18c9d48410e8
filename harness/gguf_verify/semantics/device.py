"""Where exact products are computed, if not by NumPy: see `support.arrays`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..support.arrays import Array

T = TypeVar("T")


class Device(Protocol):
    """A card with arrays of its own, whose results are compared with NumPy's (`agreement`)."""

    def put(self, values: npt.NDArray[Any]) -> Array:
        """NumPy's array on the card. Raises EnvironmentFault where its memory does not suffice."""

    def faults(self) -> AbstractContextManager[None]:
        """In this block the card's errors are EnvironmentFaults."""

    def rows(self, values: int, outputs: int) -> int:
        """Of weights with so many values and outputs a row, the rows that are decoded and multiplied at a time."""

    def kept(self, kind: str, w: npt.NDArray[np.uint8], nbytes: int, make: Callable[[], T | None]) -> T | None:
        """What `make` gives for weights of a type, from the last time if it was kept: it is for weights that nobody can
        write to, while there is room, and for the last others. None where it is not, or `make` gives none.

        Args:
            nbytes: of what `make` gives.
        """

    def take_from(self, rows: npt.NDArray[np.uint8], w: npt.NDArray[np.uint8], numbers: npt.NDArray[np.intp]) -> None:
        """Until the next call: `rows` are those of weights that have these numbers."""

    def origin(self, kind: str, rows: npt.NDArray[np.uint8]) -> tuple[Any, npt.NDArray[np.intp]] | None:
        """What is kept of the weights of a type that rows were taken from, and the rows' numbers; None for nothing."""

    def sample(self, rows: int, read: bool = False) -> npt.NDArray[np.intp]:
        """Which of so many rows are computed by NumPy too: others each time, and none of some products.

        Args:
            read: these rows are read now, for any number of products.
        """
