"""Where exact products are computed, if not by NumPy: see `support.arrays`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..support.arrays import Array


class Device(Protocol):
    """A card with arrays of its own, whose results are compared with NumPy's (`agreement`)."""

    def put(self, values: npt.NDArray[Any]) -> Array:
        """NumPy's array on the card. Raises EnvironmentFault where its memory does not suffice."""

    def faults(self) -> AbstractContextManager[None]:
        """In this block the card's errors are EnvironmentFaults."""

    def rows(self, values: int, outputs: int) -> int:
        """Of weights with so many values and outputs a row, the rows that are decoded and multiplied at a time."""

    def sample(self, rows: int) -> npt.NDArray[np.intp]:
        """Which of so many rows are computed by NumPy too: others each time."""


__all__ = ["Device"]
