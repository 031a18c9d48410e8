"""Standard output. Each text is flushed; `delivered` reports failed writes at the end."""

from __future__ import annotations

import errno
import os
import sys

from .errors import EXIT_ENVIRONMENT, say

_failure: OSError | None = None


def write(text: str) -> None:
    """Write to standard output. After a failure, which `delivered` reports, nothing more is written."""
    global _failure
    if _failure is not None:
        return
    try:
        if sys.stdout is not None:
            if text:  # even an empty write fails on a full device
                sys.stdout.write(text)
            sys.stdout.flush()
        elif text:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    except OSError as error:
        _failure = error


def write_lines(*lines: str) -> None:
    """Write lines to standard output, like `write`."""
    write("".join(f"{line}\n" for line in lines))


def delivered(exit_code: int) -> int:
    """Return a command's exit code after all output is written; a failed write turns success into another code."""
    global _failure
    write("")  # flushes the buffer
    failure, _failure = _failure, None
    if failure is None:
        return exit_code
    if sys.stdout is not None:  # Python flushes again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if failure.errno == errno.EPIPE:  # the reader closed the pipe on purpose
        return exit_code
    say(f"cannot write to standard output: {failure.strerror}")
    return exit_code or EXIT_ENVIRONMENT
