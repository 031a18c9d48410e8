"""Options, checks and delivery of results that the commands share."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from ..processes.sandbox import MODES
from ..report.writer import Form, Writer, every_writer, terminal
from ..results.report import Report
from ..support.blas import load_numpy
from ..support.command_line import program, quoted
from ..support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_VERIFIED,
    EnvironmentFault,
    HarnessError,
    UsageError,
    limit_reached,
    say,
)
from ..support.files import read_input, write_output
from ..support.near import nearest
from ..support.output import write, write_lines
from ..support.text import printable
from ..support.version import project_version
from .files import output, overwrites, take_files
from .interrupts import came, undisturbed

MOST_THREADS = 512
MOST_PROMPT_BYTES = 1 << 24

#: Help text on the exit codes of every command; each command gives its own meaning of 0 and 1.
EXIT_CODES = """\
exit codes:
  0  {verified}
  1  {mismatch}
  2  usage error: the command line is invalid
  3  this machine cannot run the check (no such device, a failed build, llama.cpp crashed); SIGTERM or SIGHUP
  4  the file is malformed
  5  not everything could be verified
  130  Ctrl-C
After a signal, results so far are reported; if one is a mismatch, the code is 1.
"""


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command on a model takes."""
    add = parser.add_argument
    add("-t", "--threads", type=int, default=0, metavar="N", help="number of threads (default: one per core)")
    add(
        "--time-limit",
        type=float,
        default=900.0,
        metavar="S",
        help="end the run if llama.cpp does not answer for S seconds (default: %(default)g)",
    )
    add(
        "--sandbox",
        choices=MODES,
        default="auto",
        help="isolation of your own kernel, its compiler, llama.cpp and gguf-py: bubblewrap (a boundary), landlock (a "
        "guard against accidents) or none; auto takes the first that works here, and the report names it "
        "(default: %(default)s)",
    )
    add("--version", action=_ShowVersion, nargs=0, help="show the version")


def add_prompt(parser: argparse.ArgumentParser, default: str) -> None:
    """Add `-p` and `-f`, for commands that evaluate a prompt; `prompt_of` reads them."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", default=None, help=f"the prompt (default: {default!r})")
    prompt.add_argument("-f", "--file", type=Path, metavar="FILE", help="read the prompt from this file")


def prompt_of(args: argparse.Namespace, default: str) -> str:
    """Return the requested prompt. Raises UsageError if it is not text."""
    if args.file is None:
        prompt = default if args.prompt is None else str(args.prompt)
        if any("\ud800" <= c <= "\udfff" for c in prompt):
            raise UsageError("the prompt is not UTF-8")
        return prompt
    try:
        return read_input(args.file, "prompt", MOST_PROMPT_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read the prompt {printable(args.file.name)}: {error}") from None


def add_ray(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--ray`; `what` is the work that the command distributes."""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help=f"{what} in processes of Ray, in the cluster at ADDRESS (HOST:PORT, ray://HOST:PORT or auto) or on this "
        "machine (local)",
    )


#: Largest value of `--jobs`.
MOST_JOBS = 256


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add `--jobs`, for commands that judge in several processes of this machine."""
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=None,
        metavar="N",
        help="judge tensors and GEMMs in N processes of this machine (default: several if a GPU computes a large "
        "model, otherwise one)",
    )


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that suggests a correction. It raises UsageError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{printable(message, 600)}; see {self.prog} --help", "usage")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, and check that outputs overwrite no input. Raises UsageError."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            first = str(unknown[0])
            near = nearest(first.partition("=")[0], self._option_string_actions) if first.startswith("-") else ""
            flags = "unknown option" if first.startswith("-") else "unexpected argument"
            raise UsageError(f"{flags} {printable(first, 100)}; {near}see {self.prog} --help", "usage")
        take_files(found, self)
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a help text. argparse's own method hides a failed write."""
        write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise our own message: argparse's has no "did you mean", and differs between versions of Python."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = "/".join(action.option_strings) or action.metavar or action.dest
            there = f"{what} takes {', '.join(known)}"
            raise UsageError(f"{what} {printable(str(value), 100)!r}: {nearest(str(value), known)}{there}", "usage")


class LateEpilog(Parser):
    """A parser whose epilog is built only when its help is shown."""

    def __init__(self, *args: Any, late_epilog: Callable[[], str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late_epilog = late_epilog

    def format_help(self) -> str:
        """Return the help text, with the epilog."""
        self.epilog = self._late_epilog()
        return super().format_help()


class _ShowVersion(argparse.Action):
    """Show the version. argparse's own action needs the version at once, a look-up that every command would pay for."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        write_lines(f"gguf-verify {project_version()}")
        parser.exit()


def add_detail(parser: argparse.ArgumentParser, more: str, most: str = "") -> None:
    """Add `-q`, `-v`, `-vv` and `--color`, for commands that print a report; `form` reads them.

    Args:
        more, most: what -v and -vv add to the report; "": -vv adds nothing.
    """
    level = parser.add_mutually_exclusive_group()
    level.add_argument(
        "-q",
        "--quiet",
        action="store_const",
        const=-1,
        default=0,
        dest="detail",
        help="print only the verdict, in one line, and no progress",
    )
    level.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        dest="detail",
        help=f"also show {more}" + (f"; -vv: also {most}" if most else ""),
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: color on a terminal, unless NO_COLOR is set (default: %(default)s)",
    )


def on_terminal() -> bool:
    """Whether standard error is a terminal, so that progress can be seen."""
    return sys.stderr is not None and sys.stderr.isatty()


def spell(argv: Sequence[str]) -> str:
    """Return the command line to repeat a run with `argv`, including the command's name if one was typed."""
    given = sys.argv[1:] if sys.argv[-len(argv) :] == argv else argv
    return " ".join([program(), *map(quoted, given)])


@contextlib.contextmanager
def internal_errors(verbose: bool) -> Iterator[None]:
    """Turn unexpected exceptions into EnvironmentFault: exit code 1 of an uncaught one would look like a mismatch.
    NumPy is loaded first.

    If `verbose`, also print the package's log.
    """
    load_numpy()
    log = logging.getLogger("gguf_verify")
    said = _Said()
    if verbose:
        log.addHandler(said)
        log.setLevel(logging.INFO)
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:
        if (reached := limit_reached(error)) is None:
            raise _internal(error, verbose) from None
        file = getattr(error, "filename", None)
        raise EnvironmentFault(f"{reached}, at {printable(str(file), 100)}" if file else reached) from None
    finally:
        log.removeHandler(said)


def _internal(error: Exception, verbose: bool) -> BaseException:
    """Return the exception to raise instead: the signal's, if one came."""
    if (interrupt := came()) is not None:
        return interrupt
    if verbose:
        traceback.print_exc()
    return EnvironmentFault(f"internal error, please report it: {type(error).__name__}: {error}")


class _Said(logging.Handler):
    """A log handler that prints each record on standard error like every other line."""

    def emit(self, record: logging.LogRecord) -> None:
        say(printable(record.getMessage(), 600))


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_ranges(*limits: tuple[str, float, float, float]) -> None:
    """Check each (flag, value, least, most). Raises UsageError."""
    for flag, value, low, high in limits:
        if not low <= value <= high:
            raise UsageError(f"{flag} must be from {low} to {high}")


def check_regex(pattern: str | None, flag: str = "--tensor") -> None:
    """Raise UsageError if a pattern is not a regular expression."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"{flag} is not a regular expression: {error}") from None


# ---- reports ---------------------------------------------------------------------------------------------------------

#: Requested report files: writer → path.
Files = Mapping[Writer, Path]


def add_reports(parser: argparse.ArgumentParser, *kinds: StrEnum) -> None:
    """Add the flag of each writer that can write one of these kinds of result."""
    for writer in every_writer(type(kinds[0])):
        if writer.flag is not None and not writer.renders.keys().isdisjoint(kinds):
            parser.add_argument(writer.flag, type=output, metavar="FILE", help=writer.help)


def asked_for(args: argparse.Namespace, kind: StrEnum) -> Files:
    """Return the requested report files for a kind of result.

    Raises UsageError if one of them cannot show this kind.
    """
    flags = {
        w: path
        for w in every_writer(type(kind))
        if w.flag is not None and (path := getattr(args, w.argument, None)) is not None
    }
    for writer, path in flags.items():
        if kind not in writer.renders:
            raise UsageError(f"{writer.flag} cannot write this kind of result: {kind}")
        if writer.suffixes and path.suffix not in writer.suffixes:
            raise UsageError(f"{writer.flag} writes {' or '.join(f'FILE{s}' for s in writer.suffixes)}")
    return flags


#: Width in columns of a report that goes to a pipe.
PIPED_WIDTH = 80
#: Least width in columns: below it tables are unreadable, so a narrower terminal gets this width.
LEAST_WIDTH = 40


def form(args: argparse.Namespace | None = None, byte_map: bool = False, piped_width: int | None = None) -> Form:
    """Return how standard output shows a report, with the options of `add_detail`.

    On a terminal: its width, and colour and block characters if it supports them. Otherwise plain, `piped_width`
    columns wide, or unwrapped if that is None.
    """
    shown = sys.stdout is not None and sys.stdout.isatty()
    return Form(
        detail=getattr(args, "detail", 0),
        byte_map=byte_map,
        colour=_coloured(args, shown),
        blocks=shows_blocks(),
        width=max(LEAST_WIDTH, shutil.get_terminal_size().columns) if shown else piped_width,
    )


def error_form(args: argparse.Namespace | None = None) -> Form:
    """Return how standard error shows lines: like `form`, for standard error."""
    shown = on_terminal()
    width = shutil.get_terminal_size().columns if shown else PIPED_WIDTH
    return Form(colour=_coloured(args, shown), width=max(LEAST_WIDTH, width))


def _coloured(args: argparse.Namespace | None, on_terminal: bool) -> bool:
    wanted = getattr(args, "color", "auto")
    if wanted != "auto":
        return bool(wanted == "always")
    return on_terminal and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def shows_blocks() -> bool:
    """Whether standard output is a terminal that can show block characters."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "linux"):
        return False
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def deliver(kind: StrEnum, result: Any, exit_code: int, shown: Form | None = None, files: Files | None = None) -> int:
    """Write the result to standard output and to the requested files; returns the exit code.

    A failed write is reported in one line, and turns exit code 0 into 3.
    """
    with undisturbed():
        write(terminal(kind, result, form() if shown is None else shown))
        return write_files(kind, result, exit_code, files)


def write_files(kind: StrEnum, result: Any, exit_code: int, files: Files | None) -> int:
    """Write the result to the requested files; returns the exit code as `deliver` does."""
    for writer, path in (files or {}).items():
        try:
            check_kernel(path, result)
            made = writer.renders[kind](result, Form(suffix=path.suffix))
            write_output(path, made.encode() if isinstance(made, str) else made)
        except OSError as error:
            say(f"cannot write {printable(str(path))}: {error.strerror}")
            exit_code = exit_code or EXIT_ENVIRONMENT
        except EnvironmentFault as error:
            say(str(error))
            exit_code = exit_code or EXIT_ENVIRONMENT
    return exit_code


def check_kernel(path: Path, result: Any) -> None:
    """Check that an output does not overwrite a file that the kernel was built from. Raises EnvironmentFault."""
    if isinstance(result, Report) and overwrites(path, map(Path, result.environment.kernel.opened.files)):
        raise EnvironmentFault(f"{printable(str(path))} is not written: the kernel was built from it")


def print_lines(*lines: str, exit_code: int = EXIT_VERIFIED) -> int:
    """Write lines to standard output; returns the exit code."""
    write_lines(*lines)
    return exit_code
