"""The records of a certificate: an in-toto Statement v1 with a predicate of this project.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md. The predicate's type has a version, which is
raised whenever a field is added, removed or changes its meaning. Names of files are relative, with "/" between folders;
sizes are in bytes, digests are sha256 in hex.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ..processes.sandbox import Sandbox
from ..results import HostInfo, ReportVerdict, RungVerdict, TypeEnvelope, WaiverUse

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
VERSION = 1
PREDICATE_TYPE = f"urn:gguf-verify:certificate:{VERSION}"

# `$` also matches before a newline at the end, hence the lengths
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
Count = Annotated[int, msgspec.Meta(ge=0)]
#: Seconds in UTC, RFC 3339.
Moment = Annotated[str, msgspec.Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$", max_length=20)]
#: A number, or one that is not finite.
Number = float | Annotated[str, msgspec.Meta(pattern="^(NaN|-?Infinity)$", max_length=9)]


class Digest(msgspec.Struct, frozen=True):
    """in-toto's DigestSet, of which sha256 alone is used."""

    sha256: Sha256


class Subject(msgspec.Struct, frozen=True):
    """A file that the verdict is about."""

    name: str
    digest: Digest


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """The gguf-verify that found the verdict.

    Args:
        version: of the package.
        sha256: one digest of all its files and of the sources of its kernels; see `materials.project`.
        files: how many they are.
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
        name: as `--kernel` takes it.
        shipped: it is one of this project's, so that its sources are the project's kernels.
        files: names of subjects: every file that it is known to be made of, the one that was named first. They include
            what its loader and its compilers opened.
        packages: installed packages that it imports → version.
        unknown: what it is made of and is not known → why.
        definition: that it declares.
        judged_by: what judges it, where that is no definition of the project; None elsewhere.
        order: its declared order of summation, in words.
        covers: the quantized types that it multiplies.
        beside: type → the project's kernel that multiplied matrices of that type in its place.
        system: path → digest of each file of the system that its loader and its compilers opened; not there for a
            kernel of this project.
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


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp: versions, the features of its build, where it ran, and name → digest of each shared library that its
    process had loaded."""

    llama_cpp_python: str
    llama_cpp: str
    ggml: str
    build: str
    where: str
    libraries: dict[str, Sha256]


class System(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of what else took part, and the processor or card that the project's own kernels ran on."""

    machine: str
    platform: str
    byte_order: str
    python: str
    numpy: str
    gguf: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: the fields of `results.Options` that a verdict may depend on, with the prompt's digest in its
    place; and `left_out`, what of a whole verification was not asked for, in words."""

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
    """A rung: its verdict, counts by kind, how many things were not verified, failed or were waived, and whose output →
    the largest share of its bound."""

    name: str
    verdict: RungVerdict
    checked: dict[str, Count]
    not_checked: dict[str, Count]
    unverified: Count
    failures: Count
    waived: Count
    worst: dict[str, Number]


class Predicate(msgspec.Struct, frozen=True, kw_only=True):
    """What was run, by what, and what was found.

    Args:
        verdict, words, exit_code: as the report has them.
        culprits: who is at fault → for how much.
        finished: when the run ended.
        command: repeats the run, with the files' names as they are here.
        envelope: for which products beside the model's own it holds, and what was not covered.
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
