"""The command line: arguments in, exit code out. stdout is the result, stderr is progress and errors.

This is the top room, which may import every other. Each command is one module with one `command.Command` record.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from ..support.errors import EXIT_INTERRUPTED, INTERRUPTED, HarnessError, Interrupted, say
from ..support.supported import check_machine
from .interrupts import interruptible

#: The command of a command line that names none.
DEFAULT = "verify"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a name from a file must not break a terminal that cannot show it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with interruptible():
            check_machine()
            return _run(argv)
    except HarnessError as error:
        say(f"{error} [{error.id}]" if error.id else str(error))
        return error.exit_code
    except KeyboardInterrupt as error:
        say(INTERRUPTED)
        return EXIT_INTERRUPTED["SIGTERM" if isinstance(error, Interrupted) else "SIGINT"]


def _run(argv: list[str]) -> int:
    # imported late, so that an interrupt while NumPy and the rest are loaded is answered too
    from .command import find

    command = find(argv[0]) if argv else None
    if command is not None:
        return command.run(argv[1:])
    default = find(DEFAULT)
    assert default is not None
    return default.run(argv)
