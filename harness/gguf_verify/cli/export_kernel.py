"""`gguf-verify export-kernel q8_1_decode --type Q4_K -M 1 -N 4096 -K 4096`: write a shipped kernel as a header."""

from __future__ import annotations

import re
from pathlib import Path

from ..support.errors import UsageError, say
from ..support.text import printable
from .command import Command
from .common import EXIT_CODES
from .new_kernel import write
from .parser import Parser

_EPILOG = """\
examples:
  gguf-verify export-kernel q8_1_decode --type Q4_K -M 1 -N 4096 -K 4096 -o q4_k.cuh
  gguf-verify export-kernel q8_1 --type Q8_0 -M 512 -N 14336 -K 4096 --arch 90

The header is self-contained, and several fit in one translation unit. examples/standalone is a program with two.

"""


def build_parser() -> Parser:
    """The parser of this command."""
    from ..formats.tensor_types import FORMATS
    from ..kernels.families import FAMILIES
    from ..kernels.ladder import KERNELS

    weights = [name for name, fmt in FORMATS.items() if fmt.weights]
    parser = Parser(
        prog="gguf-verify export-kernel",
        description="Write a kernel of this project as one CUDA C++ header, for one weight type and one shape.",
        epilog=_EPILOG + EXIT_CODES.format(verified="written", mismatch="never"),
    )
    add = parser.add_argument
    add("kernel", metavar="KERNEL", help=f"a kernel, or a family that chooses one: {', '.join([*FAMILIES, *KERNELS])}")
    add("--type", choices=weights, required=True, metavar="TYPE", help=f"type of the weights: {', '.join(weights)}")
    add("-M", type=int, required=True, metavar="TOKENS", help="rows of activations and outputs")
    add("-N", type=int, required=True, metavar="ROWS", help="rows of the weights")
    add("-K", type=int, required=True, metavar="COLUMNS", help="columns of the weights")
    add("--arch", default="90", metavar="SM", help="the GPU's compute capability, such as 80 (default: %(default)s)")
    add("--name", default="", help="name of the namespace inside gguf:: (default: kernel, type and shape)")
    add(
        "-o", "--output", type=Path, metavar="FILE", help="the header's path (default: its name, in the current folder)"
    )
    parser.show_first("kernel", "--type", "-M", "-N", "-K", "--arch", "-o")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify export-kernel …`; returns the exit code. Raises HarnessError."""
    from ..formats.tensor_types import FORMATS
    from ..kernels.by_name import find_kernel
    from ..kernels.family import Family
    from ..kernels.spec import Problem
    from ..kernels.standalone import Exported

    args = build_parser().parse_args(argv)
    if not re.fullmatch(r"\d{2,3}", args.arch):
        raise UsageError(f"--arch must be a compute capability such as 80, not {args.arch[:40]!a}")
    if args.name and not re.fullmatch(r"[A-Za-z]\w*", args.name, re.ASCII):
        raise UsageError(f"--name must be a C++ identifier, not {args.name[:40]!a}")
    found, fmt = find_kernel(args.kernel), FORMATS[args.type]
    if isinstance(found, Family):
        found = found.choose(Problem(fmt, args.M, args.N, args.K, int(args.arch)))
    exported = Exported.of(found, fmt, args.M, args.N, args.K, args.arch)
    path = args.output or Path(f"{args.name or exported.name}.cuh")
    write({path: exported.text(args.name)})
    say(f"wrote {printable(str(path), 200)}: {found.name}, {fmt.name}")
    return 0


COMMAND = Command("export-kernel", "write a shipped kernel as a header for other programs", build_parser, run)
