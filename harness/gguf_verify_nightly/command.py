"""`gguf-verify nightly run|compare|status|pin …` and `scripts/nightly.py`: run the matrix and show its history."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gguf_verify.cli.command import Command
from gguf_verify.cli.common import (
    add_detail,
    add_ray,
    add_reports,
    asked_for,
    check_ranges,
    deliver,
    form,
    internal_errors,
    on_terminal,
    print_lines,
)
from gguf_verify.cli.files import check_outputs, files_of
from gguf_verify.cli.parser import Parser
from gguf_verify.support.errors import EXIT_UNVERIFIED, EXIT_VERIFIED, UsageError, say
from gguf_verify.support.text import printable

from .report.writers import NightKind

if TYPE_CHECKING:
    from .compare import Comparison
    from .history import History
    from .records import Night


_EPILOG = """\
exit codes
  run      0: every cell is verified
           1: a cell is a mismatch
           3: a cell was aborted, crashed or timed out, or the night cannot run
           4: a model file is malformed
           5: not everything could be verified
           128 + N: signal N interrupted the night; the same command resumes it
  compare  0: no verified cell of the old night fails or is missing now
           1: a cell fails or is missing now; with --strict, also if utilisations drifted or cells became slower
           5: no cell could be compared
  all      2: an error in the command line or the configuration, or no history
           3: the history cannot be used
           4: the history is damaged
"""


def build_parser() -> Parser:
    """Return the argument parser of this command."""
    from .config import REFERENCE

    parser = Parser(
        prog="gguf-verify nightly",
        epilog=_EPILOG,
        description="Run a matrix of models, kernels and variants of llama.cpp every night, and compare the nights.",
    )
    parser.set_defaults(detail=0)
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(PARTS))
    run_: Parser = commands.add_parser(
        "run",
        help="run the matrix, or resume an interrupted night",
        epilog=f"A configuration with every key:\n\n{REFERENCE}",
    )
    run_.add_argument("config", type=Path, metavar="CONFIG.toml")
    run_.add_argument(
        "-j", "--jobs", type=int, metavar="N", help="number of cells to run at a time (default: the configuration's)"
    )
    run_.add_argument("--new", action="store_true", help="start a new night instead of resuming the last one")
    add_ray(run_, "run the cells")
    add_detail(run_, "every cell that is not verified")
    add_reports(run_, NightKind.NIGHT)
    run_.show_first("config", "-j", "--new", "--ray")
    compare_ = commands.add_parser(
        "compare", help="list cells that became worse or better, or are missing, since another night"
    )
    _add_source(compare_)
    compare_.add_argument(
        "--old",
        metavar="N|NAME",
        help="the earlier night, by number or pinned name (default: the last finished one)",
    )
    compare_.add_argument(
        "--new", metavar="N|NAME", help="the later night, by number or pinned name (default: the newest)"
    )
    add_detail(compare_, "every difference")
    compare_.add_argument("--strict", action="store_true", help="also exit with 1 for drift and slower cells")
    status = commands.add_parser("status", help="list the last nights")
    _add_source(status)
    status.add_argument("-n", type=int, default=10, metavar="N", help="number of nights (default: %(default)s)")
    pin = commands.add_parser("pin", help="give a night a name for --old and --new")
    pin.add_argument("name", metavar="NAME")
    _add_source(pin)
    pin.add_argument("--night", type=int, metavar="N", help="the night's number (default: the last finished one)")
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "config",
        type=Path,
        nargs="?",
        metavar="CONFIG.toml",
        help="use the history and the nights of this configuration",
    )
    source.add_argument("--history", type=Path, metavar="FILE", help="use all nights of this history")


def run(argv: list[str]) -> int:
    """Run `gguf-verify nightly …` and return the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0):
        return PARTS[args.command](args)


def _run(args: argparse.Namespace) -> int:
    from .config import read_config
    from .history import History
    from .night import Settings, run_night
    from .significance import MOST_NIGHTS
    from .summary import NightReport

    if args.jobs is not None:
        check_ranges(("-j", args.jobs, 1, 256))
    config = read_config(args.config)
    check_outputs(args.outputs, files_of(config, config.folder))
    if config.project is not None:
        say(config.project.words)
    files = asked_for(args, NightKind.NIGHT)
    night = run_night(config, Settings(jobs=args.jobs, new=args.new, ray=args.ray, terminal=on_terminal()))
    earlier: list[Night] = []
    whole = night
    if files:
        with History(config.history, make=False) as history:
            earlier = [n for n in history.nights(config=config.name) if n.number < night.number]
            whole = history.night(night.number, reports=True)
    report = NightReport((*reversed(earlier[:MOST_NIGHTS]), whole), _compared(earlier, whole))
    return deliver(NightKind.NIGHT, report, night.exit_code, form(args), files)


def _compared(earlier: Sequence[Night], new: Night, old: Night | None = None) -> Comparison | None:
    """Compare `new` with `old`, or with the newest finished night of `earlier`; None if there is none."""
    from .compare import compare
    from .significance import MOST_NIGHTS

    old = old or next((n for n in earlier if n.finished), None)
    return None if old is None or old.number == new.number else compare(earlier[:MOST_NIGHTS], old, new)


def _source(args: argparse.Namespace) -> tuple[History, str | None]:
    """Return the history, and the name of the configuration whose nights to use (None for all)."""
    from .config import read_config
    from .history import History

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
            return print_lines("the history is empty", exit_code=EXIT_UNVERIFIED)
        earlier = [n for n in nights if n.number < new.number and n.config == new.config]
        found = _compared(earlier, new, _named(history, args.old))
    if found is None:
        line = f"no finished night to compare night {new.number} with"
        return print_lines(line, exit_code=EXIT_UNVERIFIED)
    return deliver(NightKind.COMPARISON, found, found.exit_code(args.strict), form(args))


def _named(history: History, name: str | None) -> Night | None:
    """Return a night by number or pinned name. Raises UsageError."""
    if name is None:
        return None
    if name.isascii() and name.isdigit() and len(name) < 10:
        return history.night(int(name))
    number = history.pinned(name)
    if number is None:
        known = ", ".join(f"{printable(k, 64)} ({n})" for k, n in history.pins().items()) or "none"
        raise UsageError(f"no night has the name {printable(name, 64)}; pinned names: {known}")
    return history.night(number)


def _status(args: argparse.Namespace) -> int:
    check_ranges(("-n", args.n, 1, 10**6))
    history, config = _source(args)
    with history:
        nights = history.nights(args.n, config)
        names = {number: name for name, number in history.pins().items()}
    return deliver(NightKind.HISTORY, {names.get(n.number, str(n.number)): n for n in nights}, EXIT_VERIFIED)


def _pin(args: argparse.Namespace) -> int:
    if not args.name or args.name.isdigit():
        raise UsageError("a name must not be empty or a number")
    history, config = _source(args)
    with history:
        number = args.night
        if number is None:
            number = next((n.number for n in history.nights(config=config) if n.finished), None)
        if number is None:
            raise UsageError("the history has no finished night")
        history.pin(args.name, number)
    return print_lines(f"night {number} now has the name {printable(args.name, 64)}")


PARTS = {"run": _run, "compare": _compare, "status": _status, "pin": _pin}
COMMAND = Command(
    "nightly",
    "run a matrix of models, kernels and versions of llama.cpp, and compare the nights",
    build_parser,
    run,
    tuple(PARTS),
)
