"""The C++ compiler of this machine: it makes a shared library, which the cache keeps, of a translation unit over
`kernels/`."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ..support.cache import cached_file, store, tree_hash
from ..support.errors import EnvironmentFault
from ..support.paths import kernel_root
from .tables import tables_hash, write_headers

# -ffp-contract=off: a fused multiply-add happens only where the kernel asks for one.
# -fno-strict-aliasing: kernels read packed bytes as words, as nvcc lets them.
# -O2 -ftree-vectorize beats -O3 here, which unrolls the short loops over a block before it could vectorize them.
FLAGS = [
    "-std=c++17", "-O2", "-ftree-vectorize", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing",
    "-fPIC", "-shared", "-pthread",
]  # fmt: skip


def compiler() -> str:
    """$CXX, or the first of c++, g++ and clang++ that exists. Raises EnvironmentFault if there is none."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    for name in candidates:
        if path := shutil.which(name):
            return path
    raise EnvironmentFault(f"no C++ compiler found (looked for {', '.join(candidates)}): the CPU host needs one")


def compiler_version() -> str:
    """The first line of the compiler's `--version`."""
    return _version(compiler())


def _version(path: str) -> str:
    return (_said_of_version(path).splitlines() or [path])[0]


@cache
def _said_of_version(path: str) -> str:
    return _run([path, "--version"]).stdout


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@cache
def cpu_name() -> str:
    """Model and architecture of the processor, which -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        named = {k.strip(): v.strip() for k, v in fields.items()}
        return f"{named.get('model name', platform.machine())} ({platform.machine()})"
    except OSError:
        return platform.processor() or platform.machine()


def library_path(root: Path, unit: str, options: Sequence[str] = (), rebuild: bool = False) -> Path:
    """The shared library of a translation unit, compiled unless the cache holds it.

    Args:
        root: the folder of the kernels. It is on the include path, as are the tables of `gguf_verify.hosts.tables`.
        unit: C++ source.
        options: further flags, after `FLAGS`.
        rebuild: compile even if the cache holds it.

    Raises EnvironmentFault with the compiler's first error.
    """
    key = (tree_hash(root), tables_hash(), unit, *FLAGS, *options, compiler_version(), cpu_name())
    library = cached_file(key, ".so")
    if rebuild or not library.exists():
        store(library, _compile(root, unit, options))
    return library


def precompiled(flags: Sequence[str] = ()) -> Path | None:
    """The cache's copy of `emulator/standard.hpp`, with GCC's precompiled form beside it; None if the compiler is not
    GCC or could not precompile it.

    GCC uses the precompiled form if the header is the first that it is told to include. If flags, macros or its own
    version have changed, it reads the text instead.

    Args:
        flags: further flags, after `FLAGS`; macros must not be among them.
    """
    if "Free Software Foundation" not in _said_of_version(compiler()):
        return None
    text = (kernel_root() / "emulator" / "standard.hpp").read_text()
    header = cached_file((text, *FLAGS, *flags, compiler_version(), cpu_name()), ".hpp")
    made = _made_of(header)
    if not (made.exists() and header.exists()):
        with tempfile.TemporaryDirectory(prefix="gguf-verify-") as folder:
            source, built = Path(folder) / header.name, Path(folder) / made.name
            source.write_text(text)
            command = [compiler(), *FLAGS, *flags, "-x", "c++-header", str(source), "-o", str(built)]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                return None
            store(header, text.encode())
            store(made, built.read_bytes())
    return header


def _made_of(header: Path) -> Path:
    return header.with_suffix(".hpp.gch")


def _compile(root: Path, unit: str, options: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="gguf-verify-") as folder:
        source, built = Path(folder) / "unit.cpp", Path(folder) / "unit.so"
        source.write_text(unit)
        write_headers(Path(folder))
        command = [compiler(), *FLAGS, f"-I{root}", f"-I{folder}", *options, str(source), "-o", str(built)]
        header = precompiled([o for o in options if not o.startswith("-D")])
        if header and _run([*command, "-include", str(header)]).returncode == 0:
            return built.read_bytes()
        done = _run(command)  # again, so that errors are about the unit alone
        if header and not done.returncode:  # so the precompiled header is damaged
            _made_of(header).unlink(missing_ok=True)
        if done.returncode:
            raise _failed(done, command, unit)
        return built.read_bytes()


def _failed(done: subprocess.CompletedProcess[str], command: Sequence[str], unit: str) -> EnvironmentFault:
    """With the compiler's first error."""
    errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
    what = unit.partition("\n")[0].removeprefix("#include ").strip('"')
    said = errors[0] if errors else f"exit code {done.returncode}"
    return EnvironmentFault(f"{command[0]} could not compile {what}: {said}")


def sound_library(root: Path, unit: str, options: Sequence[str] = ()) -> Path:
    """`library_path` of a library that loads: a damaged entry of the cache is built again, once. Raises
    EnvironmentFault."""
    path = library_path(root, unit, options)
    try:
        ctypes.CDLL(str(path))
    except OSError:
        try:
            ctypes.CDLL(str(library_path(root, unit, options, rebuild=True)))
        except OSError as error:
            raise EnvironmentFault(f"a compiled kernel cannot be loaded: {error}") from None
    return path


#: What a checked build adds: GCC calls functions before accesses, which `kernels/emulator/callbacks.hpp` defines.
_CHECKS = ["-O1", "-g1", "-DCUDA_ON_CPU_KERNEL", "-fsanitize=thread,alignment,signed-integer-overflow"]
_RUNNER = '#define CUDA_ON_CPU_CHECKS\n#include "emulator/cuda_on_cpu.hpp"\n'


def checks_fault() -> str | None:
    """Why kernels cannot be checked here, or None if they can."""
    if "Free Software Foundation" not in _said_of_version(compiler()):
        return f"{compiler_version()} is not GCC"
    return None if platform.system() == "Linux" else "the system is not Linux"


def checked_library(root: Path, unit: str, options: Sequence[str] = ()) -> ctypes.CDLL:
    """The shared library of a translation unit that looks for faults as it runs: the unit with instrumentation, and the
    runner without. It is loaded. Raises EnvironmentFault."""
    emulator = tree_hash(root / "emulator")
    runner = cached_file(("checks", emulator, *FLAGS, compiler_version(), cpu_name()), ".o")
    key = ("checked", tree_hash(root), tables_hash(), unit, *FLAGS, *_CHECKS, *options, compiler_version(), cpu_name())
    library = cached_file(key, ".so")
    flags = [f for f in FLAGS if f != "-shared"]
    if not library.exists():
        with tempfile.TemporaryDirectory(prefix="gguf-verify-") as name:
            folder = Path(name)
            write_headers(folder)
            if not runner.exists():
                (folder / "runner.cpp").write_text(_RUNNER)
                made = folder / "runner.o"
                _run_compiler(
                    [compiler(), *flags, f"-I{root}", "-c", str(folder / "runner.cpp"), "-o", str(made)], unit
                )
                store(runner, made.read_bytes())
            source, compiled, linked = folder / "unit.cpp", folder / "unit.o", folder / "unit.so"
            source.write_text(unit)
            includes = [f"-I{root}", f"-I{folder}"]
            _run_compiler(
                [compiler(), *flags, *_CHECKS, *includes, *options, "-c", str(source), "-o", str(compiled)], unit
            )
            link = ["-shared", "-pthread", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-o", str(linked)]
            _run_compiler([compiler(), str(compiled), str(runner), *link], unit)
            store(library, linked.read_bytes())
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        library.unlink(missing_ok=True)
        raise EnvironmentFault(f"a compiled kernel cannot be loaded: {error}") from None


def _run_compiler(command: Sequence[str], unit: str) -> None:
    """Raises EnvironmentFault with the compiler's first error."""
    done = _run(command)
    if done.returncode:
        raise _failed(done, command, unit)


def source_lines(library: Path, addresses: Sequence[int]) -> list[list[str]]:
    """FILE:LINE of the calls before these addresses of a library, each followed by what it is inlined into; empty lists
    where nothing says it."""
    tool = shutil.which("addr2line")
    if tool is None or not addresses:
        return [[] for _ in addresses]
    found: list[list[str]] = []
    for address in addresses:
        done = _run([tool, "-i", "-e", str(library), hex(max(0, address - 1))])
        lines = [line.split(" (")[0].strip() for line in done.stdout.splitlines()]
        found.append([line for line in lines if line and not line.startswith("?") and not line.endswith((":?", ":0"))])
    return found


def shared_library(root: Path, unit: str, options: Sequence[str] = ()) -> ctypes.CDLL:
    """`sound_library`, loaded. Raises EnvironmentFault."""
    return ctypes.CDLL(str(sound_library(root, unit, options)))
