"""The kernels' copies of the tables in the formats' records: C++ text, generated for each build.

A format's CUDA header includes its tables as `tables/<name>.cuh`; no such folder exists. Hosts pass the texts to the
compiler, and `tables_hash` is part of a build's key in the cache. Each table is a plain array in C++ and in device
code, so it needs no copy to the device and no constant memory.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..formats.kernel_table import KernelTable

_WIDTH = 120


@cache
def headers() -> dict[str, str]:
    """Return the tables of all formats: the name that sources include → text.

    Raises EnvironmentFault if the gguf package lacks a table.
    """
    # imported here: NVRTC's process gets the headers from its parent
    from ..formats.tensor_types import FORMATS

    needed = {table.name: table for fmt in FORMATS.values() for table in fmt.tables}
    return {table.header: _text(table) for table in needed.values()}


@cache
def tables_hash() -> str:
    """Return the sha256 over all of `headers`."""
    digest = hashlib.sha256()
    for name, text in sorted(headers().items()):
        digest.update(name.encode() + b"\0" + text.encode() + b"\0")
    return digest.hexdigest()


def write_headers(folder: Path) -> None:
    """Write the tables to where a compiler with `-I folder` finds them."""
    (folder / "tables").mkdir()
    for name, text in headers().items():
        (folder / name).write_text(text)


def _text(table: KernelTable) -> str:
    lines = [""]
    for entry in table.entries():
        if len(lines[-1]) + len(entry) + 2 > _WIDTH:
            lines.append("")
        lines[-1] += f" {entry}," if lines[-1] else f"    {entry},"
    listed = "\n".join(lines)
    head = f"// Generated from {table.source} of the gguf package: {table.what}.\n#pragma once"
    return f"{head}\nstatic const __device__ {table.declared} = {{\n{listed}\n}};\n"
