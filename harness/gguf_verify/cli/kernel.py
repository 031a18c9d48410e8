"""`gguf-verify kernel FILE.cu:SYMBOL`: verify a kernel on random data, without a model."""

from __future__ import annotations

import argparse

from ..llama.installed import INSTALL, why_missing
from ..llama.reference_names import help_of_references
from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..results.options import Options
from ..support.errors import UsageError, say
from .command import Command
from .common import EXIT_CODES, Parser, add_common, add_reports, deliver, form, internal_errors
from .verify import add_kernel_options, kernel_options

_EPILOG = """\
examples:
  gguf-verify kernel my_kernel.py:gemm
  gguf-verify kernel my_kernel.cu:gemm --type Q4_0 -M 4 -N 512 -K 1024
  gguf-verify kernel my_kernel.cu:gemm --identify     # which definition does it compute?

The kernel is judged as the blocks and layers rungs judge it on a model, with the same additional shapes, values and
schedules. The verdict, "verified on random data (no model)", holds for these random data only, not for any model.

"""


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    from ..rungs.drawn import DRAWN_RUNGS, K, M, N

    parser = Parser(
        prog="gguf-verify kernel",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Verify a kernel on random weights and activations, without a model.",
        epilog=_EPILOG + EXIT_CODES.format(verified="verified on the random data", mismatch="a mismatch was found"),
    )
    add = parser.add_argument
    add(
        "kernel",
        metavar="KERNEL",
        help="your own, as `gguf-verify --kernel` takes it, such as FILE.cu:SYMBOL; or a kernel of this project",
    )
    add(
        "--type",
        action="append",
        default=[],
        metavar="TYPES",
        help="weight types, such as Q4_0 or Q4_0,Q8_0 (default: all that the kernel declares)",
    )
    add("-M", type=_sizes, default=(), metavar="NUMBERS", help=f"tokens, such as 4 or 1,8,64 (default: {M})")
    add("-N", type=_sizes, default=(), metavar="NUMBERS", help=f"rows of the weights (default: {N})")
    add("-K", type=_sizes, default=(), metavar="NUMBERS", help=f"columns of the weights (default: {K})")
    add(
        "--reference",
        default=None,
        metavar="DEVICE",
        help=f"where llama.cpp runs: {help_of_references()}; none: do not compare with llama.cpp (default: cpu if "
        "llama.cpp is installed)",
    )
    add(
        "--rungs",
        metavar="LIST",
        help=f"rungs to run, of {','.join(DRAWN_RUNGS)} (default: those that fit what the kernel computes)",
    )
    add("--identify", action="store_true", help="instead of running rungs, find which definition the kernel computes")
    add("--tensor", metavar="REGEX", help="verify only random matrices whose name matches; reports print the option")
    add_kernel_options(parser)
    add_reports(parser, Kind.RUN, Kind.IDENTIFICATION)
    add_common(parser)
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    """Parse "1,8,64" as numbers."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is neither a number nor a comma-separated list of numbers")
    return tuple(map(int, words))


def run(argv: list[str]) -> int:
    """`gguf-verify kernel …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    with internal_errors(args.detail > 0), sandboxed(args.sandbox, args.kernel_memory):
        return verified(args)


def verified(args: argparse.Namespace) -> int:
    """Verify and deliver the report; returns the exit code. Raises HarnessError."""
    from ..identification import identify_model
    from ..invocation import command_of
    from ..rungs.drawn import DRAWN_RUNGS, Drawn
    from ..rungs.opening import Request
    from ..verification import verify
    from .runs.verify import deliver_run, report_files, requested_rungs, shown_live

    kind = Kind.IDENTIFICATION if args.identify else Kind.RUN
    types = tuple(name.strip() for text in args.type for name in text.split(",") if name.strip())
    drawn = Drawn(types, args.M, args.N, args.K)
    files, rungs = report_files(args, kind, DRAWN_RUNGS), requested_rungs(args)
    options = Options(reference=_reference(args), **kernel_options(args))
    command = command_of(Request(drawn, args.kernel, args.host, rungs, options), identify=args.identify)
    if args.identify:
        if args.only_call or args.budget is not None:
            raise UsageError("--only-call and --budget apply to rungs, not to --identify")
        found = identify_model(drawn, args.kernel, args.host, options, command=command, ray=args.ray, jobs=args.jobs)
        return deliver(kind, found, found.exit_code, form(args), files)
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


def _reference(args: argparse.Namespace) -> str:
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
