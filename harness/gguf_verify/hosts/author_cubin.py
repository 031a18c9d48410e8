"""A cubin of a kernel that is not this project's, as its author has it compiled: by nvcc where it is, else by NVRTC. It
needs no GPU. The cache keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..support.cache import kept, taken
from ..support.errors import EnvironmentFault
from . import nvcc, nvrtc
from .compilation import Author, Compilation
from .cubin import functions

#: What a file for nvcc, and what the same for NVRTC, is called: the second one has no code of the host.
OF_NVCC, OF_NVRTC = "foreign.cu", "foreign-rtc.cu"
_MOST_TRIES = 3


class Compiled(NamedTuple):
    """A cubin, kernels → their names in it, and how it was made."""

    cubin: bytes
    names: dict[str, str]
    compilation: Compilation


def author_cubin(
    root: Path, file: str, sm: str, defines: dict[str, str], entries: Sequence[str], author: Author,
    lines: bool = False, by: str = "",
) -> Compiled:  # fmt: skip
    """Compile the kernels of a source for a card.

    Args:
        root: the folder of the sources, with a file for nvcc, and one for NVRTC beside it.
        file: ignored where the compiler takes the other one.
        sm: the card's architecture, such as "90".
        lines: with the lines of its source.
        by: "nvcc" or "NVRTC"; "" takes nvcc where it is.

    Raises EnvironmentFault with the compiler's errors.
    """
    with_nvcc = by == "nvcc" or (by == "" and nvcc.version() is not None)
    if any(f"_{sm}a" in flag for flag in author.flags):
        sm = f"{sm}a"
    try:
        return _kept(root, sm, defines, entries, author, lines, with_nvcc)
    except EnvironmentFault as error:
        if not with_nvcc or by or "nvcc fatal" not in str(error):
            raise
        return _kept(root, sm, defines, entries, author, lines, False)  # it has no compiler for the host


def _kept(
    root: Path, sm: str, defines: dict[str, str], entries: Sequence[str], author: Author, lines: bool, with_nvcc: bool
) -> Compiled:  # fmt: skip
    major, minor = (0, 0) if with_nvcc else nvrtc.version()
    name = f"nvcc {nvcc.version()}" if with_nvcc else f"NVRTC {major}.{minor}"
    used, left = (nvcc if with_nvcc else nvrtc).used_flags(author)
    file = OF_NVCC if with_nvcc else OF_NVRTC
    arch = int("".join(c for c in sm if c.isdigit())) * 10
    compilation = Compilation(name, f"sm_{sm}", arch, tuple(entries), tuple(used), tuple(left))
    more = (name, str(nvcc.include_folder()), *used, "--", *author.include, "--", *entries)
    for _ in range(_MOST_TRIES):
        key = nvrtc.cubin_key(root, file, sm, defines, lines, author.include)
        cubin = None if key is None else taken((*key, *more), ".cubin")
        if key is not None and cubin is not None:
            known = _names(taken((*key, *more), ".names"), cubin, entries)
            if known is not None:
                return Compiled(cubin, known, compilation)
        compile_kernels = nvcc.compile_cubin if with_nvcc else nvrtc.compile_kernels
        cubin, names = compile_kernels(root, file, sm, defines, entries, author, lines)
        if key is None:
            return Compiled(cubin, names, compilation)
        if nvrtc.cubin_key(root, file, sm, defines, lines, author.include) == key:
            kept((*key, *more), ".names", json.dumps(names).encode())
            return Compiled(kept((*key, *more), ".cubin", cubin), names, compilation)
    raise EnvironmentFault("the sources of a kernel change while they are compiled")


def _names(said: bytes | None, cubin: bytes, entries: Sequence[str]) -> dict[str, str] | None:
    try:
        names = json.loads(said or b"null")
        known = set(functions(cubin))
        if isinstance(names, dict) and all(names.get(entry) in known for entry in entries):
            return {entry: str(names[entry]) for entry in entries}
    except (ValueError, RecursionError, EnvironmentFault):
        pass
    return None


__all__ = ["OF_NVCC", "OF_NVRTC", "Compiled", "author_cubin"]
