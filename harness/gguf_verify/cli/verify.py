"""`gguf-verify MODEL.gguf` and `scripts/verify_model.py`: a kernel against llama.cpp."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..hosts.choice import HOST_CHOICES, help_of_hosts
from ..identification import identify_model
from ..invocation import command_of
from ..kernels.by_name import further
from ..kernels.families import DEFAULT_KERNEL, FAMILIES
from ..kernels.family import Family
from ..kernels.ladder import KERNELS
from ..kernels.spec import KernelSpec
from ..llama.backends import help_of_references
from ..processes.sandbox import KERNEL_MEMORY, sandboxed
from ..report.writer import Kind
from ..results import DEFAULT_N_PREDICT, DEFAULT_PROMPT, Options, Report
from ..rungs import rungs_for
from ..rungs.opening import Request
from ..support.command_line import cores
from ..support.durations import seconds_of
from ..support.errors import EXIT_INTERRUPTED, UsageError, say
from ..support.seeds import MOST_SEED, fresh_seed
from ..verification import verify
from ..verification.climb import Event
from .certify import Certificates
from .command import Command, commands
from .common import (
    EXIT_CODES,
    MOST_JOBS,
    MOST_THREADS,
    PIPED_WIDTH,
    Files,
    LateEpilog,
    add_common,
    add_jobs,
    add_prompt,
    add_ray,
    add_reports,
    asked_for,
    check_ranges,
    check_regex,
    deliver,
    error_form,
    form,
    internal_errors,
    on_terminal,
    prompt_of,
    write_files,
)
from .files import output
from .interrupts import undisturbed
from .live import Live

_MOST_TOKENS = 1 << 20


def build_parser() -> argparse.ArgumentParser:
    """The parser of this command."""
    parser = LateEpilog(
        prog="gguf-verify", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Prove on the bytes of a GGUF model that a CUDA kernel computes what llama.cpp computes.",
        late_epilog=_epilog,  # it names the other commands, each of which is imported for that
    )  # fmt: skip
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL.gguf", help="the file, or the first part of a split model")
    add_prompt(parser, DEFAULT_PROMPT)
    add("-n", "--n-predict", type=int, default=DEFAULT_N_PREDICT, metavar="N",
        help="tokens to predict (default: %(default)s)")  # fmt: skip
    add("-c", "--ctx-size", type=int, default=0, metavar="N",
        help="context size (default: what the prompt and the predicted tokens need)")  # fmt: skip
    add_kernel_options(parser)
    add("--reference", default="cpu", metavar="DEVICE",
        help=f"where llama.cpp runs: {help_of_references()} (default: %(default)s)")  # fmt: skip
    add("--kernel", default=DEFAULT_KERNEL, metavar="NAME",
        help="a kernel or family, or your own: FILE.py:NAME, FILE.cu:SYMBOL, FILE.so:FUNCTION, FILE.ptx:SYMBOL, "
        "FILE.cubin:SYMBOL, FILE.toml or torch.ops.NAMESPACE.OPERATOR (default: %(default)s)")  # fmt: skip
    add("--rungs", metavar="LIST",
        help=f"the rungs to run (default: all that there are for what the kernel computes; of products "
        f"{','.join(rungs_for())})")  # fmt: skip
    add("--identify", action="store_true",
        help="instead of running rungs, find which definition the kernel and llama.cpp compute")  # fmt: skip
    add("--tensor", metavar="REGEX", help="verify only tensors whose name matches")
    add("--source", type=Path, metavar="FILE.gguf",
        help="the model that this one was quantized from: also measure what the quantization costs")  # fmt: skip
    add("--source-text", type=Path, metavar="FILE",
        help="compare predictions with the source's on this text (default: on the prompt)")  # fmt: skip
    add("--waivers", type=Path, metavar="FILE.toml",
        help="known mismatches, each with a reason and an end date, which do not fail the run until then")  # fmt: skip
    add("--repack", action="store_true",
        help="let llama.cpp repack its weights, as it does by default; this crashes on some machines")  # fmt: skip
    add("--save-case", type=Path, metavar="DIR",
        help="write the first wrong product into a new folder, as files that NumPy can check")  # fmt: skip
    add("--certificate", type=output, metavar="FILE",
        help="also write the verdict as a statement about digests, for `gguf-verify check-certificate`")  # fmt: skip
    add("--sign-with", type=Path, metavar="KEY",
        help="sign the certificate with this key of ssh-keygen, into FILE.sig")  # fmt: skip
    add_reports(parser, Kind.RUN, Kind.IDENTIFICATION)
    add_common(parser)
    return parser


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """How a kernel is run and judged, with a model or without one."""
    add = parser.add_argument
    add("--llama", type=Path, metavar="PATH",
        help="another build of llama.cpp: its folder or one library (default: llama-cpp-python)")  # fmt: skip
    add("-s", "--seed", type=int, metavar="N",
        help="seed of sizes and inputs; the same seed gives the same run (default: a new one each time)")  # fmt: skip
    add("--host", choices=HOST_CHOICES, default="auto",
        help=f"where the kernel runs; {help_of_hosts()}; auto takes the first that this machine has")  # fmt: skip
    add("--exact-on", choices=("auto", "cpu", "gpu"), default="auto",
        help="where the exact products are computed that outputs are judged by; cpu: by NumPy; gpu: by CuPy, a sample "
        "by NumPy too; auto: on the GPU, if the kernel runs there (default: %(default)s)")  # fmt: skip
    add("--declare", type=Path, metavar="FILE.toml",
        help="the declaration of your own kernel, where it is neither in its file nor beside it")  # fmt: skip
    add("--import", dest="imports", type=_listed, default=(), metavar="MODULES",
        help="import these modules, separated by commas, before operators of PyTorch are looked up")  # fmt: skip
    add("--load", dest="loads", type=_listed, default=(), metavar="LIBS",
        help="load these libraries, separated by commas, before operators of PyTorch are looked up")  # fmt: skip
    add("--kernel-time-limit", type=float, default=60.0, metavar="S",
        help="seconds that one call of your own kernel may take (default: %(default)g); compiling it for a type may "
        "take ten times that, and at least 120 s")  # fmt: skip
    add("--kernel-memory", type=float, default=KERNEL_MEMORY, metavar="GIB",
        help="memory that your own kernel's processes may take together (default: %(default)g)")  # fmt: skip
    add("--probes", choices=("full", "brief"), default="full",
        help="shapes, values and schedules beside the model's: all, or few (default: %(default)s)")  # fmt: skip
    add("--thorough", action="store_true",
        help="judge every element of large matrices; by default some of their rows, and all outputs by random "
        "combinations of rows, and the verdict says what these can miss")  # fmt: skip
    add("--sanitize", action="store_true",
        help="check launches for races and bad accesses, with few probes too; on a GPU by compute-sanitizer and guard "
        "pages")  # fmt: skip
    add("-v", "--verbose", action="store_true",
        help="show all that was found: every failure, note and figure, a line for each tensor, GEMM and token; and "
        "llama.cpp's log on stderr")  # fmt: skip
    add("-x", "--exitfirst", action="store_true", help="end the run at the first failure that no waiver covers")
    add("--budget", type=_time, default=None, metavar="TIME",
        help="how long the run may take, such as 90, 90s, 2m or 1h: it judges a sample of the tensors, and names the "
        "others as not verified")  # fmt: skip
    add("--progress", choices=("auto", "always", "never"), default="auto",
        help="failures as they are found, rungs as they end, and bars, on stderr; auto: only on a terminal; always: "
        "elsewhere too, with a line every 30 s in place of bars (default: %(default)s)")  # fmt: skip
    add_ray(parser, "judge tensors and GEMMs")
    add_jobs(parser)
    add("--only-call", default="", metavar="CALL",
        help="make only this call of the kernel; a report prints it, with --rungs and --tensor")  # fmt: skip


def kernel_options(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of `Options` that `add_kernel_options` and `add_common` ask for. Raises UsageError."""
    check_ranges(
        ("-t", args.threads, 0, MOST_THREADS), ("-s", args.seed or 0, 0, MOST_SEED),
        ("--time-limit", args.time_limit, 0.001, 10**6), ("--kernel-time-limit", args.kernel_time_limit, 0.001, 10**6),
        ("--kernel-memory", args.kernel_memory, 0.25, 10**6), ("-j", args.jobs or 1, 1, MOST_JOBS),
    )  # fmt: skip
    check_regex(args.tensor)
    return {
        "threads": args.threads or cores(), "seed": fresh_seed() if args.seed is None else args.seed,
        "tensor": args.tensor, "time_limit": args.time_limit,
        "verbose": args.verbose, "progress": args.progress == "always" or (args.progress == "auto" and on_terminal()),
        "budget": args.budget,
        "kernel_time_limit": args.kernel_time_limit, "kernel_memory": args.kernel_memory, "probes": args.probes,
        "thorough": args.thorough,
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
    listed: list[Family | KernelSpec] = [*FAMILIES.values(), *KERNELS.values()]
    kernels = "\n".join(f"  {k.name:<17}{k.title}" for k in listed)
    others = "\n".join(f"  gguf-verify {c.name:<11}{c.summary}" for c in commands().values() if c is not COMMAND)
    codes = EXIT_CODES.format(verified="verified", mismatch="a mismatch was found")
    return f"other commands, each with a --help of its own:\n{others}\n\nkernels:\n{kernels}\n\n{codes}"


def run(argv: list[str]) -> int:
    """`gguf-verify [verify] …`; returns the exit code. Raises HarnessError."""
    parser = build_parser()
    args = parser.parse_args(argv)
    with internal_errors(args.verbose), sandboxed(args.sandbox, args.kernel_memory):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    kind = Kind.IDENTIFICATION if args.identify else Kind.RUN
    _check(args)
    files = asked_for(args, kind)
    shown = (None, *(_rungs(args) or rungs_for()))
    if any(writer.rung not in shown for writer in files):
        wrong = next(w for w in files if w.rung not in shown)
        raise UsageError(f"{wrong.flag} shows what the {wrong.rung} rung finds, and --rungs leaves it out")
    options = Options(
        prompt=prompt_of(args, DEFAULT_PROMPT), n_predict=args.n_predict, ctx_size=args.ctx_size, repack=args.repack,
        reference=args.reference, save_case="" if args.save_case is None else str(args.save_case),
        **kernel_options(args),
    )  # fmt: skip
    if args.identify and (args.only_call or args.save_case or args.budget is not None):
        raise UsageError("--only-call, --save-case and --budget belong to rungs, not to --identify")
    if args.identify:
        found = identify_model(
            args.model, args.kernel, args.host, options, command=_command(args, options), ray=args.ray, jobs=args.jobs
        )
        return deliver(kind, found, found.exit_code, form(args.verbose), files)
    certificate = Certificates.asked_for(args, _rungs(args), further(options))
    report = verify(
        args.model, args.kernel, args.host, _rungs(args), options, told=shown_live(options),
        command=_command(args, options), source=args.source, source_text=args.source_text, waivers=args.waivers,
        interrupted_report=True, ray=args.ray, jobs=args.jobs,
    )  # fmt: skip
    exit_code = deliver_run(report, args.verbose, files)
    return exit_code if certificate is None or not report.rungs else certificate.write(report, exit_code)


def shown_live(options: Options) -> Callable[[Event], object]:
    """Shows the events of a run on standard error, if it shows its progress."""
    return Live(error_form()) if options.progress else lambda _: None


def deliver_run(report: Report, verbose: bool, files: Files) -> int:
    """The report to standard output, and to files; returns the exit code."""
    if report.ended_by in EXIT_INTERRUPTED:
        if not report.rungs:
            say(f"interrupted by {report.ended_by} before anything was verified")
            with undisturbed():
                return write_files(Kind.RUN, report, report.exit_code, files)
        say(f"interrupted by {report.ended_by}")
    return deliver(Kind.RUN, report, report.exit_code, form(verbose, piped_width=PIPED_WIDTH), files)


def _command(args: argparse.Namespace, options: Options) -> str:
    request = Request(
        args.model, args.kernel, args.host, _rungs(args), options, source=args.source, source_text=args.source_text,
        waivers=args.waivers,
    )  # fmt: skip
    return command_of(request, args.file, args.identify)


def _rungs(args: argparse.Namespace) -> list[str] | None:
    """Those that were asked for; None where none were named."""
    return None if args.rungs is None else [r.strip() for r in args.rungs.split(",") if r.strip()]


def _check(args: argparse.Namespace) -> None:
    check_ranges(("-n", args.n_predict, 1, _MOST_TOKENS), ("-c", args.ctx_size, 0, _MOST_TOKENS))
    if args.identify and (args.source is not None or args.source_text is not None):
        raise UsageError("--source belongs to a verification, not to --identify")
    if args.identify and (args.certificate is not None or args.sign_with is not None):
        raise UsageError("--certificate belongs to a verification, not to --identify")
    if args.only_call and args.certificate is not None:
        raise UsageError("--certificate is about a whole verification, not about one call: leave --only-call out")
    if args.llama is not None and args.certificate is not None:
        raise UsageError("--certificate names the libraries of llama-cpp-python: leave --llama out")
    if args.identify and args.waivers is not None:
        raise UsageError("--waivers belongs to a verification, not to --identify")


COMMAND = Command("verify", "verify a kernel against llama.cpp; the command where none is named", build_parser, run)
