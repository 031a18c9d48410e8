"""`gguf-verify devices`: list the devices of a build of llama.cpp."""

from __future__ import annotations

from pathlib import Path

from gguf_verify.backend_results import GraphOptions
from gguf_verify.cli.command import Command
from gguf_verify.cli.common import EXIT_CODES, add_common, check_ranges, internal_errors, print_lines
from gguf_verify.cli.parser import Parser


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify devices",
        description="List the devices of llama.cpp by the names that `gguf-verify backend --device` takes.",
        epilog=EXIT_CODES.format(verified="the devices are listed", mismatch="does not occur"),
    )
    parser.add_argument(
        "--llama",
        type=Path,
        metavar="PATH",
        help="another build of llama.cpp: its folder or one library (default: llama-cpp-python)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show llama.cpp's log on stderr")
    add_common(parser)
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify devices …`; returns the exit code. Raises HarnessError."""
    from ..verification import known_devices

    args = build_parser().parse_args(argv)
    with internal_errors(args.verbose):
        check_ranges(("--time-limit", args.time_limit, 1, 1e6))
        build, devices = known_devices(
            GraphOptions(
                llama="" if args.llama is None else str(args.llama),
                time_limit=args.time_limit,
                verbose=args.verbose,
                sandbox=args.sandbox,
            )
        )
        width = max((len(d.name) for d in devices), default=0)
        lines = [f"llama.cpp {build.llama_cpp} (ggml {build.ggml}) in {build.folder}"]
        return print_lines(*lines, *(f"  {d.name:<{width}}  {d.words}" for d in devices))


COMMAND = Command("devices", "list the devices of llama.cpp", build_parser, run)
