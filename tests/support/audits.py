"""Audits of files that tests write, and faults that are planted between two of an audit's steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from gguf_verify.audit import content
from gguf_verify.audit.audit import audit
from gguf_verify.audit.record import Audit, AuditHeader, AuditOptions
from gguf_verify.gguf.model import open_model
from gguf_verify.gguf.records import finding
from gguf_verify.gguf.rules import RULES
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.llama.files import Scan
from gguf_verify.llama.library import Llama
from gguf_verify.results.options import Options
from gguf_verify.results.report import Report
from gguf_verify.verification import verify
from tests.support.tools import FIXTURES, write_model

Bytes = npt.NDArray[np.uint8]


TINY = {name: FIXTURES / f"tiny-{name}.gguf" for name in ("Q4_0", "Q5_1", "F16")}


def ids(result: Audit) -> list[str]:
    return [f.id for f in result.findings]


def rule(slug: str) -> str:
    return RULES[slug].id


def audited(*slugs: str, owner: str = "blk.0.attn_q.weight", path: Path = TINY["Q4_0"]) -> Audit:
    """An audit of the fixture with findings of these rules, 18 bytes each."""
    with open_model(TINY["Q4_0"]) as model:
        start = model.tensors["blk.0.attn_q.weight"].offset
        found = tuple(
            finding(slug, start + 18 * i, start + 18 * (i + 1), "x", f"y of {owner}", owner)
            for i, slug in enumerate(slugs)
        )
        header = AuditHeader(file=str(path), size=model.size, sha256=("0" * 64,), architecture="llama")
        return Audit(path, model.parts, header, found, n_tensors=30, command="gguf-verify audit x")


def run(path: Path, **options: object) -> Audit:
    return audit(path, AuditOptions(**{"progress": False, "threads": 2, **options}))  # type: ignore[arg-type]


def one_tensor(path: Path, rows: Bytes, kind: str, name: str = "w") -> Path:
    """A file of one tensor, `rows` uint8[rows, row bytes]."""
    return write_model(path, {name: (rows, kind)})


def scanned(path: Path, llama: Llama, threads: int = 2) -> Scan:
    with open_model(path) as model:
        (found,) = content.contents(list(model.tensors.values()), llama, threads)
        assert found.scan is not None
        return found.scan


def bytes_rung(path: Path) -> Report:
    return verify(path, host=CpuHost(1), rungs=["bytes"], options=Options(probes="brief", progress=False, threads=2))


def halves(*values: int) -> Bytes:
    """Bit patterns as bytes, little endian."""
    return np.array(values, "<u2").view(np.uint8)


def at_scan(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[Llama], object]) -> None:
    """Do something just before the scan of that number is waited for."""
    whole, scans = Llama.receive, []

    def receive(self: Llama, call: str) -> object:
        if call == "scan":
            scans.append(call)
            if len(scans) == number:
                do(self)
        return whole(self, call)

    monkeypatch.setattr(Llama, "receive", receive)


def dies_at_scan(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """llama.cpp is killed then, and what it has sent is lost."""

    def die(llama: Llama) -> None:
        os.kill(llama.pid, 9)
        llama._link.close()

    at_scan(monkeypatch, number, die)
