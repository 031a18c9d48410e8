"""Reader for files that a compiler or its linker made: ELF of 64 bits (System V ABI, chapter 4).

The compiler may have read a hostile source, so no length in a file is trusted.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ..support.errors import EnvironmentFault

#: Kinds of sections, and their flags.
SYMBOLS, RELOCATIONS, NO_BITS = 2, 4, 8
ALLOCATED, EXECUTABLE, MERGEABLE, THREAD_LOCAL = 2, 4, 0x10, 0x400
#: Kinds of symbols.
VARIABLE, FUNCTION, THREAD_LOCAL_VARIABLE = 1, 2, 6
#: Limits of a file; longer names are cut.
_MOST_SECTIONS, _MOST_ENTRIES, _MOST_NAME = 1 << 15, 1 << 20, 1 << 14


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Raise EnvironmentFault if a file that a compiler made, such as an "object file", cannot be read within."""
    try:
        yield
    except (struct.error, IndexError, ValueError):
        raise EnvironmentFault(f"a compiler produced no readable {what}") from None


@dataclass(frozen=True)
class Section:
    """A section; `header` is the offset of its header in the file."""

    header: int
    name: bytes
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    of: int
    alignment: int

    @property
    def variable(self) -> str:
        """The variable in a section of one variable."""
        name = self.name.rpartition(b".")[2].decode("ascii", "replace")
        found = re.search(r"(?:E|L|^_Z)(\d+)([A-Za-z_]\w*?)(?:_\d+)?$", name)
        return found[2][: int(found[1])] if found else name


class Symbol(NamedTuple):
    """A symbol; `section` is the number of its section, or a number of no section."""

    name: bytes
    kind: int
    section: int
    value: int
    size: int


class Elf:
    """A file's sections and symbols. Raises struct.error, IndexError or ValueError if it is no ELF file."""

    def __init__(self, content: bytes) -> None:
        if content[:5] != b"\x7fELF\x02":
            raise ValueError
        self.content = content
        (at,) = struct.unpack_from("<Q", content, 40)
        size, count, names = struct.unpack_from("<HHH", content, 58)
        headers = range(at, at + min(count, _MOST_SECTIONS) * size, size or 1)
        raw = [struct.unpack_from("<IIQQQQIIQQ", content, header) for header in headers]
        strings = raw[names]
        self.sections = [
            Section(header, self._string(strings[4], name), *rest[:8])
            for header, (name, *rest) in zip(headers, raw, strict=True)
        ]
        self.symbols: list[Symbol] = []
        for section in self.sections:
            if section.kind == SYMBOLS:
                begin = self.sections[section.link].offset
                for at in self._entries(section, 24):
                    name, info, _, where, value, length = struct.unpack_from("<IBBHQQ", content, at)
                    self.symbols.append(Symbol(self._string(begin, name), info & 15, where, value, length))

    def _string(self, table: int, at: int) -> bytes:
        start = table + at
        end = self.content.find(b"\0", start, start + _MOST_NAME)
        return self.content[start : end if end >= 0 else start + _MOST_NAME]

    def _entries(self, section: Section, each: int) -> Iterator[int]:
        return iter(range(section.offset, section.offset + min(section.size, each * _MOST_ENTRIES), each))

    def variables(self) -> list[Symbol]:
        """Return the variables defined in this file."""
        kinds = (VARIABLE, THREAD_LOCAL_VARIABLE)
        return [s for s in self.symbols if s.kind in kinds and 0 < s.section < len(self.sections) and s.size]

    def relocations(self) -> Iterator[tuple[int, int, int]]:
        """Yield, for each relocation, its section, its symbol's section, and the place in that."""
        for section in self.sections:
            if section.kind != RELOCATIONS:
                continue
            for at in self._entries(section, 24):
                _, info, addend = struct.unpack_from("<QQq", self.content, at)
                symbol = self.symbols[info >> 32]
                if symbol.section < len(self.sections):
                    yield section.of, symbol.section, symbol.value + addend
