"""`gguf-verify bisect MODEL.gguf --good A --bad B`: find the first llama.cpp that computes a graph incorrectly."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf_verify.backend_results import PROMPT
from gguf_verify.cli.command import Command
from gguf_verify.cli.common import (
    add_detail,
    add_reports,
    asked_for,
    check_ranges,
    deliver,
    form,
    internal_errors,
    prompt_of,
    spell,
)
from gguf_verify.cli.files import check_outputs, files_of
from gguf_verify.cli.parser import Parser
from gguf_verify.cli.verify import build_parser as verify_parser
from gguf_verify.report.writer import Kind
from gguf_verify.results.options import DEFAULT_PROMPT
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.errors import UsageError, say
from gguf_verify.support.settings import Settings, read_settings
from gguf_verify.support.text import printable

from .backend import build_parser as backend_parser

#: Command that runs a candidate, in place of `python -m gguf_verify backend` or `verify`; tests set it.
HARNESS: Sequence[str] = ()
#: Function that returns the library of a version of NVRTC, in place of a download from PyPI; tests set it.
FETCH: Callable[[str], Path] | None = None
_LONGEST = 1e6
_EPILOG = """\
A build is either a version of llama-cpp-python, installed in an environment of its own
as the nightly does, or a folder of libraries as `gguf-verify backend --llama` takes it.
Each build is tried by one run of `gguf-verify backend`: exit code 0 means good, 1 means
bad, and a build with any other code is skipped, as by `git bisect skip`.
Results are kept: the same command reuses them.

examples:
  gguf-verify bisect model.gguf --good 0.3.30 --bad 0.3.36 -o page.html
  gguf-verify bisect model.gguf --good b1 --bad b4 --among b2 b3 --device Vulkan0
  gguf-verify bisect model.gguf --good old --bad new -- -ctk q8_0 -ctv q8_0 -fa on
  gguf-verify bisect model.gguf --nvrtc --good 13.0.88 --bad 13.2.78 -- --kernel q8_1_mma

With --nvrtc the builds are versions of NVRTC, each of which compiles a kernel for
`gguf-verify MODEL --host gpu`; the options after -- are options of that command.

exit codes:
  0  the first bad build is known
  1  nothing to bisect: the --good build fails already
  2  usage error: the command line is invalid, or the --bad build passes
  3  this machine cannot run the check; SIGTERM or SIGHUP
  4  the file is malformed
  5  the first bad build is among builds that could not be tested
  130  Ctrl-C
If the --good or --bad build cannot be tested, the code is that of its run (2 to 5).
"""


class _Parser(Parser):
    """A parser that passes on everything after `--`."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like `Parser.parse_args`; `passed` is the list of words after `--`."""
        words = list(args or ())
        at = words.index("--") if "--" in words else len(words)
        found = super().parse_args(words[:at], namespace)
        found.passed = words[at + 1 :]
        return found


def build_parser() -> Parser:
    """The parser of this command."""
    parser = _Parser(
        prog="gguf-verify bisect",
        usage="gguf-verify bisect MODEL.gguf --good BUILD --bad BUILD [options] [-- options of a run]",
        description="Find the first build of llama.cpp that computes a model's graph incorrectly, or the first version "
        "of NVRTC that compiles a kernel incorrectly.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model")
    add("--good", required=True, metavar="BUILD", help="a build that passes: a version such as 0.3.33, or a folder")
    add("--bad", required=True, metavar="BUILD", help="a later build that fails, in the same form")
    add(
        "--among",
        nargs="+",
        metavar="BUILD",
        help="the builds in between, oldest first (default: the versions that `pip index versions` lists)",
    )
    add("--nvrtc", action="store_true", help="bisect versions of NVRTC, which compile a kernel for the GPU")
    add("--device", default=None, metavar="NAME", help="ggml's name of the device (default: CPU)")
    add("--keep", type=Path, metavar="FOLDER", help="folder for the results (default: a folder in the cache)")
    add("--retry", action="store_true", help="try builds again that could not be tested")
    add(
        "--run-limit",
        type=float,
        default=3600.0,
        metavar="S",
        help="seconds that one run may take (default: %(default)g)",
    )
    add(
        "--install-limit",
        type=float,
        default=7200.0,
        metavar="S",
        help="seconds that installing a version may take (default: %(default)g)",
    )
    add_reports(parser, Kind.BISECTION)
    add_detail(parser, "the traceback of an internal error")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify bisect …`; returns the exit code. Raises HarnessError."""
    from ..bisection.bisect import Plan, bisect

    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0):
        check_ranges(("--run-limit", args.run_limit, 1, _LONGEST), ("--install-limit", args.install_limit, 1, _LONGEST))
        files = asked_for(args, Kind.BISECTION)
        prompt = _check_passed_to_verify(args) if args.nvrtc else _check_passed(args)
        own = ("--host=gpu",) if args.nvrtc else (f"--device={_device(args)}",)
        keep = cache_dir() / "bisections" if args.keep is None else args.keep
        plan = Plan(
            model=args.model,
            good=args.good,
            bad=args.bad,
            among=None if args.among is None else tuple(args.among),
            arguments=(*own, "--exitfirst", *_settings(args.nvrtc), *args.passed),
            prompt=prompt,
            keep=keep,
            nvrtc=args.nvrtc,
            fetch=FETCH,
            retry=args.retry,
            time_limit=args.run_limit,
            install_limit=args.install_limit,
            harness=HARNESS,
            command=spell(argv),
        )
        try:
            found = bisect(plan)
        except KeyboardInterrupt:
            say(f"results so far are kept in {printable(str(keep), 200)}: run the same command to continue")
            raise
        return deliver(Kind.BISECTION, found, found.exit_code, form(args), files)


def _settings(nvrtc: bool) -> tuple[str, ...]:
    """The settings of the project as options of a run, which runs in a folder of its own."""
    settings = read_settings()
    if settings is None:
        return ()
    return settings.flags(Settings.names() - {"ray"} if nvrtc else ("time_limit", "sandbox"))


def _device(args: argparse.Namespace) -> str:
    return "CPU" if args.device is None else args.device


def _check_passed_to_verify(args: argparse.Namespace) -> str:
    """Check the options after `--` as those of `gguf-verify MODEL`; returns the prompt. Raises UsageError."""
    if args.device is not None:
        raise UsageError(
            "--device applies to graphs; with --nvrtc, give --reference after -- to choose llama.cpp's device", "usage"
        )
    made = verify_parser().parse_args([str(args.model), "--host=gpu", *args.passed])
    if made.host != "gpu":
        raise UsageError("--nvrtc needs --host gpu: no other host uses NVRTC", "usage")
    if made.identify or made.only_call:
        raise UsageError("--nvrtc needs the verdict of a whole run: remove --identify and --only-call", "usage")
    _check_reports(args, made)
    return prompt_of(made, DEFAULT_PROMPT)


def _check_passed(args: argparse.Namespace) -> str:
    """Check that the options after `--` are options of `gguf-verify backend` and set nothing that is set here.

    Returns the prompt. Raises UsageError.
    """
    made = backend_parser().parse_args([str(args.model), f"--device={_device(args)}", *args.passed])
    if made.device != _device(args):
        raise UsageError("give --device before --", "usage")
    if made.llama is not None:
        raise UsageError("--llama is set for each build: give folders as --good, --bad and --among", "usage")
    _check_reports(args, made)
    return prompt_of(made, PROMPT)


def _check_reports(args: argparse.Namespace, made: argparse.Namespace) -> None:
    """Check that no run writes a report, and that no report would overwrite an input of a run. Raises UsageError."""
    if made.reports or made.report_dir is not None:
        given = "-o" if made.reports else "--report-dir"
        raise UsageError(
            f"{given} after -- would be overwritten by each run; before --, it reports on all runs", "usage"
        )
    check_outputs(args.outputs, files_of([*vars(made).values()]))


COMMAND = Command("bisect", "find the first build of llama.cpp that computes a graph incorrectly", build_parser, run)
