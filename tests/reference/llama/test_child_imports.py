"""The untrusted processes import NumPy, the standard library, and a few modules of this project.

Each is started as a run starts it, but without a sandbox: so it inherits a `sitecustomize` that records its imports.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gguf_verify.audit.audit import audit
from gguf_verify.audit.reader_child import ReaderChild
from gguf_verify.audit.record import AuditOptions
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.llama.library import Llama
from gguf_verify.processes.child import Spawned
from gguf_verify.processes.sandbox import sandboxed
from gguf_verify.support import protocol
from tests.support.foreign_runs import multiplied
from tests.support.tools import FIXTURES

#: Records the name of every module that is looked for, in a file of each process. `-X importtime` would not show those
#: that `importlib.import_module` imports.
RECORDER = """
import os, sys

class Recorder:
    out = open(os.path.join(os.path.dirname(__file__), f"imports-{os.getpid()}"), "w")

    def find_spec(self, name, path=None, target=None):
        print(name, file=self.out, flush=True)

print(*sys.orig_argv, file=Recorder.out, flush=True)
sys.meta_path.insert(0, Recorder())
"""

KERNEL = """
import numpy as np
from gguf_verify import kernel

@kernel(formats=["Q4_0"], semantics="q8_1")
def zeros(weights, activations, shape):
    return np.zeros((shape.m, shape.n), np.float32)
"""

#: Modules of every process that answers over a socket or is given files.
_SUPPORT = {"support.errors", "support.numbers", "support.paths", "support.text"}
_GIVEN = {
    "processes.boundary", "processes.given", "processes.guard", "processes.syscalls", "support.scratch",
}  # fmt: skip
_LLAMA = {"llama.bindings", "llama.builds", "llama.ggml", "llama.installed", "llama.loading", "support.partial_import"}
_PROTOCOL = {"support.lanes", "support.protocol", "support.sealed", "support.scratch"}

OF_A_KERNEL = _SUPPORT | {"hosts.memory"} | {
    f"kernels.foreign.{name}" for name in (
        "__main__", "api", "bytecode", "child", "compiled_by_others", "faults", "frames", "observation", "operands",
        "python_kernel", "tracing",
    )
}  # fmt: skip
OF_A_READER = _SUPPORT | _GIVEN | _LLAMA | {"llama.reader_process"}
_COMPILING = {
    "processes.boundary", "processes.guard", "processes.sandbox", "processes.syscalls", "support.cache",
    "support.files", "support.folders", "support.scratch", "support.sources",
}  # fmt: skip
OF_A_HOST = _SUPPORT | _PROTOCOL | _COMPILING | {"support.arrays", "support.near", "support.registry"} | {
    f"hosts.{name}" for name in (
        "__main__", "base", "choice", "compilation", "compiler", "cpu_host", "cuda_text", "elf", "extents", "findings",
        "foreign_sources", "kind", "kinds.cpu", "kinds.gpu", "launch_limits", "memory", "process_child", "schedule",
        "tables",
    )
}  # fmt: skip
OF_NVRTC = _SUPPORT | _COMPILING | {
    f"hosts.{name}" for name in (
        "compilation", "cubin", "elf", "foreign_sources", "includes", "nvcc", "nvrtc", "nvrtc_child", "tables",
    )
}  # fmt: skip
OF_A_SCANNER = _SUPPORT | _GIVEN | _PROTOCOL | {"llama.loading", "llama.worker.*", "support.checksums"}
#: It compares ggml's types with the formats, and knows the backends of llama.cpp.
OF_LLAMA = OF_A_SCANNER | _LLAMA | {
    "formats.*", "llama.backends.*", "llama.ggml_layout", "llama.reference_names", "support.arrays",
    "support.command_line", "support.near", "support.registry", "support.threads",
}  # fmt: skip

#: Modules that Python's start and its standard library look for.
_OF_PYTHON = {"_distutils_hack", "sitecustomize", "usercustomize", "org", "apport_python_hook", "__main__", "_wmi"}
#: Modules that the gguf package imports, or looks for.
_OF_GGUF = {"gguf", "yaml", "sentencepiece", "mistral_common", "tqdm"}


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the records."""
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with sandboxed("none"):
        yield tmp_path


def check(folder: Path, module: str, ours: set[str], others: set[str]) -> set[str]:
    """Check the imports of the processes that ran `python -m MODULE`, of which there must be one; returns them."""
    records = [file.read_text().splitlines() for file in folder.glob("imports-*")]
    of_module = [names for command, *names in records if f"-m {module} " in f"{command} "]
    assert of_module
    names = {name for each in of_module for name in each}
    mine = {name.removeprefix("gguf_verify.") for name in names if name.startswith("gguf_verify.")}
    packages = {".".join(name.split(".")[:n]) for name in ours for n in range(1, name.count(".") + 1)}
    allowed = ours | packages | {name for name in mine if f"{name.rpartition('.')[0]}.*" in ours}
    assert mine <= allowed, mine - allowed
    tops = {name.partition(".")[0] for name in names} - {"gguf_verify"}
    foreign = {name for name in tops - sys.stdlib_module_names - _OF_PYTHON if not name.startswith("_sysconfigdata")}
    assert foreign <= others, foreign - others
    return names


def test_kernel_in_python(records: Path) -> None:
    """Its process starts some thousand times in these tests, and is not trusted with more."""
    (records / "zeros.py").write_text(KERNEL)
    kernel = open_foreign(f"{records / 'zeros.py'}:zeros", CpuHost(1), 20.0)
    try:
        assert not multiplied(kernel)
    finally:
        kernel.close()
    check(records, "gguf_verify.kernels.foreign", OF_A_KERNEL, {"numpy", "gguf_verify_kernel_zeros", "zeros"})


def test_llama(records: Path) -> None:
    with Llama(60.0) as llama:
        llama.versions()
        llama.start_backend("cpu")
    # llama-cpp-python's bindings import the one
    names = check(records, "gguf_verify.llama.worker", OF_LLAMA, {"numpy", "llama_cpp", "gguf", "typing_extensions"})
    assert "gguf_verify.llama.worker.model" in names


def test_scanner(records: Path) -> None:
    options = AuditOptions(llama=False, readers=False, progress=False, sandbox="none")
    assert audit(FIXTURES / "tiny-Q4_0.gguf", options).contents
    check(records, "gguf_verify.llama.worker", OF_A_SCANNER, {"numpy"})


@pytest.mark.parametrize(
    ("name", "others"),
    [("gguf-py", {"numpy", *_OF_GGUF}), ("llama.cpp", {"numpy", "llama_cpp", "typing_extensions"})],
)
def test_reader(records: Path, name: str, others: set[str]) -> None:
    reader = ReaderChild(name)
    try:
        reader.greet()
    finally:
        reader.close()
    check(records, "gguf_verify.llama.reader_process", OF_A_READER, others)


def test_host(records: Path) -> None:
    host = Spawned("gguf_verify.hosts", "cpu", "1", "pool", "")
    try:
        protocol.send(host.link, {"ask": "end"})
        assert protocol.receive(host.link)[0] == {"ok": True}
    finally:
        host.close()
    check(records, "gguf_verify.hosts", OF_A_HOST, {"numpy"})


def test_nvrtc(records: Path) -> None:
    """With NVRTC or without it, where its process only says so."""
    request = {"root": "/", "file": "x.cu", "architecture": "sm_90", "defines": {}, "what": "CUBIN", "options": []}
    (records / "request.json").write_text(json.dumps(request | {"entries": None, "headers": {}}))
    module = "gguf_verify.hosts.nvrtc_child"
    command = [sys.executable, "-P", "-m", module, str(records / "request.json"), str(records / "made")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 3
    check(records, module, OF_NVRTC, {"numpy", "cuda"})
