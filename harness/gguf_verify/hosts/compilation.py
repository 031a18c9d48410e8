"""The compilation of a foreign kernel: its author's options, the compiler used here, and errors of a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..support.errors import EnvironmentFault

#: Most errors of one source that are shown.
MOST_ERRORS = 20
#: The value of `__CUDA_ARCH__` on the CPU: a GPU with everything except the requirements of Blackwell's tensor cores.
ARCH_ON_CPU = 900


@dataclass(frozen=True)
class Author:
    """The compiler options of a kernel's author.

    Args:
        flags: in nvcc's syntax.
        include: folders, below that of the sources.
        sizes: a kernel → the bytes of each of its declared parameters, 0 for a pointer.
        ordered: products and sums are not contracted, and quotients are rounded correctly, so that bits can be
            compared.
        host_apart: code marked neither __device__ nor __global__ is host code, for every compiler.
        not_here: inline PTX that the CPU lacks: the symbol of an undefined function → a description.
    """

    flags: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ordered: bool = False
    host_apart: bool = False
    not_here: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ForeignUnit:
    """Kernels of one foreign source, which are compiled together.

    Args:
        root: the folder of the sources.
        file: the source in it. Compilers for a GPU have a source each: see `author_cubin`.
        entries: the kernels, each a function's name, possibly in a namespace, and with a template's arguments.
        defines: macros.
        author: its author's options.
    """

    root: Path
    file: str
    entries: tuple[str, ...]
    defines: dict[str, str] = field(default_factory=dict)
    author: Author = field(default_factory=Author)


@dataclass(frozen=True)
class Compilation:
    """The compilation of the code that was run.

    Args:
        by: the compiler and its version.
        target: "the CPU", or a GPU's architecture such as "sm_90".
        arch: `__CUDA_ARCH__`.
        entries: the kernels.
        flags: the compiler's flags: the author's, and added ones.
        left_out: flags of the author's that were not used.
        file: the kernels' source, as its author names it.
        not_run: parts of the source that were not compiled: the condition, and its place.
        accepted: for code that ran on the CPU, whether CUDA's compiler accepts it, in words.
    """

    by: str
    target: str
    arch: int
    entries: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    file: str = ""
    not_run: tuple[str, ...] = ()
    accepted: str = ""

    @property
    def words(self) -> str:
        """All of it in one line."""
        of = f"{self.file} by {self.by} for {self.target}, __CUDA_ARCH__ {self.arch}"
        parts = [of, f"flags {' '.join(self.flags)}" if self.flags else "no flags of its author"]
        if self.left_out:
            parts.append(f"not used: {' '.join(self.left_out)}")
        if self.not_run:
            n, shown = len(self.not_run), ", ".join(self.not_run[:3])
            parts.append(f"not run: {n} branch{'es' * (n > 1)} ({shown}{', …' if n > 3 else ''})")
        return "; ".join(parts)

    def of_source(self, file: str, not_run: Iterable[str]) -> Compilation:
        """Return the compilation of a source."""
        return replace(self, file=file, not_run=tuple(not_run))


_ERROR = re.compile(r"\berror\b|\bundefined reference\b|catastrophic")
_SUMMARY = re.compile(r"\d+ errors? detected in the compilation|compilation terminated|ld returned \d+ exit status")


def failed(what: str, said: Sequence[str]) -> EnvironmentFault:
    """Return the error of a failed compilation: the first error in the message, all of them in the details.

    Args:
        what: the beginning of the message: "g++ could not compile kernel.cu".
        said: the compiler's lines.
    """
    lines = [line.strip() for line in said if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _SUMMARY.search(line)] or lines
    errors = list(dict.fromkeys(errors))
    shown = errors[:MOST_ERRORS]
    if len(errors) > MOST_ERRORS:
        shown.append(f"… and {len(errors) - MOST_ERRORS} more")
    return EnvironmentFault(
        f"{what}: {errors[0] if errors else 'it says nothing'}", details=shown if len(shown) > 1 else ()
    )


#: Flags whose value may be the next argument.
_WITH_VALUE = (
    "-D", "-U", "-I", "-include", "-std", "-Xptxas", "-Xcompiler", "-gencode", "-arch", "-code", "-O", "-maxrregcount",
    "--maxrregcount", "-ccbin", "-diag-suppress", "-Xcudafe", "-isystem", "-o", "-x", "--threads", "-t",
)  # fmt: skip


def split_flags(flags: Sequence[str], taken: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split an author's flags into those that begin with one of `taken`, each as one argument, and the others."""
    used, left = list[str](), list[str]()
    i = 0
    while i < len(flags):
        flag = flags[i]
        if flag in _WITH_VALUE and i + 1 < len(flags):
            i += 1
            joined = "" if flag in ("-D", "-U", "-I", "-O") else "="
            flag = f"{flag}{joined}{flags[i]}"
        (used if flag.startswith(tuple(taken)) else left).append(flag)
        i += 1
    return used, left


def architectures(flags: Sequence[str]) -> list[str]:
    """Return the compute capabilities in nvcc's flags, such as "86"; none if the flags name none."""
    named, _ = split_flags(flags, ("-arch", "--gpu-architecture", "-gencode", "--generate-code", "-code", "--gpu-code"))
    return sorted({found for flag in named for found in re.findall(r"(?:sm|compute)_(\d+)", flag)}, key=int)
