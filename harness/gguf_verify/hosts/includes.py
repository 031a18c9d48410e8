"""Scanner for the files that NVRTC may read for a source, since NVRTC cannot list them.

It may find more files than are read: conditions are not evaluated, and each name is looked up wherever NVRTC could. A
source that could name a file in a way that is not recognized here is never taken from the cache.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from ..support.sources import made_of

#: Most files, and bytes of one, that are scanned.
_MOST_FILES, _MOST_BYTES = 1000, 1 << 24
_LITERAL = re.compile(r'"([^"\n]+)"|<([^>\n]+)>')
_OF_MACRO = re.compile(r"[ \t]*#[ \t]*include[ \t]+(\w+)[ \t]*(?://.*)?$")
_DEFINES = re.compile(r"(?:#|%:|\?\?=)[ \t]*(?:define|undef)[ \t]+(\w+)")
_PLAIN = re.compile(r'[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)')
#: Texts that may name a file: a directive (# may be written %: or ??=), or the rest of one after a multi-line comment.
_NAMES_ONE = re.compile(
    r"(?:#|%:|\?\?=).*(?:include|embed|import)|\*/\s*(?:include|embed|import)|__has_(?:include|embed)"
)
_CONTINUED = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")


def included(
    root: Path, file: str, given: Collection[str], macros: Mapping[str, str], folders: Sequence[str] = ()
) -> list[str] | None:
    """Return every file that a compilation of `root/file` with `-I root` may read, sorted; None if not known.

    Args:
        given: names whose text is passed to the compiler.
        folders: further include folders, below the root.
        macros: macros of the compilation; an #include may name one of them, if no source defines it.
    """
    of_macros: set[str] = set()
    defined: set[str] = set()
    seen: dict[str, None] = {}
    left = [os.path.join(root, file)]
    while left:
        path = left.pop()
        if path in seen:
            continue
        seen[path] = None
        if len(seen) > _MOST_FILES:
            return None
        names = _names(path, macros, of_macros, defined)
        if names is None:
            return None
        for name in names:
            if name not in given:
                where = dict.fromkeys((os.path.dirname(path), str(root), *(os.path.join(root, f) for f in folders)))
                left += [found for folder in where if os.path.exists(found := os.path.join(folder, name))]
    return None if of_macros & defined else sorted(seen)


def _names(path: str, macros: Mapping[str, str], of_macros: set[str], defined: set[str]) -> list[str] | None:
    scanned = made_of(path, _scanned)
    if scanned is None:
        return None
    defined |= scanned.defined
    found = []
    for name, is_macro in scanned.names:
        if is_macro:
            of_macros.add(name)
            plain = _LITERAL.fullmatch(macros.get(name, ""))
            if plain is None:
                return None
            name = plain[1] or plain[2]
        found.append(name)
    return found


class _Scanned(NamedTuple):
    """The names that a file includes, each with whether it is that of a macro, and the macros that it defines."""

    names: list[tuple[str, bool]]
    defined: set[str]


def _scanned(file: BufferedReader) -> _Scanned:
    """Raises ValueError if the file may name another one in a way that is not recognized."""
    text = file.read(_MOST_BYTES + 1).decode("latin-1")
    if len(text) > _MOST_BYTES:
        raise ValueError("it is too large")
    found = _Scanned([], set())
    for line in _CONTINUED.sub("", text).splitlines():
        if line.lstrip().startswith("//") and "*/" not in line:
            continue
        found.defined.update(_DEFINES.findall(line))
        if of_macro := _OF_MACRO.match(line):
            found.names.append((of_macro[1], True))
            continue
        plain = _PLAIN.match(line)
        if plain:
            found.names.append((plain[1] or plain[2], False))
            line = line[plain.end() :]
        if _NAMES_ONE.search(line):
            raise ValueError("it may name a file")
    return found
