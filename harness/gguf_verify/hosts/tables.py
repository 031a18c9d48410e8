"""The kernels' copies of the tables in `gguf_verify.formats.grids`: C++ text, made anew for each build.

A format's header includes those that it needs as `tables/<name>.cuh`; no such folder exists. Hosts hand them to the
compiler, and `tables_hash` is part of a build's key in the cache. Each is one array that is plain in C++ and in device
code, so that it needs no copy to the device and no constant memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..formats import grids

_WIDTH = 120


@cache
def headers() -> dict[str, str]:
    """The header of each table: name to include it by → text. Raises EnvironmentFault where gguf has no table."""
    made = {
        "ksigns": _header(
            "uint8_t KSIGNS[128]", "ksigns", "sign bytes of 7 bits: bit j negates value j of 8",
            (f"{v:#04x}" for v in grids.ksigns()),
        ),
        "kvalues": _header(
            "int8_t KVALUES[16]", "IQ4_NL.kvalues", "values of the codes of IQ4_NL and IQ4_XS",
            (str(v) for v in grids.kvalues()),
        ),
        "iq1": _header(
            "uint32_t IQ1_GRID[2048]", "the grid of IQ1_S", "entries plus 1, a nibble each: 0..3 low, 4..7 high",
            _words(_in_nibbles(grids.grid("IQ1_S"))),
        ),
    }  # fmt: skip
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
        entries = grids.grid(name)
        words = np.ascontiguousarray(entries).view("<u4")
        shape = f"[{len(words)}][2]" if words.shape[1] == 2 else f"[{len(words)}]"
        listed = _words(words[:, 0]) if words.shape[1] == 1 else _pairs(words)
        made[name.lower()] = _header(
            f"uint32_t {name}_GRID{shape}", f"the grid of {name}", "magnitudes, four to a word", listed
        )
    return {f"tables/{name}.cuh": text for name, text in made.items()}


@cache
def tables_hash() -> str:
    """sha256 over all of `headers`."""
    digest = hashlib.sha256()
    for name, text in sorted(headers().items()):
        digest.update(name.encode() + b"\0" + text.encode() + b"\0")
    return digest.hexdigest()


def write_headers(folder: Path) -> None:
    """Put them where `-I folder` finds them."""
    (folder / "tables").mkdir()
    for name, text in headers().items():
        (folder / name).write_text(text)


def _in_nibbles(entries: grids.Codes) -> npt.NDArray[np.uint32]:
    packed = (entries[:, :4] + 1) | (entries[:, 4:] + 1) << 4
    return np.ascontiguousarray(packed.astype(np.uint8)).view("<u4")[:, 0]


def _words(words: Iterable[np.uint32]) -> Iterator[str]:
    return (f"{word:#010x}" for word in words)


def _pairs(words: npt.NDArray[np.uint32]) -> Iterator[str]:
    return (f"{{{low:#010x}, {high:#010x}}}" for low, high in words)


def _header(declared: str, source: str, what: str, entries: Iterable[str]) -> str:
    lines = [""]
    for entry in entries:
        if len(lines[-1]) + len(entry) + 2 > _WIDTH:
            lines.append("")
        lines[-1] += f" {entry}," if lines[-1] else f"    {entry},"
    listed = "\n".join(lines)
    head = f"// Generated from {source} of the gguf package: {what}.\n#pragma once"
    return f"{head}\nstatic const __device__ {declared} = {{\n{listed}\n}};\n"
