"""Compiling for the CPU host: its faults, its cache and its precompiled header."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_verify.formats.tensor_types import FORMATS
from gguf_verify.hosts import compiler
from gguf_verify.hosts.choice import HOSTS, auto_host, make_host
from gguf_verify.hosts.cpu_host import CpuHost
from gguf_verify.hosts.kinds import gpu
from gguf_verify.hosts.schedule import Schedule
from gguf_verify.support import cache as support_cache
from gguf_verify.support import scratch
from gguf_verify.support.cache import tree_hash
from gguf_verify.support.errors import EnvironmentFault, UsageError
from gguf_verify.support.paths import kernel_root
from gguf_verify.support.sealed import load_library
from gguf_verify.support.sources import file_digest, of_makefile
from gguf_verify.support.threads import beside
from tests.support.processes import wait_until
from tests.support.short_kernels import WRITE_A_BYTE, run, with_kernel
from tests.support.tools import ROOT


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "caches").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


@pytest.fixture(scope="module")
def precompiled_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of the precompiled header and the runner of the CPU host's kernels, which take longer than a kernel. Copy
    it."""
    made = tmp_path_factory.mktemp("precompiled")
    (made / "caches").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(made / "caches"))
        CpuHost(1).load(with_kernel(made, WRITE_A_BYTE), "k.cu", "k", {})
        for path in support_cache.index_folder().glob("*.so*"):
            path.unlink()
    return made / "caches"


@pytest.fixture
def cache_without_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precompiled_cache: Path) -> None:
    shutil.copytree(precompiled_cache, tmp_path / "caches")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))


def _libraries() -> dict[str, int]:
    """The indexes of the cache, one of each build of a kernel, with the numbers of their files: another one for each
    writing."""
    needed = hashlib.sha256(compiler.library_of_thread()).hexdigest()  # by all of them
    found = support_cache.index_folder().glob("*.so.index")
    return {path.name: path.stat().st_ino for path in found if path.read_text() != needed}


#: The unit of a kernel.
UNIT = '#include "k.cu"\nCPU_KERNEL(k)\n'
#: The flags of the CPU host's own kernels.
HOST = ["-fvisibility=hidden"]


def _byte(host: CpuHost, root: Path) -> int:
    """The first byte that the kernel of a folder writes."""
    return int(run(host, host.load(root, "k.cu", "k", {}), 1, 1, np.empty(1, np.uint8), np.int64(0))[0])


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


@pytest.mark.usefixtures("empty_cache")
def test_compiler_that_fails_in_silence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roots: Callable[[str], Path]
) -> None:
    silent = tmp_path / "cxx"
    silent.write_text("#!/bin/sh\nexit 1\n")
    silent.chmod(0o755)
    monkeypatch.setenv("CXX", str(silent))
    with pytest.raises(EnvironmentFault, match="could not compile"):
        CpuHost(1).load(roots(WRITE_A_BYTE), "k.cu", "k", {})


def test_a_compilation_that_is_no_longer_needed_ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process of the compiler ends, and the thread can be joined."""
    endless, running = tmp_path / "cxx", tmp_path / "pid"
    endless.write_text(f"#!/bin/sh\necho $$ > {running}.new\nmv {running}.new {running}\nexec sleep 1000\n")
    endless.chmod(0o755)
    monkeypatch.setenv("CXX", str(endless))
    try:
        with beside(compiler.compiler_version):
            assert wait_until(running.exists)
            pid = int(running.read_text())
        assert not Path(f"/proc/{pid}").exists()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("empty_cache")
def test_what_a_thread_compiles_is_waited_for(tmp_path: Path) -> None:
    """It is not compiled twice. A child that is forked meanwhile does not wait for a thread that it does not have."""
    root, here = with_kernel(tmp_path, WRITE_A_BYTE), os.getpid()
    begun, again, goes_on = threading.Event(), threading.Event(), threading.Event()

    def compile_slowly(root: Path, unit: str, options: Sequence[str]) -> compiler.Built:
        (again if begun.is_set() else begun).set()
        assert os.getpid() != here or goes_on.wait(60)
        return compiler.Built(b"made", ())

    def build() -> bytes:
        return compiler.build(root, "int unit;\n", how=compile_slowly)

    with beside(build) as first:
        assert begun.wait(60)
        with beside(build) as second:
            compiled_twice = again.wait(0.5)
            child = os.fork()
            if not child:
                os._exit(0 if build() == b"made" else 1)
            try:
                assert wait_until(lambda: os.waitpid(child, os.WNOHANG) == (child, 0))
            except BaseException:
                os.kill(child, signal.SIGKILL)
                raise
            finally:
                goes_on.set()
            assert (first(), second(), compiled_twice) == (b"made", b"made", False)


@pytest.mark.usefixtures("cache_without_kernels")
def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A build is found again by another host and from another folder; any change of its inputs gives a new one."""
    one = with_kernel(tmp_path / "one", WRITE_A_BYTE)
    same = with_kernel(tmp_path / "same", WRITE_A_BYTE)
    assert _byte(CpuHost(1), one) == 7
    first = _libraries()
    assert len(first) == 1
    for root in (one, same):
        host = CpuHost(1)
        assert host.load(root, "k.cu", "k", {}) is host.load(root, "k.cu", "k", {})
    assert _libraries() == first

    changed = with_kernel(tmp_path / "changed", WRITE_A_BYTE.replace("7", "8"))
    assert _byte(CpuHost(1), changed) == 8
    assert len(_libraries()) == 2

    header = with_kernel(tmp_path / "header", WRITE_A_BYTE)
    with (header / "emulator" / "cuda_on_cpu.hpp").open("a") as f:
        f.write("// changed\n")
    assert len({tree_hash(r) for r in (one, same, changed, header)}) == 3
    CpuHost(1).load(one, "k.cu", "k", {"UNUSED": "1"})
    CpuHost(1, ["-Wextra"]).load(one, "k.cu", "k", {})  # the header and the runner are compiled without warnings
    assert len(_libraries()) == 4

    edited = ROOT / "harness" / "gguf_verify" / "hosts" / "extents.py"  # it writes into builds
    monkeypatch.setattr(compiler, "file_digest", lambda path: "other" if Path(path) == edited else file_digest(path))
    CpuHost(1).load(one, "k.cu", "k", {})
    assert len(_libraries()) == 5


@pytest.mark.parametrize("options", [[], ["-O1", "-DFORMAT=Q4_0"]])
def test_a_kernel_is_the_same_bytes_with_and_without_a_precompiled_header(
    monkeypatch: pytest.MonkeyPatch, roots: Callable[[str], Path], options: list[str]
) -> None:
    """Flags have a header each, macros none."""
    if compiler.precompiled() is None:
        pytest.skip("only GCC's are used")
    asked, original = [], compiler.precompiled

    def noting(flags: Sequence[str]) -> Path | None:
        asked.append(original(flags))
        return asked[-1]

    monkeypatch.setattr(compiler, "precompiled", noting)
    with_it = compiler.build(roots(WRITE_A_BYTE), UNIT, options, rebuild=True)
    assert asked[-1] == original([option for option in options if option == "-O1"])
    monkeypatch.setattr(compiler, "precompiled", lambda _flags: None)
    assert compiler.build(roots(WRITE_A_BYTE), UNIT, options, rebuild=True) == with_it


@pytest.mark.parametrize("damage", ["missing", "cut short", "empty"])
def test_a_precompiled_header_that_the_cache_does_not_hold_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str
) -> None:
    """It is made anew in a later run, and the compiler gets no other bytes."""
    if compiler.precompiled() is None:
        pytest.skip("only GCC's are used")
    (tmp_path / "caches").mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "caches")}
    code = (
        "from gguf_verify.hosts.compiler import precompiled; "
        "print(precompiled().with_suffix('.hpp.gch').stat().st_size)"
    )

    def bytes_in_a_run() -> int:
        command = [sys.executable, "-c", code]
        return int(subprocess.run(command, env=environment, capture_output=True, check=True, cwd=ROOT).stdout)

    whole = bytes_in_a_run()
    assert whole > 1e6
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    (held,) = support_cache.index_folder().glob("*.gch")
    if damage == "missing":
        held.unlink()
    else:
        os.truncate(held, {"cut short": held.stat().st_size // 2, "empty": 0}[damage])
    assert bytes_in_a_run() > 0.9 * whole


@pytest.mark.usefixtures("cache_without_kernels")
def test_a_precompiled_header_that_the_compiler_cannot_use(
    monkeypatch: pytest.MonkeyPatch, roots: Callable[[str], Path]
) -> None:
    """It is what was kept, and GCC chokes on it: the text is read, and the header is made anew."""
    there = compiler.precompiled(HOST)
    if there is None:
        pytest.skip("only GCC's are used")
    made = there.with_suffix(".hpp.gch")
    os.truncate(made, made.stat().st_size // 2)
    assert compiler.build(roots(WRITE_A_BYTE), UNIT, HOST, rebuild=True)
    assert not made.exists()
    assert compiler.precompiled(HOST) != there


def test_no_precompiled_header_but_gccs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clang = tmp_path / "clang++"
    clang.write_text("#!/bin/sh\necho clang version 17\n")
    clang.chmod(0o755)
    monkeypatch.setenv("CXX", str(clang))
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
    monkeypatch.setattr(gpu, "gpu_fault", lambda: "no device in this test")
    assert list(HOSTS) == ["gpu", "cpu"]
    assert auto_host() == ("cpu", ["no device in this test"])
    assert isinstance(make_host("auto"), CpuHost)
    assert make_host("auto").chosen == "by auto: no device in this test"
    assert isinstance(make_host("cpu"), CpuHost)
    assert make_host("cpu").chosen == "as asked for"
    assert make_host("cpu", 3).threads == 3
    assert make_host("cpu").threads == len(os.sched_getaffinity(0))
    for name in ("gpu", "cuda"):
        with pytest.raises(EnvironmentFault, match="no device in this test"):
            make_host(name)
    with pytest.raises(UsageError, match="auto, gpu, cpu"):
        make_host("opencl")
    monkeypatch.setattr(gpu, "gpu_fault", lambda: None)
    assert auto_host() == ("gpu", [])


def test_description_names_the_machine() -> None:
    said = CpuHost(2).describe()
    assert said.startswith("cpu: ")
    assert "2 threads" in said
    assert compiler.cpu_name() in said


@pytest.mark.usefixtures("cache_without_kernels")
def test_every_file_that_the_compiler_reads_is_part_of_the_key(tmp_path: Path) -> None:
    """Of a kernel: by an absolute path, from a header. An edit is seen, an undone one too."""
    header, deep = tmp_path / "a b.h", tmp_path / "deep.h"
    header.write_text('#include "deep.h"\n')
    root = with_kernel(tmp_path / "root", "")
    (root / "k.cu").write_text(
        f'#include "emulator/cuda_on_cpu.hpp"\n#include "{header}"\n'
        'extern "C" __global__ void k(unsigned char* y, long long i) { y[i] = A; }\n'
    )
    for number in (1, 2, 1):
        deep.write_text(f"#define A {number}\n")
        assert _byte(CpuHost(1), root) == number
    assert len(_libraries()) == 2


@pytest.mark.usefixtures("empty_cache")
def test_every_file_of_an_object_is_part_of_its_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also one of another suffix, and one that is found through a variable."""
    monkeypatch.setattr(compiler, "precompiled", lambda *_: None)  # each folder of includes would need its own
    root, found, other = (tmp_path / name for name in ("root", "found", "other"))
    for folder in (root / "emulator", found, other):
        folder.mkdir(parents=True)
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(found))
    runner = root / "emulator" / "runner.hpp"
    runner.write_text('#include <found.h>\n#include "text.inc"\nextern "C" { extern const int ab[] = {A, B}; }\n')
    files = {found / "found.h": "A", root / "emulator" / "text.inc": "B"}
    for path, name in files.items():
        path.write_text(f"#define {name} 1\n")
    first = compiler.runner_object(root)
    for path, name in files.items():
        path.write_text(f"#define {name} 2\n")
        assert compiler.runner_object(root) != first, path
        path.write_text(f"#define {name} 1\n")
        assert compiler.runner_object(root) == first, path
    (other / "found.h").write_text("#define A 9\n")
    monkeypatch.setenv("CPLUS_INCLUDE_PATH", str(other))
    assert compiler.runner_object(root) != first


@pytest.mark.usefixtures("cache_without_kernels")
def test_a_source_that_changes_while_it_is_compiled(tmp_path: Path) -> None:
    """It is compiled again, a few times; the library is that of its last text."""
    root = with_kernel(tmp_path, WRITE_A_BYTE)
    source = root / "k.cu"
    text, edits = source.read_text(), 2

    def edited(root: Path, unit: str, options: Sequence[str]) -> compiler.Built:
        nonlocal edits
        built = compiler.build(root, unit, options, rebuild=True)
        if edits:
            edits -= 1
            source.write_text(source.read_text().replace("= ", "= 1 + "))
        return compiler.Built(built, (str(source),))

    assert compiler.build(root, UNIT, HOST, how=edited) == compiler.build(root, UNIT, HOST)
    assert _byte(CpuHost(1), root) == 9
    edits = 100
    source.write_text(text)
    with pytest.raises(EnvironmentFault, match="the sources of a kernel changed during compilation"):
        compiler.build(root, UNIT, [*HOST, "-DANOTHER"], how=edited)


def test_lists_of_make() -> None:
    made = "made: /a/b\\ c.h \\\n /d\\#e.h /f$$g.h \\\n  /h\\i.h\n"
    assert of_makefile(made) == ["/a/b c.h", "/d#e.h", "/f$g.h", "/h\\i.h"]


@pytest.mark.usefixtures("cache_without_kernels")
def test_a_library_that_was_replaced_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, roots: Callable[[str], Path]
) -> None:
    """A library that the cache holds in the place of another, before it is read and between that and its loading."""
    forged, root = compiler.build(roots(WRITE_A_BYTE.replace("7", "66")), UNIT, HOST), roots(WRITE_A_BYTE)

    def forge() -> None:
        for path in support_cache.index_folder().glob("*.so"):
            path.unlink()  # a library that is loaded must not change under our feet
            path.write_bytes(forged)

    assert _byte(CpuHost(1), root) == 7
    first = _libraries()
    forge()
    assert _byte(CpuHost(1), root) == 7
    again = _libraries()
    assert again != first  # it was built anew, once
    assert _byte(CpuHost(1), root) == 7
    assert _libraries() == again

    def late(content: bytes) -> Any:
        forge()
        return load_library(content)

    monkeypatch.setattr(compiler, "load_library", late)
    assert _byte(CpuHost(1), root) == 7
    checked = checked_host_of(CpuHost(1))
    forge()
    assert _byte(checked, root) == 7


def checked_host_of(host: CpuHost) -> Any:
    """The host with checks, where this compiler can make them; else itself."""
    return host.under(Schedule(checked=True)) or host


@pytest.mark.usefixtures("cache_without_kernels")
def test_a_build_that_vanishes_is_made_again(roots: Callable[[str], Path]) -> None:
    root = roots(WRITE_A_BYTE)
    first = compiler.build(root, UNIT, HOST)
    for path in support_cache.index_folder().glob("*.so"):
        path.unlink()
    assert compiler.build(root, UNIT, HOST) == first


def test_without_a_cache_a_run_leaves_nothing(tmp_path: Path) -> None:
    """Two processes of a run share the folder that takes the cache's place, and it goes with the first."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "file").touch()
    code = (
        "import os, subprocess, sys\n"
        "from gguf_verify.support import cache, scratch\n"
        "if scratch.VARIABLE in os.environ:\n"
        "    assert cache.taken(['key'], '.so') == b'library'\n"
        "else:\n"
        "    cache.kept(['key'], '.so', b'library')\n"
        "    environment = os.environ | scratch.environment()\n"
        "    subprocess.run([sys.executable, '-c', sys.argv[1], ''], env=environment, check=True)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "file")}
    command = [sys.executable, "-c", code, code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the cache of compiled kernels is not used: ") == 1
    assert list((tmp_path / "tmp").iterdir()) == []
