"""`gguf-verify MODEL.gguf` and `scripts/verify_model.py`: verify a kernel against llama.cpp."""

from __future__ import annotations

import argparse
import pkgutil
import textwrap
from pathlib import Path
from typing import Any

from ..hosts.choice import HOST_CHOICES, help_of_hosts
from ..llama.reference_names import help_of_references
from ..processes.sandbox import KERNEL_MEMORY, sandboxed
from ..report.writer import Kind
from ..results.options import DEFAULT_KERNEL, DEFAULT_N_PREDICT, DEFAULT_PROMPT
from ..support.command_line import cores
from ..support.durations import seconds_of
from ..support.paths import PACKAGE
from ..support.seeds import MOST_SEED, fresh_seed
from .command import Command, commands
from .common import (
    EXIT_CODES,
    MOST_JOBS,
    MOST_THREADS,
    LateEpilog,
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

# Names of the registry of rungs, repeated here because importing it would take a quarter of a second. A test compares.
RUNGS = ("bytes", "blocks", "layers", "tokens")


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = LateEpilog(
        prog="gguf-verify",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Prove on the bytes of a GGUF model that a CUDA kernel computes what llama.cpp computes.",
        late_epilog=_epilog,  # it lists the other commands, which imports all their modules
    )
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model")
    add_prompt(parser, DEFAULT_PROMPT)
    add(
        "-n",
        "--n-predict",
        type=int,
        default=DEFAULT_N_PREDICT,
        metavar="N",
        help="tokens to predict (default: %(default)s)",
    )
    add(
        "-c",
        "--ctx-size",
        type=int,
        default=0,
        metavar="N",
        help="context size (default: enough for the prompt and the predicted tokens)",
    )
    add_kernel_options(parser)
    add(
        "--reference",
        default="cpu",
        metavar="DEVICE",
        help=f"where llama.cpp runs: {help_of_references()} (default: %(default)s)",
    )
    add(
        "--kernel",
        default=DEFAULT_KERNEL,
        metavar="NAME",
        help="a kernel or family, or your own: FILE.py:NAME, FILE.cu:SYMBOL, FILE.so:FUNCTION, FILE.ptx:SYMBOL, "
        "FILE.cubin:SYMBOL, FILE.toml or torch.ops.NAMESPACE.OPERATOR (default: %(default)s)",
    )
    add(
        "--rungs",
        metavar="LIST",
        help=f"rungs to run (default: all that fit what the kernel computes; for products {','.join(RUNGS)})",
    )
    add(
        "--identify",
        action="store_true",
        help="instead of running rungs, find the definitions that the kernel and llama.cpp compute",
    )
    add("--tensor", metavar="REGEX", help="verify only tensors whose name matches")
    add(
        "--source",
        type=Path,
        metavar="FILE.gguf",
        help="the model that this one was quantized from: also measure the cost of the quantization",
    )
    add(
        "--source-text",
        type=Path,
        metavar="FILE",
        help="text to compare the predictions with those of --source on (default: the prompt)",
    )
    add(
        "--waivers",
        type=Path,
        metavar="FILE.toml",
        help="known mismatches, each with a reason and an end date; they do not fail the run until then",
    )
    add(
        "--repack",
        action="store_true",
        help="let llama.cpp repack the weights, as it does by default; repacking crashes on some machines",
    )
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
    add_reports(parser, Kind.RUN, Kind.IDENTIFICATION)
    add_common(parser)
    return parser


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on how a kernel is run and judged, with a model or without one."""
    add = parser.add_argument
    add(
        "--llama",
        type=Path,
        metavar="PATH",
        help="another build of llama.cpp: its folder or one library (default: llama-cpp-python)",
    )
    add(
        "-s",
        "--seed",
        type=int,
        metavar="N",
        help="seed of sizes and inputs; the same seed repeats the same run (default: a new one each time)",
    )
    add(
        "--host",
        choices=HOST_CHOICES,
        default="auto",
        help=f"where the kernel runs; {help_of_hosts()}; auto takes the first that this machine has",
    )
    add(
        "--exact-on",
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="where reference results are computed; cpu: by NumPy; gpu: by CuPy, with a sample checked by NumPy; auto: "
        "on the GPU if the kernel runs there (default: %(default)s)",
    )
    add(
        "--declare",
        type=Path,
        metavar="FILE.toml",
        help="the declaration of your own kernel, if it is neither in the kernel's file nor beside it",
    )
    add(
        "--import",
        dest="imports",
        type=_listed,
        default=(),
        metavar="MODULES",
        help="import these modules (comma-separated) before looking up PyTorch operators",
    )
    add(
        "--load",
        dest="loads",
        type=_listed,
        default=(),
        metavar="LIBS",
        help="load these libraries (comma-separated) before looking up PyTorch operators",
    )
    add(
        "--kernel-time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="time limit of one call of your own kernel, in seconds (default: %(default)g); compiling it for a type "
        "may take ten times as long, or 120 s if that is more",
    )
    add(
        "--kernel-memory",
        type=float,
        default=KERNEL_MEMORY,
        metavar="GIB",
        help="memory limit of your own kernel's processes together, in GiB (default: %(default)g)",
    )
    add(
        "--probes",
        choices=("full", "brief"),
        default="full",
        help="shapes, values and schedules to try in addition to the model's: all, or few (default: %(default)s)",
    )
    add(
        "--thorough",
        action="store_true",
        help="judge every element of large matrices; by default only some of their rows are judged one by one, and "
        "whole outputs by random combinations of rows; the verdict says what these can miss",
    )
    add(
        "--require-coverage",
        action="store_true",
        help="exit code 5 unless each line and each way of a branch of the kernel's source was executed, or is marked: "
        "// gguf-verify: unreachable because …",
    )
    add(
        "--order",
        choices=("declared", "find"),
        default="declared",
        help="find: for a kernel that declares no order of summation, find it from probes, and compare the bits of "
        "each output for the model's activations (default: %(default)s)",
    )
    add(
        "--sanitize",
        action="store_true",
        help="check launches for races and invalid accesses, even with --probes brief; on a GPU by "
        "compute-sanitizer and guard pages",
    )
    add_detail(
        parser,
        "every failure, note and figure",
        "a line for each tensor, GEMM and token, and the output of llama.cpp and of your own kernel",
    )
    add("-x", "--exitfirst", action="store_true", help="stop at the first failure that no waiver covers")
    add(
        "--budget",
        type=_time,
        default=None,
        metavar="TIME",
        help="time limit of the run, such as 90, 90s, 2m or 1h: a sample of the tensors is judged, and the others are "
        "reported as not verified",
    )
    add(
        "--progress",
        choices=("auto", "always", "never"),
        default="auto",
        help="show failures as they are found, rungs as they end, and bars, on stderr; auto: only on a terminal; "
        "always: elsewhere too, with a line every 30 s instead of bars (default: %(default)s)",
    )
    add_ray(parser, "judge tensors and GEMMs")
    add_jobs(parser)
    add(
        "--only-call",
        default="",
        metavar="CALL",
        help="make only this call of the kernel; a report prints the call, with --rungs and --tensor",
    )


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
        "kernel_time_limit": args.kernel_time_limit, "kernel_memory": args.kernel_memory, "probes": args.probes,
        "thorough": args.thorough, "require_coverage": args.require_coverage, "order": args.order,
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


def _epilog() -> str:
    others = "\n".join(f"  gguf-verify {c.name:<18}{c.summary}" for c in commands().values() if c is not COMMAND)
    names = [f"  {', '.join(_modules(folder))}" for folder in ("families", "ladder")]
    kernels = "\n".join(textwrap.wrap(names[0] + "; one algorithm each:" + names[1][1:], 100, subsequent_indent="  "))
    codes = EXIT_CODES.format(verified="verified", mismatch="a mismatch was found")
    return (
        f"other commands, each with its own --help:\n{others}\n\n"
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

        return run_verify(args)


COMMAND = Command("verify", "verify a kernel against llama.cpp (the default command)", build_parser, run)
