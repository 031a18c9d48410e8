"""Compiling for the CPU host: its faults, its cache and its precompiled header."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats import FORMATS
from gguf_verify.hosts import compiler, cpu_host, cupy_host
from gguf_verify.hosts.choice import HOSTS, auto_host, make_host
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support import cache as support_cache
from gguf_verify.support import scratch
from gguf_verify.support.cache import tree_hash
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import kernel_root
from gguf_verify.support.sealed import load_library
from gguf_verify.support.sources import file_digest, of_makefile
from tests.support.short_kernels import WRITE_A_BYTE, run, with_kernel
from tests.support.tools import FIXTURES, ROOT


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


def _libraries() -> list[Path]:
    """The indexes of the cache, each of a build."""
    return list(support_cache.index_folder().glob("*.so.index"))


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
    assert len(compiled) == len(_libraries()) == 1

    changed = with_kernel(tmp_path / "changed", WRITE_A_BYTE.replace("7", "8"))
    host = CpuHost(1)
    assert run(host, host.load(changed, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0)) == 8
    assert len(compiled) == 2

    header = with_kernel(tmp_path / "header", WRITE_A_BYTE)
    with (header / "emulator" / "cuda_on_cpu.hpp").open("a") as f:
        f.write("// changed\n")
    assert len({tree_hash(r) for r in (one, same, changed, header)}) == 3
    host.load(one, "k.cu", "k", {"UNUSED": "1"})
    CpuHost(1, ["-Wextra"]).load(one, "k.cu", "k", {})  # the header and the runner are compiled without warnings
    assert len(compiled) == len(_libraries()) == 4

    edited = ROOT / "harness" / "gguf_verify" / "hosts" / "extents.py"  # it writes into builds
    monkeypatch.setattr(compiler, "file_digest", lambda path: "other" if Path(path) == edited else file_digest(path))
    CpuHost(1).load(one, "k.cu", "k", {})
    assert len(compiled) == 5


@pytest.mark.parametrize("damage", ["none", "missing", "cut short", "empty"])
def test_precompiled_header(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path], damage: str
) -> None:
    """A kernel is the same bytes with and without it. What the cache does not have whole is made anew."""
    if "Free Software Foundation" not in compiler._said_of_version(compiler.compiler()):
        assert compiler.precompiled() is None
        pytest.skip("only GCC's are used")
    monkeypatch.setattr(compiler, "_copies", {})
    there = compiler.precompiled()
    assert there is not None
    ((entry, _),) = compiler._copies.items()
    whole = compiler._made_of(there).read_bytes()
    assert len(whole) > 1e6
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    listed = support_cache.kept(compiler._precompiled_key(there.read_text(), []), ".json", b"[]")
    assert listed == b"[]"
    entry = compiler._entry(compiler._precompiled_key(there.read_text(), []), (), kernel_root())
    support_cache.kept(entry, ".gch", whole)
    (held,) = support_cache.index_folder().glob("*.gch")
    if damage == "missing":
        held.unlink()
    elif damage != "none":
        os.truncate(held, {"cut short": len(whole) // 2, "empty": 0}[damage])

    monkeypatch.setattr(compiler, "_copies", {})
    made: list[str] = []
    original = compiler._precompile

    def noting(text: str, *others: Any) -> Any:
        made.append(text)
        return original(text, *others)

    monkeypatch.setattr(compiler, "_precompile", noting)
    unit = '#include "k.cu"\nCPU_KERNEL(k)\n'
    with_it = compiler._object(roots(WRITE_A_BYTE), unit, ["-DFORMAT=Q4_0"])
    assert len(made) == (damage != "none")
    monkeypatch.setattr(compiler, "precompiled", lambda _flags: None)
    assert compiler._object(roots(WRITE_A_BYTE), unit, ["-DFORMAT=Q4_0"]).content == with_it.content


def test_a_precompiled_header_that_the_compiler_cannot_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path]
) -> None:
    """It is what was kept, and GCC chokes on it: the text is read, and the entry is forgotten."""
    there = compiler.precompiled()
    if there is None:
        pytest.skip("only GCC's are used")
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(compiler, "_copies", {})
    key = compiler._precompiled_key(there.read_text(), [])
    support_cache.kept(key, ".json", b"[]")
    entry = compiler._entry(key, (), kernel_root())
    whole = compiler._made_of(there).read_bytes()
    support_cache.kept(entry, ".gch", whole[: len(whole) // 2])
    unit = '#include "k.cu"\nCPU_KERNEL(k)\n'
    assert compiler._object(roots(WRITE_A_BYTE), unit, []).content
    assert support_cache.taken(entry, ".gch") is None
    assert compiler._copies == {}


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
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    assert support_cache.cache_dir() == scratch.top() / "cache"

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody's"))
    monkeypatch.setattr(Path, "home", homeless)
    assert support_cache.cache_dir() == scratch.top() / "cache"


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
    assert len(_libraries()) == 5
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
    with pytest.raises(EnvironmentFault, match="the sources of a kernel changed during compilation"):
        CpuHost(1).load(root, "k.cu", "k", {"ANOTHER": "1"})


def test_lists_of_make() -> None:
    made = "made: /a/b\\ c.h \\\n /d\\#e.h /f$$g.h \\\n  /h\\i.h\n"
    assert of_makefile(made) == ["/a/b c.h", "/d#e.h", "/f$g.h", "/h\\i.h"]


def test_a_library_that_was_replaced_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path]
) -> None:
    """A library that the cache holds in the place of another, before it is read and between that and its loading."""
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    unit = '#include "k.cu"\nCPU_KERNEL(k)\n'
    forged = compiler.build(roots(WRITE_A_BYTE.replace("7", "66")), unit, (cpu_host._OWN,))

    def value(root: Path) -> int:
        host = CpuHost(1)
        return int(run(host, host.load(root, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0))[0])

    def forge() -> None:
        for path in support_cache.index_folder().glob("*.so"):
            path.unlink()  # a library that is loaded must not change under our feet
            path.write_bytes(forged)

    root = roots(WRITE_A_BYTE)
    assert value(root) == 7
    forge()
    built: list[str] = []
    original = compiler._compile

    def noting(root: Path, unit: str, options: Sequence[str]) -> compiler.Built:
        built.append(unit)
        return original(root, unit, options)

    monkeypatch.setattr(compiler, "_compile", noting)
    assert value(root) == 7
    assert value(root) == 7
    assert built == [unit]  # once

    def late(content: bytes) -> Any:
        forge()
        return load_library(content)

    monkeypatch.setattr(compiler, "load_library", late)
    assert value(root) == 7
    checked = checked_host_of(CpuHost(1))
    forge()
    assert run(checked, checked.load(root, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0))[0] == 7


def checked_host_of(host: CpuHost) -> Any:
    """The host with checks, where this compiler can make them; else itself."""
    return host.under(Schedule(checked=True)) or host


def test_a_build_that_vanishes_is_made_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(support_cache, "cache_dir", lambda: tmp_path)
    root, unit = roots(WRITE_A_BYTE), '#include "k.cu"\nCPU_KERNEL(k)\n'
    first = compiler.build(root, unit)
    for path in support_cache.index_folder().glob("*.so"):
        path.unlink()
    assert compiler.build(root, unit) == first


def test_without_a_cache_a_run_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two processes of a run share the folder that takes the cache's place, and it goes with the first."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").touch()
    command: list[str | Path] = [
        sys.executable,
        ROOT / "scripts" / "audit_layout.py",
        FIXTURES / "tiny-Q4_0.gguf",
        "--no-llama",
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "file")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stderr
    assert done.stderr.count("the cache of compiled kernels is not used: ") == 1
    assert list((tmp_path / "tmp").iterdir()) == []
