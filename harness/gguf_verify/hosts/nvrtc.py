"""NVRTC by ctypes: it compiles CUDA C++ to a cubin. Without a GPU, any machine compiles every kernel for every GPU.

CuPy's own compilation appends `-ftz=true` after the caller's options. That would flush subnormal results, whose bits
would differ from the CPU's.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from ..support import scratch
from ..support.cache import cache_dir
from ..support.errors import EXIT_ENVIRONMENT, EnvironmentFault
from ..support.sources import combined, file_digest
from ..support.text import printable
from . import nvcc
from .compilation import Author, ForeignUnit, failed, split_flags
from .foreign_sources import as_foreign, read_limited
from .includes import included
from .tables import headers, tables_hash

_SUCCESS, _COMPILATION, _NO_NAME = 0, 6, 8
_FLAGS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true")
_LINES = ("-lineinfo",)
#: NVRTC's name for the program that includes a file. NVRTC would also look for a file of this name, so none may have
#: it.
_PROGRAM = b"<gguf-verify>"
#: Environment variable with the path of another NVRTC library, in place of the installed one.
CHOICE = "NVRTC_LIBRARY"


@cache
def _library() -> c.CDLL:
    if chosen := os.environ.get(CHOICE):
        try:
            return c.CDLL(chosen)
        except OSError as error:
            raise EnvironmentFault(f"{CHOICE}: NVRTC cannot be loaded: {printable(str(error), 200)}") from None
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return c.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
    except Exception:  # pathfinder is absent or found nothing: let the loader search
        for name in ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"):
            try:
                return c.CDLL(name)
            except OSError:
                continue
    raise EnvironmentFault("NVRTC was not found: pip install nvidia-cuda-nvrtc (for CUDA 12: nvidia-cuda-nvrtc-cu12)")


def version() -> tuple[int, int]:
    """Return NVRTC's version. Raises EnvironmentFault if there is no NVRTC."""
    major, minor = c.c_int(), c.c_int()
    _check(_library().nvrtcVersion(c.byref(major), c.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def architectures() -> list[int]:
    """Return the compute capabilities that this NVRTC compiles for, as numbers such as 90."""
    n = c.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(c.byref(n)), "nvrtcGetNumSupportedArchs")
    found = (c.c_int * n.value)()
    _check(_library().nvrtcGetSupportedArchs(found), "nvrtcGetSupportedArchs")
    return sorted(found)


def compile_cubin(root: Path, file: str, sm: str, defines: dict[str, str], lines: bool = False) -> bytes:
    """Compile `root/file` for `sm` (such as "90"), with `lines`: line information for debuggers.

    Raises EnvironmentFault with the compiler's first error.
    """
    return _compiled(Request(str(root), file, f"sm_{sm}", defines, _LINES if lines else ()))[0]


#: Flags of nvcc that NVRTC accepts, too.
_KNOWN = (
    "-D", "-U", "-std", "--std", "-use_fast_math", "--use_fast_math", "-fmad", "--fmad", "-ftz", "--ftz", "-prec-",
    "--prec-", "-maxrregcount", "--maxrregcount", "-lineinfo", "--lineinfo", "-restrict", "--restrict", "-w",
    "--disable-warnings", "-extra-device-vectorization", "--extra-device-vectorization",
)  # fmt: skip
#: Headers of C and C++ that sources include and that NVRTC does not need, or whose content is built in.
_STANDARD = (
    "algorithm", "array", "cassert", "assert.h", "cfloat", "float.h", "climits", "limits.h", "cmath", "math.h",
    "cstddef", "stddef.h", "cstdio", "stdio.h", "cstdlib", "stdlib.h", "cstring", "string.h", "functional",
    "iostream", "map", "memory", "numeric", "optional", "sstream", "stdexcept", "string", "tuple", "unordered_map",
    "vector", "mutex", "chrono",
)  # fmt: skip
_INTEGERS = (
    "".join(
        f"typedef {signed} int{bits}_t; typedef unsigned {word} uint{bits}_t;\n"
        for bits, signed, word in (
            (8, "signed char", "char"),
            (16, "short", "short"),
            (32, "int", "int"),
            (64, "long long", "long long"),
        )
    )
    + "typedef long long intptr_t; typedef unsigned long long uintptr_t;\n"
)
_OF_CUDA_STD = ("type_traits", "limits", "utility")
#: CUDA headers whose declarations NVRTC has built in, or that only the host uses.
_RUNTIME = (
    "builtin_types.h", "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h", "device_functions.h",
    "device_launch_parameters.h", "driver_types.h", "host_defines.h", "math_functions.h", "sm_61_intrinsics.h",
    "vector_functions.h",
)  # fmt: skip
#: Flags of nvcc: constexpr functions of the host may be called in device code.
_RELAXED = ("--expt-relaxed-constexpr", "-expt-relaxed-constexpr")


@cache
def include_folder() -> Path | None:
    """Return the folder of CUDA's headers for NVRTC.

    It is the toolkit's or a package's, else, from 13.3 on, that of NVRTC's own headers, unpacked into the cache.
    """
    found = nvcc.include_folder()
    install = getattr(_library(), "nvrtcInstallBundledHeaders", None)
    if found is not None or install is None:
        return found
    folder, error = cache_dir() / f"nvrtc-headers-{'.'.join(map(str, version()))}", c.c_char_p()
    return folder if install(os.fsencode(folder), c.c_uint(0), c.byref(error)) == _SUCCESS else None


def used_flags(author: Author) -> tuple[list[str], list[str]]:
    """Return NVRTC's flags, and the flags of the author's that are not used."""
    kept, left = split_flags(author.flags, _KNOWN)
    exact = _FLAGS[1:] if author.ordered else ()
    standard = [] if any("std=" in flag for flag in kept) else ["-std=c++17"]
    # Without this flag unmarked functions are host code, as in nvcc.
    device = [] if author.host_apart and not any(flag in _RELAXED for flag in author.flags) else ["-default-device"]
    return [*standard, *device, *kept, *exact], left


def compile_kernels(of: ForeignUnit, sm: str, lines: bool = False) -> tuple[bytes, dict[str, str]]:
    """Compile a foreign source with its author's flags; return the cubin and the name of each kernel in it.

    Raises EnvironmentFault with the compiler's errors.
    """
    more = [*used_flags(of.author)[0], *(_LINES if lines else ())]
    within = of.file.removeprefix("foreign-").removesuffix(".cu")  # names the copy
    more += [f"-I{of.root / below}" for name in of.author.include for below in (f"{within}/{name}", name)]
    if (folder := include_folder()) is not None:
        more += [f"-I{folder}", f"-I{folder / 'cccl'}"]
    tables = {**headers(), **foreign_headers()}
    return _compiled(Request(str(of.root), of.file, f"sm_{sm}", of.defines, more, of.entries, tables))


def foreign_headers() -> dict[str, str]:
    """Return headers of C++ in a form for NVRTC: name → text."""
    std = include_folder()
    runtime = [name for name in _RUNTIME if std is None or not (std / name).is_file()]
    has = std is not None and any((std / sub / "cuda" / "std" / "limits").is_file() for sub in ("", "cccl"))
    of_cuda = {
        name: f"#include <cuda/std/{name}>\nnamespace std {{ using namespace cuda::std; }}\n" if has else ""
        for name in _OF_CUDA_STD
    }
    return {**dict.fromkeys((*_STANDARD, *runtime), "\n"), **of_cuda, "cstdint": _INTEGERS, "stdint.h": _INTEGERS}


def cubin_key(
    root: Path,
    file: str,
    sm: str,
    defines: dict[str, str],
    lines: bool = False,
    folders: Sequence[str] = (),
    by_nvrtc: bool = True,
) -> tuple[str, ...] | None:
    """Return the key of everything that `compile_cubin` depends on; None if not all files are known.

    It consists of the arguments, NVRTC's version and flags, and the content of every file that it may read.

    Args:
        folders: further include folders.
    """
    files = included(root, file, headers(), defines, folders)
    if files is None:
        return None
    digests = [(path.removeprefix(f"{root}/"), file_digest(path)) for path in files]
    if any(digest is None for _, digest in digests):
        return None
    macros = (f"{k}={v}" for k, v in defines.items())
    chosen = os.environ.get(CHOICE)
    compiler = (file_digest(chosen) or "",) if chosen else ()  # two libraries of one version may differ
    flags = (*_FLAGS, *_LINES) if lines else _FLAGS
    of_compiler = (*map(str, version()), *compiler) if by_nvrtc else ()
    return (combined(digests), tables_hash(), file, sm, *of_compiler, *flags, *macros)


def compile_ptx(root: Path, file: str, sm: str, defines: dict[str, str]) -> bytes:
    """Compile to PTX, the optimised code before a GPU's assembler. Raises EnvironmentFault as `compile_cubin` does."""
    return _compiled(Request(str(root), file, f"compute_{sm}", defines, what="PTX"))[0]


@dataclass(frozen=True)
class Request:
    """A compilation by NVRTC.

    Args:
        root, file: the source, in this folder.
        architecture: such as "sm_90", or "compute_90" for PTX.
        options: further options.
        entries: the kernels of a foreign source, whose author's flags are among the options. None: this project's flags
            are used.
        headers: texts that the source may include, by name.
        what: the output, "CUBIN" or "PTX".
    """

    root: str
    file: str
    architecture: str
    defines: Mapping[str, str]
    options: Sequence[str] = ()
    entries: Sequence[str] | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: headers())
    what: str = "CUBIN"


def _compiled(asked: Request) -> tuple[bytes, dict[str, str]]:
    """Return the output of a compilation, and the names of the entries in it."""
    foreign = as_foreign(Path(asked.root))
    if foreign is None:
        return compiled_here(asked)
    with scratch.temporary("nvrtc") as folder:
        request, made = folder / "request.json", folder / "made"
        request.write_text(json.dumps(asdict(asked)))
        python, module = os.path.abspath(sys.executable), "gguf_verify.hosts.nvrtc_child"
        shown = include_folder()
        done = foreign.run(
            [python, "-P", "-m", module, str(request), str(made)], folder, [] if shown is None else [shown]
        )
        if done.returncode == EXIT_ENVIRONMENT:
            first, *details = read_limited(made).decode("utf-8", "replace").splitlines() or ["NVRTC failed"]
            raise EnvironmentFault(first, details=details)
        if done.returncode:
            why = f"it ended with exit code {done.returncode}" if done.returncode > 0 else "it crashed"
            raise EnvironmentFault(f"NVRTC could not compile {asked.file}: {why}")
        names = {} if asked.entries is None else _names(read_limited(made.with_suffix(".names")), asked.entries)
        return read_limited(made), names


def _names(said: bytes, entries: Sequence[str]) -> dict[str, str]:
    """Parse the kernels' names from the other process. Raises EnvironmentFault."""
    try:
        names = json.loads(said)
        if isinstance(names, dict) and all(re.fullmatch(r"[\w$.]+", str(names[entry])) for entry in entries):
            return {entry: str(names[entry]) for entry in entries}
    except (ValueError, RecursionError, KeyError):
        pass
    raise EnvironmentFault("NVRTC's process did not return the names of kernels")


def compiled_here(asked: Request) -> tuple[bytes, dict[str, str]]:
    """Compile in this process; see `_compiled`. Raises EnvironmentFault with the compiler's errors."""
    tables, entries, what = asked.headers, asked.entries or (), asked.what
    lib = _library()
    lib.nvrtcGetErrorString.restype = c.c_char_p
    program = c.c_void_p()
    source = f"#include <{asked.file}>\n".encode()  # in quotes, NVRTC would look in the current folder first
    names, texts = ((c.c_char_p * len(tables))(*(s.encode() for s in strings)) for strings in (tables, tables.values()))
    created = lib.nvrtcCreateProgram(c.byref(program), source, _PROGRAM, len(tables), texts, names)
    _check(created, "nvrtcCreateProgram")
    try:
        for entry in entries:
            _check(lib.nvrtcAddNameExpression(program, entry.encode()), "nvrtcAddNameExpression")
        options = [f"-arch={asked.architecture}", *(_FLAGS if asked.entries is None else ()), *asked.options]
        options += [f"-I{asked.root}", *(f"-D{k}={v}" for k, v in asked.defines.items())]
        encoded = (c.c_char_p * len(options))(*(o.encode() for o in options))
        result = lib.nvrtcCompileProgram(program, len(options), encoded)
        if result in (_COMPILATION, _NO_NAME):
            said = [f"error: no kernel {entries[0] if entries else ''}"]
            if result == _COMPILATION:
                said = _string(lib, program, "ProgramLog").splitlines()
            raise failed(f"NVRTC could not compile {asked.file} for {asked.architecture}", said)
        _check(result, "nvrtcCompileProgram")
        size = c.c_size_t()
        _check(getattr(lib, f"nvrtcGet{what}Size")(program, c.byref(size)), f"nvrtcGet{what}Size")
        made = c.create_string_buffer(size.value)
        _check(getattr(lib, f"nvrtcGet{what}")(program, made), f"nvrtcGet{what}")
        called = {}
        for entry in entries:
            lowered = c.c_char_p()
            _check(lib.nvrtcGetLoweredName(program, entry.encode(), c.byref(lowered)), "nvrtcGetLoweredName")
            called[entry] = (lowered.value or b"").decode()
        return made.raw, called
    finally:
        lib.nvrtcDestroyProgram(c.byref(program))


def _string(lib: c.CDLL, program: c.c_void_p, what: str) -> str:
    size = c.c_size_t()
    _check(getattr(lib, f"nvrtcGet{what}Size")(program, c.byref(size)), what)
    buffer = c.create_string_buffer(size.value)
    _check(getattr(lib, f"nvrtcGet{what}")(program, buffer), what)
    return buffer.value.decode(errors="replace")


def _check(result: int, call: str) -> None:
    if result != _SUCCESS:
        raise EnvironmentFault(f"{call} failed: {_library().nvrtcGetErrorString(result).decode()}")
