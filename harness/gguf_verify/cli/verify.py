"""`gguf-verify MODEL.gguf` and `scripts/verify_model.py`: verify a kernel against llama.cpp."""

from __future__ import annotations

import argparse
import pkgutil
import textwrap
from pathlib import Path
from typing import Any

from ..hosts.choice import HOST_CHOICES, help_of_hosts, host_named
from ..llama.reference_names import help_of_references, reference_named
from ..processes.sandbox import KERNEL_MEMORY, sandboxed
from ..report.writer import Kind
from ..results.options import DEFAULT_KERNEL, DEFAULT_N_PREDICT, DEFAULT_PROMPT, EFFORTS
from ..support.command_line import cores
from ..support.durations import seconds_of
from ..support.errors import UsageError
from ..support.paths import PACKAGE
from ..support.seeds import MOST_SEED, fresh_seed
from .command import Command, commands
from .common import (
    EXIT_CODES,
    MOST_JOBS,
    MOST_THREADS,
    add_common,
    add_detail,
    add_jobs,
    add_prompt,
    add_ray,
    add_reports,
    check_ranges,
    check_regex,
    internal_errors,
    on_terminal,
)
from .files import output
from .parser import HOW, LIMITS, REPORTS, WHAT, WHERE, Old, Parser, basic

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
    basic(add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model"))
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
    basic(add("--tensor", metavar="REGEX", help="verify only tensors whose name matches"))
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
    basic(
        parser.group(WHERE).add_argument(
            "--reference",
            type=reference_named,
            default="cpu",
            metavar="DEVICE",
            help=f"where llama.cpp runs; {help_of_references()} (default: %(default)s)",
        )
    )
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


def add_identify(parser: Parser, now: str) -> None:
    """Add `--identify`, an option of the previous release, which is the command `identify`."""
    parser.add_argument("--identify", action=Old, dest="identify", now=f"`{now}`", sets=True)
    parser.set_defaults(identify=False)


def add_kernel_options(parser: Parser) -> None:
    """Add the options on how a kernel is run, with a model or without one."""
    what, where = (parser.group(title).add_argument for title in (WHAT, WHERE))
    add_seed(parser)
    what(
        "--declare",
        type=Path,
        metavar="FILE.toml",
        help="the declaration of your own kernel, if it is neither in the kernel's file nor beside it",
    )
    what(
        "--import",
        dest="imports",
        type=_listed,
        default=(),
        metavar="MODULES",
        help="import these modules (comma-separated) before looking up PyTorch operators",
    )
    what(
        "--load",
        dest="loads",
        type=_listed,
        default=(),
        metavar="LIBS",
        help="load these libraries (comma-separated) before looking up PyTorch operators",
    )
    basic(
        where(
            "--host",
            type=host_named,
            choices=HOST_CHOICES,
            default="auto",
            help=f"where the kernel runs; {help_of_hosts()}; auto takes the first that this machine has",
        )
    )
    add_llama(parser)
    where(
        "--exact-on",
        type=host_named,
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="where reference results are computed; cpu: by NumPy, and sums in a declared order by compiled code; gpu: "
        "by CuPy; NumPy checks a sample of both; auto: on the GPU if the kernel runs there (default: %(default)s)",
    )
    add_ray(parser, "judge tensors and GEMMs")
    add_jobs(parser)
    add_display(parser)
    limits = parser.group(LIMITS).add_argument
    limits(
        "--kernel-time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit of one call of your own kernel, in seconds (default: %(default)g); compiling it for a type "
        "may take ten times as long, or 120 s if that is more",
    )
    limits(
        "--kernel-memory",
        type=float,
        default=KERNEL_MEMORY,
        metavar="GIB",
        help="memory limit of your own kernel's processes together, in GiB (default: %(default)g)",
    )


def add_seed(parser: Parser) -> None:
    """Add `--seed`."""
    parser.group(WHAT).add_argument(
        "-s",
        "--seed",
        type=int,
        metavar="N",
        help="seed of sizes and inputs; the same seed repeats the same run (default: a new one each time)",
    )


def add_llama(parser: Parser) -> None:
    """Add `--llama`."""
    basic(
        parser.group(WHERE).add_argument(
            "--llama",
            type=Path,
            metavar="PATH",
            help="another build of llama.cpp; its folder or one library (default: llama-cpp-python)",
        )
    )


def add_display(parser: Parser) -> None:
    """Add the options on the report on the terminal and on progress."""
    reports = parser.group(REPORTS).add_argument
    add_detail(
        parser,
        "every failure, note and figure",
        "a line for each tensor, GEMM and token, and the output of llama.cpp and of your own kernel",
    )
    reports(
        "--progress",
        choices=("auto", "always", "never"),
        default="auto",
        help="show failures as they are found, rungs as they end, and bars, on stderr; auto: only on a terminal; "
        "always: elsewhere too, with a line every 30 s instead of bars (default: %(default)s)",
    )


def add_thoroughness(parser: Parser) -> None:
    """Add the options on how thoroughly a kernel is judged."""
    how = parser.group(HOW).add_argument
    add_effort(parser)
    basic(
        how(
            "--budget",
            type=_time,
            default=None,
            metavar="TIME",
            help="time limit of the run, such as 90s, 2m or 1h; a sample of the tensors is judged, and the others are "
            "reported as not verified",
        )
    )
    basic(how("-x", "--exitfirst", action="store_true", help="stop at the first failure; not at one of --waivers"))
    how(
        "--sanitize",
        action="store_true",
        help="check launches for races and invalid accesses, even with --effort quick; on a GPU by "
        "compute-sanitizer and guard pages",
    )
    how(
        "--order",
        choices=("declared", "find"),
        default="declared",
        help="find: for a kernel that declares no order of summation, find it from probes, and compare the bits of "
        "each output for the model's activations (default: %(default)s)",
    )
    how(
        "--require-coverage",
        action="store_true",
        help="exit code 5 unless each line and each way of a branch of the kernel's source was executed, or is marked: "
        "// gguf-verify: unreachable because …",
    )
    how(
        "--only-call",
        default="",
        metavar="CALL",
        help="make only this call of the kernel; a report prints the call, with --rungs and --tensor",
    )


def without_thoroughness(parser: Parser) -> None:
    """Set the defaults of those options, for a command that has none of them."""
    parser.set_defaults(
        effort=None, probes=None, thorough=None, budget=None, exitfirst=False, sanitize=False, order="declared",
        require_coverage=False, only_call="",
    )  # fmt: skip


def without_kernel(parser: Parser) -> None:
    """Set the defaults of all options on kernels, for a command that runs none."""
    without_thoroughness(parser)
    parser.set_defaults(
        host="auto", exact_on="auto", declare=None, imports=(), loads=(), ray=None, jobs=None,
        kernel_time_limit=60.0, kernel_memory=KERNEL_MEMORY,
    )  # fmt: skip


def add_effort(parser: Parser) -> None:
    """Add `--effort`, and the options of the previous release that it replaces."""
    basic(
        parser.group(HOW).add_argument(
            "--effort",
            choices=tuple(EFFORTS),
            metavar="LEVEL",
            help="quick, full (the default) or thorough; quick skips most of the further shapes and values, other "
            "schedules, repeated calls and the checked build, and the verdict says so; full tries all of them, and "
            "judges a sample of large matrices; thorough judges every element",
        )
    )
    now = {"full": "--effort full", "brief": "--effort quick"}
    parser.add_argument("--probes", action=Old, dest="probes", choices=tuple(now), now=now, replaced_by="effort")
    parser.add_argument(
        "--thorough", action=Old, dest="thorough", sets=True, now="--effort thorough", replaced_by="effort"
    )
    parser.set_defaults(probes=None, thorough=None)


def effort_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `Options` that `--effort` sets, or else the options that it replaces."""
    chosen = dict(EFFORTS[args.effort or "full"])
    return chosen | {name: value for name in chosen if (value := getattr(args, name)) is not None}


def kernel_options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of `Options` that `add_kernel_options` and `add_common` set. Raises UsageError."""
    check_ranges(
        ("-t", args.threads, 0, MOST_THREADS),
        ("-s", args.seed or 0, 0, MOST_SEED),
        ("--time-limit", args.time_limit, 0.001, 10**6),
        ("--kernel-time-limit", args.kernel_time_limit, 0.001, 10**6),
        ("--kernel-memory", args.kernel_memory, 0.25, 10**6),
        ("-j", args.jobs or 1, 1, MOST_JOBS),
    )
    check_regex(args.tensor)
    return {
        "threads": args.threads or cores(), "seed": fresh_seed() if args.seed is None else args.seed,
        "tensor": args.tensor, "time_limit": args.time_limit,
        "verbose": args.detail > 1,
        "progress": args.progress == "always" or (args.progress == "auto" and on_terminal() and args.detail >= 0),
        "budget": args.budget,
        "kernel_time_limit": args.kernel_time_limit, "kernel_memory": args.kernel_memory, **effort_of(args),
        "require_coverage": args.require_coverage, "order": args.order,
        "sanitize": args.sanitize, "exit_first": args.exitfirst, "only_call": args.only_call, "sandbox": args.sandbox,
        "declare": "" if args.declare is None else str(args.declare), "imports": args.imports, "loads": args.loads,
        "exact_on": args.exact_on, "llama": "" if args.llama is None else str(args.llama),
    }  # fmt: skip


def _time(text: str) -> float:
    try:
        return seconds_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


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
    for name in apart:
        if getattr(args, name) not in (None, ""):
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} applies to a verification, not to the identification of a definition")
    return identified(args)


COMMAND = Command("verify", "verify a kernel against llama.cpp (the default command)", build_parser, run)
