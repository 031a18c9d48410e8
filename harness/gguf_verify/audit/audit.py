"""The audit of one model: its layout, its content, what other readers see, and its source where one is given."""

from __future__ import annotations

import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ..formats import FORMATS, BlockFormat
from ..gguf import Finding, GgufFile, Model, RefusedFile, Tensor, check_consistency, open_model, parse
from ..gguf.records import capped, finding
from ..llama import Llama, LlamaRefused, Scan, WithoutLlama, why_missing
from ..llama.child import Child
from ..llama.installed import INSTALL
from ..processes.sandbox import current, sandboxed
from ..results import WaiverUse
from ..support import scratch
from ..support.address import FETCHED, Address, located
from ..support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_MALFORMED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
    Culprit,
    EnvironmentFault,
    MalformedFile,
    UsageError,
)
from ..support.progress import progress_bar, under_way
from ..support.shown import Shown
from ..support.version import project_version
from ..waivers import Waiver, read_waivers
from ..waivers import today as current_day
from .codes import unused_codes
from .content import Content, content_findings, contents, sign_findings
from .fingerprint import Fingerprint, fingerprint, patterns_of
from .importance import Importance, read_importance
from .readers import GRACE, READERS, TIME_LIMIT, Readers, Reading, not_compared
from .readers import compare as compare_readers
from .remote import Remote
from .sample import OF_ALL, Sample, Sampled
from .source import Comparison, compare, comparison_findings
from .sources import Source, open_source

if TYPE_CHECKING:
    from tqdm import tqdm


#: The contents of tensors, in order; told of bytes that are done.
Scanning = Callable[[Sequence[Tensor], Callable[[int], object]], Generator[Content]]

AuditVerdict = Literal[
    "clean",
    "clean in the sample",
    "clean as far as checked",
    "waived",
    "warnings",
    "wrong",
    "refused",
    "broken off",
    "not everything verified",
]


@dataclass
class AuditOptions:
    """The choices of the command line, whose help explains them.

    Args:
        llama: let llama.cpp decode and read the file.
        today: the day that waivers are compared with; None for today in UTC.
        sandbox: how llama.cpp's process and the readers' are confined: "auto", "bwrap", "landlock" or "off".
        seed: of the sample of a remote file.
    """

    tensor: str | None = None
    source: Path | None = None
    imatrix: Path | None = None
    llama: bool = True
    readers: bool = True
    digest: bool = True
    strict: bool = False
    threads: int = 1
    time_limit: float = 900.0
    verbose: bool = False
    progress: bool = True
    waivers: Path | None = None
    today: date | None = None
    sandbox: str = "auto"
    seed: int = 0


def _gguf_version() -> str:
    from importlib import metadata  # slow to import

    return metadata.version("gguf")


@dataclass(frozen=True, kw_only=True)
class AuditHeader:
    """The versions of what read the file, and what was read.

    Args:
        llama_cpp, llama_cpp_python, ggml: None where llama.cpp's process told nothing.
        file, source, imatrix: paths; the last two are None where none was given.
        size: bytes of all parts.
        sha256, source_sha256: a digest for each part; None where they were not computed.
        imatrix_sha256: the digest of the importance matrix.
        architecture: None where the file was refused.
        threads: that llama.cpp's decoders took.
        sandbox: how its process and the readers' were confined, in words.
    """

    gguf_verify: str = field(default_factory=project_version)
    python: str = field(default_factory=platform.python_version)
    numpy: str = np.__version__
    gguf: str = field(default_factory=_gguf_version)
    platform: str = field(default_factory=lambda: f"{platform.system()} {platform.machine()}")
    llama_cpp: str | None = None
    llama_cpp_python: str | None = None
    ggml: str | None = None
    file: str
    size: int
    sha256: tuple[str, ...] | None
    architecture: str | None = None
    threads: int = 1
    source: str | None = None
    source_sha256: tuple[str, ...] | None = None
    imatrix: str | None = None
    imatrix_sha256: str | None = None
    sandbox: str = field(default_factory=lambda: current().words)


@dataclass(repr=False)
class Audit(Shown):
    """What an audit found.

    Args:
        path: the file that was named.
        files: that file, or all parts of a split model.
        header: versions, sizes, digests.
        findings: all findings, sorted by part and offset.
        contents: one for each tensor.
        fingerprints: one for each covered type.
        readings: what other readers saw, by part.
        comparisons: with the source's tensors, where a source was given.
        unmapped: tensors of the source that no name of GGUF is known for, with the reason.
        unverified: what could not be judged: pairs of name and reason.
        refused: the finding for which the parser refused the file, or None.
        strict: whether warnings count as errors.
        left_out: what was not checked, and why, where the user or this machine left it out.
        n_tensors: how many the model has. `contents` holds fewer where the user selected some.
        fault: why the audit ended early, where this machine could not finish it.
        changed: whether a file was changed while it was read, so that the findings need not be true of it.
        seconds: how long it took.
        command: the command that repeats it.
        waivers: what became of the waivers that are about this file.
        waived: the findings that a waiver covers.
        sample: what was looked at of a remote file; None of a file that was read as a whole.
    """

    path: Path | Address
    files: tuple[GgufFile, ...]
    header: AuditHeader
    findings: tuple[Finding, ...] = ()
    contents: tuple[Content, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    readings: tuple[tuple[Reading, ...], ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    unmapped: tuple[tuple[str, str], ...] = ()
    unverified: list[tuple[str, str]] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    refused: Finding | None = None
    strict: bool = False
    n_tensors: int = 0
    fault: str | None = None
    changed: bool = False
    seconds: float = 0.0
    command: str = ""
    waivers: tuple[WaiverUse, ...] = ()
    waived: frozenset[Finding] = frozenset()
    sample: Sample | None = None

    @property
    def exit_code(self) -> int:
        """4 where the file was refused; 3 where it was changed meanwhile; 1 for an error, or for a warning if strict; 3
        where the audit ended early; 5 where something could not be judged, or a sample alone was; else 0. Findings that
        are waived do not count."""
        if self.refused is not None:
            return EXIT_MALFORMED
        if self.changed:
            return EXIT_ENVIRONMENT
        severities = {f.severity for f in self.findings if f not in self.waived}
        if "error" in severities or (self.strict and "warning" in severities):
            return EXIT_MISMATCH
        if self.fault:
            return EXIT_ENVIRONMENT
        return EXIT_UNVERIFIED if self.unverified or self.sample is not None else EXIT_VERIFIED

    @property
    def counts(self) -> Counter[str]:
        """How many findings there are of each severity."""
        return Counter(f.severity for f in self.findings)

    @property
    def verdict(self) -> AuditVerdict:
        """In a word or two. "clean" is said of a file with no error and no warning, of which everything was checked."""
        code = self.exit_code
        if code == EXIT_VERIFIED or (code == EXIT_UNVERIFIED and self.sample is not None and not self.unverified):
            if self.waived:
                return "waived"
            if self.counts["warning"]:
                return "warnings"
            if self.sample is not None:
                return "clean in the sample"
            return "clean as far as checked" if self.left_out else "clean"
        words: dict[int, AuditVerdict] = {
            EXIT_MISMATCH: "wrong", EXIT_ENVIRONMENT: "broken off", EXIT_MALFORMED: "refused",
            EXIT_UNVERIFIED: "not everything verified",
        }  # fmt: skip
        return words[code]

    @property
    def sentence(self) -> str:
        """What the verdict means for this file, in a line."""
        n = self.counts
        left = ", ".join(dict.fromkeys(name for name, _ in self.left_out))
        match self.verdict:
            case "clean":
                said = "every byte is owned, every block decodes as in llama.cpp; no errors, no warnings"
            case "clean in the sample":
                said = "no errors, no warnings" + (f"; not compared with {left}" if left else "")
            case "clean as far as checked":
                said = f"no errors, no warnings; not compared with {left}"
            case "waived":
                said = f"{_plural(len(self.waived), 'finding')} waived; nothing else is wrong"
            case "warnings":
                said = f"no errors, but {_plural(n['warning'], 'warning')}" + (
                    f"; not compared with {left}" if left else ""
                )
            case "wrong":
                said = _plural(n["error"], "error") + (
                    f" and {_plural(n['warning'], 'warning')}" if n["warning"] else ""
                )
            case "refused":
                assert self.refused is not None
                said = f"cannot be read safely: {self.refused.found} ({self.refused.id})"
            case "broken off":
                said = self.fault or "the audit could not be finished"
            case _:
                said = f"nothing wrong was found, but {_plural(len(self.unverified), 'thing')} could not be checked"
                if left:
                    said += f"; not compared with {left}"
        return said + self._of_source() + (f"; an audit {self.sample.sentence}" if self.sample else "")

    def _of_source(self) -> str:
        """How much of the file is what llama.cpp makes of its source, for the end of a sentence."""
        if not self.comparisons or self.verdict in ("refused", "broken off"):
            return ""
        outcomes = Counter(c.outcome for c in self.comparisons)
        said = f"; {outcomes['same']:,} of {_plural(len(self.comparisons), 'tensor')} proven to be the source's"
        possible = outcomes["possible"]
        return said + (f", {possible:,} possible with an importance matrix and not proven" if possible else "")

    @property
    def words(self) -> str:
        """The verdict as reports say it: only what has no waived finding is "clean"."""
        n = len(self.waived)
        of = " in the sample" if self.sample else ""
        return (
            f"clean{of} with {n:,} waived finding{'' if n == 1 else 's'}" if self.verdict == "waived" else self.verdict
        )


def audit(
    path: Path | Address | str, options: AuditOptions | None = None, command: str = "", child: Child | None = None
) -> Audit:
    """Audit a GGUF file, or all parts of a split model. Of a remote one (hf://, https://, http://) the headers are
    read, and a sample of its blocks.

    The result also holds why a file was refused, and what this machine could not check.

    Args:
        child: a llama.cpp process that was started ahead; for a remote file it must be shown the folder of copies.

    Raises:
        MalformedFile: the source is refused.
        UsageError: the options select nothing, or there is no such file or source.
        EnvironmentFault: the file or the source cannot be read here, or a server does not serve it.
    """
    start = time.perf_counter()
    options = options or AuditOptions()
    where = located(path) if isinstance(path, str) else path
    if isinstance(where, Address) and options.source:
        raise UsageError("--source compares every block, and of a remote file a sample is read: download it first")
    known = () if options.waivers is None else read_waivers(options.waivers)
    with ExitStack() as stack:
        stack.enter_context(sandboxed(options.sandbox))
        # the pool is left last: what runs in it ends when the files and the readers are closed
        pool = stack.enter_context(ThreadPoolExecutor(2))
        missing = why_missing() if options.llama else "it was not asked"
        copies: tuple[Path, ...] = ()
        remote, path = None, where
        if isinstance(where, Address):
            remote = stack.enter_context(Remote(where, options.time_limit, options.progress))
            copies, path = (scratch.shared(FETCHED),), remote.open()
        assert isinstance(path, Path)
        readers = None
        if options.readers:
            names = READERS[: 1 if missing else None]
            readers = stack.enter_context(Readers(min(TIME_LIMIT, options.time_limit), names=names, shown=copies))
        if missing and options.source:
            raise EnvironmentFault("--source compares with what llama.cpp makes of it, and " + _without(missing))
        try:
            model = stack.enter_context(open_model(path))
            if remote is not None:
                remote.named(model)
        except RefusedFile as error:
            result = _refused(where, error, readers)
        else:
            source = stack.enter_context(open_source(options.source, model)) if options.source else None
            if child is None and remote is not None:
                child = Child(options.verbose, missing is None, shown=copies)
            result = _readable(model, source, options, readers, pool, child, remote)
    if missing:
        why = _without(missing)
        result.left_out += [("llama.cpp", f"{why}: its decoding of the blocks was not compared")]
        if options.readers:
            result.left_out += [("llama.cpp's reader", f"{why}: what it sees in the file was not compared")]
        if options.llama and result.refused is None:
            result.unverified += [("every tensor", why)]
    result.strict = options.strict
    _waive(result, known, options.today or current_day())
    result.command = command
    result.seconds = time.perf_counter() - start
    return result


def _waive(result: Audit, waivers: Sequence[Waiver], day: date) -> None:
    """Waive findings that count; that a file is refused is never waived."""
    mine = [w for w in waivers if w.of_audit(result.path.name)]
    counts, waived = [0] * len(mine), set()
    for f in result.findings:
        if f.severity == "note" or (f.severity == "warning" and not result.strict) or f == result.refused:
            continue
        fitting = [i for i, w in enumerate(mine) if w.covers_finding(f.id, f.owner)]
        valid = [i for i in fitting if not mine[i].expired(day)]
        for i in valid[:1] or fitting:
            counts[i] += 1
        if valid:
            waived.add(f)
    result.waived = frozenset(waived)
    result.waivers = tuple(w.use(n, day) for w, n in zip(mine, counts, strict=True))


def _without(missing: str) -> str:
    """Why llama.cpp takes no part, for a sentence."""
    return "llama.cpp was not asked" if missing == "it was not asked" else f"llama.cpp is not installed ({INSTALL})"


def _plural(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _refused(path: Path | Address, error: RefusedFile, readers: Readers | None) -> Audit:
    """The audit of a refused file, which may be a later part of the model that was named."""
    start = time.perf_counter()
    with parse(error.path, error.finding.part) as file:
        took = time.perf_counter() - start
        findings = (*file.findings, *coverage(file)) if file.refused else (*file.findings, error.finding)
        digest = None if isinstance(path, Address) else (file.mapped.sha256(),)
        header = AuditHeader(file=str(path), size=file.size, sha256=digest)
        if isinstance(path, Address):
            file.address = path.beside(file.path.name)
        result = Audit(path, (file,), header, n_tensors=len(file.tensors), refused=error.finding)
        try:
            readings = readers.read(error.path, max(GRACE, took)) if readers else ()
            result.readings = (readings,)
            result.unverified = not_compared(readings)
            findings += compare_readers(file, readings, findings)
        except EnvironmentFault as fault:
            result.fault = str(fault)
        result.findings = _sorted(findings)
        return result


def coverage(file: GgufFile) -> tuple[Finding, ...]:
    """A finding for bytes that belong to no field, or to two. That is a fault of the parser, never of the file."""
    found = []
    for at, start in file.byte_map.breaks(file.size):
        what = "two fields" if start < at else "no field"
        low, high = sorted((at, start))
        found.append(finding("unowned", low, high, "one field for each byte", f"bytes that belong to {what}"))
    return tuple(replace(f, part=file.part) for f in capped(found))


def _readable(
    model: Model, source: Source | None, options: AuditOptions, readers: Readers | None, pool: ThreadPoolExecutor,
    child: Child | None, remote: Remote | None = None,
) -> Audit:  # fmt: skip
    tensors = select(model, options.tensor)
    sampled = remote.sample(model, tensors, options.seed) if remote is not None else None
    importance = read_importance(options.imatrix) if options.imatrix else None
    digests = pool.submit(model.sha256) if options.digest and remote is None else None
    readings = pool.submit(lambda: tuple(readers.read(part.path) for part in model.parts) if readers else ())
    where = model.path if remote is None else remote.address
    header = AuditHeader(
        file=str(where), size=model.size, sha256=None, architecture=model.architecture, threads=options.threads,
        source=str(source.path) if source else None,
        imatrix=str(importance.path) if importance else None, imatrix_sha256=importance.sha256 if importance else None,
    )  # fmt: skip
    sample = sampled.sample if sampled is not None else None
    result = Audit(where, model.parts, header, n_tensors=len(model.tensors), sample=sample)
    ours = (*model.findings, *check_consistency(model), *(f for part in model.parts for f in coverage(part)))
    try:
        kind = Llama if options.llama and why_missing() is None else WithoutLlama
        with kind(options.time_limit, options.verbose, child) as llama:
            if isinstance(llama, Llama):
                versions = llama.versions()
                result.header = replace(
                    header, llama_cpp_python=versions["llama_cpp_python"], llama_cpp=versions["llama_cpp"],
                    ggml=versions["ggml"],
                )  # fmt: skip
            examined = Examination(model, llama, options.threads, options.progress, sampled)
            examined.read(tensors)
            if source is not None:
                examined.compare(tensors, source, importance)
                result.unmapped = source.unmapped
        result.contents, result.fingerprints = tuple(examined.contents), examined.fingerprints()
        result.comparisons, result.fault = tuple(examined.comparisons), examined.fault
        result.unverified = examined.unverified
        ours += capped(examined.findings)
    except EnvironmentFault as fault:
        result.fault = str(fault)
        result.unverified = [(t.name, "not reached") for t in tensors]
    try:
        result.readings = readings.result()
        for part, of_part in zip(model.parts, result.readings, strict=False):
            ours += compare_readers(part, of_part, tuple(f for f in ours if f.part == part.part))
            result.unverified += not_compared(of_part)
    except EnvironmentFault as fault:
        result.fault = result.fault or str(fault)
    if digests:
        result.header = replace(
            result.header, sha256=tuple(digests.result()), source_sha256=tuple(source.sha256()) if source else None
        )
    result.findings = _sorted(ours)
    if any(of.changed for of in (model, source) if of is not None):
        result.changed, result.fault = True, "a file was changed while it was read, so the findings may be wrong"
    return result


def select(model: Model, pattern: str | None) -> list[Tensor]:
    """Tensors whose name matches. Raises UsageError where the pattern selects none."""
    chosen = [t for name, t in model.tensors.items() if pattern is None or re.search(pattern, name)]
    if pattern is not None and not chosen:
        raise UsageError(f"no tensor matches {pattern!r}")
    return chosen


class Examination:
    """The part of an audit that needs llama.cpp's process. Where a fault ends it, the fault and all results stay."""

    def __init__(
        self, model: Model, llama: Llama | WithoutLlama, threads: int, progress: bool, sampled: Sampled | None = None
    ) -> None:
        self.model = model
        self.llama = llama
        self.sampled = sampled
        self.threads = threads
        self.progress = progress
        self.contents: list[Content] = []
        self.comparisons: list[Comparison] = []
        self.findings: list[Finding] = []
        self.unverified: list[tuple[str, str]] = []
        self.fault: str | None = None
        #: Who is at fault for that.
        self.culprit: Culprit = "environment"

    def read(
        self, tensors: Sequence[Tensor], told: Callable[[Content], object] = lambda _content: None,
        parts: Iterable[Sequence[Tensor]] | None = None, scan: Scanning | None = None,
    ) -> None:  # fmt: skip
        """Scan every tensor, or what was drawn of them.

        Args:
            told: gets what is known of each tensor as it comes.
            parts: the tensors in parts, which are scanned one after the other; it may end before all of them.
            scan: who scans a part; None: llama.cpp's process.
        """
        if self.sampled is not None:
            self.unverified += [
                (t.name, f"one of more than {OF_ALL:,} tensors: not sampled") for t in self.sampled.left
            ]
            tensors = self.sampled.tensors

        def here(tensors: Sequence[Tensor], on_bytes: Callable[[int], object]) -> Generator[Content]:
            return contents(tensors, self.llama, self.threads, on_bytes)

        with self._bar("audit", tensors) as bar:
            for part in [tensors] if parts is None else parts:
                with closing((scan or here)(part, bar.update)) as found:
                    self._follow(found, tensors, told, bar)
            self.findings += sign_findings(self.contents)
            if isinstance(self.llama, Llama):
                self.findings += unused_codes(self.contents, self.llama)
            bar.update((bar.total or 0) - bar.n)
        if self.sampled is not None:
            self.findings = [self.sampled.said(f) for f in self.findings]
        self.unverified += [(t.name, "not reached") for t in tensors[len(self.contents) :]]

    def _follow(
        self, found: Iterable[Content], tensors: Sequence[Tensor], told: Callable[[Content], object], bar: tqdm[Any]
    ) -> None:
        for tensor in tensors[len(self.contents) :][:1]:
            under_way(bar, tensor.name)
        for content in found:
            content = content if self.sampled is None else self.sampled.placed(content)
            self.contents.append(content)
            self.findings += content_findings(content)
            if content.unverified:
                self.unverified.append((content.tensor.name, content.unverified))
            told(content)
            for tensor in tensors[len(self.contents) :][:1]:
                under_way(bar, tensor.name)

    def compare(self, tensors: Sequence[Tensor], source: Source, importance: Importance | None = None) -> None:
        """Compare every tensor with its source, quantized with the importance matrix, if there is one."""
        if self.fault or not isinstance(self.llama, Llama):
            return
        with self._bar("source", tensors) as bar:
            for tensor in tensors:
                start = bar.n
                comparison = compare(tensor, source, self.llama, self.threads, bar.update, importance)
                bar.update(start + tensor.nbytes - bar.n)
                self.comparisons.append(comparison)
                if comparison.unverified:
                    self.unverified.append((tensor.name, f"not compared with the source: {comparison.unverified}"))
        rest = tensors[len(self.comparisons) :]
        self.unverified += [(t.name, "not compared with the source: not reached") for t in rest]
        self.findings += comparison_findings(self.comparisons, self.model, source)

    def fingerprints(self) -> tuple[Fingerprint, ...]:
        """One for each covered type that the model holds."""
        by_type: dict[BlockFormat, list[Scan]] = {fmt: [] for fmt in FORMATS.values()}
        for content in self.contents:
            fmt = content.tensor.type.format
            if fmt is not None and content.scan is not None:
                by_type[fmt].append(content.scan)
        return tuple(fingerprint(fmt, scans) for fmt, scans in by_type.items() if scans and patterns_of(fmt))

    @contextmanager
    def _bar(self, what: str, tensors: Sequence[Tensor]) -> Iterator[tqdm[Any]]:
        """A progress bar in bytes. A fault that ends the work inside it is kept."""
        with progress_bar(what, sum(t.nbytes for t in tensors), "B", self.progress) as bar:
            try:
                yield bar
            except (EnvironmentFault, LlamaRefused, MalformedFile) as error:
                self.fault, self.culprit = str(error), error.culprit


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (f.part, f.start, f.stop, f.id)))


__all__ = ["Audit", "AuditHeader", "AuditOptions", "Examination", "Scanning", "audit", "coverage", "select"]
