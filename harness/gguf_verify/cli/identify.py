"""`gguf-verify identify KERNEL [MODEL.gguf]`: find the definitions that a kernel and llama.cpp compute."""

from __future__ import annotations

import argparse

from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..support.errors import UsageError
from .command import Command
from .common import EXIT_CODES, add_common, add_reports, internal_errors
from .kernel import add_data_options
from .kernel_options import add_kernel_options, add_model, without_thoroughness
from .parser import WHAT, Parser, basic

_EPILOG = """\
examples:
  gguf-verify identify my_kernel.cu:gemm                  # on random data
  gguf-verify identify my_kernel.cu:gemm model-Q4_0.gguf

"""


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify identify",
        description="Find the definitions that a kernel and llama.cpp compute, from the outputs for known activations.",
        epilog=_EPILOG
        + EXIT_CODES.format(
            verified="the kernel computes what it declares", mismatch="it computes something else, or nothing known"
        ),
    )
    add = parser.group(WHAT).add_argument
    basic(add("kernel", metavar="KERNEL", help="your kernel, as --kernel of gguf-verify takes it"))
    add_model(parser, "a model to take the matrices from (default: random ones)", optional=True)
    add_data_options(parser)
    add_kernel_options(parser)
    without_thoroughness(parser)
    add_reports(parser, Kind.IDENTIFICATION)
    add_common(parser)
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify identify …`; returns the exit code. Raises HarnessError."""
    args = build_parser().parse_args(argv)
    if args.model is not None and (args.type or args.M or args.N or args.K):
        raise UsageError("--type, -M, -N and -K choose random data: remove them, or the model")
    if args.model is not None and args.kernel.lower().endswith(".gguf"):
        raise UsageError("the kernel comes first: gguf-verify identify KERNEL MODEL.gguf")
    if args.model is None and args.kernel.lower().endswith(".gguf"):
        raise UsageError("the kernel is missing: gguf-verify identify KERNEL MODEL.gguf")
    with internal_errors(args.detail > 0), sandboxed(args.sandbox, args.kernel_memory):
        return identified(args)


def identified(args: argparse.Namespace) -> int:
    """Identify and deliver the result; returns the exit code. Raises HarnessError."""
    from ..identification import identify_model
    from ..invocation import command_of
    from ..rungs.opening import Request
    from .common import asked_for, deliver, form
    from .kernel import data_of
    from .runs.verify import options_of

    files, options = asked_for(args, Kind.IDENTIFICATION), options_of(args)
    path = data_of(args) if args.model is None else args.model
    command = command_of(Request(path, args.kernel, args.host, options=options), identify=True)
    found = identify_model(path, args.kernel, args.host, options, command=command, ray=args.ray, jobs=args.jobs)
    return deliver(Kind.IDENTIFICATION, found, found.exit_code, form(args), files)


COMMAND = Command("identify", "find the definition that a kernel computes", build_parser, run)
