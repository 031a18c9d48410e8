"""Compiling for the CPU host: its faults, its cache and its precompiled header."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from gguf_verify.formats import FORMATS
from gguf_verify.hosts import HOSTS, CpuHost, auto_host, compiler, cupy_host, make_host
from gguf_verify.support import cache as support_cache
from gguf_verify.support.cache import tree_hash
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import kernel_root
from gguf_verify.support.sources import of_makefile
from tests.support.short_kernels import WRITE_A_BYTE, run, with_kernel


def test_compile_error(tmp_path: Path) -> None:
    root = with_kernel(tmp_path, "void k(float* y) { y[0] = no_such_name; }")
    with pytest.raises(EnvironmentFault, match=r"could not compile k\.cu: .*k\.cu:2:\d+: .*no_such_name") as caught:
        CpuHost(1).load(root, "k.cu", "k", {})
    assert "\n" not in str(caught.value)


def test_entry_that_is_not_there(roots: Callable[[str], Path]) -> None:
    with pytest.raises(EnvironmentFault, match="could not compile"):
        CpuHost(1).load(roots(WRITE_A_BYTE), "k.cu", "other", {})


def test_block_size_that_disagrees() -> None:
    with pytest.raises(EnvironmentFault, match="disagree about the size of a block"):
        CpuHost(1).load(kernel_root(), "gemm/q8_1/01_naive.cu", "gemm", {**FORMATS["Q4_0"].macros, "BLOCK_BYTES": "20"})


@pytest.mark.parametrize("variable", ["CXX", "PATH"])
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, "/nonexistent")
    with pytest.raises(EnvironmentFault, match=r"no C\+\+ compiler found"):
        CpuHost(1).load(kernel_root(), "quantize/q8_1.cu", "quantize", {})
    with pytest.raises(EnvironmentFault, match=r"no C\+\+ compiler found"):
        CpuHost(1).describe()


def test_compiler_that_fails_in_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    silent = tmp_path / "cxx"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("CXX", str(silent))
    with pytest.raises(EnvironmentFault, match="could not compile"):
        CpuHost(1).load(roots(WRITE_A_BYTE), "k.cu", "k", {})


def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build is found again by another host and from another folder; any change of its inputs gives a new one."""
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr(support_cache, "cache_dir", lambda: cache)
    compiled: list[str] = []
    original = compiler._compile

    def counting(root: Path, unit: str, options: Sequence[str]) -> compiler.Built:
        compiled.append(unit)
        return original(root, unit, options)

    monkeypatch.setattr(compiler, "_compile", counting)
    one = with_kernel(tmp_path / "one", WRITE_A_BYTE)
    same = with_kernel(tmp_path / "same", WRITE_A_BYTE)
    for root in (one, one, same):
        host = CpuHost(1)
        assert host.load(root, "k.cu", "k", {}) is host.load(root, "k.cu", "k", {})
    assert len(compiled) == len(list(cache.glob("*.so"))) == 1

    changed = with_kernel(tmp_path / "changed", WRITE_A_BYTE.replace("7", "8"))
    host = CpuHost(1)
    assert run(host, host.load(changed, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0)) == 8
    assert len(compiled) == 2

    header = with_kernel(tmp_path / "header", WRITE_A_BYTE)
    with (header / "emulator" / "cuda_on_cpu.hpp").open("a") as f:
        f.write("// changed\n")
    assert len({tree_hash(r) for r in (one, same, changed, header)}) == 3
    host.load(one, "k.cu", "k", {"UNUSED": "1"})
    CpuHost(1, ["-O1"]).load(one, "k.cu", "k", {})
    assert len(compiled) == len(list(cache.glob("*.so"))) == 4


@pytest.mark.parametrize("damage", ["none", "missing", "cut short", "empty"])
def test_precompiled_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path], damage: str
) -> None:
    """A kernel is the same bytes with and without it, and whatever becomes of it; what GCC chokes on is made anew."""
    if "Free Software Foundation" not in compiler._said_of_version(compiler.compiler()):
        assert compiler.precompiled() is None
        pytest.skip("only GCC's are used")
    commands: list[Sequence[str]] = []
    original = compiler._run

    def noting(command: Sequence[str], root: Path | None = None) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return original(command, root)

    there = compiler.precompiled()
    assert there is not None
    listed = support_cache.cached_file(compiler._precompiled_key(there.read_text(), []), ".json")
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    for path in (there, compiler._made_of(there), listed):
        shutil.copy(path, tmp_path)
    made = tmp_path / compiler._made_of(there).name
    whole = made.stat().st_size
    assert whole > 1e6
    if damage == "missing":
        made.unlink()
    elif damage != "none":
        os.truncate(made, {"cut short": whole // 2, "empty": 0}[damage])

    monkeypatch.setattr(compiler, "_run", noting)
    unit = '#include "k.cu"\nCPU_KERNEL(k)\n'
    with_it = compiler._object(roots(WRITE_A_BYTE), unit, ["-DFORMAT=Q4_0"])
    with_header = ["-include" in command for command in commands]
    assert with_header == ([True, False] if damage == "cut short" else [True])
    assert made.exists() == (damage != "cut short")
    monkeypatch.setattr(compiler, "precompiled", lambda _flags: None)
    assert compiler._object(roots(WRITE_A_BYTE), unit, ["-DFORMAT=Q4_0"]).content == with_it.content
    assert "-include" not in commands[-1]


def test_precompiled_header_of_other_flags(monkeypatch: pytest.MonkeyPatch, roots: Callable[[str], Path]) -> None:
    """Flags have one each, macros none; a kernel is the same bytes with and without it."""
    if compiler.precompiled() is None:
        pytest.skip("only GCC's are used")
    unit, options, asked = '#include "k.cu"\nCPU_KERNEL(k)\n', ["-O1", "-DFORMAT=Q4_0"], []
    original = compiler.precompiled

    def noting(flags: Sequence[str]) -> Path | None:
        asked.append(original(flags))
        return asked[-1]

    monkeypatch.setattr(compiler, "precompiled", noting)
    with_it = compiler._object(roots(WRITE_A_BYTE), unit, options)
    assert asked == [original(["-O1"])]
    assert asked != [original()]
    monkeypatch.setattr(compiler, "precompiled", lambda _flags: None)
    assert compiler._object(roots(WRITE_A_BYTE), unit, options).content == with_it.content


def test_no_precompiled_header_but_gccs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_said_of_version", lambda _: "clang version 17")
    assert compiler.precompiled() is None


def test_cache_without_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nowhere to write, or a user without a home: a temporary folder."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(made))
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert support_cache.cache_dir.__wrapped__() == made

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert support_cache.cache_dir.__wrapped__() == made


def test_choice_of_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_host, "gpu_fault", lambda: "no device in this test")
    assert list(HOSTS) == ["gpu", "cpu"]
    assert auto_host() == ("cpu", ["no device in this test"])
    assert isinstance(make_host("auto"), CpuHost)
    assert make_host("auto").chosen == "by auto: no device in this test"
    assert isinstance(make_host("cpu"), CpuHost)
    assert make_host("cpu").chosen == "as asked for"
    assert make_host("cpu", 3).threads == 3
    assert make_host("cpu").threads == len(os.sched_getaffinity(0))
    with pytest.raises(EnvironmentFault, match="no device in this test"):
        make_host("gpu")
    with pytest.raises(UsageError, match="auto, gpu, cpu"):
        make_host("cuda")
    monkeypatch.setattr(cupy_host, "gpu_fault", lambda: None)
    assert auto_host() == ("gpu", [])


def test_description_names_the_machine() -> None:
    said = CpuHost(2).describe()
    assert said.startswith("cpu: ")
    assert "2 threads" in said
    assert compiler.cpu_name() in said


def test_every_file_that_the_compiler_reads_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By an absolute path, of another suffix, through a variable, from a header: an edit is seen, an undone one too."""
    cache, beside, found = (tmp_path / name for name in ("cache", "beside", "found"))
    for folder in (cache, beside, found):
        folder.mkdir()
    monkeypatch.setattr(support_cache, "cache_dir", lambda: cache)
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(found))
    root = with_kernel(tmp_path / "root", "")
    files = {
        beside / "a b.h": "A", found / "found.h": "B", root / "text.inc": "C", beside / "deep.h": "D",
    }  # fmt: skip
    lines = [f'#include "{beside}/a b.h"', "#include <found.h>", '#include "text.inc"', f'#include "{beside}/top.h"']
    (beside / "top.h").write_text('#include "deep.h"\n')
    (root / "k.cu").write_text(
        "\n".join(['#include "emulator/cuda_on_cpu.hpp"', *lines])
        + '\nextern "C" __global__ void k(unsigned char* y, long long i) { y[i] = A + B + C + D; }\n'
    )

    def value() -> int:
        host = CpuHost(1)
        return int(run(host, host.load(root, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0))[0])

    for path, name in files.items():
        path.write_text(f"#define {name} 1\n")
    assert value() == 4
    for path, name in files.items():
        path.write_text(f"#define {name} 2\n")
        assert value() == 5, path
        path.write_text(f"#define {name} 1\n")
        assert value() == 4, path
    assert len(list(cache.glob("*.so"))) == 5
    other = tmp_path / "other"
    other.mkdir()
    (other / "found.h").write_text("#define B 9\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(other))
    assert value() == 12


def test_a_source_that_changes_while_it_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    root = with_kernel(tmp_path / "root", WRITE_A_BYTE)
    original, edits = compiler._compile, [("= 7", "= 8"), ("= 8", "= 9")]

    def edited(root: Path, unit: str, options: Sequence[str]) -> compiler.Built:
        built = original(root, unit, options)
        if edits:
            source = root / "k.cu"
            source.write_text(source.read_text().replace(*edits.pop(0)))
        return built

    monkeypatch.setattr(compiler, "_compile", edited)
    host = CpuHost(1)
    assert run(host, host.load(root, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0)) == 9
    monkeypatch.setattr(compiler, "_unchanged", lambda *_: False)
    with pytest.raises(EnvironmentFault, match="the sources of a kernel change while they are compiled"):
        CpuHost(1).load(root, "k.cu", "k", {"ANOTHER": "1"})


def test_lists_of_make() -> None:
    made = "made: /a/b\\ c.h \\\n /d\\#e.h /f$$g.h \\\n  /h\\i.h\n"
    assert of_makefile(made) == ["/a/b c.h", "/d#e.h", "/f$g.h", "/h\\i.h"]
