"""The run behind `gguf-verify MODEL.gguf`, apart from its command line so that help needs no NumPy."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from ...invocation import command_of
from ...kernels.by_name import further
from ...report.writer import Kind
from ...results.options import DEFAULT_PROMPT, Options
from ...results.report import Report
from ...rungs.opening import Request
from ...rungs.registry import rungs_for
from ...support.errors import EXIT_INTERRUPTED, UsageError, say
from ...verification import verify
from ...verification.climb import Event
from ..common import PIPED_WIDTH, Files, asked_for, check_ranges, deliver, error_form, form, prompt_of, write_files
from ..interrupts import undisturbed
from ..verify import kernel_options

_MOST_TOKENS = 1 << 20


def run_verify(args: argparse.Namespace) -> int:
    """Verify or identify, and deliver the report; returns the exit code. Raises HarnessError."""
    from .certify import Certificates

    kind = Kind.IDENTIFICATION if args.identify else Kind.RUN
    _check(args)
    files = report_files(args, kind, rungs_for())
    options = Options(
        prompt=prompt_of(args, DEFAULT_PROMPT),
        n_predict=args.n_predict,
        ctx_size=args.ctx_size,
        repack=args.repack,
        reference=args.reference,
        save_case="" if args.save_case is None else str(args.save_case),
        **kernel_options(args),
    )
    if args.identify and (args.only_call or args.save_case or args.budget is not None):
        raise UsageError("--only-call, --save-case and --budget apply to rungs, not to --identify")
    if args.identify:
        from ...identification import identify_model

        found = identify_model(
            args.model, args.kernel, args.host, options, command=_command(args, options), ray=args.ray, jobs=args.jobs
        )
        return deliver(kind, found, found.exit_code, form(args), files)
    certificate = Certificates.asked_for(args, requested_rungs(args), further(options))
    report = verify(
        args.model,
        args.kernel,
        args.host,
        requested_rungs(args),
        options,
        told=shown_live(options, args),
        command=_command(args, options),
        source=args.source,
        source_text=args.source_text,
        waivers=args.waivers,
        interrupted_report=True,
        ray=args.ray,
        jobs=args.jobs,
    )
    exit_code = deliver_run(report, args, files)
    return exit_code if certificate is None or not report.rungs else certificate.write(report, exit_code)


def shown_live(options: Options, args: argparse.Namespace) -> Callable[[Event], object]:
    """Return the display of a run's events on standard error; it does nothing unless the options request progress."""
    if not options.progress:
        return lambda _: None
    from .live import Live  # imports rich

    return Live(error_form(args))


def deliver_run(report: Report, args: argparse.Namespace, files: Files) -> int:
    """Write the report to standard output and to files; returns the exit code."""
    if report.ended_by in EXIT_INTERRUPTED:
        if not report.rungs:
            say(f"interrupted by {report.ended_by} before anything was verified")
            with undisturbed():
                return write_files(Kind.RUN, report, report.exit_code, files)
        say(f"interrupted by {report.ended_by}")
    return deliver(Kind.RUN, report, report.exit_code, form(args, piped_width=PIPED_WIDTH), files)


def _command(args: argparse.Namespace, options: Options) -> str:
    request = Request(
        args.model,
        args.kernel,
        args.host,
        requested_rungs(args),
        options,
        source=args.source,
        source_text=args.source_text,
        waivers=args.waivers,
    )
    return command_of(request, args.file, args.identify)


def requested_rungs(args: argparse.Namespace) -> list[str] | None:
    """Return the requested rungs; None if `--rungs` was not given."""
    return None if args.rungs is None else [r.strip() for r in args.rungs.split(",") if r.strip()]


def report_files(args: argparse.Namespace, kind: Kind, rungs: Iterable[str]) -> Files:
    """Return the requested report files. Raises UsageError if one shows a rung that is not run.

    Args:
        rungs: the rungs to run without `--rungs`.
    """
    files = asked_for(args, kind)
    shown = (None, *(requested_rungs(args) or rungs))
    for writer in files:
        if writer.rung not in shown:
            raise UsageError(f"{writer.flag} shows results of the {writer.rung} rung, which --rungs does not include")
    return files


def _check(args: argparse.Namespace) -> None:
    check_ranges(("-n", args.n_predict, 1, _MOST_TOKENS), ("-c", args.ctx_size, 0, _MOST_TOKENS))
    if args.identify and (args.source is not None or args.source_text is not None):
        raise UsageError("--source applies to a verification, not to --identify")
    if args.identify and (args.certificate is not None or args.sign_with is not None):
        raise UsageError("--certificate applies to a verification, not to --identify")
    if args.only_call and args.certificate is not None:
        raise UsageError("--certificate needs a whole verification, not one call: remove --only-call")
    if args.llama is not None and args.certificate is not None:
        raise UsageError("--certificate records the libraries of llama-cpp-python: remove --llama")
    if args.identify and args.waivers is not None:
        raise UsageError("--waivers applies to a verification, not to --identify")
