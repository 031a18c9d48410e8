"""Extents of the variables of a checked build.

Each lies in its own section of the unit's object (`-fdata-sections`). `padded` extends these sections, so that each
variable is followed by bytes of no variable. `with_extents` writes the variables' places into the library that is
linked from it, for `kernels/emulator/checks.hpp`: the compiler's own checks only know the variable of an address within
a function.
"""

from __future__ import annotations

import struct

from ..support.errors import EnvironmentFault
from .elf import ALLOCATED, EXECUTABLE, MERGEABLE, NO_BITS, THREAD_LOCAL_VARIABLE, Elf, Symbol, readable

#: `cuda_on_cpu::Extents`: its name, bytes behind a variable, the most variables, and each one's fields.
_TABLE, PADDING, _MOST = b"cuda_on_cpu_extents", 1024, 2048
_ENTRY = struct.Struct("<QII")
_HEAD = struct.Struct("<QQQ")
#: A part of the names, in an object that calls them, of the runner's functions for instructions of a warp.
_OF_WARPS = tuple(f"{len(name)}{name}E".encode() for name in ("sync_warp", "exchange", "shuffle", "gather"))


def padded(compiled: bytes) -> bytes:
    """Return an object with `PADDING` bytes behind each of its variables. Raises EnvironmentFault."""
    of, out = _read(compiled), bytearray(compiled)
    for number in sorted({symbol.section for symbol in _padded(of)}):
        section = of.sections[number]
        offset = section.offset
        if section.kind != NO_BITS:
            out += bytes(-len(out) % max(1, section.alignment))
            offset = len(out)
            out += compiled[section.offset : section.offset + section.size] + bytes(PADDING)
        struct.pack_into("<QQ", out, section.header + 24, offset, section.size + PADDING)
    return bytes(out)


def with_extents(library: bytes, compiled: bytes) -> bytes:
    """Write into a library the places of the variables of the object that it was linked from, and whether that calls
    instructions of a warp. Raises EnvironmentFault."""
    of = _read(library)
    names, found, table = {symbol.name for symbol in _padded(_read(compiled))}, dict[bytes, Symbol](), None
    for symbol in of.variables():
        if symbol.name == _TABLE:
            table = symbol
        elif symbol.name in names:
            found.setdefault(symbol.name, symbol)  # the runner's object comes after the unit's
    if table is None:
        raise EnvironmentFault("a checked build has no table of its variables")
    known = sorted((s.kind == THREAD_LOCAL_VARIABLE, s.value, s.size) for s in found.values())[:_MOST]
    section, out = of.sections[table.section], bytearray(library)
    at = section.offset + table.value - section.address
    _HEAD.pack_into(out, at, len(known), PADDING, any(name in compiled for name in _OF_WARPS))
    for i, (shared, begin, size) in enumerate(known):
        _ENTRY.pack_into(out, at + _HEAD.size + i * _ENTRY.size, begin, min(size, 2**32 - 1), shared)
    return bytes(out)


def _read(content: bytes) -> Elf:
    with readable("object file"):
        return Elf(content)


def _padded(of: Elf) -> list[Symbol]:
    """Return the variables of an object, except constants that the linker merges."""
    return [
        symbol
        for symbol in of.variables()
        if of.sections[symbol.section].flags & (ALLOCATED | EXECUTABLE | MERGEABLE) == ALLOCATED
    ]
