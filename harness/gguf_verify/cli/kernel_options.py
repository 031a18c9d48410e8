"""Options that the commands on kernels share, and the fields of `Options` that they set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..hosts.choice import HOST_CHOICES, help_of_hosts, host_named
from ..llama.reference_names import help_of_references, reference_named
from ..processes.sandbox import KERNEL_MEMORY
from ..results.options import EFFORTS
from ..support.command_line import cores
from ..support.durations import seconds_of
from ..support.seeds import MOST_SEED, fresh_seed
from .common import (
    MOST_JOBS,
    MOST_THREADS,
    add_detail,
    add_jobs,
    add_ray,
    check_ranges,
    check_regex,
    on_terminal,
)
from .parser import HOW, LIMITS, REPORTS, WHAT, WHERE, Old, Parser, basic


def add_model(parser: Parser, help_text: str, optional: bool = False) -> None:
    """Add the model."""
    nargs = "?" if optional else None
    basic(parser.group(WHAT).add_argument("model", type=Path, nargs=nargs, metavar="MODEL.gguf", help=help_text))


def add_tensor(parser: Parser, help_text: str) -> None:
    """Add `--tensor`."""
    basic(parser.group(WHAT).add_argument("--tensor", metavar="REGEX", help=help_text))


def add_reference(parser: Parser, default: str | None = "cpu", more: str = " (default: %(default)s)") -> None:
    """Add `--reference`; `more` ends its help text."""
    basic(
        parser.group(WHERE).add_argument(
            "--reference",
            type=reference_named,
            default=default,
            metavar="DEVICE",
            help=f"where llama.cpp runs; {help_of_references()}{more}",
        )
    )


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
        "may take ten times as long, or 120 s if that is more; importing it ten times as long, from 20 to 60 s",
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
