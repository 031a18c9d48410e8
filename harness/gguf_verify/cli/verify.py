"""`gguf-verify MODEL.gguf` and `scripts/verify_model.py`: verify a kernel against llama.cpp."""

from __future__ import annotations

import argparse
import pkgutil
import textwrap
from pathlib import Path

from ..processes.sandbox import sandboxed
from ..report.writer import Kind
from ..results.options import DEFAULT_KERNEL, DEFAULT_N_PREDICT, DEFAULT_PROMPT
from ..support.errors import UsageError
from ..support.paths import PACKAGE
from .command import Command, commands
from .common import EXIT_CODES, add_common, add_prompt, add_reports, internal_errors
from .files import output
from .kernel_options import (
    add_identify,
    add_kernel_options,
    add_model,
    add_reference,
    add_tensor,
    add_thoroughness,
)
from .parser import HOW, REPORTS, WHAT, WHERE, Old, Parser, basic

# Names of the registry of rungs, repeated here because importing it would take a quarter of a second. A test compares.
RUNGS = ("bytes", "blocks", "layers", "tokens")


def build_parser() -> Parser:
    """The parser of this command."""
    parser = Parser(
        prog="gguf-verify",
        description="Prove on the bytes of a GGUF model that a CUDA kernel computes what llama.cpp computes.",
        late_epilog=_epilog,  # it lists the other commands, which imports all their modules
        short_epilog=_short_epilog,
    )
    add = parser.group(WHAT).add_argument
    add_model(parser, "the file, or the first part of a split model")
    basic(
        add(
            "--kernel",
            default=DEFAULT_KERNEL,
            metavar="KERNEL",
            help="such as FILE.cu, FILE.cu:SYMBOL or FILE.py:NAME; also FILE.so:FUNCTION, "
            "FILE.ptx:SYMBOL, FILE.cubin:SYMBOL, FILE.toml, torch.ops.NAMESPACE.OPERATOR, or the name of a kernel of "
            "this project (default: %(default)s)",
        )
    )
    add_tensor(parser, "verify only tensors whose name matches")
    add_prompt(parser, DEFAULT_PROMPT)
    basic(
        add(
            "-n",
            "--n-predict",
            type=int,
            default=DEFAULT_N_PREDICT,
            metavar="N",
            help="tokens to predict (default: %(default)s)",
        )
    )
    add(
        "-c",
        "--ctx-size",
        type=int,
        default=0,
        metavar="N",
        help="context size (default: enough for the prompt and the predicted tokens)",
    )
    basic(
        parser.group(HOW).add_argument(
            "--rungs",
            metavar="LIST",
            help=f"the rungs to run, of {','.join(RUNGS)} (default: all that fit what the kernel computes)",
        )
    )
    add_thoroughness(parser)
    add_kernel_options(parser)
    add_reference(parser)
    parser.group(WHERE).add_argument(
        "--repack",
        action="store_true",
        help="let llama.cpp repack the weights, as it does by default; repacking crashes on some machines",
    )
    parser.group(HOW).add_argument(
        "--waivers",
        type=Path,
        metavar="FILE.toml",
        help="known mismatches, each with a reason and an end date; they do not fail the run until then",
    )
    add_reports(parser, Kind.RUN, Kind.IDENTIFICATION)
    add = parser.group(REPORTS).add_argument
    add(
        "--save-case",
        type=Path,
        metavar="DIR",
        help="save the first wrong product in a new folder, as files to check with NumPy alone",
    )
    add(
        "--certificate",
        type=output,
        metavar="FILE",
        help="also write the verdict with the digests of all inputs, for `gguf-verify check-certificate`",
    )
    add(
        "--sign-with",
        type=Path,
        metavar="KEY",
        help="sign the certificate with this key of ssh-keygen; writes FILE.sig",
    )
    add_common(parser)
    add_identify(parser, "gguf-verify identify KERNEL MODEL.gguf")
    parser.add_argument(
        "--source", action=Old, type=Path, dest="source", now="`gguf-verify cost MODEL.gguf --source FILE`"
    )
    parser.add_argument(
        "--source-text",
        action=Old,
        type=Path,
        dest="source_text",
        now="`gguf-verify cost MODEL.gguf --source SOURCE --text FILE`",
    )
    parser.set_defaults(source=None, source_text=None)
    return parser


def _short_epilog() -> str:
    others = textwrap.wrap(f"commands: {', '.join(commands())}", 80, subsequent_indent="  ")
    codes = "0 verified, 1 mismatch, 2 usage, 3 machine, 4 malformed, 5 not verified"
    return "\n".join([*others, f"exit: {codes}"])


def _epilog() -> str:
    others = "\n".join(f"  gguf-verify {c.name:<20}{c.summary}" for c in commands().values() if c is not COMMAND)
    names = [f"  {', '.join(_modules(folder))}" for folder in ("families", "ladder")]
    kernels = "\n".join(textwrap.wrap(names[0] + "; one algorithm each:" + names[1][1:], 100, subsequent_indent="  "))
    codes = EXIT_CODES.format(verified="verified", mismatch="a mismatch was found")
    return (
        f"other commands, each with its own -h and --help:\n{others}\n\n"
        f"kernels (`gguf-verify explain NAME` describes one):\n{kernels}\n\n{codes}"
    )


def _modules(folder: str) -> list[str]:
    """The shipped kernels in a folder of `kernels`: each is a module of its name."""
    return sorted(m.name for m in pkgutil.iter_modules([str(PACKAGE / "kernels" / folder)]))


def run(argv: list[str]) -> int:
    """`gguf-verify [verify] …`; returns the exit code. Raises HarnessError."""
    parser = build_parser()
    args = parser.parse_args(argv)
    with internal_errors(args.detail > 0), sandboxed(args.sandbox, args.kernel_memory):
        from .runs.verify import run_verify  # late: half a second

        if args.identify:
            return _identified(args)
        return run_verify(args)


def _identified(args: argparse.Namespace) -> int:
    """`--identify`, which the command `identify` replaces. Raises HarnessError."""
    from .identify import identified

    apart = ("source", "source_text", "certificate", "sign_with", "waivers", "only_call", "save_case", "budget")
    for name in (*apart, "prompt", "file"):
        if getattr(args, name) not in (None, ""):
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} applies to a verification, not to the identification of a definition")
    return identified(args)


COMMAND = Command("verify", "verify a kernel against llama.cpp (the default command)", build_parser, run)
