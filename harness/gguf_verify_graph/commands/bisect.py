"""`gguf-verify bisect MODEL.gguf --good A --bad B`: the first build of llama.cpp at which a graph turns wrong."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gguf_verify.backend_results import PROMPT
from gguf_verify.cli.command import Command
from gguf_verify.cli.common import (
    Parser,
    add_reports,
    asked_for,
    check_ranges,
    deliver,
    internal_errors,
    prompt_of,
    spell,
)
from gguf_verify.cli.files import check_outputs, files_of
from gguf_verify.cli.verify import build_parser as verify_parser
from gguf_verify.report.writer import Kind, writers
from gguf_verify.results import DEFAULT_PROMPT
from gguf_verify.support.cache import cache_dir
from gguf_verify.support.errors import UsageError, say
from gguf_verify.support.text import printable

from ..bisection.bisect import Plan, bisect
from .backend import build_parser as backend_parser

#: What runs a candidate in place of `python -m gguf_verify backend`, or `verify`.
HARNESS: Sequence[str] = ()
#: What gives the library of a version of NVRTC in place of PyPI.
FETCH: Callable[[str], Path] | None = None
_LONGEST = 1e6
_EPILOG = """\
A build is a version of llama-cpp-python, installed in an environment of its own as
the nightly does, or a folder of libraries as `gguf-verify backend --llama` takes it.
Each is tried by one run of `gguf-verify backend`: exit code 0 is good, 1 is bad, and
anything else cannot be tested and is skipped, as `git bisect skip` does.
Results are kept: the same command takes them over.

examples:
  gguf-verify bisect model.gguf --good 0.3.30 --bad 0.3.36 --html page.html
  gguf-verify bisect model.gguf --good b1 --bad b4 --among b2 b3 --device Vulkan0
  gguf-verify bisect model.gguf --good old --bad new -- -ctk q8_0 -ctv q8_0 -fa on
  gguf-verify bisect model.gguf --nvrtc --good 13.0.88 --bad 13.2.78 -- --kernel q8_1_mma

With --nvrtc the builds are versions of NVRTC, each of which compiles a kernel for
`gguf-verify MODEL --host gpu`; the options behind -- are those of that command.

exit codes:
  0  the first bad build is known
  1  the build that was said to be good is wrong already
  2  usage: the command line asks for something that does not exist, or the build that
     was said to be bad is good
  3  this machine cannot run the check; SIGTERM or SIGHUP
  4  the file is malformed
  5  the first bad build lies among builds that could not be tested
  130  Ctrl-C
An end that cannot be tested gives the code of its run (2 to 5).
"""


class _Parser(Parser):
    """Takes what stands behind `--` as it is."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `Parser.parse_args`; `passed` is what stands behind `--`."""
        words = list(args or ())
        at = words.index("--") if "--" in words else len(words)
        found = super().parse_args(words[:at], namespace)
        found.passed = words[at + 1 :]
        return found


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = _Parser(
        prog="gguf-verify bisect", formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="gguf-verify bisect MODEL.gguf --good BUILD --bad BUILD [options] [-- options of a run]",
        description="Find the first build of llama.cpp at which a model's graph turns wrong, or the first version of "
        "NVRTC with which a kernel does.",
        epilog=_EPILOG,
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model")
    add("--good", required=True, metavar="BUILD", help="a build that is right: a version such as 0.3.33, or a folder")
    add("--bad", required=True, metavar="BUILD", help="a later build that is wrong, likewise")
    add("--among", nargs="+", metavar="BUILD",
        help="the builds in between, the oldest first (default: versions that `pip index versions` lists)")  # fmt: skip
    add("--nvrtc", action="store_true", help="the builds are versions of NVRTC, which compile a kernel for the GPU")
    add("--device", default=None, metavar="NAME", help="ggml's name of a device (default: CPU)")
    add("--keep", type=Path, metavar="FOLDER", help="keep results there (default: a folder in the cache)")
    add("--retry", action="store_true", help="try again what could not be tested, instead of taking that over")
    add("--run-limit", type=float, default=3600.0, metavar="S",
        help="seconds that one run may take (default: %(default)g)")  # fmt: skip
    add("--install-limit", type=float, default=7200.0, metavar="S",
        help="seconds that installing a version may take (default: %(default)g)")  # fmt: skip
    add_reports(parser, Kind.BISECTION)
    add("-v", "--verbose", action="store_true", help="show where an internal error comes from")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify bisect …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.verbose):
        check_ranges(("--run-limit", args.run_limit, 1, _LONGEST), ("--install-limit", args.install_limit, 1, _LONGEST))
        files = asked_for(args, Kind.BISECTION)
        prompt = _check_passed_to_verify(args) if args.nvrtc else _check_passed(args)
        own = ("--host=gpu",) if args.nvrtc else (f"--device={_device(args)}",)
        keep = cache_dir() / "bisections" if args.keep is None else args.keep
        plan = Plan(
            model=args.model, good=args.good, bad=args.bad, among=None if args.among is None else tuple(args.among),
            arguments=(*own, "--exitfirst", *args.passed), prompt=prompt, keep=keep, nvrtc=args.nvrtc, fetch=FETCH,
            retry=args.retry, time_limit=args.run_limit, install_limit=args.install_limit, harness=HARNESS,
            command=spell(argv),
        )  # fmt: skip
        try:
            found = bisect(plan)
        except KeyboardInterrupt:
            say(f"what was tried is kept in {printable(str(keep), 200)}: the same command goes on")
            raise
        return deliver(Kind.BISECTION, found, found.exit_code, files=files)


def _device(args: argparse.Namespace) -> str:
    return "CPU" if args.device is None else args.device


def _check_passed_to_verify(args: argparse.Namespace) -> str:
    """Likewise, of `gguf-verify MODEL`. Raises UsageError."""
    if args.device is not None:
        raise UsageError(
            "--device is of graphs; with --nvrtc, --reference behind -- says where llama.cpp runs", "usage"
        )
    made = verify_parser().parse_args([str(args.model), "--host=gpu", *args.passed])
    if made.host != "gpu":
        raise UsageError("--host is gpu with --nvrtc: on another host NVRTC compiles nothing", "usage")
    if made.identify or made.only_call:
        raise UsageError("--nvrtc needs the verdict of a whole run: leave out --identify and --only-call", "usage")
    _check_reports(args, made)
    return prompt_of(made, DEFAULT_PROMPT)


def _check_passed(args: argparse.Namespace) -> str:
    """That what is passed through is what `gguf-verify backend` takes, and nothing that is set here; returns the
    prompt. Raises UsageError."""
    made = backend_parser().parse_args([str(args.model), f"--device={_device(args)}", *args.passed])
    if made.device != _device(args):
        raise UsageError("--device belongs before --", "usage")
    if made.llama is not None:
        raise UsageError("--llama is set for each build: name folders by --good, --bad and --among", "usage")
    _check_reports(args, made)
    return prompt_of(made, PROMPT)


def _check_reports(args: argparse.Namespace, made: argparse.Namespace) -> None:
    """That no run writes one, and that none is an input of a run. Raises UsageError."""
    given = [w.flag for w in writers() if w.flag is not None and getattr(made, w.argument, None) is not None]
    if given:
        ours = " and ".join(str(w.flag) for w in writers(Kind.BISECTION) if w.flag is not None)
        raise UsageError(f"{given[0]} of a run would be overwritten by the next: before --, {ours} take all", "usage")
    check_outputs(args.outputs, files_of([*vars(made).values()]))


COMMAND = Command("bisect", "find the first build of llama.cpp at which a graph turns wrong", build_parser, run)
