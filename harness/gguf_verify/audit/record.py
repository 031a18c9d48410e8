"""Options and result of an audit: the record with its verdict, its sentence and its exit code."""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..gguf.file import GgufFile
from ..gguf.model import composition
from ..gguf.records import Finding
from ..processes.sandbox import current
from ..results.composition import Composition
from ..results.failures import WaiverUse
from ..support.address import Address
from ..support.errors import (
    EXIT_ENVIRONMENT,
    EXIT_MALFORMED,
    EXIT_MISMATCH,
    EXIT_UNVERIFIED,
    EXIT_VERIFIED,
)
from ..support.seeds import fresh_seed
from ..support.shown import Shown
from ..support.version import project_version

if TYPE_CHECKING:
    from .content import Content
    from .fingerprint import Fingerprint
    from .readings import Reading
    from .sample import Sample
    from .source import Comparison
    from .source_keys import SourceKeys

    # at run time, completion in notebooks (jedi) fails on a property of such a type
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
    """Options of an audit; the help of the command line explains them.

    Args:
        llama: let llama.cpp decode and read the file.
        today: the date to compare waivers with; None for today in UTC.
        sandbox: isolation of llama.cpp's process and the readers': "auto", "bubblewrap", "landlock" or "none".
        seed: seed of the sample of a remote file; by default a new one for each audit.
        redirects: further hosts that the server of a remote file may redirect to.
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
    seed: int = field(default_factory=fresh_seed)
    redirects: tuple[str, ...] = ()


def _gguf_version() -> str:
    from importlib import metadata  # slow to import

    return metadata.version("gguf")


@dataclass(frozen=True, kw_only=True)
class AuditHeader:
    """Versions of the software that read the file, and the files that were read.

    Args:
        llama_cpp, llama_cpp_python, ggml: None if llama.cpp's process did not report them.
        file, source, imatrix: paths; the last two are None if not given.
        size: bytes of all parts.
        sha256, source_sha256: one digest for each part; None if not computed.
        imatrix_sha256: digest of the importance matrix.
        architecture: None if the file was refused.
        threads: number of threads of llama.cpp's decoders.
        sandbox: isolation of its process and the readers', in words.
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
    """The result of an audit.

    Args:
        path: the requested file.
        files: that file, or all parts of a split model.
        header: versions, sizes, digests.
        findings: all findings, sorted by part and offset.
        contents: one for each tensor.
        fingerprints: one for each supported type.
        readings: other readers' readings, by part.
        comparisons: comparisons with the source's tensors, if a source was given.
        source_keys: comparison with the source's keys; None if no source was given.
        unmapped: tensors of the source without a known GGUF name, with the reason.
        unverified: pairs of name and reason for everything that could not be judged.
        refused: the finding for which the parser refused the file, or None.
        strict: whether warnings count as errors.
        left_out: pairs of name and reason for checks skipped by the user or for lack of software.
        n_tensors: number of tensors in the model. `contents` has fewer if the user selected some.
        fault: why the audit ended early, if this machine could not finish it.
        changed: whether a file changed while it was read, so that the findings may be wrong.
        seconds: duration.
        command: the command line that repeats it.
        waivers: the use of each waiver for this file.
        waived: the findings that a waiver covers.
        sample: the sample of a remote file; None for a file that was read as a whole.
    """

    path: Path | Address
    files: tuple[GgufFile, ...]
    header: AuditHeader
    findings: tuple[Finding, ...] = ()
    contents: tuple[Content, ...] = ()
    fingerprints: tuple[Fingerprint, ...] = ()
    readings: tuple[tuple[Reading, ...], ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    source_keys: SourceKeys | None = None
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
        """4 if the file was refused; 3 if it changed meanwhile; 1 for an error, or for a warning if strict; 3 if the
        audit ended early; 5 if something could not be judged, or only a sample was; otherwise 0. Waived findings do
        not count."""
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
    def composition(self) -> Composition:
        """The types of all tensors of the file, also of those that were not selected."""
        return composition(tensor for file in self.files for tensor in file.tensors.values())

    @property
    def counts(self) -> Counter[str]:
        """Number of findings by severity, with those beyond the limit of the list."""
        found = Counter[str]()
        for f in self.findings:
            found[f.severity] += 1 + f.more
        return found

    @property
    def verdict(self) -> AuditVerdict:
        """The verdict. "clean" means no error and no warning in a fully checked file."""
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
        """The meaning of the verdict for this file, in one line."""
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
        """Say how many tensors are proven to be made from the source, for the end of a sentence."""
        if not self.comparisons or self.verdict in ("refused", "broken off"):
            return ""
        outcomes = Counter(c.outcome for c in self.comparisons)
        said = f"; {outcomes['same']:,} of {_plural(len(self.comparisons), 'tensor')} proven to be the source's"
        possible = outcomes["possible"]
        said += f", {possible:,} possible with an importance matrix and not proven" if possible else ""
        return said + (f"; {self.source_keys.words}" if self.source_keys else "")

    @property
    def words(self) -> str:
        """The verdict as reports show it; "clean" alone means that there is no waived finding."""
        n = len(self.waived)
        of = " in the sample" if self.sample else ""
        return (
            f"clean{of} with {n:,} waived finding{'' if n == 1 else 's'}" if self.verdict == "waived" else self.verdict
        )


def _plural(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
