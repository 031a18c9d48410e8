"""The command line: arguments in, exit code out. stdout is the result, stderr is progress and errors.

This is the top room, which may import every other. Each command is one module with one `command.Command` record.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..support.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, HarnessError, limit_reached, say, signal_of
from ..support.files import inputs_kept
from ..support.inert import inert_streams
from ..support.output import delivered
from ..support.supported import check_machine
from .interrupts import as_started_alone, interruptible

#: The command of a command line that names none.
DEFAULT = "verify"
#: Read by NumPy's library when it is loaded.
_BLAS = "OPENBLAS_NUM_THREADS"


def main(argv: Sequence[str] | None = None, run: Callable[[list[str]], int] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        argv: the arguments (default: the process's).
        run: runs them and returns the exit code; may raise HarnessError (default: the commands of `gguf-verify`).
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a name from a file must not break a terminal that cannot show it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _open_standard_streams()
    with inert_streams(), inputs_kept():
        try:
            return delivered(_exit_code(argv, run or _run))
        except SystemExit as end:  # argparse, after a help text
            raise SystemExit(delivered(int(end.code or 0))) from None


def _exit_code(argv: list[str], run: Callable[[list[str]], int]) -> int:
    try:
        with interruptible():
            as_started_alone()
            check_machine()
            return run(argv)
    except HarnessError as error:
        say(f"{error} [{error.id}]" if error.id else str(error), error.details)
        return error.exit_code
    except KeyboardInterrupt as error:
        say(f"interrupted by {signal_of(error)}: there is no result")
        return EXIT_INTERRUPTED[signal_of(error)]
    except Exception as error:  # before a command has begun, while NumPy is loaded, or in a measure
        if (reached := limit_reached(error)) is None:
            raise
        say(reached)
        return EXIT_ENVIRONMENT


def _open_standard_streams() -> None:
    """The caller may have closed standard streams: the first files that are opened would get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _run(argv: list[str]) -> int:
    # imported late, so that an interrupt while NumPy and the rest are loaded is answered too
    from .command import find

    if argv[:1] == ["help"] and not os.path.exists("help"):
        argv = [*argv[1:2], "--help"]
    with _one_thread_of_blas():
        command = find(argv[0]) if argv else None
    if command is not None:
        return command.run(argv[1:])
    if argv:
        _check_first(argv[0])
    with _one_thread_of_blas():
        default = find(DEFAULT)
    assert default is not None
    return default.run(argv)


@contextmanager
def _one_thread_of_blas() -> Iterator[None]:
    """NumPy, where it is loaded in this block, multiplies by one thread, unless the user chose a number. Products are
    shared out among threads here, and a thread of OpenBLAS that has nothing to do spins: it takes its core from them,
    and from llama.cpp."""
    if _BLAS in os.environ:
        yield
        return
    os.environ[_BLAS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS]  # a kernel in a process of its own has as many as it likes


def _check_first(word: str) -> None:
    """That the first word of a command line, which is no command, may be a model. Raises UsageError."""
    from ..support.errors import UsageError
    from ..support.near import nearest
    from ..support.text import printable
    from .command import commands

    shown = printable(word, 200)
    if "://" in word[:20]:
        raise UsageError(
            f"{shown} is a URL, of which only `gguf-verify audit` reads a sample: fetch the file first (for example "
            "with curl -LO) and give its path",
            "url",
        )
    if not word.startswith("-") and not {".", "/"} & set(word) and not os.path.exists(word):
        known = list(commands())
        raise UsageError(
            f"'{shown}' is no command and no file; {nearest(word, known)}commands: {', '.join(known)}; a model is "
            "given by its path",
            "unknown-command",
        )
