"""What all runs of hostile kernels share, and their command lines."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import gguf

from gguf_verify.hosts.compiler import compiler

from .hostile_kernels import HERE
from .project_copy import ProjectCopy
from .tools import FIXTURES, ROOT


class Ground:
    """What all runs share.

    Args:
        folder: where it is made, unless another process has made it there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.honest.exists():
                self._make()

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def honest(self) -> Path:
        """The report of an honest run."""
        return self.folder / "honest.json"

    @property
    def forger(self) -> Path:
        return self.folder / "forger.so"

    @property
    def model(self) -> Path:
        """Most of its matrices are of a foreign kernel's type, and one is of floats, for which the verifier loads a
        library of its own."""
        return self.folder / "model.gguf"

    def _make(self) -> None:
        ProjectCopy(self.project)
        _write_mixed(self.model)
        source = HERE / "forger.cpp"
        subprocess.run([compiler(), "-O1", "-shared", "-fPIC", "-o", self.forger, source], check=True)
        # the bytecode of all, so that no run writes any
        subprocess.run([sys.executable, "-m", "compileall", "-q", self.project / "harness"], check=True)
        report = self.folder / "first.json"
        self._verify(ROOT / "examples" / "numpy_q4_0.py", report, 0)
        report.rename(self.honest)

    def warm(self) -> None:
        """Compile what audits compile, too."""
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            report = self.folder / "audit.json"
            if not report.exists():
                self._run(audit_command(self.model, report), 0)

    def _verify(self, kernel: Path, report: Path, code: int) -> None:
        self._run(command(self.model, f"{kernel}:gemm", report), code)

    def _run(self, run: list[str], code: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(self.project / "harness"), "XDG_CACHE_HOME": str(self.cache)}
        done = subprocess.run(run, check=False, capture_output=True, text=True, env=environment)
        assert done.returncode == code, done.stdout + done.stderr


def command(model: Path, kernel: str, report: Path, *more: str) -> list[str]:
    """The command line of a short verification. Options that come again take the place of those before."""
    short = ["--host", "cpu", "--rungs", "blocks", "--effort", "quick", "--tensor", "blk.0.attn_[qk]"]
    limits = ["-t", "1", "--time-limit", "30", "--kernel-time-limit", "5"]
    run = [sys.executable, "-P", "-m", "gguf_verify", str(model), "--kernel", kernel, *short, *limits]
    return [*run, "-o", str(report), *more]


def audit_command(model: Path, report: Path) -> list[str]:
    """The command line of an audit."""
    return [sys.executable, "-P", "-m", "gguf_verify", "audit", str(model), "-o", str(report)]


def _write_mixed(path: Path) -> None:
    """The fixture of Q4_0, with blk.0.attn_k.weight in F16."""
    quantized, floats = (gguf.GGUFReader(FIXTURES / f"tiny-{name}.gguf") for name in ("Q4_0", "F16"))
    writer = gguf.GGUFWriter(path, "llama")
    for field in quantized.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], element)
    for tensor in quantized.tensors:
        if tensor.name == "blk.0.attn_k.weight":
            tensor = next(other for other in floats.tensors if other.name == tensor.name)
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
