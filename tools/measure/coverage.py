"""The code of the shipped kernels that their verification executes, per source.

Each source below kernels/ is compiled for the CPU with GCC's counters, and its kernels are verified on the project's
trained model: the blocks and layers rungs with their defaults, for two matrices of a type. The counts of a source are
joined over the kernels that include it, over the types of weights and over the instances of a template. The emulator,
the headers of CUDA, and code that a condition of the preprocessor leaves to a GPU do not count.

By default, each kernel is measured with each type that it covers, as the registries have them. The file of results
has the digest of each source; `python docs/generate.py` makes the table of docs/evidence.md.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tqdm import tqdm

from gguf_verify import __version__
from gguf_verify.formats.tensor_types import ELEMENTS, FORMATS
from gguf_verify.hosts.base import Host, Placed
from gguf_verify.hosts.compiler import (
    BRANCHES,
    COUNTS,
    NOT_COUNTED,
    Built,
    build_foreign,
    compiler_version,
    counts_fault,
    waits,
)  # fmt: skip
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.foreign_sources import foreign_source
from gguf_verify.hosts.gcov import MOST_COUNTERS, executed
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.kernels.ladder import KERNELS
from gguf_verify.results.coverage import CodeCoverage, Executed, Execution, coverage_of, joined
from gguf_verify.results.options import Options
from gguf_verify.rungs.plan import PLAN
from gguf_verify.support import scratch
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.output import write_lines
from gguf_verify.support.paths import CHECKOUT, kernel_root
from gguf_verify.support.sources import file_digest
from gguf_verify.verification import verify

from .inputs import WEIGHTS, model_in
from .markdown import table
from .measure import Measure
from .mutation.recording import ELEMENTS_KERNEL, Subject
from .results import append_line, read_lines
from .workers import workers

RESULTS = CHECKOUT / "docs" / "coverage.json"
_EMULATOR = "emulator"
#: Seconds for gcov to read the counters of a library.
_SECONDS = 60.0
#: The matrices that are verified: of 256 and of 768 columns.
_OPTIONS = Options(prompt="The import", n_predict=1, tensor=r"blk\.0\.(attn_k|ffn_down)\.", progress=False)


class SourceCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed of one source.

    Args:
        sha256: of its bytes.
        kernels: those whose verification executed it.
        types: of weights.
        coverage: the counts, and each place that never ran.
    """

    sha256: str
    kernels: tuple[str, ...]
    types: tuple[str, ...]
    coverage: CodeCoverage


class ShippedCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """The content of docs/coverage.json.

    Args:
        version, plan: of gguf-verify and of its probe plan.
        date: ISO 8601.
        compiler: the first line of its `--version`.
        verified: number of verifications, each of one kernel and one type.
        sources: path below kernels/ → its coverage.
        not_run: sources that no verification compiled.
    """

    version: str
    plan: int
    date: str
    compiler: str
    verified: int
    sources: dict[str, SourceCoverage]
    not_run: tuple[str, ...]


def load(path: Path = RESULTS) -> ShippedCoverage:
    """Read the results. Raises UsageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ShippedCoverage)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} holds no results: {error}") from None


# ---- counting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting:
    """A function of a library that counts what it executes, and GCC's notes on it."""

    function: Any
    notes: bytes


class CountingHost(CpuHost):
    """A CPU host whose kernels count the lines and branches that they execute.

    Args:
        root: the folder of the kernels.
        schedule: as of `CpuHost`.
    """

    def __init__(self, root: Path, schedule: Schedule | None = None) -> None:
        super().__init__(1, schedule=schedule)
        self._root = root
        self.libraries: list[Counting] = []

    def scheduled(self, schedule: Schedule) -> Host:
        if schedule.checked:
            return super().scheduled(schedule)  # a checked build has no counters
        host = CountingHost(self._root, schedule)
        host.libraries, host._functions = self.libraries, self._functions
        return host

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        key = (root, (file, entry, *(f"{name}={value}" for name, value in defines.items())))
        if key not in self._functions:
            self._functions[key] = self._counting(root, file, entry, [f"-D{k}={v}" for k, v in defines.items()])
        return self._functions[key]

    def _counting(self, root: Path, file: str, entry: str, defines: list[str]) -> Any:
        built = _built(root, file, entry, tuple(defines))
        path = scratch.folder("counting") / "kernel.so"
        path.write_bytes(built.content)
        function = self.load_placed(Placed(entry, {"code": str(path)}))
        self.libraries.append(Counting(function, built.notes))
        return function

    def executed(self) -> dict[str, Executed]:
        """Return what its kernels have executed: path below the folder of the kernels → code.

        Raises EnvironmentFault if the counters cannot be read.
        """
        room, parts = np.empty(MOST_COUNTERS, np.uint8), []
        for library in self.libraries:
            size = self.counters(library.function, room)
            with foreign_source(self._root, _SECONDS):
                named = partial(below, self._root)
                parts.append(executed(self._root, library.notes, room[:size].tobytes(), named))
        return joined(parts)


@cache
def _built(root: Path, file: str, entry: str, defines: tuple[str, ...]) -> Built:
    """Compile a function of a source so that it counts. Raises EnvironmentFault."""
    excluded = f"{NOT_COUNTED}{re.escape(str(root / _EMULATOR))}|/usr/.*"
    flags = ["-fvisibility=hidden", *COUNTS, *BRANCHES, excluded, *waits([(root / file).read_text()], ())]
    return build_foreign(root, f'#include "{file}"\nCPU_KERNEL({entry})\n', [*flags, *defines])


def below(root: Path, file: str) -> str | None:
    """Return a source's path below the folder of the kernels; None if it is not one of theirs."""
    path = Path(file)
    inside = path.is_relative_to(root) and not path.is_relative_to(root / _EMULATOR)
    return path.relative_to(root).as_posix() if inside else None


def measure(subject: Subject, folder: Path) -> dict[str, Executed]:
    """Verify a kernel on the trained model in one type; return what was executed of each source.

    Args:
        folder: for models.

    Raises UsageError if it is not verified; EnvironmentFault.
    """
    host = CountingHost(kernel_root())
    kernel = "q8_1" if subject.kernel == ELEMENTS_KERNEL else subject.kernel
    report = verify(model_in(WEIGHTS[subject.fmt], folder), kernel, host, ("blocks", "layers"), _OPTIONS)
    if report.verdict != "verified":
        raise UsageError(f"{subject}: {report.verdict}: {report.failures[0][1].what if report.failures else ''}")
    return host.executed()


# ---- the results -----------------------------------------------------------------------------------------------------


def default_subjects() -> list[Subject]:
    """Return each shipped kernel with each type that it covers, kernels in turn: a run that is cut short has all."""
    quantized = [Subject(name, fmt) for fmt in FORMATS for name, spec in KERNELS.items() if spec.covers(FORMATS[fmt])]
    return [*quantized, *(Subject(ELEMENTS_KERNEL, fmt) for fmt in ELEMENTS)]


def sources(root: Path) -> list[str]:
    """Return the sources below a folder of kernels, without the emulator."""
    found = (path.relative_to(root) for path in root.rglob("*.cu*"))
    return sorted(path.as_posix() for path in found if path.parts[0] != _EMULATOR)


def collected(root: Path, runs: Mapping[Subject, Mapping[str, Executed]]) -> ShippedCoverage:
    """Join the runs into the results."""
    files, found = joined(runs.values()), dict[str, SourceCoverage]()
    for name, code in sorted(files.items()):
        text, by = (root / name).read_text(), [subject for subject, executed in runs.items() if name in executed]
        coverage = coverage_of(Execution({name: code}), {name: text})
        assert coverage is not None
        found[name] = SourceCoverage(
            sha256=str(file_digest(root / name)), kernels=_names(s.kernel for s in by), types=_names(s.fmt for s in by),
            coverage=coverage,
        )  # fmt: skip
    return ShippedCoverage(
        version=__version__, plan=PLAN, date=datetime.now(UTC).date().isoformat(), compiler=compiler_version(),
        verified=len(runs), sources=found, not_run=tuple(name for name in sources(root) if name not in found),
    )  # fmt: skip


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def as_entry(subject: Subject, files: Mapping[str, Executed]) -> dict[str, Any]:
    """Return a run as a line of the log."""
    plain = {
        name: {"lines": [*code.lines.items()], "branches": [[*at, [*ways]] for at, ways in code.branches.items()]}
        for name, code in files.items()
    }
    return {"kernel": subject.kernel, "type": subject.fmt, "files": plain}


def from_entry(entry: Mapping[str, Any]) -> tuple[Subject, dict[str, Executed]]:
    """Return the run of a line of the log."""
    files = {
        name: Executed(dict(code["lines"]), {(line, i): tuple(ways) for line, i, ways in code["branches"]})
        for name, code in entry["files"].items()
    }
    return Subject(entry["kernel"], entry["type"]), files


# ---- the page --------------------------------------------------------------------------------------------------------


def tables(result: ShippedCoverage) -> dict[str, str]:
    """Return the tables of docs/evidence.md: the run, the sources, and the places that never ran."""
    said = (
        f"Measured on {result.date} by {result.compiler}: {result.verified} verifications, each of one kernel and one "
        f"type, by version {result.version} with probe plan {result.plan}."
    )
    if result.not_run:
        said += f" Not compiled by any of them: {', '.join(f'`{name}`' for name in result.not_run)}."
    rows, never = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for name, of in result.sources.items():
        code = of.coverage
        changed = "" if file_digest(kernel_root() / name) == of.sha256 else " (changed since)"
        lines = f"{code.lines_run} of {code.lines}"
        branches = f"{code.branches_run} of {code.branches}" if code.branches else "–"
        by, types = str(len(of.kernels)), str(len(of.types))
        rows.append((f"`{name}`{changed}", by, types, lines, branches, str(code.n_never or "–")))
        for place in code.never:
            at = f"{place.line}–{place.last}" if place.last > place.line else str(place.line)
            how = "one way only" if place.branch else "never ran"
            why = place.unreachable or place.impossible or "no probe reaches it"
            never.append((f"`{name}:{at}`", how, f"`{place.source}`".replace("|", "\\|"), why))
    head = ("source", "kernels", "types", "lines run", "branches both ways", "places that never ran")
    return {
        "run": said,
        "sources": table(head, rows),
        "never": table(("place", "", "source", "why"), never) if never else "Every line and branch ran.",
    }


# ---- the command -----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this measure."""
    add = parser.add_argument
    add(
        "subjects", nargs="*", metavar="KERNEL:TYPE", help="kernels and types to verify (default: all that are shipped)"
    )
    add("-j", "--jobs", type=int, default=1, metavar="N", help="number of processes (%(default)s)")
    add("--log", type=Path, metavar="FILE", help="file of finished runs, which are not repeated")
    add("--results", type=Path, default=RESULTS, metavar="FILE", help="file of results (default: docs/coverage.json)")


def _wanted(options: argparse.Namespace) -> Iterator[Subject]:
    for name in options.subjects:
        kernel, _, fmt = name.partition(":")
        if fmt not in WEIGHTS:
            raise UsageError(f"{name} is not KERNEL:TYPE; types are {', '.join(WEIGHTS)}")
        yield Subject(kernel, fmt)


def _one(folder: Path, subject: Subject) -> tuple[Subject, dict[str, Executed]]:
    return subject, measure(subject, folder)


def run(options: argparse.Namespace) -> int:
    """Measure, and write the results."""
    if (fault := counts_fault()) is not None:
        raise EnvironmentFault(fault)
    root = kernel_root()
    wanted = [*_wanted(options)] or default_subjects()
    runs = dict(map(from_entry, read_lines(options.log) if options.log else ()))
    left = [subject for subject in wanted if subject not in runs]
    with scratch.temporary("models") as folder, workers(options.jobs) as each:
        for subject, files in tqdm(each(partial(_one, folder), left), total=len(left), unit="run", disable=None):
            runs[subject] = files
            if options.log:
                append_line(options.log, as_entry(subject, files))
    result = collected(root, runs)
    options.results.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    for name, of in result.sources.items():
        write_lines(f"{name}: {of.coverage.words}", *(f"  {place.words}" for place in of.coverage.never))
    return 0


MEASURE = Measure(
    "coverage", "the code of the shipped kernels that their verification executes", __doc__ or "", add_arguments, run
)
