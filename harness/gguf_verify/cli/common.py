"""What the commands share: options, checks, and delivery of the result."""

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
from pathlib import Path
from typing import Any, NoReturn

from ..processes.sandbox import MODES
from ..report.writer import Form, Kind, Writer, terminal, writers
from ..results import Report
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

#: What the exit codes mean, for the help of every command; the meaning of 0 and 1 is the command's own.
EXIT_CODES = """\
exit codes:
  0  {verified}
  1  {mismatch}
  2  usage: the command line asks for something that does not exist
  3  this machine cannot run the check (no such device, a failed build, llama.cpp crashed); SIGTERM or SIGHUP
  4  the file is malformed
  5  not everything could be verified
  130  Ctrl-C
What was found before a signal came is reported; if that is a mismatch, the code is 1.
"""


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every command that looks at a model."""
    add = parser.add_argument
    add("-t", "--threads", type=int, default=0, metavar="N", help="threads (default: one for each core)")
    add("--time-limit", type=float, default=900.0, metavar="S",
        help="end the run when llama.cpp has not answered for this many seconds (default: %(default)g)")  # fmt: skip
    add("--sandbox", choices=MODES, default="auto",
        help="what confines your own kernel, its compiler, llama.cpp and gguf-py: bubblewrap, the boundary; landlock, "
        "a guard against accidents; none; auto takes the first that works here, and the report says which "
        "(default: %(default)s)")  # fmt: skip
    add("--version", action=_ShowVersion, nargs=0, help="show the version")


def add_prompt(parser: argparse.ArgumentParser, default: str) -> None:
    """`-p` and `-f`, of commands that evaluate a prompt; `prompt_of` reads them."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", default=None, help=f"the prompt (default: {default!r})")
    prompt.add_argument("-f", "--file", type=Path, metavar="FILE", help="a file that holds the prompt")


def prompt_of(args: argparse.Namespace, default: str) -> str:
    """The prompt that was asked for. Raises UsageError where it is no text."""
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
    """`--ray`, of commands that can do so in several processes."""
    parser.add_argument(
        "--ray", metavar="ADDRESS",
        help=f"{what} in processes of Ray: of the cluster at this address (HOST:PORT, ray://HOST:PORT or auto), or "
        "local ones",
    )  # fmt: skip


#: Processes that `--jobs` may ask for.
MOST_JOBS = 256


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """`--jobs`, of commands that judge in several processes of this machine."""
    parser.add_argument(
        "-j", "--jobs", type=int, default=None, metavar="N",
        help="judge tensors and GEMMs in N processes of this machine (default: in several where a GPU multiplies a "
        "large model, else in one)",
    )  # fmt: skip


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what may be meant. Raises UsageError instead of ending the
    process."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{printable(message, 600)}; see {self.prog} --help", "usage")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's. Raises UsageError."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            first = str(unknown[0])
            near = nearest(first.partition("=")[0], self._option_string_actions) if first.startswith("-") else ""
            flags = "there is no option" if first.startswith("-") else "nothing takes the argument"
            raise UsageError(f"{flags} {printable(first, 100)}; {near}see {self.prog} --help", "usage")
        take_files(found, self)
        return found

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write a help text. argparse hides that it could not be written."""
        write(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse's own message has no "did you mean", and differs between versions of Python."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = "/".join(action.option_strings) or action.metavar or action.dest
            there = f"{what} takes {', '.join(known)}"
            raise UsageError(f"{what} {printable(str(value), 100)!r}: {nearest(str(value), known)}{there}", "usage")


class LateEpilog(Parser):
    """A parser whose epilog is made when its help is shown."""

    def __init__(self, *args: Any, late_epilog: Callable[[], str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._late_epilog = late_epilog

    def format_help(self) -> str:
        """The help, with the epilog."""
        self.epilog = self._late_epilog()
        return super().format_help()


class _ShowVersion(argparse.Action):
    """argparse's own takes the version itself, which would be looked up for every command."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: object) -> None:
        write_lines(f"gguf-verify {project_version()}")
        parser.exit()


def on_terminal() -> bool:
    """Whether somebody can see progress."""
    return sys.stderr is not None and sys.stderr.isatty()


def spell(argv: Sequence[str]) -> str:
    """The command line that ends in `argv`, for repeating it: with the command's name, where there was one."""
    given = sys.argv[1:] if sys.argv[-len(argv) :] == argv else argv
    return " ".join([program(), *map(quoted, given)])


@contextlib.contextmanager
def internal_errors(verbose: bool) -> Iterator[None]:
    """A fault of ours must not look like a mismatch, which exit code 1 means: it becomes an EnvironmentFault. What
    the package logs is said where `verbose` is."""
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
    """What is raised in its place: the signal that came, if one did."""
    if (interrupt := came()) is not None:
        return interrupt
    if verbose:
        traceback.print_exc()
    return EnvironmentFault(f"internal error, please report it: {type(error).__name__}: {error}")


class _Said(logging.Handler):
    """Says each record on standard error, as every other line."""

    def emit(self, record: logging.LogRecord) -> None:
        say(printable(record.getMessage(), 600))


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_ranges(*limits: tuple[str, float, float, float]) -> None:
    """Each (flag, value, least, most). Raises UsageError."""
    for flag, value, low, high in limits:
        if not low <= value <= high:
            raise UsageError(f"{flag} must be from {low} to {high}")


def check_regex(pattern: str | None, flag: str = "--tensor") -> None:
    """Raises UsageError where a pattern is no regular expression."""
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise UsageError(f"{flag} is not a regular expression: {error}") from None


# ---- reports ---------------------------------------------------------------------------------------------------------

#: The files that reports are to be written to.
Files = Mapping[Writer, Path]


def add_reports(parser: argparse.ArgumentParser, *kinds: Kind) -> None:
    """A flag for each writer that can write one of these kinds of result."""
    for writer in writers():
        if writer.flag is not None and not writer.renders.keys().isdisjoint(kinds):
            parser.add_argument(writer.flag, type=output, metavar="FILE", help=writer.help)


def asked_for(args: argparse.Namespace, kind: Kind) -> Files:
    """The reports that were asked for of a kind of result.

    Raises UsageError where one of them cannot be of this kind.
    """
    flags = {w: path for w in writers() if w.flag is not None and (path := getattr(args, w.argument, None)) is not None}
    for writer, path in flags.items():
        if kind not in writer.renders:
            raise UsageError(f"{writer.flag} cannot write this kind of result: {kind}")
        if writer.suffixes and path.suffix not in writer.suffixes:
            raise UsageError(f"{writer.flag} writes {' or '.join(f'FILE{s}' for s in writer.suffixes)}")
    return flags


#: Columns of a report that is piped.
PIPED_WIDTH = 80
#: A narrower terminal gets this width, below which tables are of no use.
LEAST_WIDTH = 40


def form(verbose: bool = False, byte_map: bool = False, piped_width: int | None = None) -> Form:
    """How standard output shows a report: in colour, with block characters and no wider than the terminal, if it is
    one and can; else plain and as wide as `piped_width`, or unwrapped."""
    shown = sys.stdout is not None and sys.stdout.isatty()
    able = shown and os.environ.get("TERM") != "dumb"
    return Form(
        verbose=verbose, byte_map=byte_map, colour=able and not os.environ.get("NO_COLOR"), blocks=shows_blocks(),
        width=max(LEAST_WIDTH, shutil.get_terminal_size().columns) if shown else piped_width,
    )  # fmt: skip


def error_form() -> Form:
    """How standard error shows lines: as `form`, by what standard error is."""
    shown = on_terminal()
    able = shown and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if shown else PIPED_WIDTH
    return Form(colour=able and not os.environ.get("NO_COLOR"), width=max(LEAST_WIDTH, width))


def shows_blocks() -> bool:
    """Whether standard output is a terminal that can show block characters."""
    if sys.stdout is None or not sys.stdout.isatty() or os.environ.get("TERM") in ("dumb", "linux"):
        return False
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def deliver(kind: Kind, result: Any, exit_code: int, shown: Form | None = None, files: Files | None = None) -> int:
    """The result to standard output, and to the files that were asked for; returns the exit code.

    If something cannot be written, one line reports it, and a run without other faults ends with 3.
    """
    with undisturbed():
        write(terminal(kind, result, form() if shown is None else shown))
        return write_files(kind, result, exit_code, files)


def write_files(kind: Kind, result: Any, exit_code: int, files: Files | None) -> int:
    """The result to the files that were asked for; returns the exit code, as `deliver`."""
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
    """That an output is none of the files that the kernel was found to be made of. Raises EnvironmentFault."""
    if isinstance(result, Report) and overwrites(path, map(Path, result.environment.kernel.opened.files)):
        raise EnvironmentFault(f"{printable(str(path))} is not written: the kernel is made of it")


def print_lines(*lines: str, exit_code: int = EXIT_VERIFIED) -> int:
    """Lines to standard output; returns the exit code."""
    write_lines(*lines)
    return exit_code
