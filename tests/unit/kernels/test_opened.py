"""The files that a kernel is made of are those that its loader and its compilers opened."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts.author_cubin import SWITCH
from gguf_verify.hosts.compiler import compiler
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.kernels.foreign import sources
from gguf_verify.kernels.foreign.copies import Copies
from gguf_verify.kernels.foreign.opened import Opened
from gguf_verify.kernels.foreign.opening import open_foreign
from gguf_verify.kernels.foreign.process import ForeignKernel
from gguf_verify.processes.mapped import _mapped
from gguf_verify.processes.sandbox import sandboxed
from gguf_verify.results.environment import OpenedFiles
from gguf_verify.support.errors import UsageError
from gguf_verify.support.sources import file_digest
from tests.support.foreign_runs import operands
from tests.support.needs import need
from tests.support.tools import ROOT

DECLARED = """
formats = ["Q4_0"]
semantics = "f32"
parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
"""
#: Writes what a library of a library says, and at its first call what one says that it opens then.
GEMM = """
#include <dlfcn.h>
#include <stdint.h>
extern float near(void);
void gemm(const void* w, const float* x, float* y, int64_t M, int64_t N, int64_t K) {
    float (*late)(void) = (float (*)(void))dlsym(dlopen(LATE, RTLD_NOW), "late");
    for (int64_t i = 0; i < M * N; i++) y[i] = near() + late();
}
"""
CUDA = """
// [gguf-verify]
// formats = ["Q4_0"]
// semantics = "f32"
// parameters = ["weights", "activations", "output", "int32 M", "int32 N"]
// grid = "M * N"
// block = 1
// [/gguf-verify]
#define JOINED(a, b) a##b
JOINED(a, sm)(".pushsection .rodata\\ntable:\\n.inc" "bin \\"TABLE\\"\\n.popsection");
extern "C" __device__ const char table[];
extern "C" __global__ void gemm(const char* w, const float* x, float* y, int M, int N) { y[blockIdx.x] = table[0]; }
"""


def library(folder: Path, name: str, code: str, *flags: str) -> Path:
    (folder / f"{name}.cpp").write_text(f'extern "C" {{ {code} }}')
    path = folder / f"lib{name}.so"
    run = [compiler(), "-shared", "-fPIC", str(folder / f"{name}.cpp"), "-o", str(path), *flags]
    subprocess.run(run, check=True)
    return path


def shared_kernel(folder: Path) -> Path:
    """k.so, which needs libnear.so, which needs libdeep.so; and which opens liblate.so when it is called."""
    below = folder / "below"
    below.mkdir()
    beside = [f"-L{below}", f"-Wl,-rpath,{below}"]
    library(below, "deep", "float deep() { return 1; }")
    library(below, "near", "float deep(); float near() { return deep(); }", *beside, "-ldeep")
    late = library(below, "late", "float late() { return 1; }")
    path, source = folder / "k.so", folder / "k.c"
    source.write_text(GEMM)
    flags = ["-x", "c", str(source), "-x", "none", *beside, "-lnear", f'-DLATE="{late}"']
    subprocess.run([compiler(), "-shared", "-fPIC", *flags, "-o", str(path)], check=True)
    path.with_suffix(".toml").write_text(DECLARED)
    return path


def product(kernel: ForeignKernel) -> float:
    rows, x = operands()
    made = kernel.product(kernel.upload(FORMATS["Q4_0"], rows), x)
    assert np.all(made == made[0, 0])
    return float(made[0, 0])


def opened(kernel: ForeignKernel, folder: Path) -> dict[str, str | None]:
    """What it has opened below a folder."""
    files = kernel.opened.files
    return {str(Path(p).relative_to(folder)): v for p, v in files.items() if Path(p).is_relative_to(folder)}


def test_libraries_that_a_library_needs_and_those_that_it_opens_later(tmp_path: Path) -> None:
    path = shared_kernel(tmp_path)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1))
    try:
        loaded = {"k.so", "below/libnear.so", "below/libdeep.so"}
        assert opened(kernel, tmp_path) == {name: file_digest(tmp_path / name) for name in loaded}
        assert product(kernel) == 2.0
        assert opened(kernel, tmp_path).keys() == {*loaded, "below/liblate.so"}
        others = [p for p in kernel.opened.files if not p.startswith(str(tmp_path))]
        assert any(Path(p).name.startswith("libm.") for p in others)
        assert not [p for p in others if "gguf_verify" in p or "-packages" in p]
        assert "numpy" in kernel.opened.packages
    finally:
        kernel.close()
    assert opened(kernel, tmp_path).keys() == {*loaded, "below/liblate.so"}


def test_a_library_that_is_replaced_before_it_is_loaded(tmp_path: Path) -> None:
    """The copy that was made at the beginning runs, and its digest is reported."""
    need("bubblewrap")
    path = shared_kernel(tmp_path)
    kernel = open_foreign(f"{path}:gemm", CpuHost(1))
    try:
        late = tmp_path / "below" / "liblate.so"
        before = file_digest(late)
        library(tmp_path / "below", "late", "float late() { return 3; }")
        assert product(kernel) == 2.0
        assert opened(kernel, tmp_path)["below/liblate.so"] == before != file_digest(late)
    finally:
        kernel.close()


def test_a_library_that_is_replaced_while_it_is_loaded_is_not_known(tmp_path: Path) -> None:
    """Under the accident guard, where the files themselves run."""
    need("landlock")
    path = shared_kernel(tmp_path)
    with sandboxed("landlock"):
        kernel = open_foreign(f"{path}:gemm", CpuHost(1))
        try:
            late = tmp_path / "below" / "liblate.so"
            (tmp_path / "copy").write_bytes(late.read_bytes())
            product(kernel)
            (tmp_path / "copy").replace(late)
            assert opened(kernel, tmp_path)["below/liblate.so"] is None
        finally:
            kernel.close()


def test_what_a_process_hides(tmp_path: Path) -> None:
    """A library that was opened and closed between two looks, a table, and a module that is no longer listed."""
    need("bubblewrap")
    (tmp_path / "table.bin").write_bytes(b"1")
    (tmp_path / "unused.bin").write_bytes(b"1")
    (tmp_path / "helper.py").write_text("FACTOR = 1\n")
    hides = (
        "import pathlib, sys\nimport helper\n"
        "del sys.modules['helper']\n"
        "open(pathlib.Path(__file__).parent / 'table.bin', 'rb').read()\n"
    )
    text = (ROOT / "examples" / "numpy_q4_0.py").read_text()
    (tmp_path / "k.py").write_text(text.replace("from __future__ import annotations\n", "") + hides)
    kernel = open_foreign(f"{tmp_path / 'k.py'}:gemm", CpuHost(1))
    try:
        assert opened(kernel, tmp_path) == {
            name: file_digest(tmp_path / name) for name in ("k.py", "helper.py", "table.bin")
        }
    finally:
        kernel.close()


def cuda(folder: Path, table: str) -> tuple[float, dict[str, str | None]]:
    (folder / "table.bin").write_text(table)
    (folder / "k.cu").write_text(CUDA.replace("TABLE", str(folder / "table.bin")))
    kernel = open_foreign(f"{folder / 'k.cu'}:gemm", CpuHost(1))
    try:
        return product(kernel), opened(kernel, folder)
    finally:
        kernel.close()


def test_what_the_assembler_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of `.incbin` is listed, also where the cache has the library, and another one is compiled again."""
    monkeypatch.setenv(SWITCH, "off")
    for table in "AAB":
        value, files = cuda(tmp_path, table)
        assert value == ord(table)
        assert files == {name: file_digest(tmp_path / name) for name in ("k.cu", "table.bin")}


def test_a_source_that_is_exchanged_after_it_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header is listed as it was compiled, and so is a file of `.incbin`, also where another one lies there now."""
    monkeypatch.setenv(SWITCH, "off")
    table, header = tmp_path / "table.bin", tmp_path / "k.h"
    table.write_text("A")
    header.write_text("// A\n")
    (tmp_path / "k.cu").write_text(CUDA.replace("TABLE", str(table)) + '#include "k.h"\n')
    compiled = {path.name: file_digest(path) for path in (tmp_path / "k.cu", header, table)}
    kernel = open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))
    for path in (table, header):
        path.write_text("exchanged")
    assert opened(kernel, tmp_path) == compiled
    kernel.close()


def test_a_source_that_is_exchanged_while_it_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of a file of `.incbin` is not known: the compiler may have read either content."""
    monkeypatch.setenv(SWITCH, "off")
    table, build = tmp_path / "table.bin", CpuHost.build_all

    def built(*given: Any) -> Any:
        made = build(*given)
        table.write_text("exchanged")
        return made

    monkeypatch.setattr(CpuHost, "build_all", built)
    _, files = cuda(tmp_path, "A")
    assert files["table.bin"] is None


CLANG = """#!/bin/sh
case " $* " in *" --version "*) echo "clang version 19.1.0"; exit 0;; esac
exec g++ "$@"
"""


def test_clang_does_not_list_what_its_assembler_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "clang++"
    stand_in.write_text(CLANG)
    stand_in.chmod(0o755)
    monkeypatch.setenv("CXX", str(stand_in))
    monkeypatch.setenv(SWITCH, "off")
    (tmp_path / "table.bin").write_text("A")
    (tmp_path / "k.cu").write_text(CUDA.replace('.inc" "bin', ".incbin").replace("TABLE", str(tmp_path / "table.bin")))
    with pytest.raises(UsageError, match=r"k\.cu reads a file by \.incbin, which clang version 19\.1\.0 does not list"):
        open_foreign(f"{tmp_path / 'k.cu'}:gemm", CpuHost(1))


def test_two_processes_that_opened_other_contents() -> None:
    one, other = OpenedFiles(files={"/a": "1", "/b": "2"}), OpenedFiles(files={"/b": "3", "/c": "4"})
    assert one.with_(other).files == {"/a": "1", "/b": None, "/c": "4"}
    assert one.with_(one) == one


def test_the_name_of_a_mapped_file_may_hold_ends_of_lines() -> None:
    assert _mapped(b"1-2 r-xp 0 08:01 7 /a/b\rc.so\n2-3 r-xp 0 08:01 8 /a\\012b\n") == {"/a/b\rc.so", "/a\nb"}


def test_a_library_in_memory_that_is_shared() -> None:
    shared = b"1-2 rw-s 0 08:01 7 /dev/shm/sem.a\n2-3 r-xp 0 08:01 8 /dev/shm/b.so\n3-4 r-xp 0 08:01 9 /dev/zero\n"
    assert _mapped(shared) == {"/dev/shm/b.so"}


def test_a_library_that_was_replaced_after_it_was_listed_is_not_known(tmp_path: Path) -> None:
    """Its name was seen before, its digest may be that of what took its place."""
    (tmp_path / "a.so").write_text("a")
    listed = Opened()
    listed.take([str(tmp_path / "a.so")])
    assert listed.files == {str(tmp_path / "a.so"): file_digest(tmp_path / "a.so")}
    listed.take([f"{tmp_path / 'a.so'} (deleted)"])
    assert listed.files == {str(tmp_path / "a.so"): None}


def test_a_library_beside_an_installed_package_whose_name_begins_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a copy like the kernel's own files, so a library that takes its place is not what ran."""
    need("bubblewrap")
    folder = tmp_path / "path"
    (folder / "libx").mkdir(parents=True)
    info = folder / "libx-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: libx\nVersion: 1\n")
    (info / "RECORD").write_text("libx/__init__.py,,\n")
    path = library(folder, "x", "float x() { return 1; }")
    (tmp_path / "k").mkdir()
    text = (ROOT / "examples" / "numpy_q4_0.py").read_text()
    loads = f"import ctypes\nctypes.CDLL({str(path)!r})\ndef late():\n    import os, libx as x\n"
    (tmp_path / "k" / "k.py").write_text(text.replace("from __future__ import annotations\n", "") + loads)
    before = file_digest(path)

    def exchanged(*given: Any) -> Any:
        copies = Copies(*given)
        path.write_bytes(path.read_bytes() + b"0")
        return copies

    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(sources, "Copies", exchanged)
    kernel = open_foreign(f"{tmp_path / 'k/k.py'}:gemm", CpuHost(1))
    kernel.close()
    assert kernel.opened.files[str(path)] == before != file_digest(path)
    assert kernel.opened.packages["libx"] == "1"
