"""The mutation score: how reliably the verifier distinguishes incorrect kernels from correct ones.

The shipped CUDA sources are changed one token at a time. Each mutant gets the calls of the blocks and layers rungs on
the CPU host.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gguf_verify.support.errors import UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import kernel_root

from .. import markdown, results
from ..measure import Measure
from . import catalogue, check, guided, kill, population, report

_HELP = """\
The number of incorrect kernels that gguf-verify detects, compared with other checks.

    python -m tools.measure mutation kill                # all mutants of the sources; a later run resumes
    python -m tools.measure mutation kill --sample 300   # a new sample each night; exits with 1 if a wrong one survives
    python -m tools.measure mutation kill --again        # survivors once more, after a rung was improved
    python -m tools.measure mutation kill --equivalence  # compare the object code of survivors with the original's
    python -m tools.measure mutation kill --mutant ID    # one mutant
    python -m tools.measure mutation kill --guarded --sample 500   # faults under random conditions
    python -m tools.measure mutation check               # compare some verdicts with those of gguf-verify itself
    python -m tools.measure mutation catalogue           # the faults known to the diagnosis
    python -m tools.measure mutation report              # write the pages from docs/mutation.json
"""


def _kill(options: argparse.Namespace) -> int:
    if options.guarded:
        results.load(options.results)
        return guided.measure(options)
    data = results.load(options.results)  # fail now rather than after hours of work if the file is damaged
    sources = population.hashes(kernel_root())
    before = report.records(data, sources)
    if options.mutant:
        kill.run(options, before)
        return 0
    everything = population.population(kernel_root())
    requested = [m.id for of_file in everything.values() for m in of_file]
    if options.sample:
        requested = [m.id for m in population.chosen(options, everything, before)]
    counts = {file: len(some) for file, some in everything.items()}

    def shown() -> tuple[results.Data, int, bool]:
        """Print what is judged so far. Returns it, the number of mutants that remain, and whether a wrong one survives.

        Every judged mutant is a line of --lines as soon as it is judged, so this is complete at any time.
        """
        lines = kill.finished(options.lines)
        judged = lines if options.sample else before | lines
        found = {name: judged[name] for name in requested if name in judged}
        made = report.collected(found, counts, sources)
        wrong = [r for r in found.values() if r["outcome"] in ("missed", "passed")]
        write_lines("\n".join([report.summary(made), *(f"SURVIVED {r['id']}: {r['by']}" for r in wrong)]))
        if left := len(requested) - len(found):
            print(f"{left} mutants remain; the same command continues from {options.lines}", file=sys.stderr)
        return made, left, bool(wrong)

    try:
        kill.run(options, before)
    except KeyboardInterrupt:
        shown()
        raise
    made, left, wrong = shown()
    if not left:
        results.update(options.results, **{"sample" if options.sample else "kill": made})
    return 1 if wrong else 0


def _check(options: argparse.Namespace) -> int:
    results.load(options.results)
    results.update(options.results, checked=check.measured(options))
    return 0


def _catalogue(options: argparse.Namespace) -> int:
    results.load(options.results)
    options.work.mkdir(parents=True, exist_ok=True)
    results.update(options.results, catalogue=catalogue.measured(options.work))
    return 0


def _report(options: argparse.Namespace) -> int:
    data = results.load(options.results)
    if "kill" not in data:
        raise UsageError(f"{options.results} has no results of `kill`")
    markdown.fill(markdown.EVIDENCE, report.tables(data), "mutation")
    report.PAGE.write_text(report.page(data))
    return 0


def _catalogue_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--work", type=Path, default=kill.work_folder(), help="models and recorded calls")


_PARTS = (
    Measure("kill", "judge mutants of the sources", kill.__doc__ or "", kill.add_arguments, _kill),
    Measure("check", "run gguf-verify itself on some mutants", check.__doc__ or "", check.add_arguments, _check),
    Measure("catalogue", "judge the catalogue of known faults", catalogue.__doc__ or "", _catalogue_arguments,
            _catalogue),
    Measure("report", "write the pages from the results", report.__doc__ or "", lambda _: None, _report),
)  # fmt: skip


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="kill|check|catalogue|report")
    for part in _PARTS:
        results.add_argument(part.add_to(commands))


MEASURE = Measure(
    "mutation", "the mutation score: the share of incorrect kernels that are detected", _HELP, _add_arguments
)
