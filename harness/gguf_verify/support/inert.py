"""Standard streams whose text gives no commands to the program that keeps it as a log.

GitHub Actions and its kin carry out lines of a step's output: those that begin with `::`, behind blanks too, and
`##[…]` or `##vso[…]` anywhere. Text of a kernel or a file may hold such words, and to wrap it may put them at the
beginning of a line. So they are escaped where text leaves the process, unless that is a terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

#: `::`, or a colon that another one may follow in the next text, at the beginning of a line.
_AT_BEGINNING = re.compile(r"(\A|[\r\n])([^\S\r\n]*):(?=:|\Z)")
_ANYWHERE = re.compile(r"(##\w{0,32})\[")
_LINE_BREAK = re.compile(r"[\r\n]")
#: Characters of a line that are looked at again with the next text.
_KEPT = 64


class Inert:
    """A stream of text, in which commands are escaped as `text.printable` escapes characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        #: The end of the line that is not over yet, as it was written.
        self._line = ""

    def write(self, text: str) -> int:
        """Write it; the number of characters that it has."""
        known, shown = len(self._line), self._line + text
        shown = _AT_BEGINNING.sub(r"\1\2\\x3a", shown)
        shown = _ANYWHERE.sub(r"\1\\x5b", shown)
        self._stream.write(shown[known:])
        line = _LINE_BREAK.split(shown)[-1]
        blank = not line.strip()
        self._line = line[-_KEPT:] if blank or len(line) <= _KEPT else f".{line[-_KEPT:]}"
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write them."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def inert_streams() -> Iterator[None]:
    """In this block standard output and standard error are `Inert`, unless they are terminals."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_inert, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _inert(stream: Any) -> Any:
    return stream if stream is None or stream.isatty() else Inert(stream)
