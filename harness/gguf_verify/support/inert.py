"""Standard streams that cannot inject commands into a CI log.

GitHub Actions and similar systems execute commands in a step's output: lines that begin with `::`, also after blanks,
and `##[…]` or `##vso[…]` anywhere. Text from a kernel or a file may contain these, and wrapping may move them to the
beginning of a line. So they are escaped on output, unless it goes to a terminal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

#: `::` at the beginning of a line, or a colon at the end of a text, which the next text may complete.
_AT_BEGINNING = re.compile(r"(\A|[\r\n])([^\S\r\n]*):(?=:|\Z)")
_ANYWHERE = re.compile(r"(##\w{0,32})\[")
_LINE_BREAK = re.compile(r"[\r\n]")
#: Characters of an unfinished line that are checked again together with the next text.
_KEPT = 64


class Inert:
    """A text stream that escapes such commands, as `text.printable` escapes characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        #: The end of the unfinished line, as it was written.
        self._line = ""

    def write(self, text: str) -> int:
        """Write a text; returns its number of characters."""
        known, shown = len(self._line), self._line + text
        shown = _AT_BEGINNING.sub(r"\1\2\\x3a", shown)
        shown = _ANYWHERE.sub(r"\1\\x5b", shown)
        self._stream.write(shown[known:])
        line = _LINE_BREAK.split(shown)[-1]
        blank = not line.strip()
        self._line = line[-_KEPT:] if blank or len(line) <= _KEPT else f".{line[-_KEPT:]}"
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write lines."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def inert_streams() -> Iterator[None]:
    """Make standard output and standard error `Inert` inside this block, unless they are terminals."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_inert, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _inert(stream: Any) -> Any:
    return stream if stream is None or stream.isatty() else Inert(stream)
