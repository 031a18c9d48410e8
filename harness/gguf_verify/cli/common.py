"""What the commands share: options, checks, delivery of the result."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..support.errors import EXIT_ENVIRONMENT, EnvironmentFault, HarnessError, UsageError, say
from ..support.version import project_version

MOST_THREADS = 512


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every command."""
    add = parser.add_argument
    add("-t", "--threads", type=int, default=0, metavar="N", help="threads (default: every core)")
    add("--json", type=Path, metavar="FILE", help="also write the report as JSON")
    add("--time-limit", type=float, default=900.0, metavar="S",
        help="seconds without a word after which llama.cpp is hung")  # fmt: skip
    add("--version", action=_ShowVersion, nargs=0, help="show the version")


class _ShowVersion(argparse.Action):
    """Which argparse's own would look up for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        print(f"gguf-verify {project_version()}")
        parser.exit()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def on_terminal() -> bool:
    """Whether progress has somebody to look at it."""
    return sys.stderr is not None and sys.stderr.isatty()


def spell(argv: Sequence[str]) -> str:
    """The command line that ends in `argv`, for repeating it: with the command's name, where there was one."""
    given = sys.argv[1:] if sys.argv[-len(argv) :] == argv else argv
    return shlex.join([Path(sys.argv[0]).name, *given])


@contextlib.contextmanager
def internal_errors(verbose: bool) -> Iterator[None]:
    """A fault of ours must not look like a mismatch, which exit code 1 means: it becomes an EnvironmentFault."""
    try:
        yield
    except HarnessError:
        raise
    except MemoryError:
        raise EnvironmentFault("out of memory") from None
    except Exception as error:
        if verbose:
            traceback.print_exc()
        raise EnvironmentFault(f"internal error, please report it: {type(error).__name__}: {error}") from None


def _shown(path: Path) -> str:
    from ..gguf import printable  # late: a command may have something to start before NumPy is loaded

    return printable(str(path))


def check_ranges(*limits: tuple[str, float, float, float]) -> None:
    """Each (flag, value, least, most). Raises UsageError."""
    for flag, value, low, high in limits:
        if not low <= value <= high:
            raise UsageError(f"{flag} must be from {low} to {high}")


def check_output(path: Path | None, *inputs: Path, flag: str = "--json") -> None:
    """That a file can be written, and would not overwrite a model. Raises UsageError."""
    if path is None:
        return
    folder = path.absolute().parent
    held = path.exists() and not os.access(path, os.W_OK)
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir() or held:
        raise UsageError(f"cannot write {_shown(path)}")
    if path.suffix == ".gguf":
        raise UsageError(f"{flag} would overwrite a model: give it another name than .gguf")
    if path.exists() and any(model.exists() and path.samefile(model) for model in inputs):
        raise UsageError(f"{flag} would overwrite the model")


def deliver(text: str, path: Path | None, rendered: str | None, exit_code: int) -> int:
    """The result to standard output and, as JSON, to `path`; returns the exit code."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except OSError:  # nobody reads, or the disk is full: the verdict stands, and is the exit code
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return exit_code if path is None or rendered is None else save(path, rendered.encode(), exit_code)


def save(path: Path, content: bytes, exit_code: int) -> int:
    """Write a file beside the result; returns the exit code, which says if that fails and all else went well."""
    try:
        path.write_bytes(content)
    except OSError as error:
        say(f"cannot write {_shown(path)}: {error.strerror}")
        return exit_code or EXIT_ENVIRONMENT
    return exit_code


def shows_blocks() -> bool:
    """Whether standard output is a terminal that can show block characters."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "linux"):
        return False
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
