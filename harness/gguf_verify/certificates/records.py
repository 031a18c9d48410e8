"""Records of a certificate: an in-toto Statement v1 with a predicate of this project.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. The predicate type has a version, which is raised
whenever a field is added, removed or changes its meaning. File names are relative, with "/" between folders; sizes are
in bytes; digests are SHA-256 in hex.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..processes.sandbox import Sandbox
from ..results.coverage import CodeCoverage
from ..results.environment import HostInfo
from ..results.failures import WaiverUse
from ..results.products import TypeEnvelope
from ..results.report import ReportVerdict
from ..results.rungs import RungVerdict

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
VERSION = 1
PREDICATE_TYPE = f"urn:gguf-verify:certificate:{VERSION}"

# `$` also matches before a newline at the end, hence the lengths
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Count = Annotated[int, msgspec.Meta(ge=0)]
#: A time in UTC, with seconds, RFC 3339.
Moment = Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", max_length=20)]
#: A number, finite or not.
Number = float | Annotated[str, msgspec.Meta(pattern="^(NaN|-?Infinity)$", max_length=9)]


class Digest(msgspec.Struct, frozen=True):
    """in-toto's DigestSet, with sha256 only."""

    sha256: Sha256


class Subject(msgspec.Struct, frozen=True):
    """A file that the verdict depends on."""

    name: str
    digest: Digest


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """The version of gguf-verify that produced the verdict.

    Args:
        version: of the package.
        sha256: one digest of all its files and kernel sources; see `materials.project`.
        files: number of these files.
    """

    version: str
    sha256: Sha256
    files: Count


class CertifiedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model: `files` are names of subjects, in the order of the parts; `tensor_types` counts tensors by type."""

    files: tuple[str, ...]
    size: Count
    architecture: str
    tensor_types: dict[str, Count]


class CertifiedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel.

    Args:
        name: the kernel as given to `--kernel`.
        shipped: it is one of this project's kernels, so its sources are the project's.
        files: names of subjects: every file that the kernel is known to consist of, the one named on the command line
            first. They include the files that its loader and its compilers opened.
        packages: installed packages that it imports → version.
        unknown: parts of the kernel without a digest → why.
        definition: the declared definition.
        judged_by: what judges it, if not a definition of the project; otherwise None.
        order: its declared order of summation, in words.
        covers: the quantized types that it multiplies.
        beside: type → the project's kernel that multiplied matrices of that type in its place.
        system: path → digest of each system file that its loader and its compilers opened; absent for a kernel of this
            project.
        coverage: the code that the run executed; absent for a kernel of this project.
    """

    name: str
    shipped: bool
    files: tuple[str, ...]
    packages: dict[str, str]
    unknown: dict[str, str]
    definition: str
    judged_by: str | None
    order: str
    covers: tuple[str, ...]
    beside: dict[str, str]
    system: dict[str, Sha256] | msgspec.UnsetType = msgspec.UNSET
    coverage: CodeCoverage | msgspec.UnsetType = msgspec.UNSET


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp: versions, build features, where it ran, and name → digest of each shared library that its process
    loaded."""

    llama_cpp_python: str
    llama_cpp: str
    ggml: str
    build: str
    where: str
    libraries: dict[str, Sha256]


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of other software, and the processor or GPU that the project's own kernels ran on."""

    machine: str
    platform: str
    byte_order: str
    python: str
    numpy: str
    gguf: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The request: the fields of `results.Options` that a verdict may depend on, with the prompt's digest in place of
    the prompt; and `left_out`, the parts of a whole verification that were not requested, in words."""

    rungs: tuple[str, ...]
    prompt_sha256: Sha256
    n_predict: Count
    threads: Count
    ctx_size: Count
    seed: Count
    tensor: str | None
    repack: bool
    reference: str
    probes: str
    sanitize: bool
    left_out: tuple[str, ...]


class CertifiedRung(msgspec.Struct, frozen=True, kw_only=True):
    """A rung: its verdict, counts by kind, the number of unverified, failed and waived checks, and the largest
    utilisation of the bound by origin of the output."""

    name: str
    verdict: RungVerdict
    checked: dict[str, Count]
    not_checked: dict[str, Count]
    unverified: Count
    failures: Count
    waived: Count
    worst: dict[str, Number]


class Predicate(msgspec.Struct, frozen=True, kw_only=True):
    """A run, its software, and its result.

    Args:
        verdict, words, exit_code: as in the report.
        culprits: culprit → number of failures.
        finished: when the run ended.
        command: repeats the run, with file names as in this certificate.
        envelope: the products other than the model's own that the verdict covers, and those that it does not cover.
    """

    verdict: ReportVerdict
    words: str
    exit_code: Count
    culprits: dict[str, Count]
    finished: Moment
    command: str
    project: Project
    model: CertifiedModel
    kernel: CertifiedKernel
    host: HostInfo
    reference: Reference
    system: System
    sandbox: Sandbox
    asked: Asked
    rungs: tuple[CertifiedRung, ...]
    not_climbed: tuple[str, ...]
    envelope: tuple[TypeEnvelope, ...]
    waivers: tuple[WaiverUse, ...]


class Statement(msgspec.Struct, frozen=True, kw_only=True, rename={"type": "_type", "predicate_type": "predicateType"}):
    """A certificate."""

    type: Annotated[str, msgspec.Meta(pattern=f"^{STATEMENT_TYPE}$")]
    subject: tuple[Subject, ...]
    predicate_type: str
    predicate: Predicate
