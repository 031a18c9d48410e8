"""`mutation kill --guarded`: mutants under random conditions, verified with and without guidance by their own code.

Each is verified as a user does it, `gguf-verify kernel FILE.cu:gemm --host cpu`, first without guidance: without the
shapes and values that follow from the comparisons in its code. Guidance only adds calls, so it is turned on for those
that pass. The sample is the first mutants of a seed that are wrong at their witnesses.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.results.failures import Failure
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.rungs.drawn import Drawn
from gguf_verify.rungs.plan import PLAN
from gguf_verify.support import scratch
from gguf_verify.support.errors import EXIT_ENVIRONMENT, EnvironmentFault, UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.verification import verify

from .. import results
from ..results import Data, append_line, read_lines
from ..workers import begin_worker
from . import witness
from .forked import die_with_parent
from .guarded import FILE, SUBJECTS, GuardedMutant, Subject, drawn
from .population import Record

#: Seconds for one call of a mutant, which may loop forever.
_SECONDS = 20.0
#: Mutants that could not be judged, from which on the machine is at fault, and their share.
_ERRORS, _SHARE_OF_ERRORS = 5, 0.1
#: Share of mutants that are wrong kernels, for the size of the first round.
_KEPT = 0.6


# -- one mutant -------------------------------------------------------------------------------------------------------


def judge(mutant: GuardedMutant) -> Record:
    """Return the record of a mutant.

    `outcome` is "killed", "passed", "uncompilable", "equal", "rounding" (these three are replaced by the next mutant)
    or "error". "without" and "guided" are the two verdicts: whether it was killed, and by what. "reported" says for a
    survivor whether its report names the condition's line among the code that never ran, or only one way.
    """
    record: Record = {
        "id": mutant.id, "subject": mutant.subject.name, "guard": mutant.guard.text, "kind": mutant.guard.kind,
        "forms": list(mutant.guard.forms), "operator": mutant.edit.operator, "diff": mutant.diff,
    }  # fmt: skip
    started = time.monotonic()
    with scratch.temporary("mutant") as folder:
        name = mutant.write(folder)
        try:
            kernel = open_foreign(name, CpuHost(1), _SECONDS)
        except UsageError:
            return record | {"outcome": "uncompilable"}
        try:
            with np.errstate(all="ignore"):
                answer = witness.tried(mutant, kernel, _unchanged(mutant.subject))
        finally:
            kernel.close()
        if answer != "wrong":
            return record | {"outcome": answer}
        record["without"] = _verdict(_verified(mutant, name, False))
        if record["without"]["killed"]:
            return record | {"outcome": "killed", "guided": record["without"], "seconds": _since(started)}
        report = _verified(mutant, name, True)
        record["guided"] = _verdict(report)
        record["outcome"] = "killed" if record["guided"]["killed"] else "passed"
        # Whether a report names the line of the condition, or one behind it, as code that did not run.
        last = mutant.line + mutant.edit.old.count("\n")
        record["reported"] = any(
            place.file == FILE and place.line <= last and mutant.line <= place.last for place in report.not_run
        )
        return record | {"seconds": _since(started)}


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


@cache
def _unchanged(subject: Subject) -> ForeignKernel:
    """The correct kernel, in a process for all mutants of this process."""
    with scratch.temporary("unchanged") as folder:
        for name, text in subject.files.items():
            (folder / name).write_text(text)
        return open_foreign(f"{folder / FILE}:gemm", CpuHost(1))


def _verified(mutant: GuardedMutant, name: str, guided: bool) -> Report:
    probes: Literal["full", "planned"] = "full" if guided else "planned"
    options = Options(
        seed=mutant.number, threads=1, progress=False, exit_first=True, probes=probes, kernel_time_limit=_SECONDS
    )
    return verify(Drawn(), name, CpuHost(1), options=options, jobs=1)


def _verdict(report: Report) -> Record:
    """The verdict: whether it is no pass, and what showed it. Raises EnvironmentFault."""
    failures = [failure for rung in report.rungs for failure in rung.failures]
    faults = [str(rung.fault) for rung in report.rungs if rung.fault]
    if report.exit_code == EXIT_ENVIRONMENT:
        raise EnvironmentFault(f"{report.verdict}: {faults[:1]}")
    if not report.exit_code:
        return {"killed": False, "by": ""}
    return {"killed": True, "by": _by(failures[0]) if failures else report.verdict}


#: The place of a comparison in the words of a failure.
_PLACE = re.compile(r"\(\S+:\d+: ")
_WORDS = {
    "block": "blocks by themselves", "own": "the product", "shared": "the product",
    "other-m": "other numbers of tokens",
    "again": "other numbers of tokens", "cut": "a row and a block fewer", "probe": "the probe plan",
    "schedule": "other schedules", "grid": "sizes of grids", "index": "single thread blocks of large products",
}  # fmt: skip


def _by(failure: Failure) -> str:
    if _PLACE.search(failure.what):
        return "comparisons"
    return "the product" if failure.call is None else _WORDS.get(failure.call.kind, failure.call.kind)


# -- a run ------------------------------------------------------------------------------------------------------------


def _start(folder: Path) -> None:
    begin_worker(folder)
    die_with_parent()


def _work(task: tuple[int, int, Path]) -> str:
    """Judge a mutant and write its record. Returns the error message, if any."""
    seed, number, path = task
    mutant = drawn(seed, number)
    try:
        append_line(path, judge(mutant))
    except Exception as error:  # an error in one mutant must not end the run
        append_line(path, {"id": mutant.id, "outcome": "error", "by": repr(error)})
        return f"{mutant.id}: {error!r}"
    return ""


def judged(path: Path, seed: int) -> list[Record]:
    """Return the records in a file of the mutants 0, 1, … of a seed, up to the first one that is missing.

    Later ones are not used: the first to end would be the first to be killed.
    """
    found = {entry["id"]: entry for entry in read_lines(path) if "id" in entry}
    out: list[Record] = []
    while (record := found.get(f"guarded:{seed}:{len(out)}")) is not None:
        out.append(record)
    return out


def sample(records: Sequence[Record], count: int) -> list[Record]:
    """Return the first records of wrong kernels."""
    return [record for record in records if record["outcome"] in ("killed", "passed")][:count]


def run(options: argparse.Namespace) -> tuple[list[Record], bool]:
    """Judge mutants until the sample is complete or the time is over.

    Returns the records of those that were tried, and whether the sample is complete.
    """
    start, count = time.monotonic(), options.sample or 1
    with multiprocessing.get_context("fork").Pool(options.jobs, _start, (scratch.top(),)) as pool:
        while True:
            records = judged(options.lines, options.seed)
            errors = [record for record in records if record["outcome"] == "error"]
            if len(errors) > max(_ERRORS, _SHARE_OF_ERRORS * len(records)):
                raise EnvironmentFault(f"{len(errors)} mutants could not be judged: {errors[0]['by']}")
            kept = len(sample(records, count))
            if kept >= count:
                return records, True
            done = {entry["id"] for entry in read_lines(options.lines) if "id" in entry}
            share = max(0.2, kept / len(records)) if records else _KEPT
            end = len(records) + max(options.jobs, round((count - kept) / share))
            numbers = [i for i in range(len(records), end) if f"guarded:{options.seed}:{i}" not in done]
            tasks = [(options.seed, i, options.lines) for i in numbers]
            for n, fault in enumerate(pool.imap_unordered(_work, tasks), 1):
                spent = time.monotonic() - start
                print(f"{n}/{len(tasks)}, {spent:.0f} s{'; ' + fault if fault else ''}", file=sys.stderr)
                if len(sample(judged(options.lines, options.seed), count)) >= count:
                    break
                if options.seconds and spent > options.seconds:
                    print("time limit reached; the same command continues", file=sys.stderr)
                    return judged(options.lines, options.seed), False


def measure(options: argparse.Namespace) -> int:
    """Judge mutants, print the figures and store them. Returns 1 if one survives that no report names.

    Only the outcome of one is printed if `options.mutant` is its ID.
    """
    if options.mutant:
        _, seed, number = options.mutant.split(":")
        record = judge(drawn(int(seed), int(number)))
        write_lines(json.dumps(record, ensure_ascii=False))
        return 1 if record["outcome"] == "passed" and not record["reported"] else 0
    records, complete = run(options)
    figures = collected(records, options.sample or 1, options.seed)
    write_lines("\n".join([summary(figures), *map(survivor, figures["survivors"])]))
    results.update(options.results, guarded=figures)
    return 1 if complete and any(not s["reported"] for s in figures["survivors"]) else 0


# -- figures ----------------------------------------------------------------------------------------------------------


def collected(records: Sequence[Record], count: int, seed: int) -> Data:
    """Return the part `guarded` of the results."""
    found = sample(records, count)
    tried = records[: records.index(found[-1]) + 1] if len(found) == count else list(records)
    names = ("id", "subject", "guard", "kind", "operator", "diff", "reported")
    return {
        "version": f"probe plan {PLAN}", "seed": seed, "subjects": [subject.name for subject in SUBJECTS],
        "tried": len(tried), "outcomes": _counts(record["outcome"] for record in tried),
        "kinds": {kind: _tally([r for r in found if kind in _classes(r)]) for kind in CLASSES},
        "all": _tally(found),
        "without by": _counts(r["without"]["by"] for r in found if r["without"]["killed"]),
        "guided by": _counts(
            r["guided"]["by"] for r in found if r["guided"]["killed"] and not r["without"]["killed"]
        ),
        "survivors": [{name: r[name] for name in names} for r in found if r["outcome"] == "passed"],
    }  # fmt: skip


#: Rows of the table: kinds of quantities, and forms of comparisons.
CLASSES = ("M", "N", "K", "product", "data", "call number", "==", "<", ">=", "window", "remainder", "two comparisons")


def _classes(record: Record) -> set[str]:
    two = {"two comparisons"} if len(record["forms"]) > 1 else set()
    return {*record["kind"].split(" and "), *record["forms"], *two}


def _tally(records: Sequence[Record]) -> dict[str, int]:
    alive = [r for r in records if not r["guided"]["killed"]]
    return {
        "mutants": len(records), "without": sum(r["without"]["killed"] for r in records),
        "guided": len(records) - len(alive), "reported": sum(r["reported"] for r in alive),
    }  # fmt: skip


def _counts(values: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def summary(figures: Data) -> str:
    """Summarize the run in a few sentences."""
    of, outcomes = figures["all"], figures["outcomes"]
    dropped = ", ".join(f"{outcomes.get(name, 0)} {words}" for name, words in _DROPPED.items())
    silent = of["mutants"] - of["guided"] - of["reported"]
    by = ", ".join(f"{n:,} by {words}" for words, n in figures["guided by"].items())
    without = ", ".join(f"{n:,} by {words}" for words, n in figures["without by"].items())
    return (
        f"Of {figures['tried']:,} mutants, {of['mutants']:,} are wrong kernels; {dropped}. Without guidance "
        f"{_share(of['without'], of['mutants'])} were killed ({without or 'none'}), with it "
        f"{_share(of['guided'], of['mutants'])} ({by or 'none'}, beside these). Of the others, the report of "
        f"{of['reported']:,} says that the condition's code did not run both ways, and {silent:,} are silent. They "
        f"were judged by {figures['version']}, seed {figures['seed']}."
    )


_DROPPED = {
    "uncompilable": "do not compile", "equal": "change no output at their witness",
    "rounding": "only change its rounding there", "error": "could not be judged",
}  # fmt: skip


def _share(part: int, whole: int) -> str:
    percent = 100 * part / whole if whole else 0.0
    return f"{part:,} ({'100' if part == whole else f'{min(percent, 99.9):.1f}'} %)"


def rows(figures: Data) -> list[list[str]]:
    """Return table rows: condition, mutants, killed without guidance, killed with it, reported as not run, silent."""
    of: Mapping[str, Mapping[str, int]] = {**figures["kinds"], "all": figures["all"]}
    return [
        [
            name if name in "MNK" or name[0].isalpha() else f"`{name}`", f"{t['mutants']:,}",
            _share(t["without"], t["mutants"]), _share(t["guided"], t["mutants"]), f"{t['reported']:,}",
            f"{t['mutants'] - t['guided'] - t['reported']:,}",
        ]
        for name, t in of.items() if t["mutants"]
    ]  # fmt: skip


def survivor(record: Record) -> str:
    """Return a line about a mutant that is not killed."""
    reported = "the report names its line" if record["reported"] else "silent"
    return f"`{record['id']}` {record['subject']}: `if ({record['guard']})` `{record['diff']}`: {reported}"
