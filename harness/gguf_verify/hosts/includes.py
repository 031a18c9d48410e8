"""Scanner for the files that NVRTC may read for a source, since NVRTC cannot list them.

It may find more files than are read: conditions are not evaluated, and each name is looked up wherever NVRTC could. A
source that could name a file in a way that is not recognized here is never taken from the cache.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

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
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode) or state.st_size > _MOST_BYTES:  # reading a device or a pipe may not end
            return None
        text = Path(path).read_text(encoding="latin-1")
    except (OSError, ValueError):
        return None
    found = []
    for line in _CONTINUED.sub("", text).splitlines():
        if line.lstrip().startswith("//") and "*/" not in line:
            continue
        defined.update(_DEFINES.findall(line))
        if of_macro := _OF_MACRO.match(line):
            of_macros.add(of_macro[1])
            plain = _LITERAL.fullmatch(macros.get(of_macro[1], ""))
            if plain is None:
                return None
            found.append(plain[1] or plain[2])
            continue
        plain = _PLAIN.match(line)
        if plain:
            found.append(plain[1] or plain[2])
            line = line[plain.end() :]
        if _NAMES_ONE.search(line):
            return None
    return found
