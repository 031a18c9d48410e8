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
from ...support.text import printable
from ...verification import verify
from ...verification.climb import Event
from ..common import PIPED_WIDTH, Files, asked_for, check_ranges, deliver, error_form, form, prompt_of, write_files
from ..interrupts import undisturbed
from ..kernel import reference_of
from ..kernel_options import kernel_options

_MOST_TOKENS = 1 << 20


def run_verify(args: argparse.Namespace) -> int:
    """Verify, and deliver the report; returns the exit code. Raises HarnessError."""
    from .certify import Certificates

    _check(args)
    files, options = report_files(args, Kind.RUN, rungs_for()), options_of(args)
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
    certificate = Certificates.asked_for(args, requested_rungs(args), further(options))
    report = verified(request, args)
    exit_code = deliver_run(report, args, files)
    return exit_code if certificate is None or not report.rungs else certificate.write(report, exit_code)


def verified(request: Request, args: argparse.Namespace) -> Report:
    """Return the report of a request from the command line. Raises HarnessError."""
    options = request.options
    return verify(
        request.path,
        request.kernel,
        request.host,
        request.rungs,
        options,
        told=shown_live(options, args),
        command=command_of(request, args.file),
        source=request.source,
        source_text=request.source_text,
        waivers=request.waivers,
        interrupted_report=True,
        ray=args.ray,
        jobs=args.jobs,
    )


def options_of(args: argparse.Namespace) -> Options:
    """Return the options of a command line; those that its command lacks have their defaults. Raises UsageError."""
    usual, given = Options(), vars(args)
    reference = reference_of(args) if given.get("reference", "") is None else given.get("reference", usual.reference)
    return Options(
        prompt=prompt_of(args, DEFAULT_PROMPT) if "prompt" in given else usual.prompt,
        n_predict=given.get("n_predict", usual.n_predict),
        ctx_size=given.get("ctx_size", usual.ctx_size),
        repack=given.get("repack", usual.repack),
        reference=reference,
        save_case="" if given.get("save_case") is None else str(args.save_case),
        **kernel_options(args),
    )


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
    for file in files:
        if file.writer.rung not in shown and file.named:
            name = printable(file.path.name, 64)
            raise UsageError(f"{name} shows results of the {file.writer.rung} rung, which --rungs does not include")
    return [file for file in files if file.writer.rung in shown]


def _check(args: argparse.Namespace) -> None:
    check_ranges(("-n", args.n_predict, 1, _MOST_TOKENS), ("-c", args.ctx_size, 0, _MOST_TOKENS))
    if args.only_call and args.certificate is not None:
        raise UsageError("--certificate needs a whole verification, not one call: remove --only-call")
    if args.llama is not None and args.certificate is not None:
        raise UsageError("--certificate records the libraries of llama-cpp-python: remove --llama")
