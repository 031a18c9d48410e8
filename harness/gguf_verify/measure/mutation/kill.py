"""Kill rate: every mutant compiled for the CPU host and judged as the rungs judge, in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import hashlib
import json
import multiprocessing
import os
import pickle
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...formats import ELEMENTS, FORMATS
from ...kernels.ladder import KERNELS
from ...support.cache import cache_dir, tree_hash
from ...support.errors import EnvironmentFault
from ...support.paths import PACKAGE, kernel_root
from .gate import ELEMENTS_KERNEL, GATES, Gate, MutantHost, Subject, judged, libraries_of, record
from .mutator import Mutant, mutants, sources
from .units import CARDS, Unit, closure, compiled, header_of, ptx

Record = dict[str, Any]

#: Seconds of the processor that a mutant gets: so many, and so many times what the unmutated source takes.
LEAST_SECONDS, TIMES = 1.5, 3.0
_MEMORY = 6 << 30
BATCH = 32
#: What is said of a survivor that the compiler proves equivalent.
SAME_CODE = "the same code, as NVRTC optimises it for sm_80 and sm_90a"
WORK, LINES = cache_dir() / "mutation", cache_dir() / "mutation.jsonl"


# -- which kernels show a mutant --------------------------------------------------------------------------------------

#: Types that differ in what the sources of kernels distinguish: the kind of minimum, groups of 16, fifth bits, 8 bits
#: and codes with a sign.
_KINDS = ("Q4_0", "Q2_K", "Q5_1", "Q8_0")
_PACKED_KINDS = ("Q4_0", "Q5_1", "Q8_0")
_PLAIN = ("q8_1_naive", "q8_1_dp4a", "f32_naive")


#: Headers that know the type and no other macro: what a ring is made of does not change what is made of them.
_WITHOUT_MACROS, _RING = ("packed.cuh",), ("X_BLOCKS", "STAGES", "WARPS", "CTAS", "PART_STAGES")


def subjects(root: Path, file: str) -> list[Subject]:
    """Kernels and types that show what changed in a file, the cheap ones first. A mutant is tried on all of them until
    one kills it."""
    users = [s for s in KERNELS.values() if f'#include "{Path(file).name}"' in (root / s.file).read_text()]
    own = [s for s in KERNELS.values() if s.file == file]
    of_file = [*users, *own] if file.endswith(".cu") else []  # 09 is 07 again, and has smaller tiles: it is faster here
    if of_file:
        kinds = _PACKED_KINDS if of_file[0].formats is not None else _KINDS
        return [Subject(spec.name, fmt) for spec in of_file for fmt in kinds]
    elements = [f.name for f in ELEMENTS.values() if file in ("gemm/elements/01_naive.cu", header_of(f))]
    if elements:
        return [Subject(ELEMENTS_KERNEL, fmt) for fmt in elements]
    if file.startswith("formats/"):
        units = {f: Unit("formats/format.cuh", tuple(FORMATS[f].macros.items())) for f in FORMATS}
        including = [f for f, unit in units.items() if file in closure(root, unit)]
        of_type = [f for f in including if header_of(FORMATS[f]) == file]
        # of words.cuh and grid.cuh, types that use each of their functions
        telling = ("Q4_0", "Q5_0", "Q3_K", "Q1_0", "Q2_K", "IQ2_XXS")
        some = of_type or [f for f in including if f in telling] or including[:2]
        of_gemv = [Subject("q8_1_gemv", fmt) for fmt in of_type if KERNELS["q8_1_gemv"].covers(FORMATS[fmt])]
        return [Subject(kernel, fmt) for kernel in _PLAIN for fmt in some] + of_gemv
    packed = [(kernel, fmt) for fmt in ("Q8_0", "Q5_1", "Q4_0", "Q5_0") for kernel in ("q8_1_split_k", "q8_1_gemv")]
    by_hand = {
        "common.cuh": [("q8_1_naive", "Q4_0"), ("q8_1_naive", "Q2_K"), ("q8_1_naive", "Q5_1"),
                       ("q8_1_dp4a_tiled", "Q4_0"), ("q8_1_tiled", "Q2_K"), ("q8_1_tiled", "Q5_1")],
        "packed.cuh": packed,
        "quantize/q8_1.cu": [("q8_1_naive", "Q4_0")],
        "quantize/q8_1.cuh": [("q8_1_naive", "Q4_0"), ("q8_1_wgmma", "Q4_0"), ("q8_1_gemv", "Q4_0")],
        "pack/activations.cu": [("q8_1_wgmma", "Q4_0"), ("q8_1_wgmma", "Q8_0"), ("q8_1_split_k", "Q5_1")],
        "pack/weights.cu": [("q8_1_wgmma", "Q4_0"), ("q8_1_gemv", "Q5_1"), ("q8_1_wgmma", "Q8_0")],
    }  # fmt: skip
    return [Subject(kernel, fmt) for kernel, fmt in by_hand.get(file, [])]


def row_of(file: str) -> str:
    """The row of the table that a source belongs to."""
    first = file.split("/")[0]
    names = {"gemm": "GEMM sources", "formats": "format headers", "quantize": "quantizer", "pack": "packing"}
    return names.get(first, {"packed.cuh": "packing", "common.cuh": "GEMM sources"}.get(file, "GEMM sources"))


# -- one mutant, in a process of its own ------------------------------------------------------------------------------


def _die_with_parent() -> None:
    """Linux: SIGKILL once the process that started this one has ended, which cannot tell us itself any more."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def in_child(work: Callable[[Callable[[str], None]], Record], seconds: float) -> Record:
    """What `work` returns, from a forked process. It is given a function that says which phase has begun; a death or
    the time limit is told with the phase: {"outcome": "died", "by": …, "phase": …}. Raises EnvironmentFault where
    `work` itself fails."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            _die_with_parent()
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
            cpu = int(seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 2)

            def tell(phase: str) -> None:
                os.write(write, json.dumps({"phase": phase}).encode() + b"\n")

            try:
                answer = work(tell)
            except Exception as error:  # ours, not the mutant's: a kernel throws nothing
                answer = {"outcome": "error", "by": repr(error)}
            os.write(write, json.dumps(answer).encode() + b"\n")
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    # what counts is the processor's time; this is for one that waits, and others may use the cores too
    said, end = b"", time.monotonic() + 50 * seconds + 60
    late = False
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            late = True
            os.kill(pid, signal.SIGKILL)
            break
        part = os.read(read, 65536)
        if not part:
            break
        said += part
    os.close(read)
    _, status, used = os.wait4(pid, 0)
    spent = used.ru_utime + used.ru_stime
    phase = ""
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if answer.get("outcome") == "error":
                raise EnvironmentFault(f"judging failed: {answer['by']}")
            if "outcome" in answer:
                return {**answer, "spent": spent}
            phase = answer.get("phase", phase)
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if late or killed_by in (signal.SIGXCPU, signal.SIGKILL):
        return {"outcome": "died", "by": "time limit", "phase": phase}
    name = signal.Signals(killed_by).name if killed_by else f"exit code {os.WEXITSTATUS(status)}"
    return {"outcome": "died", "by": name, "phase": phase}


def judge_one(gate: Gate, changed: Sequence[tuple[Unit, Path, str]], seconds: float, probes: bool = True) -> Record:
    """A mutant's record for one subject; without `probes` only the rungs are asked."""

    def asking(*which: str) -> Record:
        return in_child(lambda phase: judged(gate, MutantHost(libraries_of(changed)), phase, which), seconds)

    found = asking("rungs", "walls") if probes else asking("rungs")
    if found["outcome"] == "died" and found["phase"] == "walls" and found["by"] in ("SIGSEGV", "SIGBUS"):
        found = asking("probes")  # it reads past the end of an input: does any output tell?
        if found["outcome"] == "same":
            found["overreads"] = True
    if found["outcome"] != "died":
        return found
    if found["phase"] != "rungs":
        return {"outcome": "missed", "by": found["by"]}
    return {"outcome": "killed", "by": found["by"], "gates": dict.fromkeys(GATES, True)}


# -- batches ----------------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """Gates and times of a worker; recorded gates are kept in a folder for the others.

    Args:
        folder: for models, gates and libraries.
    """

    folder: Path
    root: Path = field(default_factory=kernel_root)
    _gates: dict[Subject, Gate] = field(default_factory=dict)
    _seconds: dict[Subject, float] = field(default_factory=dict)
    _ptx: dict[tuple[Unit, str], bytes | None] = field(default_factory=dict)

    def gate(self, subject: Subject) -> Gate:
        """The subject's gate. Raises KernelFault where the shipped kernel itself fails."""
        if subject not in self._gates:
            asked_by = sorted([*PACKAGE.glob("rungs/**/*.py"), *PACKAGE.glob("semantics/*.py")])
            made_by = b"".join(p.read_bytes() for p in [Path(__file__).with_name("gate.py"), *asked_by])
            key = hashlib.sha256(tree_hash(self.root).encode() + made_by).hexdigest()[:16]
            path = self.folder / f"gate-{subject.kernel}-{subject.fmt}-{key}.pickle"
            if path.exists():
                self._gates[subject] = pickle.loads(path.read_bytes())
            else:
                self._gates[subject] = record(subject, self.folder)
                part = path.with_suffix(f".{os.getpid()}")
                part.write_bytes(pickle.dumps(self._gates[subject]))
                part.replace(path)
        return self._gates[subject]

    def units(self, subject: Subject, mutant: Mutant) -> list[Unit]:
        """The subject's units that a mutant's line is part of; of those that differ in the ring alone, the first."""
        gate, last = self.gate(subject), mutant.line + mutant.old.count("\n")
        found = [
            unit for unit in gate.units
            if not gate.alive[unit].get(mutant.file, frozenset()).isdisjoint(range(mutant.line, last + 1))
        ]  # fmt: skip
        if mutant.file not in _WITHOUT_MACROS:
            return found
        first = {(unit.file, *(d for d in unit.defines if d[0] not in _RING)): unit for unit in reversed(found)}
        return [unit for unit in found if unit in first.values()]

    def batch(self, some: Sequence[Mutant]) -> Iterator[Record]:
        """The records of mutants of one file."""
        file = some[0].file
        source = (self.root / file).read_text()
        started = time.monotonic()
        left = {f"m{i}": m for i, m in enumerate(some, 1) if not m.unobservable}
        tried: dict[str, list[tuple[Subject, Record]]] = {name: [] for name in left}
        uncompilable: set[str] = set()
        for subject in subjects(self.root, file):
            if not left:
                break
            within = {name: self.units(subject, m) for name, m in left.items()}
            here = {name: m for name, m in left.items() if within[name]}
            if not here:
                continue
            for name, found in self._of_subject(subject, here, within, source, uncompilable):
                tried[name].append((subject, found))
                if found["outcome"] == "killed":
                    yield _record(here[name], source, found, subject, time.monotonic() - started)
            done = {n for n in here if n in uncompilable or (tried[n] and tried[n][-1][1]["outcome"] == "killed")}
            left = {n: m for n, m in left.items() if n not in done}
        for name, mutant in ((f"m{i}", m) for i, m in enumerate(some, 1)):
            if mutant.unobservable:
                yield _record(mutant, source, {"outcome": "unobservable", "by": mutant.unobservable}, None, 0.0)
            elif name in uncompilable:
                yield _record(mutant, source, {"outcome": "uncompilable", "by": ""}, None, 0.0)
            elif name in left:
                yield self._survivor(mutant, source, tried[name], started)

    def _of_subject(
        self, subject: Subject, here: Mapping[str, Mutant], within: Mapping[str, list[Unit]], source: str,
        uncompilable: set[str],
    ) -> Iterator[tuple[str, Record]]:  # fmt: skip
        """What a subject makes of mutants, by name. Units are compiled one after the other: a mutant that is killed, by
        every other gate too, with the first of its units is not compiled into the rest. `uncompilable` gets names."""
        gate = self.gate(subject)
        libraries: dict[Unit, Path] = {}
        left = dict(here)
        try:
            for number, unit in enumerate(u for u in gate.units if any(u in within[name] for name in here)):
                some = {name: m for name, m in left.items() if unit in within[name]}
                if not some:
                    continue
                variants: dict[str, Mapping[str, str]] = {"m0": {}}
                variants |= {name: {m.file: m.applied(source)} for name, m in some.items()}
                path = self.folder / f"batch-{os.getpid()}-{number}.so"
                bad = compiled(self.root, unit, gate.units[unit], variants, path)
                if "m0" in bad:
                    raise EnvironmentFault(f"{unit} itself does not compile")
                uncompilable |= bad
                libraries[unit] = path
                self._check_original(subject, unit, path)
                for name in some:
                    if name in bad:
                        left.pop(name)
                        continue
                    known = [u for u in within[name] if u in libraries]
                    last = len(known) == len(within[name])
                    if not last and len(known) > 1:
                        continue
                    changed = [(u, libraries[u], name) for u in known]
                    found = judge_one(gate, changed, self._limit(subject), probes=last)
                    sure = found["outcome"] == "killed" and all(found["gates"].values())
                    if sure or last:
                        left.pop(name)
                        yield name, found
        finally:
            for path in libraries.values():
                path.unlink(missing_ok=True)

    def _survivor(self, mutant: Mutant, source: str, tried: list[tuple[Subject, Record]], started: float) -> Record:
        for outcome in ("passed", "missed"):
            for subject, found in tried:
                if found["outcome"] == outcome:
                    return _record(mutant, source, found, subject, time.monotonic() - started)
        if not tried:
            found = {"outcome": "unobservable", "by": "no unit that runs on a CPU holds the line"}
            return _record(mutant, source, found, None, time.monotonic() - started)
        overreads = next((s for s, found in tried if found.get("overreads")), None)
        entry = _record(mutant, source, {"outcome": "same", "by": ""}, overreads, time.monotonic() - started)
        return {**entry, "overreads": True} if overreads else entry

    def same_code(self, mutant: Mutant, source: str) -> bool:
        """Whether a GPU's compiler makes of every unit that holds the mutant what it makes of the original, for each of
        CARDS: a proof that it changes nothing there (Papadakis et al., ICSE 2015)."""
        changed = {mutant.file: mutant.applied(source)}
        units = {unit for subject in subjects(self.root, mutant.file) for unit in self.units(subject, mutant)}
        for unit in sorted(units, key=repr):
            for sm in CARDS:
                if (unit, sm) not in self._ptx:
                    self._ptx[unit, sm] = ptx(self.root, unit, {}, sm)
                original = self._ptx[unit, sm]  # None: kernels of Hopper alone
                if original is not None and ptx(self.root, unit, changed, sm) != original:
                    return False
        return True

    def _check_original(self, subject: Subject, unit: Unit, library: Path) -> None:
        """The unmutated source, compiled as mutants are, has the bits of the shipped kernel; and its time. Once a
        subject and unit, whoever of the workers."""
        key = hashlib.sha256(repr((subject, unit, tree_hash(self.root))).encode()).hexdigest()
        path = self.folder / f"original-{key[:24]}"
        if not path.exists():
            found = judge_one(self.gate(subject), [(unit, library, "m0")], 300)
            if found["outcome"] != "same" or found.get("overreads"):
                raise EnvironmentFault(f"{subject}: compiled as mutants are, the source itself is {found}")
            path.write_text(repr(found["spent"]))
        with contextlib.suppress(ValueError):
            self._seconds[subject] = max(self._seconds.get(subject, 0.0), float(path.read_text()))

    def _limit(self, subject: Subject) -> float:
        return LEAST_SECONDS + TIMES * self._seconds.get(subject, 1.0)


def _record(mutant: Mutant, source: str, found: Record, subject: Subject | None, seconds: float) -> Record:
    out: Record = {"id": mutant.id, "outcome": found["outcome"], "by": found["by"], "diff": mutant.diff(source)}
    if subject is not None:
        out["subject"] = str(subject)
    if "gates" in found:
        out["gates"] = [name for name, caught in found["gates"].items() if caught]
    return out | {"seconds": round(seconds, 2)}


# -- a run ------------------------------------------------------------------------------------------------------------


def population(root: Path) -> dict[str, list[Mutant]]:
    """File → its mutants."""
    return {file: mutants(file, (root / file).read_text()) for file in sources(root)}


def hashes(root: Path) -> dict[str, str]:
    """File → the first half of its sha256."""
    return {file: hashlib.sha256((root / file).read_bytes()).hexdigest()[:32] for file in sources(root)}


def sampled(everything: Mapping[str, list[Mutant]], fraction: float, seed: int) -> dict[str, list[Mutant]]:
    """A random part of each file's mutants, at least one; a larger fraction holds a smaller one's."""
    out = {}
    for file, all_of_it in everything.items():
        order = list(all_of_it)
        random.Random(f"{seed} {file}").shuffle(order)
        out[file] = order[: max(1, round(len(order) * fraction))]
    return out


def finished(path: Path) -> dict[str, Record]:
    """Id → the record of each mutant in a results file of lines; one that was cut off is left out."""
    found: dict[str, Record] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                found[entry["id"]] = entry
    return found


def _mend(path: Path) -> None:
    """End the last line of a file that was cut off within it."""
    if path.exists() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        with path.open("a") as f:
            f.write("\n")


def _append(path: Path, entry: Record) -> None:
    with path.open("a") as f:  # one write each: two workers do not mix
        f.write(json.dumps(entry, ensure_ascii=False) + "\n")


_BENCH: Bench | None = None


def _start(folder: str) -> None:
    global _BENCH
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    _BENCH = Bench(Path(folder))


def _run_batch(task: tuple[list[Mutant], str]) -> tuple[int, str]:
    some, path = task
    assert _BENCH is not None
    try:
        for entry in _BENCH.batch(some):
            _append(Path(path), entry)
    except Exception as error:  # one batch must not end the run
        return len(some), f"{some[0].file}: {error!r}"
    return len(some), ""


def _compare(task: tuple[list[Mutant], str]) -> tuple[int, str]:
    """Say of survivors whether their object code is the original's: the record anew, which counts from then on."""
    some, path = task
    assert _BENCH is not None
    try:
        for mutant in some:
            source = (_BENCH.root / mutant.file).read_text()
            same = _BENCH.same_code(mutant, source)
            found = {"outcome": "same", "by": SAME_CODE if same else ""}
            _append(Path(path), {**_record(mutant, source, found, None, 0.0), "compared": True})
    except Exception as error:
        return len(some), f"{some[0].id}: {error!r}"
    return len(some), ""


def run(
    options: argparse.Namespace, explained: Callable[[Record], bool] = lambda _: False,
    before: Mapping[str, Record] = MappingProxyType({}),
) -> int:  # fmt: skip
    """Judge the mutants that are asked for and not done yet; the exit code. Of `--again` and `--equivalence` those are
    left out for whose survival there is a reason.

    Args:
        before: id → the record of each that was judged in earlier runs.
    """
    root = kernel_root()
    everything = population(root)
    if options.mutant:
        return _one(everything, options)
    chosen = sampled(everything, options.sample, options.seed)
    _mend(options.lines)
    lines = finished(options.lines)
    known = {**before, **lines}
    if options.again or options.again_all:
        for i, r in [*known.items()]:
            alive = r["outcome"] in ("same", "missed", "passed")
            anew = options.again_all and i not in lines and r.get("by") != SAME_CODE
            if alive and (anew or r["outcome"] != "same" or not explained(r)):
                del known[i]
    tasks = []
    for file, some in chosen.items():
        if options.only and not any(part in file for part in options.only):
            continue
        left = [m for m in some if m.id not in known]
        tasks += [(left[i : i + BATCH], str(options.lines)) for i in range(0, len(left), BATCH)]
    if options.equivalence:
        open_ = [m for some in everything.values() for m in some if known.get(m.id, {}).get("outcome") == "same"]
        open_ = [m for m in open_ if "compared" not in known[m.id] and not explained(known[m.id])]
        tasks = [([m], str(options.lines)) for m in open_]
    random.Random(options.seed).shuffle(tasks)  # so that the time left is a fair guess
    total, done, start = sum(len(t[0]) for t in tasks), 0, time.monotonic()
    print(f"{sum(map(len, everything.values()))} mutants, {sum(map(len, chosen.values()))} chosen, {total} to judge",
          file=sys.stderr)  # fmt: skip
    options.work.mkdir(parents=True, exist_ok=True)
    work = _compare if options.equivalence else _run_batch
    with multiprocessing.get_context("fork").Pool(options.jobs, _start, (str(options.work),)) as pool:
        for count, fault in pool.imap_unordered(work, tasks):
            done += count
            spent = time.monotonic() - start
            left_s = spent / done * (total - done)
            print(f"{done}/{total}, {spent:.0f} s, {left_s:.0f} s left{'; ' + fault if fault else ''}", file=sys.stderr)
            if options.seconds and spent > options.seconds:
                print("time is up: what is left is judged by the next run", file=sys.stderr)
                pool.terminate()
                break
    return 0


def _one(everything: Mapping[str, list[Mutant]], options: argparse.Namespace) -> int:
    found = [m for some in everything.values() for m in some if m.id == options.mutant]
    if not found:
        print(f"no mutant is called {options.mutant}", file=sys.stderr)
        return 2
    options.work.mkdir(parents=True, exist_ok=True)
    for entry in Bench(options.work).batch(found):
        print(json.dumps(entry, ensure_ascii=False, indent=1))
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `mutation_score.py kill`."""
    parser.add_argument("--mutant", metavar="ID", help="judge this one alone and print what becomes of it")
    parser.add_argument("--sample", type=float, default=1.0, metavar="FRACTION", help="a random part of each file's")
    parser.add_argument("-s", "--seed", type=int, default=0)
    parser.add_argument("--only", action="append", metavar="PART", help="files whose path holds this; may be repeated")
    parser.add_argument("--again", action="store_true", help="judge those anew that nothing kills or explains")
    parser.add_argument("--again-all", action="store_true", help="judge all survivors anew, but for those in --lines")
    parser.add_argument("--equivalence", action="store_true", help="compare survivors' object code with the original's")
    parser.add_argument("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=0.0, help="stop after so long; the next run goes on")
    parser.add_argument("--lines", type=Path, default=LINES, help="this run's results, a line a mutant; resumed")
    parser.add_argument("--work", type=Path, default=WORK, help="models and recorded calls")


__all__ = ["Bench", "add_arguments", "finished", "hashes", "population", "row_of", "run", "sampled"]
