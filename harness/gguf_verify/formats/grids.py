"""The tables of the I-quants, read from the gguf package: grids of 4 or 8 values, sign bytes, non-linear values.

No table is written down here. The record of a format, the kernels (`KernelTable`) and the slow decoder all start from
`gguf.quants`, and the tests compare every entry with llama.cpp's `to_float`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault
from ..support.partial_import import submodule
from .kernel_table import KernelTable, pairs, words

Codes = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]


def _missing(what: str) -> EnvironmentFault:
    return EnvironmentFault(f"the installed gguf package does not hold {what} where versions 0.17 to 0.19 do")


@dataclass(frozen=True)
class Grid:
    """A grid of the gguf package.

    Args:
        name: the type that has it in the package.
        count: entries.
        size: values of an entry: 4 or 8.
    """

    name: str
    count: int
    size: int

    @cache  # noqa: B019 - grids are a handful of constants
    def entries(self) -> Codes:
        """Return the grid, int8[count, size]. Raises EnvironmentFault if the gguf package lacks it."""
        try:
            kind = getattr(submodule("gguf.quants"), self.name)
            kind.init_grid()
            found = np.asarray(kind.grid).reshape(self.count, self.size).astype(np.int8)
        except (ImportError, AttributeError, TypeError, ValueError):
            raise _missing(f"the grid of {self.name}") from None
        found.setflags(write=False)
        return found

    def kernel_table(self) -> KernelTable:
        """Return the kernels' copy of a grid of positive values: four to a 32-bit word."""
        shape = f"[{self.count}][2]" if self.size == 8 else f"[{self.count}]"

        def entries() -> list[str]:
            packed = np.ascontiguousarray(self.entries()).view("<u4")
            return list(pairs(packed) if self.size == 8 else words(packed[:, 0]))

        return KernelTable(
            self.name.lower(),
            f"uint32_t {self.name}_GRID{shape}",
            f"the grid of {self.name}",
            "magnitudes, four to a word",
            entries,
            self.count,
        )


@cache
def ksigns() -> Bytes:
    """Return the sign bytes for 7 bits, uint8[128]; bit j negates value j of 8.

    Raises EnvironmentFault if the gguf package lacks them.
    """
    try:
        return np.frombuffer(submodule("gguf.quants").IQ2_XXS.ksigns, np.uint8).reshape(128)
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _missing("the table ksigns") from None


@cache
def kvalues() -> Codes:
    """Return the values of the codes of IQ4_NL and IQ4_XS, int8[16].

    Raises EnvironmentFault if the gguf package lacks them.
    """
    try:
        values = np.array(submodule("gguf.quants").IQ4_NL.kvalues).reshape(16).astype(np.int8)
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _missing("the values of IQ4_NL") from None
    values.setflags(write=False)
    return values


@cache
def signs() -> Codes:
    """Return the factors ±1 of 8 values by sign byte, int8[256, 8]."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.asarray(1 - 2 * bits.astype(np.int8))
