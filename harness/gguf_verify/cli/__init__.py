"""`gguf-verify [verify|audit|nightly|measure] …`. stdout is the result, stderr is progress and errors."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from importlib import import_module

from ..support.errors import HarnessError, say

#: The commands: each is a module of this package with `run(argv) -> exit code`. A command line that begins with none of
#: them is `verify`'s.
COMMANDS = ("verify", "audit", "nightly", "measure")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a name from a file must not break a terminal that cannot show it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    command = argv.pop(0) if argv and argv[0] in COMMANDS else "verify"
    try:
        return _run(command, argv)
    except HarnessError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def _run(command: str, argv: list[str]) -> int:
    # imported late, so that an interrupt while NumPy and the rest are loaded is answered too
    return int(import_module(f".{command}", __name__).run(argv))
