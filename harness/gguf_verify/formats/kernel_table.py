"""The record of a table of numbers that the CUDA header of a format includes, and the source of its entries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class KernelTable:
    """A table of the kernels, which their sources include as `tables/<name>.cuh`.

    Args:
        name: the name of the header.
        declared: type, name and dimensions of the C array.
        source: the place of the table in the gguf package.
        what: one phrase for the header's first line.
        entries: the entries of the array as C text. Raises EnvironmentFault if the gguf package lacks the table.
        grid: the number of entries to look up codes in, of which a kernel may copy a word each to shared memory.
    """

    name: str
    declared: str
    source: str
    what: str
    entries: Callable[[], Iterable[str]]
    grid: int = 0

    @property
    def header(self) -> str:
        """The name by which sources include it."""
        return f"tables/{self.name}.cuh"


def words(values: Iterable[np.uint32]) -> Iterator[str]:
    """Return 32-bit words as C text."""
    return (f"{word:#010x}" for word in values)


def pairs(values: npt.NDArray[np.uint32]) -> Iterator[str]:
    """Return uint32[n, 2] as C text, two words to an entry."""
    return (f"{{{low:#010x}, {high:#010x}}}" for low, high in values)
