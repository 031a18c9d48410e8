"""How well the harness tells a wrong kernel from a right one, measured.

    python scripts/mutation_score.py kill --sample 0.1   # mutants of the shipped sources; a later run goes on
    python scripts/mutation_score.py kill --again        # those that survived, after a rung has learned something
    python scripts/mutation_score.py kill --equivalence  # of those that survived: is their object code the original's?
    python scripts/mutation_score.py kill --mutant ID    # one of them
    python scripts/mutation_score.py check               # of some of them: does verify_model.py say the same?
    python scripts/mutation_score.py catalogue           # the faults that the diagnosis knows
    python scripts/mutation_score.py naming              # are faults named, and found, for what and where they are?
    python scripts/mutation_score.py alarms --host gpu   # does a right output fail?
    python scripts/mutation_score.py report              # write docs/evidence.md and mutation.md

Mutants run on the CPU host, alarms on either. Exit codes: 1 a wrong name, a place that was missed or an alarm, 2 usage,
3 the environment cannot.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processes are forked

from ...support.errors import EnvironmentFault
from ...support.paths import kernel_root
from ..bench.figures import between_markers
from . import alarms as mutation_alarms
from . import catalogue as mutation_catalogue
from . import check as mutation_check
from . import kill as mutation_kill
from . import naming as mutation_naming
from . import report

#: Parts that have a table: add_arguments(parser), measure(options), rows(figures) and faults(figures).
PARTS: dict[str, ModuleType] = {"naming": mutation_naming, "alarms": mutation_alarms}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    kill = commands.add_parser("kill", help="mutants of the sources")
    mutation_kill.add_arguments(kill)
    check = commands.add_parser("check", help="verify_model.py itself on some mutants")
    mutation_check.add_arguments(check)
    faults = commands.add_parser("catalogue", help="the catalogue of known faults")
    faults.add_argument("--work", type=Path, default=mutation_kill.WORK, help="models and recorded calls")
    for name, part in PARTS.items():
        part.add_arguments(commands.add_parser(name))
    written = commands.add_parser("report", help="write docs/evidence.md and docs/mutation.md")
    for command in (kill, check, faults, written, *(commands.choices[name] for name in PARTS)):
        command.add_argument("--results", type=Path, default=report.RESULTS, metavar="FILE")
    return parser


def tables(data: dict[str, Any]) -> dict[str, str]:
    """Marker → what stands between it and its end in docs/evidence.md."""
    made = {"kill": report.table(data), "run": [report.summary(data)]} if "kill" in data else {}
    for name, part in PARTS.items():
        if name in data:
            hosts = data[name].values() if name == "alarms" else [data[name]]
            rows = [row for figures in hosts for row in part.rows(figures)]
            made[name] = ["| | measured | goal |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return {name: "\n".join(lines) for name, lines in made.items()}


def _measure(options: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """The exit code, and the parts of the results that were measured."""
    if options.command == "kill":
        reasons = report.reasons()
        sources = mutation_kill.hashes(kernel_root())
        before = report.records(report.load(options.results), sources)
        code = mutation_kill.run(options, lambda survivor: bool(report.reason(survivor, reasons)), before)
        if options.mutant:
            return code, {}
        everything = mutation_kill.population(kernel_root())
        judged = before | mutation_kill.finished(options.lines)
        records = report.whole_part(judged, everything, options.seed)
        beside = [r for i, r in judged.items() if i not in records]
        counts = {file: len(some) for file, some in everything.items()}
        return code, {"kill": report.collected(records, counts, sources, beside)}
    if options.command == "check":
        return 0, {"checked": mutation_check.measure(options)}
    if options.command == "catalogue":
        options.work.mkdir(parents=True, exist_ok=True)
        return 0, {"catalogue": mutation_catalogue.measure(options.work)}
    part = PARTS[options.command]
    figures = part.measure(options)
    for row in part.rows(figures):
        print(" | ".join(row))
    faults = part.faults(figures)
    for line in faults:
        print(line)
    if options.command == "alarms":  # one host at a time
        figures = report.load(options.results).get("alarms", {}) | {figures["host"]: figures}
    return (1 if faults else 0), {options.command: figures}


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    report.load(options.results)  # before hours of work: it is no other file
    if options.command != "report":
        try:
            code, parts = _measure(options)
        except EnvironmentFault as error:
            print(f"mutation_score.py: {error}", file=sys.stderr)
            return 3
        if parts:
            report.save(options.results, report.load(options.results) | parts)
        return code
    data = report.load(options.results)
    if "kill" not in data:
        print(f"mutation_score.py: {options.results} has no results of `kill`", file=sys.stderr)
        return 2
    report.TABLES.write_text(between_markers(report.TABLES.read_text(), tables(data), "mutation"))
    report.PAGE.write_text(report.page(data))
    return 0


if __name__ == "__main__":
    sys.exit(main())
