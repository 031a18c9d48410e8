"""The kill rate: every mutant is compiled for the CPU host and judged as the rungs judge, in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...support.cache import cache_dir, tree_hash
from ...support.errors import EnvironmentFault, UsageError
from ...support.paths import PACKAGE, kernel_root
from ..results import OTHER_CHECKS
from .forked import die_with_parent, forked
from .judging import MutantHost, judged
from .mutator import Mutant, mutants, sources, tokens
from .recording import Recording, Subject, record
from .subjects import subjects
from .units import CARDS, Unit, compiled, ptx

Record = dict[str, Any]

#: Seconds of the processor that a mutant gets: so many, and so many times what the unmutated source takes.
LEAST_SECONDS, TIMES = 1.5, 3.0
BATCH = 32
#: What is said of a survivor that the compiler proves equivalent.
SAME_CODE = "the same code, as NVRTC optimises it for sm_80 and sm_90a"
WORK, LINES = cache_dir() / "mutation", cache_dir() / "mutants.jsonl"
#: Headers that know the type and no other macro, and macros that only set the size of a pipeline: of units that differ
#: in these macros alone, one shows what the header does.
_WITHOUT_MACROS, _PIPELINE = ("packed.cuh",), ("X_BLOCKS", "STAGES", "WARPS", "CTAS", "PART_STAGES")


def judge_one(
    recording: Recording, changed: Sequence[tuple[Unit, Path, str]], seconds: float, probes: bool = True
) -> Record:
    """A mutant's record for one subject; without `probes` it gets the rungs' calls only."""

    def asked(*which: str) -> Record:
        return forked(lambda phase: judged(recording, MutantHost(changed), phase, which), seconds)

    found = asked("rungs", "walls") if probes else asked("rungs")
    if found["outcome"] == "died" and found["phase"] == "walls" and found["by"] in ("SIGSEGV", "SIGBUS"):
        found = asked("probes")  # it reads past the end of an input: does any output tell?
        if found["outcome"] == "same":
            found["overreads"] = True
    if found["outcome"] != "died":
        return found
    if found["phase"] != "rungs":
        return {"outcome": "missed", "by": found["by"]}
    return {"outcome": "killed", "by": found["by"], "checks": OTHER_CHECKS}


@dataclass
class MutantJudge:
    """A worker's recordings and times. Recordings are kept in a folder, for the other workers and later runs.

    Args:
        folder: for models, recordings and libraries.
    """

    folder: Path
    root: Path = field(default_factory=kernel_root)
    _recordings: dict[Subject, Recording] = field(default_factory=dict)
    _seconds: dict[Subject, float] = field(default_factory=dict)
    _ptx: dict[tuple[Unit, str], bytes | None] = field(default_factory=dict)

    def recording(self, subject: Subject) -> Recording:
        """What the subject is asked. Raises KernelFault where the shipped kernel itself fails."""
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
        """A name for what depends on the kernels' sources and on these."""
        return hashlib.sha256(tree_hash(self.root).encode() + b"".join(parts)).hexdigest()[:16]

    def units(self, subject: Subject, mutant: Mutant) -> list[Unit]:
        """The subject's units that hold a mutant's line; of units that differ in the pipeline alone, the first."""
        recording, last = self.recording(subject), mutant.line + mutant.old.count("\n")
        found = [
            unit for unit in recording.units
            if not recording.alive[unit].get(mutant.file, frozenset()).isdisjoint(range(mutant.line, last + 1))
        ]  # fmt: skip
        if mutant.file not in _WITHOUT_MACROS:
            return found
        first = {(unit.file, *(d for d in unit.defines if d[0] not in _PIPELINE)): unit for unit in reversed(found)}
        return [unit for unit in found if unit in first.values()]

    def batch(self, some: Sequence[Mutant]) -> Iterator[Record]:
        """The records of mutants of one file."""
        file = some[0].file
        source = (self.root / file).read_text()
        started = time.monotonic()
        names = {f"m{i}": m for i, m in enumerate(some, 1)}
        left = {name: m for name, m in names.items() if not m.unobservable}
        tried: dict[str, list[tuple[Subject, Record]]] = {name: [] for name in left}
        uncompilable: set[str] = set()
        for subject in subjects(self.root, file):
            within = {name: units for name, m in left.items() if (units := self.units(subject, m))}
            for name, found in self._of_subject(subject, left, within, source, uncompilable):
                tried[name].append((subject, found))
                if found["outcome"] == "killed":
                    yield _record(left[name], source, found, subject, time.monotonic() - started)
            done = {n for n in within if n in uncompilable or (tried[n] and tried[n][-1][1]["outcome"] == "killed")}
            left = {n: m for n, m in left.items() if n not in done}
        for name, mutant in names.items():
            if mutant.unobservable:
                yield _record(mutant, source, {"outcome": "unobservable", "by": mutant.unobservable})
            elif name in uncompilable:
                yield _record(mutant, source, {"outcome": "uncompilable", "by": ""})
            elif name in left:
                yield self._survivor(mutant, source, tried[name], started)

    def _of_subject(
        self, subject: Subject, mutants: Mapping[str, Mutant], within: Mapping[str, list[Unit]], source: str,
        uncompilable: set[str],
    ) -> Iterator[tuple[str, Record]]:  # fmt: skip
        """What a subject makes of the mutants that its units hold, by name.

        Units are compiled one after the other: a mutant that is killed, by every other check too, with the first of its
        units is not compiled into the rest. The names of those that do not compile are added to `uncompilable`.
        """
        if not within:
            return
        recording = self.recording(subject)
        libraries: dict[Unit, Path] = {}
        left = set(within)
        try:
            for number, unit in enumerate(u for u in recording.units if any(u in units for units in within.values())):
                some = [name for name in within if name in left and unit in within[name]]
                if not some:
                    continue
                changed = {name: {mutants[name].file: mutants[name].applied(source)} for name in some}
                path = self.folder / f"batch-{os.getpid()}-{number}.so"
                bad = compiled(self.root, unit, recording.units[unit], {"m0": {}, **changed}, path)
                if "m0" in bad:
                    raise EnvironmentFault(f"{unit} itself does not compile")
                uncompilable |= bad
                left -= bad
                libraries[unit] = path
                self._check_original(subject, unit, path)
                for name in some:
                    known = [(u, libraries[u], name) for u in within[name] if u in libraries]
                    last = len(known) == len(within[name])
                    if name in bad or not (last or len(known) == 1):
                        continue
                    found = judge_one(recording, known, self._limit(subject), probes=last)
                    if last or (found["outcome"] == "killed" and len(found["checks"]) == len(OTHER_CHECKS)):
                        left.discard(name)
                        yield name, found
        finally:
            for path in libraries.values():
                path.unlink(missing_ok=True)

    def _survivor(self, mutant: Mutant, source: str, tried: list[tuple[Subject, Record]], started: float) -> Record:
        spent = time.monotonic() - started
        for outcome in ("passed", "missed"):
            for subject, found in tried:
                if found["outcome"] == outcome:
                    return _record(mutant, source, found, subject, spent)
        if not tried:
            return _record(
                mutant, source, {"outcome": "unobservable", "by": "no unit that runs on a CPU holds the line"}
            )
        overreads = next((s for s, found in tried if found.get("overreads")), None)
        return _record(mutant, source, {"outcome": "same", "by": ""}, overreads, spent) | (
            {"overreads": True} if overreads else {}
        )

    def same_code(self, mutant: Mutant, source: str) -> bool:
        """Whether a GPU's compiler makes the same code of the mutant and of the original, in every unit that holds the
        mutant and for each of CARDS: a proof that it changes nothing there (Papadakis et al., ICSE 2015)."""
        changed = {mutant.file: mutant.applied(source)}
        units = {unit for subject in subjects(self.root, mutant.file) for unit in self.units(subject, mutant)}
        for unit in sorted(units, key=repr):
            for sm in CARDS:
                if (unit, sm) not in self._ptx:
                    self._ptx[unit, sm] = ptx(self.root, unit, {}, sm)
                original = self._ptx[unit, sm]  # None: a kernel for Hopper alone
                if original is not None and ptx(self.root, unit, changed, sm) != original:
                    return False
        return True

    def _check_original(self, subject: Subject, unit: Unit, library: Path) -> None:
        """Check that the unmutated source, compiled as mutants are, gives the bits of the shipped kernel, and note its
        time. It is done once for a subject and unit, by any of the workers."""
        path = self.folder / f"original-{self._key(repr((subject, unit)).encode())}"
        if not path.exists():
            found = judge_one(self.recording(subject), [(unit, library, "m0")], 300)
            if found["outcome"] != "same" or found.get("overreads"):
                raise EnvironmentFault(f"{subject}: the unmutated source, compiled as mutants are, is {found}")
            path.write_text(repr(found["spent"]))
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


def population(root: Path) -> dict[str, list[Mutant]]:
    """File → its mutants."""
    return {file: mutants(file, (root / file).read_text()) for file in sources(root)}


#: Comments, and lines that include a file.
_IGNORED = re.compile(r"//|/\*|#\s*include\b")


def hashes(root: Path) -> dict[str, str]:
    """File → the first half of the sha256 of what its mutants depend on: its code, and where it stands. Comments and
    the names of included files are left out."""
    found = {}
    for file in sources(root):
        code = [t for t in tokens((root / file).read_text()) if not _IGNORED.match(t.text)]
        text = "\n".join(f"{t.line}:{t.column} {t.text}" for t in code)
        found[file] = hashlib.sha256(text.encode()).hexdigest()[:32]
    return found


def sampled(everything: Mapping[str, list[Mutant]], fraction: float, seed: int) -> dict[str, list[Mutant]]:
    """A random part of each file's mutants, at least one; a larger fraction holds a smaller one's."""
    out = {}
    for file, all_of_it in everything.items():
        order = list(all_of_it)
        random.Random(f"{seed} {file}").shuffle(order)
        out[file] = order[: max(1, round(len(order) * fraction))]
    return out


def finished(path: Path) -> dict[str, Record]:
    """Id → the record of each mutant in a file with a record a line. A line that was cut off is left out."""
    found: dict[str, Record] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            found[entry["id"]] = entry
    return found


def _append(path: Path, entry: Record) -> None:
    with path.open("a") as f:  # one write each, so that the lines of two workers do not mix
        f.write(json.dumps(entry, ensure_ascii=False) + "\n")


_JUDGE: MutantJudge | None = None


def _start(folder: Path) -> None:
    global _JUDGE
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    _JUDGE = MutantJudge(folder)


def _work(task: tuple[list[Mutant], Path, bool]) -> tuple[int, str]:
    """Judge some mutants, or compare the code of survivors, and write their records. The answer is their number, and
    what went wrong: one batch must not end the run."""
    some, path, compares = task
    assert _JUDGE is not None
    try:
        for entry in map(_compared, some) if compares else _JUDGE.batch(some):
            _append(path, entry)
    except Exception as error:
        return len(some), f"{some[0].id if compares else some[0].file}: {error!r}"
    return len(some), ""


def _compared(mutant: Mutant) -> Record:
    """A survivor's record anew, with whether its object code is the original's."""
    assert _JUDGE is not None
    source = (_JUDGE.root / mutant.file).read_text()
    same = _JUDGE.same_code(mutant, source)
    return {**_record(mutant, source, {"outcome": "same", "by": SAME_CODE if same else ""}), "compared": True}


def run(
    options: argparse.Namespace, explained: Callable[[Record], bool] = lambda _: False,
    before: Mapping[str, Record] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Judge the mutants that are asked for and not done yet.

    Args:
        explained: whether there is a reason for a mutant's survival; `--again` and `--equivalence` leave those out.
        before: id → the record of each that was judged in earlier runs.

    Raises UsageError where no mutant has the id that `--mutant` names.
    """
    everything = population(kernel_root())
    options.work.mkdir(parents=True, exist_ok=True)
    if options.mutant:
        found = [m for some in everything.values() for m in some if m.id == options.mutant]
        if not found:
            raise UsageError(f"no mutant is called {options.mutant}")
        for entry in MutantJudge(options.work).batch(found):
            print(json.dumps(entry, ensure_ascii=False, indent=1))
        return
    if options.lines.exists() and (content := options.lines.read_bytes()) and not content.endswith(b"\n"):
        options.lines.write_bytes(content + b"\n")  # the last line was cut off
    chosen = sampled(everything, options.sample, options.seed)
    tasks = _tasks(options, everything, chosen, explained, before)
    total, done, start = sum(len(some) for some, *_ in tasks), 0, time.monotonic()
    print(f"{sum(map(len, everything.values()))} mutants, {sum(map(len, chosen.values()))} chosen, {total} to judge",
          file=sys.stderr)  # fmt: skip
    with multiprocessing.get_context("fork").Pool(options.jobs, _start, (options.work,)) as pool:
        for count, fault in pool.imap_unordered(_work, tasks):
            done += count
            spent = time.monotonic() - start
            left_s = spent / done * (total - done)
            print(f"{done}/{total}, {spent:.0f} s, {left_s:.0f} s left{'; ' + fault if fault else ''}", file=sys.stderr)
            if options.seconds and spent > options.seconds:
                print("the time is up; the next run judges what is left", file=sys.stderr)
                break


def _tasks(
    options: argparse.Namespace, everything: Mapping[str, list[Mutant]], chosen: Mapping[str, list[Mutant]],
    explained: Callable[[Record], bool], before: Mapping[str, Record],
) -> list[tuple[list[Mutant], Path, bool]]:  # fmt: skip
    """Batches of what is left to do, in random order, so that the estimate of the time left is fair."""
    lines = finished(options.lines)
    known = {**before, **lines}
    if options.equivalence:
        survivors = [m for some in everything.values() for m in some if known.get(m.id, {}).get("outcome") == "same"]
        batches = [[m] for m in survivors if "compared" not in known[m.id] and not explained(known[m.id])]
    else:
        for i, r in [*known.items()] if options.again or options.again_all else []:
            alive = r["outcome"] in ("same", "missed", "passed")
            anew = options.again_all and i not in lines and r.get("by") != SAME_CODE
            if alive and (anew or r["outcome"] != "same" or not explained(r)):
                del known[i]
        batches = []
        for file, some in chosen.items():
            if not options.only or any(part in file for part in options.only):
                left = [m for m in some if m.id not in known]
                batches += [left[i : i + BATCH] for i in range(0, len(left), BATCH)]
    tasks = [(some, options.lines, options.equivalence) for some in batches]
    random.Random(options.seed).shuffle(tasks)
    return tasks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kill`."""
    add = parser.add_argument
    add("--mutant", metavar="ID", help="judge this one alone and print what becomes of it")
    add("--sample", type=float, default=1.0, metavar="FRACTION", help="a random part of each file's mutants")
    add("-s", "--seed", type=int, default=0, help="of the random part (%(default)s)")
    add("--only", action="append", metavar="PART", help="files whose path holds this; may be repeated")
    add("--again", action="store_true", help="judge those again that nothing kills or explains")
    add("--again-all", action="store_true", help="judge all survivors again, except those in --lines")
    add("--equivalence", action="store_true", help="compare the object code of survivors with the original's")
    add("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: one a core)")
    add("--seconds", type=float, default=0.0, help="stop after this time; the next run goes on")
    add("--lines", type=Path, default=LINES, help="this run's results, one line a mutant; a later run goes on from it")
    add("--work", type=Path, default=WORK, help="models and recorded calls")
