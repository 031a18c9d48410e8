"""`gguf-verify [verify|audit] …`. stdout is the result, stderr is progress and errors."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence

from ..errors import HarnessError
from . import audit, verify
from .common import say

#: The commands by name; a command line that begins with none of them is `verify`'s.
COMMANDS: dict[str, Callable[[list[str]], int]] = {"verify": verify.run, "audit": audit.run}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a name from a file must not break a terminal that cannot show it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    command = COMMANDS.get(argv[0]) if argv else None
    try:
        return verify.run(argv) if command is None else command(argv[1:])
    except HarnessError as error:
        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
