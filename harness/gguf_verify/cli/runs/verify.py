"""The run behind `gguf-verify MODEL.gguf`, apart from its command line so that help needs no NumPy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from rich.text import Text

from ...invocation import command_of
from ...kernels.by_name import further
from ...report.terminal.console import rendered
from ...report.terminal.failures import Distinct, failure_lines
from ...report.terminal.run import rung_line
from ...report.writer import Form, Kind
from ...results.failures import Failure
from ...results.options import DEFAULT_PROMPT, Options
from ...results.report import Report
from ...results.rungs import RungResult
from ...rungs import rungs_for
from ...rungs.opening import Request
from ...support.errors import EXIT_INTERRUPTED, UsageError, say
from ...support.progress import print_above_bars
from ...verification import verify
from ...verification.climb import Event, Failed, RungEnds
from ..common import PIPED_WIDTH, Files, asked_for, check_ranges, deliver, error_form, form, prompt_of, write_files
from ..interrupts import undisturbed
from ..verify import kernel_options

_MOST_TOKENS = 1 << 20


def run_verify(args: argparse.Namespace) -> int:
    """Verify or identify, and deliver the report; returns the exit code. Raises HarnessError."""
    from .certify import Certificates

    kind = Kind.IDENTIFICATION if args.identify else Kind.RUN
    _check(args)
    files = asked_for(args, kind)
    shown = (None, *(_rungs(args) or rungs_for()))
    if any(writer.rung not in shown for writer in files):
        wrong = next(w for w in files if w.rung not in shown)
        raise UsageError(f"{wrong.flag} shows results of the {wrong.rung} rung, which --rungs does not include")
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
        return deliver(kind, found, found.exit_code, form(args.verbose), files)
    certificate = Certificates.asked_for(args, _rungs(args), further(options))
    report = verify(
        args.model,
        args.kernel,
        args.host,
        _rungs(args),
        options,
        told=shown_live(options),
        command=_command(args, options),
        source=args.source,
        source_text=args.source_text,
        waivers=args.waivers,
        interrupted_report=True,
        ray=args.ray,
        jobs=args.jobs,
    )
    exit_code = deliver_run(report, args.verbose, files)
    return exit_code if certificate is None or not report.rungs else certificate.write(report, exit_code)


def shown_live(options: Options) -> Callable[[Event], object]:
    """Return the display of a run's events on standard error; it does nothing unless the options request progress."""
    return Live(error_form()) if options.progress else lambda _: None


class Live:
    """Prints the events of a run. A rung that takes long shows a bar, so its beginning is not printed.

    Args:
        shown: format of the lines.
    """

    def __init__(self, shown: Form) -> None:
        self._form = shown
        self._distinct = Distinct()
        self._shown = 0

    def __call__(self, event: Event) -> None:
        """Print one event."""
        if isinstance(event, Failed):
            self._failed(event.result, event.failure)
        elif isinstance(event, RungEnds):
            self._ended(event.result)

    def _failed(self, result: RungResult, failure: Failure) -> None:
        """Print a failure in the words of the report, unless it repeats one already shown."""
        if self._distinct.adds(result, failure):
            self._shown += 1
            self._print(rendered(failure_lines(result, failure, self._form), self._form))

    def _ended(self, result: RungResult) -> None:
        """Print a line for the rung, after one that says how many failures were not shown."""
        if result.n_failures > self._shown:
            more = f"… {self._shown:,} of {result.n_failures:,} failures of the {result.name} rung are shown"
            self._print(rendered([Text(more)], self._form))
        self._shown = 0
        self._print(rendered([rung_line(result, self._form)], self._form))

    def _print(self, text: str) -> None:
        if sys.stderr is not None:
            print_above_bars(text)


def deliver_run(report: Report, verbose: bool, files: Files) -> int:
    """Write the report to standard output and to files; returns the exit code."""
    if report.ended_by in EXIT_INTERRUPTED:
        if not report.rungs:
            say(f"interrupted by {report.ended_by} before anything was verified")
            with undisturbed():
                return write_files(Kind.RUN, report, report.exit_code, files)
        say(f"interrupted by {report.ended_by}")
    return deliver(Kind.RUN, report, report.exit_code, form(verbose, piped_width=PIPED_WIDTH), files)


def _command(args: argparse.Namespace, options: Options) -> str:
    request = Request(
        args.model,
        args.kernel,
        args.host,
        _rungs(args),
        options,
        source=args.source,
        source_text=args.source_text,
        waivers=args.waivers,
    )
    return command_of(request, args.file, args.identify)


def _rungs(args: argparse.Namespace) -> list[str] | None:
    """Return the requested rungs; None if `--rungs` was not given."""
    return None if args.rungs is None else [r.strip() for r in args.rungs.split(",") if r.strip()]


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
