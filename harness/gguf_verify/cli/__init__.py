"""The command line: arguments in, exit code out. stdout is the result, stderr is progress and errors.

This is the top layer: it may import every other. Each command is one module with one `command.Command` record.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

from ..support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    EXIT_VERIFIED,
    HarnessError,
    limit_reached,
    say,
    signal_of,
)
from ..support.files import inputs_kept
from ..support.inert import inert_streams
from ..support.output import delivered, write
from ..support.supported import check_machine
from .interrupts import as_started_alone, interruptible

#: The command that runs when the command line names none.
DEFAULT = "verify"


def main(argv: Sequence[str] | None = None, run: Callable[[list[str]], int] | None = None) -> int:
    """Run the command line; returns the exit code.

    Args:
        argv: the arguments (default: the process's).
        run: runs them and returns the exit code; may raise HarnessError (default: the commands of `gguf-verify`).
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):  # a file's name may hold characters that the terminal cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # Open /dev/null for closed standard streams; otherwise the next opened files would get their descriptors.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
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
        say(f"interrupted by {signal_of(error)}; no result")
        return EXIT_INTERRUPTED[signal_of(error)]
    except Exception as error:  # raised outside a command's own handling: imports, measures
        if (reached := limit_reached(error)) is None:
            raise
        say(reached)
        return EXIT_ENVIRONMENT


def _run(argv: list[str]) -> int:
    # Imported late so that a signal during the slow imports (NumPy and others) is handled too.
    from .command import find

    if not argv:  # not a success: in a script, an empty variable must not look like a verdict
        sys.stderr.write(_start_page())
        return EXIT_USAGE
    if argv[:1] == ["help"] and not os.path.exists("help"):
        if len(argv) == 1:
            write(_start_page())
            return EXIT_VERIFIED
        argv = [*argv[1:2], "--help"]
    command = find(argv[0])
    if command is not None:
        return command.run(argv[1:])
    _check_first(argv[0])
    default = find(DEFAULT)
    assert default is not None
    return default.run(argv)


#: The first lines of the help text without arguments.
_START = """\
Verify that a quantized-GEMM kernel computes what llama.cpp computes.

  gguf-verify MODEL.gguf                      verify the kernels of this project
  gguf-verify MODEL.gguf --kernel FILE.cu     verify your kernel on a model
  gguf-verify kernel FILE.cu                  verify it on random data
  gguf-verify new-kernel FILE.cu              write a kernel to start from
  gguf-verify audit MODEL.gguf                check the file by itself

commands:
"""


def _start_page() -> str:
    """Return the help text without arguments."""
    from .command import commands

    listed = "".join(f"  {command.name:<19}{command.summary}\n" for command in commands().values())
    return f"{_START}{listed}\nOptions: gguf-verify -h, or gguf-verify COMMAND -h\n"


def _check_first(word: str) -> None:
    """Check that the first word, which is no command, may be a model. Raises UsageError."""
    from ..kernels.foreign.names import names_foreign
    from ..support.errors import UsageError
    from ..support.near import nearest
    from ..support.text import printable
    from .command import commands

    shown = printable(word, 200)
    if "://" in word[:20]:
        raise UsageError(
            f"{shown} is a URL; only `gguf-verify audit` reads URLs (and only a sample). Download the file first, for "
            "example with curl -LO, and give its path",
            "url",
        )
    if names_foreign(word):
        raise UsageError(
            f"{shown} is a kernel, not a model; to verify it: `gguf-verify kernel {shown}` on random data, or "
            f"`gguf-verify MODEL.gguf --kernel {shown}`",
            "usage",
        )
    if not word.startswith("-") and not {".", "/"} & set(word) and not os.path.exists(word):
        known = commands()
        parts = {part: f"did you mean '{name} {part}'? " for name, each in known.items() for part in each.parts}
        near = nearest(word, known) or parts.get(word.lower(), "")
        raise UsageError(
            f"'{shown}' is neither a command nor a file; {near}commands: {', '.join(known)}; to verify a model, give "
            "its path",
            "unknown-command",
        )
