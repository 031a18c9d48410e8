"""The tables of the I-quants, read from the gguf package: grids of 4 or 8 values, sign bytes, non-linear values.

Nothing of them is written down here: the description of a format, the kernels (`gguf_verify.hosts.tables`) and the
slow decoder all start from `gguf.quants`, and the tests hold every entry against llama.cpp's `to_float`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ..support.errors import EnvironmentFault
from ..support.partial_import import submodule

Codes = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]

#: Entries of each grid, and values of an entry.
SHAPES = {
    "IQ1_S": (2048, 8), "IQ2_XXS": (256, 8), "IQ2_XS": (512, 8), "IQ2_S": (1024, 8),
    "IQ3_XXS": (256, 4), "IQ3_S": (512, 4),
}  # fmt: skip


def _missing(what: str) -> EnvironmentFault:
    return EnvironmentFault(f"the installed gguf package does not hold {what} where versions 0.17 to 0.19 do")


@cache
def grid(name: str) -> Codes:
    """The grid of a type, int8[entries, 4 or 8]; IQ1_M shares IQ1_S's. Raises EnvironmentFault where gguf has none."""
    try:
        kind = getattr(submodule("gguf.quants"), name)
        kind.init_grid()
        entries = np.asarray(kind.grid).reshape(SHAPES[name]).astype(np.int8)
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _missing(f"the grid of {name}") from None
    entries.setflags(write=False)
    return entries


@cache
def ksigns() -> Bytes:
    """The sign bytes that 7 bits stand for, uint8[128]; bit j negates value j of 8. Raises EnvironmentFault alike."""
    try:
        return np.frombuffer(submodule("gguf.quants").IQ2_XXS.ksigns, np.uint8).reshape(128)
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _missing("the table ksigns") from None


@cache
def kvalues() -> Codes:
    """The values of the codes of IQ4_NL and IQ4_XS, int8[16]. Raises EnvironmentFault alike."""
    try:
        values = np.array(submodule("gguf.quants").IQ4_NL.kvalues).reshape(16).astype(np.int8)
    except (ImportError, AttributeError, TypeError, ValueError):
        raise _missing("the values of IQ4_NL") from None
    values.setflags(write=False)
    return values


@cache
def signs() -> Codes:
    """What a sign byte multiplies 8 values by, int8[256, 8] of ±1."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.asarray(1 - 2 * bits.astype(np.int8))
