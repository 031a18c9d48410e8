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
            errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
            what = unit.partition("\n")[0].removeprefix("#include ").strip('"')
            said = errors[0] if errors else f"exit code {done.returncode}"
            raise EnvironmentFault(f"{command[0]} could not compile {what}: {said}")
        return built.read_bytes()


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


def shared_library(root: Path, unit: str, options: Sequence[str] = ()) -> ctypes.CDLL:
    """`sound_library`, loaded. Raises EnvironmentFault."""
    return ctypes.CDLL(str(sound_library(root, unit, options)))
