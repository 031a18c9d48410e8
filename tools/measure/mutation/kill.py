"""The kill rate: every mutant is compiled for the CPU host and judged like in the rungs, each in its own process."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from gguf_verify.support import scratch
from gguf_verify.support.cache import cache_dir, runs_code, tree_hash
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import PACKAGE, kernel_root

from ..results import OTHER_CHECKS, append_line, read_lines
from ..workers import begin_worker
from .forked import die_with_parent, forked
from .judging import CHECKED, ORDERS, PROBES, RUNGS, WALLS, judged
from .mutator import Mutant
from .population import SAME_CODE, Record, chosen, lives, population
from .recording import Recording, Subject, record
from .subjects import subjects
from .units import CARDS, Unit, compiled, ptx

#: Processor time of a mutant: a minimum in seconds, plus this multiple of the time of the unmutated source.
LEAST_SECONDS, TIMES = 1.5, 3.0
BATCH = 32
#: Headers that depend on the type but on no other macro, and macros that only set the size of a pipeline. Of units that
#: differ only in these macros, one is enough for these headers.
_WITHOUT_MACROS, _PIPELINE = ("packed.cuh",), ("X_BLOCKS", "STAGES", "WARPS", "CTAS", "PART_STAGES")


def work_folder() -> Path:
    """The folder for models and recorded calls."""
    return cache_dir() / "mutation"


def lines_file() -> Path:
    """The file for the results of a run."""
    return cache_dir() / "mutants.jsonl"


#: Phases in which the death of the process kills the mutant.
_BY_RUNG = (RUNGS, ORDERS, CHECKED)
Libraries = dict[Unit, tuple[Path, str]]


def judge_one(recording: Recording, changed: Libraries, seconds: float, which: Sequence[str]) -> Record:
    """Return the outcome of a mutant for a subject in these phases, like `judged`, in a forked process."""
    found = forked(lambda phase: judged(recording, changed, which, phase), seconds)
    if found["outcome"] != "died":
        return found
    if found["phase"] not in _BY_RUNG:
        return {"outcome": "missed", "by": found["by"]}
    return {"outcome": "killed", "by": found["by"], "checks": OTHER_CHECKS if found["phase"] == RUNGS else []}


@dataclass
class MutantJudge:
    """A worker's recordings and times. Recordings are stored in a folder for other workers and later runs.

    Args:
        folder: for models, recordings and libraries.
    """

    folder: Path
    root: Path = field(default_factory=kernel_root)
    _recordings: dict[Subject, Recording] = field(default_factory=dict)
    _seconds: dict[Subject, float] = field(default_factory=dict)
    _ptx: dict[tuple[Unit, str], bytes | None] = field(default_factory=dict)

    def recording(self, subject: Subject) -> Recording:
        """Return the subject's recorded calls. Raises KernelFault if the shipped kernel itself fails."""
        if subject not in self._recordings:
            asked_by = [*PACKAGE.glob("rungs/**/*.py"), *PACKAGE.glob("semantics/*.py")]
            asked_by += [Path(__file__).with_name(name) for name in ("recording.py", "probes.py")]
            key = self._key(*(path.read_bytes() for path in sorted(asked_by)))
            path = self.folder / f"recording-{subject.kernel}-{subject.fmt}-{key}.pickle"
            if path.exists():
                self._recordings[subject] = pickle.loads(path.read_bytes())
            else:
                self._recordings[subject] = record(subject, self.folder)
                part = path.with_suffix(f".{os.getpid()}")
                part.write_bytes(pickle.dumps(self._recordings[subject]))
                part.replace(path)
        return self._recordings[subject]

    def _key(self, *parts: bytes) -> str:
        """Return a cache key for the kernels' sources and these parts."""
        return hashlib.sha256(tree_hash(self.root).encode() + b"".join(parts)).hexdigest()[:16]

    def units(self, subject: Subject, mutant: Mutant) -> list[Unit]:
        """Return the subject's units that contain a mutant's line; of those that differ in the pipeline, the first."""
        recording, last = self.recording(subject), mutant.line + mutant.old.count("\n")
        found = [
            unit for unit in recording.units
            if not recording.alive[unit].get(mutant.file, frozenset()).isdisjoint(range(mutant.line, last + 1))
        ]  # fmt: skip
        if mutant.file not in _WITHOUT_MACROS:
            return found
        found.sort(key=lambda unit: unit not in recording.under_schedules)
        first = {(unit.file, *(d for d in unit.defines if d[0] not in _PIPELINE)): unit for unit in reversed(found)}
        return [unit for unit in found if unit in first.values()]

    def batch(self, some: Sequence[Mutant]) -> Iterator[Record]:
        """Yield the record of each mutant of one file as soon as it is known; survivors come last."""
        file = some[0].file
        source = (self.root / file).read_text()
        started = time.monotonic()
        for mutant in some:
            if mutant.unobservable:
                yield _record(mutant, source, {"outcome": "unobservable", "by": mutant.unobservable})
        left = {f"m{i}": m for i, m in enumerate(some, 1) if not m.unobservable}
        tried: dict[str, list[tuple[Subject, Record]]] = {name: [] for name in left}
        for subject in subjects(self.root, file):
            within = {name: units for name, m in left.items() if (units := self.units(subject, m))}
            uncompilable: set[str] = set()
            for name, found in self._of_subject(subject, left, within, source, uncompilable) if within else ():
                tried[name].append((subject, found))
                if found["outcome"] == "killed":
                    yield _record(left.pop(name), source, found, subject, time.monotonic() - started)
            for name in sorted(uncompilable & left.keys()):
                yield _record(left.pop(name), source, {"outcome": "uncompilable", "by": ""})
        for name, mutant in left.items():
            yield self._survivor(mutant, source, tried[name], started)

    def _of_subject(
        self, subject: Subject, mutants: Mapping[str, Mutant], within: Mapping[str, list[Unit]], source: str,
        uncompilable: set[str],
    ) -> Iterator[tuple[str, Record]]:  # fmt: skip
        """Yield the outcomes, for one subject, of the mutants that its units contain, by name.

        Cheap phases come first. Units are compiled one at a time. If the first unit already kills a mutant, also by all
        other checks, the mutant is not compiled into the rest. Checked builds are only made of mutants that survive
        other schedules. The names of mutants that do not compile are added to `uncompilable`.
        """
        recording = self.recording(subject)
        folder = (self.folder if runs_code(self.folder) else cache_dir()) / f"batch-{os.getpid()}"
        folder.mkdir(exist_ok=True)
        built: dict[str, Libraries] = {name: {} for name in within}
        alive: dict[str, Record] = {}
        texts = {name: {mutants[name].file: mutants[name].applied(source)} for name in within}

        def compile_in(unit: Unit, some: Sequence[str], checked: bool) -> set[str]:
            """Compile a unit with some mutants and return the names of those that do not compile."""
            path = folder / f"{'checked' if checked else 'ordinary'}-{recording.number(unit)}.so"
            sources = {"m0": {}, **{name: texts[name] for name in some}}
            bad = compiled(self.root, unit, recording.units[unit], sources, path, checked)
            if "m0" in bad:
                raise EnvironmentFault(f"{unit} itself does not compile")
            self._check_original(subject, unit, path, checked)
            for name in set(some) - bad:
                built[name][unit] = path, name
            return bad

        try:
            left = set(within)
            for unit in recording.units:
                some = [name for name in within if name in left and unit in within[name]]
                bad = compile_in(unit, some, False) if some else set()
                uncompilable |= bad
                left -= bad
                for name in (n for n in some if n not in bad):
                    last = len(built[name]) == len(within[name])
                    if not last and len(built[name]) > 1:
                        continue
                    which = (RUNGS, ORDERS) if last else (RUNGS,)
                    found = judge_one(recording, built[name], self._limit(subject), which)
                    if last or (found["outcome"] == "killed" and len(found["checks"]) == len(OTHER_CHECKS)):
                        left.discard(name)
                        if found["outcome"] == "killed":
                            yield name, found
                        else:
                            alive[name] = found
            ordinary, built = built, {name: {} for name in alive}
            for unit in recording.units if alive else ():
                if unit in recording.under_schedules and (some := [n for n in alive if unit in within[n]]):
                    compile_in(unit, some, True)
            for name, before in alive.items():
                found = before
                if built[name]:
                    found = judge_one(recording, built[name], 10 * self._limit(subject), (CHECKED,))
                if found["outcome"] == "same" and before["outcome"] == "same":
                    found = judge_one(recording, ordinary[name], self._limit(subject), (WALLS, PROBES))
                yield name, found if found["outcome"] != "same" else before
        finally:
            shutil.rmtree(folder)

    def _survivor(self, mutant: Mutant, source: str, tried: list[tuple[Subject, Record]], started: float) -> Record:
        spent = time.monotonic() - started
        for outcome in ("passed", "missed"):
            for subject, found in tried:
                if found["outcome"] == outcome:
                    return _record(mutant, source, found, subject, spent)
        if not tried:
            return _record(
                mutant, source, {"outcome": "unobservable", "by": "no unit that runs on a CPU contains the line"}
            )
        return _record(mutant, source, {"outcome": "same", "by": ""}, None, spent)

    def same_code(self, mutant: Mutant, source: str) -> bool:
        """Whether a GPU compiler generates the same code for the mutant and the original, in every unit that contains
        the mutant and for each of CARDS: a proof that it changes nothing there (Papadakis et al., ICSE 2015)."""
        changed = {mutant.file: mutant.applied(source)}
        units = {unit for subject in subjects(self.root, mutant.file) for unit in self.units(subject, mutant)}
        for unit in sorted(units, key=repr):
            for sm in CARDS:
                if (unit, sm) not in self._ptx:
                    self._ptx[unit, sm] = ptx(self.root, unit, {}, sm)
                original = self._ptx[unit, sm]  # None: a kernel that only runs on Hopper
                if original is not None and ptx(self.root, unit, changed, sm) != original:
                    return False
        return True

    def _check_original(self, subject: Subject, unit: Unit, library: Path, checked: bool) -> None:
        """Check that the unmutated source, compiled like mutants, gives the bits of the shipped kernel, and record its
        time. One of the workers does this once for each subject and unit."""
        path = self.folder / f"original-{self._key(repr((subject, unit, checked)).encode())}"
        if not path.exists():
            which = (CHECKED,) if checked else (RUNGS, ORDERS, WALLS, PROBES)
            found = judge_one(self.recording(subject), {unit: (library, "m0")}, 300, which)
            if found["outcome"] != "same":
                raise EnvironmentFault(f"{subject}: the unmutated source, compiled as mutants are, is {found}")
            path.write_text(repr(found["spent"]))
        if not checked:
            with contextlib.suppress(ValueError):  # another worker is writing it
                self._seconds[subject] = max(self._seconds.get(subject, 0.0), float(path.read_text()))

    def _limit(self, subject: Subject) -> float:
        return LEAST_SECONDS + TIMES * self._seconds.get(subject, 1.0)


def _record(
    mutant: Mutant, source: str, found: Record, subject: Subject | None = None, seconds: float = 0.0
) -> Record:  # fmt: skip
    out: Record = {"id": mutant.id, "outcome": found["outcome"], "by": found["by"], "diff": mutant.diff(source)}
    if subject is not None:
        out["subject"] = str(subject)
    if "checks" in found:
        out["checks"] = list(found["checks"])
    return out | {"seconds": round(seconds, 2)}


# -- a run ------------------------------------------------------------------------------------------------------------


def finished(path: Path) -> dict[str, Record]:
    """Read a file with one record per line: id → record. Truncated lines are skipped."""
    return {entry["id"]: entry for entry in read_lines(path) if "id" in entry}


_JUDGE: MutantJudge | None = None


def _start(folder: Path, parents: Path) -> None:
    global _JUDGE
    begin_worker(parents)
    die_with_parent()
    _JUDGE = MutantJudge(folder)


def _work(task: tuple[list[Mutant], Path, bool]) -> tuple[int, str]:
    """Judge some mutants, or compare the code of survivors, and write their records. Returns their number and the
    error message, if any: an error in one batch must not end the run."""
    some, path, compares = task
    assert _JUDGE is not None
    try:
        for entry in map(_compared, some) if compares else _JUDGE.batch(some):
            append_line(path, entry)
    except Exception as error:
        return len(some), f"{some[0].id if compares else some[0].file}: {error!r}"
    return len(some), ""


def _compared(mutant: Mutant) -> Record:
    """Return a new record of a survivor that tells whether its object code equals the original's."""
    assert _JUDGE is not None
    source = (_JUDGE.root / mutant.file).read_text()
    same = _JUDGE.same_code(mutant, source)
    return {**_record(mutant, source, {"outcome": "same", "by": SAME_CODE if same else ""}), "compared": True}


def run(options: argparse.Namespace, before: Mapping[str, Record] = MappingProxyType({})) -> None:
    """Judge the requested mutants that are not done yet.

    A mutant is done if --lines contains it or, except with --sample and --again, if an earlier run judged it.

    Args:
        before: records of earlier runs by id.

    Raises UsageError if no mutant has the id of `--mutant`.
    """
    everything = population(kernel_root())
    options.work.mkdir(parents=True, exist_ok=True)
    if options.mutant:
        found = [m for some in everything.values() for m in some if m.id == options.mutant]
        if not found:
            raise UsageError(f"no mutant has the id {options.mutant}")
        for entry in MutantJudge(options.work).batch(found):
            write_lines(json.dumps(entry, ensure_ascii=False, indent=1))
        return
    if options.lines.exists() and (content := options.lines.read_bytes()) and not content.endswith(b"\n"):
        options.lines.write_bytes(content + b"\n")  # the last line was truncated
    tasks = _tasks(options, chosen(options, everything, before), before)
    total, done, start = sum(len(some) for some, *_ in tasks), 0, time.monotonic()
    print(f"{sum(map(len, everything.values()))} mutants, {total} to judge", file=sys.stderr)
    with multiprocessing.get_context("fork").Pool(options.jobs, _start, (options.work, scratch.top())) as pool:
        for count, fault in pool.imap_unordered(_work, tasks):
            done += count
            spent = time.monotonic() - start
            left_s = spent / done * (total - done)
            print(f"{done}/{total}, {spent:.0f} s, {left_s:.0f} s left{'; ' + fault if fault else ''}", file=sys.stderr)
            if options.seconds and spent > options.seconds:
                print("time limit reached; the next run judges the rest", file=sys.stderr)
                break


def _tasks(
    options: argparse.Namespace, some: Sequence[Mutant], before: Mapping[str, Record]
) -> list[tuple[list[Mutant], Path, bool]]:  # fmt: skip
    """Return batches of the remaining work, in random order, so that the estimate of the remaining time is good."""
    lines = finished(options.lines)
    if options.equivalence:
        known = {**before, **lines}
        alive = [m for m in some if m.id in known and lives(known[m.id]) and "compared" not in known[m.id]]
        batches = [[m] for m in alive]
    else:
        known = lines if options.sample or options.again else {**before, **lines}
        of_files: dict[str, list[Mutant]] = {}
        for mutant in some:
            if mutant.id not in known:
                of_files.setdefault(mutant.file, []).append(mutant)
        batches = [left[i : i + BATCH] for left in of_files.values() for i in range(0, len(left), BATCH)]
    tasks = [(batch, options.lines, options.equivalence) for batch in batches]
    random.Random(options.seed).shuffle(tasks)
    return tasks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kill`."""
    add = parser.add_argument
    add("--mutant", metavar="ID", help="only judge this mutant and print its outcome")
    add(
        "--sample",
        type=int,
        default=0,
        metavar="N",
        help="judge about N mutants, in proportion from each kind (0: all)",
    )
    today = int(datetime.now(UTC).strftime("%Y%m%d"))
    add(
        "-s",
        "--seed",
        type=int,
        default=today,
        help="seed of the sample (default: the date, so that nights differ)",
    )
    add(
        "--guarded",
        action="store_true",
        help="mutants of foreign kernels that run under random conditions, verified with and without guidance; "
        "--sample counts the wrong kernels among them",
    )
    add("--only", action="append", metavar="PART", help="only judge files whose path contains this; may be repeated")
    add("--again", action="store_true", help="judge survivors again unless a compiler proves them equivalent")
    add("--equivalence", action="store_true", help="compare the object code of survivors with the original's")
    add(
        "-j",
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="number of processes (default: one per core)",
    )
    add("--seconds", type=float, default=0.0, help="stop after this time; the next run resumes")
    add(
        "--lines",
        type=Path,
        default=lines_file(),
        help="file for results, one line per mutant; a later run resumes from it",
    )
    add("--work", type=Path, default=work_folder(), help="folder for models and recorded calls")
