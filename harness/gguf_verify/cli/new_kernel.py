"""`gguf-verify new-kernel my.cu --type Q4_K`: write a kernel to start from, and verify it."""

from __future__ import annotations

from pathlib import Path

from ..hosts.choice import HOST_CHOICES
from ..processes.sandbox import MODES
from ..support.blas import load_numpy
from ..support.command_line import quoted
from ..support.errors import UsageError, say
from ..support.text import printable
from . import kernel
from .command import Command
from .common import EXIT_CODES
from .parser import Parser

_EPILOG = """\
examples:
  gguf-verify new-kernel my_kernel.cu
  gguf-verify new-kernel my_kernel.cu --type Q4_K --semantics q8_1
  gguf-verify new-kernel my_kernel.py --type Q6_K

The new kernel is naive, complete and correct. Make it faster, and run `gguf-verify kernel my_kernel.cu:gemm` after each
step.

"""


def build_parser() -> Parser:
    """The parser of this command."""
    from ..formats.tensor_types import FORMATS
    from ..kernels.foreign.template import SEMANTICS, TAKES

    parser = Parser(
        prog="gguf-verify new-kernel",
        description="Write a naive kernel to start from, with its declaration, and verify it on random data.",
        epilog=_EPILOG + EXIT_CODES.format(verified="written, and verified on random data", mismatch="a mismatch"),
    )
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="a new FILE.cu in CUDA C++ or FILE.py in Python")
    add(
        "--type",
        choices=list(FORMATS),
        default="Q4_0",
        metavar="TYPE",
        help=f"the weights' type: {', '.join(FORMATS)} (default: %(default)s)",
    )
    add(
        "--semantics",
        choices=SEMANTICS,
        default=SEMANTICS[0],
        help="the definition: f32 multiplies decoded weights by unchanged activations, q8_1 multiplies integers, with "
        "activations quantized to Q8_1 (default: %(default)s)",
    )
    add(
        "--takes",
        choices=TAKES,
        default="",
        help="dtype of the activations (default: float32 with f32, blocks with q8_1; float32 with q8_1 means that the "
        "kernel quantizes them itself)",
    )
    add("--output", choices=TAKES, default="float32", help="dtype of the outputs (default: %(default)s)")
    add("--host", choices=HOST_CHOICES, default="auto", help="where the kernel runs, as in `gguf-verify kernel`")
    add("--sandbox", choices=MODES, default="auto", help="isolation of the kernel, as in `gguf-verify kernel`")
    parser.show_first("file", "--type", "--semantics", "--takes", "--output")
    return parser


def run(argv: list[str]) -> int:
    """`gguf-verify new-kernel …`; returns the exit code. Raises HarnessError."""
    from ..kernels.foreign.template import Template

    load_numpy()  # before the formats load it
    args = build_parser().parse_args(argv)
    files = Template.of(args.type, args.semantics, args.takes, args.output).files(args.file)
    write(files)
    shown = ", ".join(printable(str(path), 200) for path in files)
    check = [f"{args.file}:gemm"]
    for flag in ("host", "sandbox"):
        if getattr(args, flag) != "auto":
            check += [f"--{flag}", getattr(args, flag)]
    say(f"wrote {shown}; now: gguf-verify kernel {' '.join(map(quoted, check))}")
    return kernel.run(check)


def write(files: dict[Path, str]) -> None:
    """Write new files, all or none. A file that exists with the same text is kept. Raises UsageError."""
    new = {}
    for path, text in files.items():
        if not path.parent.is_dir():
            raise UsageError(f"there is no folder {printable(str(path.parent), 200)} to write into: create it first")
        if path.is_symlink() or path.exists():
            if path == list(files)[-1] or not path.is_file() or path.read_bytes() != text.encode():
                raise UsageError(f"{printable(str(path), 200)} exists and is not overwritten: choose another name")
        else:
            new[path] = text
    written = []
    try:
        for path, text in new.items():
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(f"cannot write {printable(str(path), 200)}: {error.strerror}") from None


COMMAND = Command("new-kernel", "write a kernel to start from, and verify it on random data", build_parser, run)
