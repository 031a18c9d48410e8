"""`gguf-verify nightly run|compare|status|pin …` and `scripts/nightly.py`: the matrix, and its memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..gguf import printable
from ..nightly.compare import Comparison, compare
from ..nightly.config import read_config
from ..nightly.history import History
from ..nightly.noise import MOST
from ..nightly.records import Night
from ..nightly.runs import Settings, exit_code, run_night
from ..report.nightly import write_reports
from ..report.nightly.lines import comparison_lines, head, night_lines
from ..support.errors import EXIT_ENVIRONMENT, EXIT_UNVERIFIED, UsageError, say
from .common import check_output, check_ranges, deliver, internal_errors, on_terminal

#: What `run` also writes.
REPORTS = ("html", "junit", "markdown", "json")

_EPILOG = """\
exit codes
  run      0 every cell is verified · 1 a mismatch · 3 a cell was broken off, crashed or ran out of time, or the night
           cannot be run · 4 a file is malformed · 5 not everything was verified; interrupted: 128 and the signal's
           number, and the same command resumes the night
  compare  0 nothing that was verified fails, nothing has vanished · 1 something does or has; with --strict also where
           utilisations drift or times regress · 5 nothing could be compared
  all      2 usage, the configuration among it · 3 the history cannot be used · 4 the history is damaged, or none

The configuration: harness/gguf_verify/nightly/config.py
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gguf-verify nightly", formatter_class=argparse.RawDescriptionHelpFormatter, epilog=_EPILOG,
        description="Run a matrix of models, kernels and variants of llama.cpp, remember it, compare nights.",
    )  # fmt: skip
    parser.set_defaults(verbose=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="run|compare|status|pin")
    run_ = commands.add_parser("run", help="run the matrix, or the rest of it where a night was interrupted")
    run_.add_argument("config", type=Path, metavar="CONFIG.toml")
    run_.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="cells at a time (default: as the configuration says)"
    )
    run_.add_argument("--new", action="store_true", help="begin a new night, whatever was left of the last")
    for kind in REPORTS:
        run_.add_argument(f"--{kind}", type=Path, metavar="FILE", help=f"also write the night's report as {kind}")
    compare_ = commands.add_parser("compare", help="what is worse, better or gone since another night")
    _add_source(compare_)
    compare_.add_argument(
        "--old", metavar="N|NAME", help="a night's number or pinned name (default: the finished one before)"
    )
    compare_.add_argument("--new", metavar="N|NAME", help="likewise (default: the newest)")
    compare_.add_argument("--strict", action="store_true", help="drift and slower cells also make exit code 1")
    status = commands.add_parser("status", help="the last nights")
    _add_source(status)
    status.add_argument("-n", type=int, default=10, metavar="N", help="how many (default: %(default)s)")
    pin = commands.add_parser("pin", help="give a night a name, to compare with")
    pin.add_argument("name", metavar="NAME")
    _add_source(pin)
    pin.add_argument("--night", type=int, metavar="N", help="its number (default: the newest that is finished)")
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "config", type=Path, nargs="?", metavar="CONFIG.toml", help="whose history and nights are meant"
    )
    source.add_argument("--history", type=Path, metavar="FILE", help="a history, all its nights")


def run(argv: list[str]) -> int:
    """`gguf-verify nightly …`; returns the exit code. Raises HarnessError."""
    args = _parser().parse_args(argv)
    with internal_errors(args.verbose):
        commands = {"run": _run, "compare": _compare, "status": _status, "pin": _pin}
        return commands[args.command](args)


def _run(args: argparse.Namespace) -> int:
    if args.jobs is not None:
        check_ranges(("-j", args.jobs, 1, 256))
    config = read_config(args.config)
    files = {kind: path for kind in REPORTS if (path := getattr(args, kind)) is not None}
    if len({path.absolute() for path in files.values()}) < len(files):
        raise UsageError("two reports would go to one file")
    for kind, path in files.items():
        check_output(path, args.config, config.history, flag=f"--{kind}")
    night = run_night(config, Settings(jobs=args.jobs, new=args.new, terminal=on_terminal()))
    code = exit_code(night)
    if files:
        with History(config.history, make=False) as history:
            earlier = [n for n in history.nights(config=config.name) if n.number < night.number]
            whole = history.night(night.number, reports=True)
        try:
            write_reports([*reversed(earlier[:MOST]), whole], _compared(earlier, whole), **files)
        except OSError as error:
            say(f"cannot write {printable(str(error.filename), 200)}: {error.strerror}")
            code = code or EXIT_ENVIRONMENT
    return _say(night_lines(night), code)


def _compared(earlier: Sequence[Night], new: Night, old: Night | None = None) -> Comparison | None:
    """With `old`, or the newest finished night of these; None where there is none."""
    old = old or next((n for n in earlier if n.finished), None)
    return None if old is None or old.number == new.number else compare(earlier[:MOST], old, new)


def _source(args: argparse.Namespace) -> tuple[History, str | None]:
    """The history, and the configuration whose nights are meant."""
    if args.history is not None:
        return History(args.history, make=False), None
    config = read_config(args.config)
    return History(config.history, make=False), config.name


def _compare(args: argparse.Namespace) -> int:
    history, config = _source(args)
    with history:
        nights = history.nights(config=config)
        new = nights[0] if args.new is None and nights else _named(history, args.new)
        if new is None:
            return _say(["the history holds no night"], EXIT_UNVERIFIED)
        earlier = [n for n in nights if n.number < new.number and n.config == new.config]
        found = _compared(earlier, new, _named(history, args.old))
    if found is None:
        return _say([f"there is no finished night to compare night {new.number} with"], EXIT_UNVERIFIED)
    return _say(comparison_lines(found), found.exit_code(args.strict))


def _named(history: History, name: str | None) -> Night | None:
    """A night by number or pinned name. Raises UsageError."""
    if name is None:
        return None
    if name.isascii() and name.isdigit() and len(name) < 10:
        return history.night(int(name))
    number = history.pinned(name)
    if number is None:
        known = ", ".join(f"{printable(k, 64)} ({n})" for k, n in history.pins().items()) or "none"
        raise UsageError(f"no night is called {printable(name, 64)}; pinned are: {known}")
    return history.night(number)


def _status(args: argparse.Namespace) -> int:
    check_ranges(("-n", args.n, 1, 10**6))
    history, config = _source(args)
    with history:
        nights = history.nights(args.n, config)
        names = {number: name for name, number in history.pins().items()}
    lines = [f"{head(n)}{f' ({printable(names[n.number], 64)})' if n.number in names else ''}" for n in nights]
    return _say(lines or ["no night has been run"], 0)


def _pin(args: argparse.Namespace) -> int:
    if not args.name or args.name.isdigit():
        raise UsageError("a name is not empty and no number")
    history, config = _source(args)
    with history:
        number = args.night
        if number is None:
            number = next((n.number for n in history.nights(config=config) if n.finished), None)
        if number is None:
            raise UsageError("the history has no finished night")
        history.pin(args.name, number)
    return _say([f"night {number} is called {printable(args.name, 64)}"], 0)


def _say(lines: Iterable[str], code: int) -> int:
    return deliver("".join(f"{line}\n" for line in lines), None, None, code)
