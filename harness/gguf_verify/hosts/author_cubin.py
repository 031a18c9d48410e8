"""Cubins of a foreign kernel, compiled with its author's options: by nvcc if installed, else by NVRTC.

No GPU is needed. The cache keeps them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ..results.environment import NOT_COMPILED
from ..support.cache import kept, taken
from ..support.errors import EnvironmentFault
from . import nvcc, nvrtc
from .compilation import Author, Compilation, ForeignUnit, architectures
from .cubin import functions, registers
from .for_cpu import without_host_code
from .foreign_sources import as_foreign
from .includes import included
from .tables import headers

#: Names of the file for nvcc, and of the same for NVRTC, which has no host code.
OF_NVCC, OF_NVRTC = "foreign.cu", "foreign-rtc.cu"
#: The same without all code that is only for the host.
OF_DEVICE = "foreign-device.cu"
_MOST_TRIES = 3
#: The GPU to compile for if a source's flags name none: `ARCH_ON_CPU`.
DEFAULT_SM = "90"
#: Most compilations of one source, each without the host code that the one before reported.
_MOST_ROUNDS = 6
_OF_HOST = re.compile(
    r"((?:rtc|device)/author/[^\s()]+)\((\d+)\): error: A (function|namespace scope variable) without"
)
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
#: A compiler's error about the source.
_REFUSED = re.compile(r"could not compile .* for sm_.*: (?!it )")
#: Errors about missing headers, and about names of the host's libraries.
_LACKS = re.compile(
    r"(?:cannot|could not) open source file|No such file|nvcc fatal|\bstd\b|\"(?:cuda|cu|curand|cublas)[A-Z]\w*\"|"
    r"\"(?:FILE|printf|fprintf|stderr|stdout|malloc|free|exit|abort|getenv|c10|at|torch|thrust|cub|nvcuda)\"|\bTORCH_\w+"
)
#: Host code in a header that is not the author's, such as <cuda.h>: NVRTC refuses it, nvcc accepts it.
_IN_HEADER = re.compile(r"(?:^|\s)/[^\s()]+\(\d+\): error: A (?:function|namespace scope variable) without")

#: Lambdas marked __device__ or __host__: NVRTC refuses them, nvcc accepts them with a flag.
_MARKED_LAMBDA, _FOR_LAMBDAS = "annotation on lambda is not allowed in JIT mode", "extended-lambda"

#: Environment variable; "off" disables the compilation for a GPU of sources that run on the CPU.
SWITCH = "GGUF_VERIFY_CUDA_COMPILER"


class Compiled(NamedTuple):
    """A cubin, kernels → their names in it, and its compilation."""

    cubin: bytes
    names: dict[str, str]
    compilation: Compilation


def author_cubin(unit: ForeignUnit, sm: str, lines: bool = False, by: str = "") -> Compiled:
    """Compile kernels of a foreign source for a GPU.

    Args:
        unit: the kernels. Their folder has a file for nvcc, and one for NVRTC beside it.
        sm: the GPU's architecture, such as "90".
        lines: whether to include line information.
        by: "nvcc" or "NVRTC"; "": nvcc if installed.

    Raises EnvironmentFault with the compiler's errors.
    """
    with_nvcc = by == "nvcc" or (by == "" and nvcc.version() is not None)
    if any(f"_{sm}a" in flag for flag in unit.author.flags):
        sm = f"{sm}a"
    try:
        made = _kept(unit, sm, lines, with_nvcc)
    except EnvironmentFault as error:
        if not with_nvcc or by or "nvcc fatal" not in str(error):
            raise
        with_nvcc = False
        made = _kept(unit, sm, lines, with_nvcc)  # nvcc found no host compiler
    if (foreign := as_foreign(unit.root)) is not None:
        file = OF_NVCC if with_nvcc else OF_NVRTC
        files = included(unit.root, file, headers(), unit.defines, _folders(unit.author))
        if files is None and with_nvcc:
            files = [*foreign.listed]  # a cubin with unknown files is never cached, so nvcc has just compiled it
        foreign.note(files) if files is not None else foreign.note_unlisted(made.compilation.by)
    return made


def _folders(author: Author) -> list[str]:
    """Return the include folders, below the sources' folder."""
    return [below for folder in author.include for below in (folder, f"rtc/{folder}", f"device/{folder}")]


@dataclass(frozen=True)
class Accepted:
    """Whether CUDA's compiler accepts a source that runs on the CPU.

    Args:
        words: the compiler and the GPUs; or why it was not tried.
        registers: kernels → the most registers of a thread, on any of these GPUs.
    """

    words: str
    registers: Mapping[str, int] = field(default_factory=dict)


def accepted(unit: ForeignUnit) -> Accepted:
    """Compile a source that runs on the CPU for a GPU, too, so that errors of CUDA's compiler are reported.

    NVRTC is used if installed, else nvcc. Only the number of registers is kept. A source is not at fault for names that
    NVRTC lacks: missing headers, and declarations of the host's C++ library or of CUDA's runtime. Such a source is
    compiled by nvcc, if installed.

    Raises EnvironmentFault with the compiler's errors.
    """
    if os.environ.get(SWITCH) == "off":
        return Accepted(f"{NOT_COMPILED}NVRTC ({SWITCH} is off): what CUDA's compiler refuses is not seen")
    try:
        by = f"NVRTC {'.'.join(map(str, nvrtc.version()))}"
        known = set(map(str, nvrtc.architectures()))
    except EnvironmentFault:
        by, known = f"nvcc {nvcc.version()}", set()
        if nvcc.version() is None:
            return Accepted(f"{NOT_COMPILED}NVRTC, which is not installed: what CUDA's compiler refuses is not seen")
    unit = replace(unit, author=replace(unit.author, host_apart=True))
    wanted = [sm for sm in architectures(unit.author.flags) or [DEFAULT_SM] if not known or sm in known] or [DEFAULT_SM]
    try:
        taken_ = _accepted_by(by.split()[0], unit, wanted)
    except _Lacking as lacking:
        if by.startswith("nvcc") or nvcc.version() is None:
            return Accepted(f"{NOT_COMPILED}{by}: {lacking}")
        try:
            by, taken_ = f"nvcc {nvcc.version()}", _accepted_by("nvcc", unit, wanted)
        except _Lacking as also:
            return Accepted(f"{NOT_COMPILED}NVRTC: {lacking}; nor by nvcc: {also}")
    return Accepted(f"also compiled by {by} for {', '.join(f'sm_{sm}' for sm in wanted)}, and not run there", taken_)


class _Lacking(Exception):
    """The compiler lacks a header, a name or a flag that the source needs."""


def _accepted_by(by: str, unit: ForeignUnit, wanted: Sequence[str]) -> dict[str, int]:
    """Return the registers of each kernel. Raises EnvironmentFault, _Lacking."""
    most: dict[str, int] = {}
    for sm in wanted:
        cubin, names = _device_code(by, unit, sm)
        taken_ = registers(cubin)
        for entry in unit.entries:
            most[entry] = max(most.get(entry, 0), taken_.get(names[entry], 0))
    return most


def _device_code(by: str, unit: ForeignUnit, sm: str) -> tuple[bytes, dict[str, str]]:
    """Return the cubin of a source without its host code, which NVRTC refuses.

    Host code that NVRTC reports is removed, so its use in a kernel becomes an error. Raises EnvironmentFault, _Lacking.
    """
    root, file, removed = unit.root, OF_NVRTC, ""
    for _ in range(_MOST_ROUNDS):
        try:
            return _kept(unit, sm, False, by == "nvcc", file)[:2]
        except EnvironmentFault as error:
            said = [str(error), *error.details]
            host = {
                (found[1], int(found[2]), found[3] == "function") for line in said if (found := _OF_HOST.search(line))
            }
            if host and by != "nvcc":
                file = _without(root, file, host)
                texts = ((root / name).read_text().splitlines()[line - 1] for name, line, _ in host)
                removed += " ".join(texts)
                continue
            undefined = [found[1] for line in said if (found := _UNDEFINED.search(line))]
            if undefined and all(re.search(rf"\b{name}\b", removed) for name in undefined):
                names = ", ".join(dict.fromkeys(undefined))
                why = f"{names} is code of the host: mark it __device__"
                raise EnvironmentFault(f"{error} ({why})", details=error.details) from None
            missing = any(_LACKS.search(line) or _IN_HEADER.search(line) for line in said)
            errors = [line for line in said if "error:" in line]
            if errors and all(_MARKED_LAMBDA in line for line in errors):
                if not any(flag.endswith(_FOR_LAMBDAS) for flag in unit.author.flags):
                    why = f"nvcc takes marked lambdas with the flag --{_FOR_LAMBDAS}, which the declaration lacks"
                    raise EnvironmentFault(f"{error} ({why})", details=error.details) from None
                missing = True
            if removed or missing or not _REFUSED.search(str(error)):
                raise _Lacking(" ".join(str(error).split())[:200]) from None
            raise
    raise _Lacking("it has too much code for the host")


def _without(root: Path, file: str, host: Collection[tuple[str, int, bool]]) -> str:
    """Write a copy of NVRTC's input without the functions (True) and variables declared at these places; return its
    file.
    """
    new = root / OF_DEVICE
    if file == OF_NVRTC:
        shutil.copytree(root / "rtc", root / "device", dirs_exist_ok=True)
        new.write_text((root / OF_NVRTC).read_text().replace('"rtc/', '"device/'))
    for name in {name for name, _, _ in host}:
        path = root / name.replace("rtc/", "device/", 1)
        functions, variables = (
            {line for of, line, is_ in host if of == name and is_ is kind} for kind in (True, False)
        )
        path.write_text(without_host_code(path.read_text(), functions, variables))
    return OF_DEVICE


def _kept(unit: ForeignUnit, sm: str, lines: bool, with_nvcc: bool, of_nvrtc: str = OF_NVRTC) -> Compiled:
    """Return the kernels from the cache, or compile them; `of_nvrtc` is NVRTC's file. Raises EnvironmentFault."""
    author, entries = unit.author, unit.entries
    unit = replace(unit, file=OF_NVCC if with_nvcc else of_nvrtc)
    name = f"nvcc {nvcc.version()}" if with_nvcc else f"NVRTC {'.'.join(map(str, nvrtc.version()))}"
    used, left = (nvcc if with_nvcc else nvrtc).used_flags(author)
    arch = int("".join(c for c in sm if c.isdigit())) * 10
    compilation = Compilation(name, f"sm_{sm}", arch, entries, tuple(used), tuple(left))
    more = (name, str((nvcc if with_nvcc else nvrtc).include_folder()), *used, "--", *author.include, "--", *entries)

    def key_now() -> tuple[str, ...] | None:
        return nvrtc.cubin_key(unit.root, unit.file, sm, unit.defines, lines, _folders(author), not with_nvcc)

    for _ in range(_MOST_TRIES):
        key = key_now()
        cubin = None if key is None else taken((*key, *more), ".cubin")
        if key is not None and cubin is not None:
            known = _names(taken((*key, *more), ".names"), cubin, entries)
            if known is not None:
                return Compiled(cubin, known, compilation)
        cubin, names = (nvcc.compile_cubin if with_nvcc else nvrtc.compile_kernels)(unit, sm, lines)
        if key is None:
            return Compiled(cubin, names, compilation)
        if key_now() == key:
            kept((*key, *more), ".names", json.dumps(names).encode())
            return Compiled(kept((*key, *more), ".cubin", cubin), names, compilation)
    raise EnvironmentFault("the sources of a kernel changed during compilation")


def _names(said: bytes | None, cubin: bytes, entries: Sequence[str]) -> dict[str, str] | None:
    try:
        names = json.loads(said or b"null")
        known = set(functions(cubin))
        if isinstance(names, dict) and all(names.get(entry) in known for entry in entries):
            return {entry: str(names[entry]) for entry in entries}
    except (ValueError, RecursionError, EnvironmentFault):
        pass
    return None
