"""NVRTC by ctypes: it compiles CUDA C++ to a cubin. It needs no GPU: any machine compiles every kernel for every card.

CuPy's own compilation appends `-ftz=true` after the caller's options. That would flush subnormal results, whose bits
would differ from the CPU's.
"""

from __future__ import annotations

import ctypes as c
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ..support import scratch
from ..support.errors import EXIT_ENVIRONMENT, EnvironmentFault
from ..support.sources import combined, file_digest
from .foreign_sources import as_foreign, read_limited
from .includes import included
from .tables import headers, tables_hash

_SUCCESS, _COMPILATION = 0, 6
_FLAGS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true")
_LINES = ("-lineinfo",)
#: What NVRTC calls the program that includes a file. It finds a file of this name nowhere else, so no file has it.
_PROGRAM = b"<gguf-verify>"


@cache
def _library() -> c.CDLL:
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
    """NVRTC's version. Raises EnvironmentFault if there is no NVRTC."""
    major, minor = c.c_int(), c.c_int()
    _check(_library().nvrtcVersion(c.byref(major), c.byref(minor)), "nvrtcVersion")
    return major.value, minor.value


def architectures() -> list[int]:
    """The compute capabilities that this NVRTC compiles for, as numbers such as 90."""
    n = c.c_int()
    _check(_library().nvrtcGetNumSupportedArchs(c.byref(n)), "nvrtcGetNumSupportedArchs")
    found = (c.c_int * n.value)()
    _check(_library().nvrtcGetSupportedArchs(found), "nvrtcGetSupportedArchs")
    return sorted(found)


def compile_cubin(root: Path, file: str, sm: str, defines: dict[str, str], lines: bool = False) -> bytes:
    """Compile `root/file` for `sm` (such as "90"), with `lines` of its source for debuggers. Raises EnvironmentFault
    with the compiler's first error."""
    return _compiled(root, file, f"sm_{sm}", defines, "CUBIN", _LINES if lines else ())


def cubin_key(root: Path, file: str, sm: str, defines: dict[str, str], lines: bool = False) -> tuple[str, ...] | None:
    """All that `compile_cubin` depends on: its arguments, NVRTC's version and flags, and the content of every file that
    it may read. None where not all of these files are known."""
    files = included(root, file, headers(), defines)
    if files is None:
        return None
    digests = [(path.removeprefix(f"{root}/"), file_digest(path)) for path in files]
    if any(digest is None for _, digest in digests):
        return None
    macros = (f"{k}={v}" for k, v in defines.items())
    flags = (*_FLAGS, *_LINES) if lines else _FLAGS
    return (combined(digests), tables_hash(), file, sm, *map(str, version()), *flags, *macros)


def compile_ptx(root: Path, file: str, sm: str, defines: dict[str, str]) -> bytes:
    """Compile to PTX, the optimised code before a card's assembler. Raises EnvironmentFault as `compile_cubin` does."""
    return _compiled(root, file, f"compute_{sm}", defines, "PTX")


def _compiled(
    root: Path, file: str, architecture: str, defines: dict[str, str], what: str, more: Sequence[str] = ()
) -> bytes:
    foreign = as_foreign(root)
    if foreign is None:
        return compiled_here(root, file, architecture, defines, what, more)
    with scratch.temporary("nvrtc") as folder:
        request, made = folder / "request.json", folder / "made"
        asked = {"root": str(root), "file": file, "architecture": architecture, "defines": defines, "what": what,
                 "options": list(more)}  # fmt: skip
        request.write_text(json.dumps(asked))
        command = [sys.executable, "-P", "-m", "gguf_verify.hosts.nvrtc_child", str(request), str(made)]
        done = foreign.run(command, folder)
        if done.returncode == EXIT_ENVIRONMENT:
            raise EnvironmentFault((read_limited(made).decode("utf-8", "replace").splitlines() or ["NVRTC failed"])[0])
        if done.returncode:
            why = f"it ended with exit code {done.returncode}" if done.returncode > 0 else "it crashed"
            raise EnvironmentFault(f"NVRTC could not compile {file}: {why}")
        return read_limited(made)


def compiled_here(
    root: Path, file: str, architecture: str, defines: dict[str, str], what: str, more: Sequence[str] = ()
) -> bytes:
    """Compile in this process to `what`: "CUBIN" or "PTX". Raises EnvironmentFault with the compiler's first error."""
    lib = _library()
    lib.nvrtcGetErrorString.restype = c.c_char_p
    program = c.c_void_p()
    source = f"#include <{file}>\n".encode()  # in quotes, it would be looked for in the current folder first
    tables = headers()
    names, texts = ((c.c_char_p * len(tables))(*(s.encode() for s in strings)) for strings in (tables, tables.values()))
    created = lib.nvrtcCreateProgram(c.byref(program), source, _PROGRAM, len(tables), texts, names)
    _check(created, "nvrtcCreateProgram")
    try:
        options = [f"-arch={architecture}", *_FLAGS, *more, f"-I{root}"]
        options += [f"-D{k}={v}" for k, v in defines.items()]
        encoded = (c.c_char_p * len(options))(*(o.encode() for o in options))
        result = lib.nvrtcCompileProgram(program, len(options), encoded)
        if result == _COMPILATION:
            log = _string(lib, program, "ProgramLog")
            errors = [line for line in log.splitlines() if "error:" in line] or log.splitlines()
            raise EnvironmentFault(f"NVRTC could not compile {file} for {architecture}: {errors[0] if errors else '?'}")
        _check(result, "nvrtcCompileProgram")
        size = c.c_size_t()
        _check(getattr(lib, f"nvrtcGet{what}Size")(program, c.byref(size)), f"nvrtcGet{what}Size")
        made = c.create_string_buffer(size.value)
        _check(getattr(lib, f"nvrtcGet{what}")(program, made), f"nvrtcGet{what}")
        return made.raw
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
