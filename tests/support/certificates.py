"""Certificates of handmade runs, and keys to sign them with."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from gguf_verify.certificates.check import Installed
from gguf_verify.certificates.make import certify
from gguf_verify.certificates.materials import Materials
from gguf_verify.certificates.records import Project, Statement
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from tests.support.needs import need
from tests.support.nights import run_result

MODEL, KERNEL, INCLUDED = b"the model", b"the kernel", b"what it includes"
RUNGS = ("bytes", "blocks", "layers", "tokens")
PROJECT = Project(version="0.1.0", sha256="a" * 64, files=3)
LIBRARIES = {"libllama.so": "b" * 64}
HERE = Installed(PROJECT, LIBRARIES)
WHEN = datetime(2026, 11, 23, 4, 5, 6, tzinfo=UTC)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def materials(**changed: Any) -> Materials:
    """Of a kernel of two files."""
    made = Materials(
        kernel={"kernels/my.cu": digest(KERNEL), "kernels/parts/my.cuh": digest(INCLUDED)}, packages={}, unknown={},
        shipped=False, kernel_name="kernels/my.cu:gemm", project=PROJECT, libraries=LIBRARIES,
    )  # fmt: skip
    return replace(made, **changed)


def report(wrong: bool = False, **options: Any) -> Report:
    """A run that passed, or one whose kernel is wrong, of the model of `files`."""
    made = run_result(wrong="blk.0.attn_q.weight" if wrong else None)
    e = made.environment
    file = msgspec.structs.replace(e.file, path="/models/my.gguf", size=len(MODEL), sha256=(digest(MODEL),))
    usual = {name: getattr(e.options, name) for name in Options.__dataclass_fields__}
    made.environment = msgspec.structs.replace(e, file=file, options=Options(**(usual | options)))
    made.command = "gguf-verify /models/my.gguf --kernel /home/me/kernels/my.cu:gemm --effort quick"
    return made


def statement(found: Report | None = None, **changed: Any) -> Statement:
    """Its certificate; `changed` are fields of the materials."""
    made_of = materials(**changed)
    return certify(report() if found is None else found, made_of, made_of, RUNGS, "/home/me/kernels/my.cu:gemm", WHEN)


def files(folder: Path) -> Path:
    """The model and the kernel as the certificate names them."""
    for name, content in (("my.gguf", MODEL), ("kernels/my.cu", KERNEL), ("kernels/parts/my.cuh", INCLUDED)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def key(folder: Path, name: str = "key") -> Path:
    """A new key pair without a passphrase."""
    need("ssh-keygen")
    path = folder / name
    made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    return path


def allowed(folder: Path, **keys: Path) -> Path:
    """The list of allowed signers: name → key."""
    path = folder / "allowed_signers"
    lines = [f"{name}@example.org {key.with_suffix('.pub').read_text().strip()}\n" for name, key in keys.items()]
    path.write_text("".join(lines))
    return path
