"""`gguf-verify kernel FILE.cu:SYMBOL`: verify a kernel on random data, without a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..llama.installed import INSTALL, why_missing
from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..results.options import Options
from ..support.errors import say
from ..support.near import spelled_as
from .command import Command
from .common import EXIT_CODES, add_common, add_reports, internal_errors
from .kernel_options import add_identify, add_kernel_options, add_reference, add_thoroughness
from .parser import HOW, WHAT, Parser, basic

if TYPE_CHECKING:
    from ..rungs.drawn import Drawn

_EPILOG = """\
examples:
  gguf-verify kernel my_kernel.py:gemm
  gguf-verify kernel my_kernel.cu:gemm --type Q4_0 -M 4 -N 512 -K 1024

`gguf-verify identify my_kernel.cu:gemm` finds which definition a kernel computes.
The kernel is judged as the blocks and layers rungs judge it on a model, with the same additional shapes, values and
schedules. The verdict, "verified on random data (no model)", holds for these random data only, not for any model.

"""


def build_parser() -> Parser:
    """The parser of this command."""
    from ..rungs.drawn import DRAWN_RUNGS

    parser = Parser(
        prog="gguf-verify kernel",
        description="Verify a kernel on random weights and activations, without a model.",
        epilog=_EPILOG + EXIT_CODES.format(verified="verified on the random data", mismatch="a mismatch was found"),
    )
    add = parser.group(WHAT).add_argument
    basic(
        add(
            "kernel",
            metavar="KERNEL",
            help="such as FILE.cu, FILE.cu:SYMBOL or FILE.py:NAME; all that `gguf-verify --kernel` takes",
        )
    )
    add_data_options(parser)
    basic(
        parser.group(HOW).add_argument(
            "--rungs",
            metavar="LIST",
            help="the rungs to run (default: those that fit what the kernel computes); on random data there are "
            f"{', '.join(DRAWN_RUNGS)}",
        )
    )
    add_thoroughness(parser)
    add_kernel_options(parser)
    add_reports(parser, Kind.RUN, Kind.IDENTIFICATION)
    add_common(parser)
    add_identify(parser, "gguf-verify identify KERNEL")
    return parser


def add_data_options(parser: Parser) -> None:
    """Add the options on random data and on the reference."""
    from ..rungs.drawn import K, M, N

    add = parser.group(WHAT).add_argument
    basic(
        add(
            "--type",
            action="append",
            default=[],
            metavar="TYPES",
            help="weight types, such as Q4_0 or Q4_0,Q8_0 (default: all that the kernel declares)",
        )
    )
    for name, what, default in (
        ("M", "tokens, such as 4 or 1,8,64", M),
        ("N", "rows of the weights", N),
        ("K", "columns of the weights", K),
    ):
        help_text = f"{what} (default: {default})"
        basic(add(f"-{name}", type=_sizes, default=(), metavar="NUMBERS", help=help_text))
    add("--tensor", metavar="REGEX", help="use only matrices whose name matches; reports print the option")
    add_reference(parser, None, "; none: do not compare with llama.cpp (default: cpu if llama.cpp is installed)")


def data_of(args: argparse.Namespace) -> Drawn:
    """Return the requested random data. Raises UsageError."""
    from ..formats.tensor_types import FORMATS
    from ..rungs.drawn import Drawn

    types = [name.strip() for text in args.type for name in text.split(",") if name.strip()]
    return Drawn(tuple(spelled_as(name, FORMATS) for name in types), args.M, args.N, args.K)


def _sizes(text: str) -> tuple[int, ...]:
    """Parse "1,8,64" as numbers."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is neither a number nor a comma-separated list of numbers")
    if any(len(word) > 18 for word in words):  # of smaller ones, the data state their limit
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is too large")
    return tuple(map(int, words))


def run(argv: list[str]) -> int:
    """`gguf-verify kernel …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0), sandboxed(args.sandbox, args.kernel_memory):
        return verified(args)


def verified(args: argparse.Namespace) -> int:
    """Verify and deliver the report; returns the exit code. Raises HarnessError."""
    from ..invocation import command_of
    from ..rungs.drawn import DRAWN_RUNGS
    from ..rungs.opening import Request
    from ..verification import verify
    from .identify import identified
    from .runs.verify import deliver_run, options_of, report_files, requested_rungs, shown_live

    if args.identify:
        args.model = None
        return identified(args)
    drawn = data_of(args)
    files, rungs, options = report_files(args, Kind.RUN, DRAWN_RUNGS), requested_rungs(args), options_of(args)
    command = command_of(Request(drawn, args.kernel, args.host, rungs, options))
    report = verify(
        drawn,
        args.kernel,
        args.host,
        rungs,
        options,
        told=shown_live(options, args),
        command=command,
        interrupted_report=True,
        ray=args.ray,
        jobs=args.jobs,
    )
    return deliver_run(report, args, files)


def reference_of(args: argparse.Namespace) -> str:
    """Return `--reference`, or its default, which depends on whether llama.cpp is installed."""
    from ..rungs.drawn import NONE

    asked: str | None = args.reference
    if asked is not None:
        return asked
    if args.llama is not None or why_missing() is None:
        return Options().reference
    say(f"llama.cpp is not installed, so the kernel is not compared with it; to compare: {INSTALL}")
    return NONE


COMMAND = Command("kernel", "verify a kernel on random data, without a model", build_parser, run)
