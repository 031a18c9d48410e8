"""The sources of a kernel in CUDA C++, FILE.cu:SYMBOL: they are copied, and compiled for a host. What the file declares
stands in `declared`."""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from collections.abc import Callable
from pathlib import Path

from ...hosts import HOSTS
from ...hosts.base import Host, Placed
from ...hosts.foreign_sources import foreign_source
from ...hosts.schedule import Schedule
from ...support import scratch
from ...support.errors import EnvironmentFault, UsageError
from ...support.paths import kernel_root
from .api import FLOAT32
from .declared import INTEGERS, CudaDeclaration, parse
from .signature import kernels_in, misfit, proposed, there_is, unlike

_BLOCK = re.compile(r"//[ \t]*\[gguf-verify\][ \t]*\n(.*?)//[ \t]*\[/gguf-verify\]", re.S)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_PTX = re.compile(r"\basm\b\s*(?:volatile\b\s*)?\(")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_TEXT, _MOST_FILES = 1 << 22, 64
#: CUDA's headers that a kernel may include.
_OF_CUDA = ("cuda_pipeline.h", "cuda_pipeline_primitives.h")
_UNIT = "foreign.cu"  # NVRTC's own is unit.cu


class CudaSource:
    """FILE.cu:SYMBOL, its declaration, and a folder with all that compiling it needs. `texts` are those of the file and
    of what it includes.

    Raises UsageError where there is no such file or its declaration is not valid.
    """

    def __init__(self, path: Path, symbol: str) -> None:
        if not _NAME.fullmatch(symbol):
            raise UsageError(f"{ascii(symbol)[:60]} is not the name of a function")
        text = _read(path)
        found, sidecar = _BLOCK.search(text), path.with_suffix(".toml")
        if found is None and not sidecar.is_file():
            raise _undeclared(path, symbol, text)
        lines = found[1].splitlines() if found is not None else []
        self.declared = "\n".join(re.sub(r"^\s*//", "", line) for line in lines) if lines else _read(sidecar)
        self.declaration = declaration = parse(self.declared)
        written = kernels_in(text)
        if written and symbol not in written and f" {symbol}(" not in text:
            raise UsageError(f"it has no function {symbol}; {there_is(symbol, list(written))}")
        said = [f"{kind} {name}".strip() for kind, name in declaration.parameters]
        if symbol in written and (wrong := misfit(symbol, written[symbol], said)) is not None:
            raise UsageError(wrong)
        #: What the source writes otherwise than the declaration.
        self.hints = unlike(
            written.get(symbol, ()), said,
            FLOAT32 if declaration.of.given == FLOAT32 else "", FLOAT32,
        )  # fmt: skip
        #: Path and name of its oracle, if it has one.
        self.oracle = (path.parent / declaration.oracle[0], declaration.oracle[1]) if declaration.oracle else None
        self.symbol = symbol
        folder = scratch.folder("foreign")
        self._removed = weakref.finalize(self, scratch.remove_folder, folder)
        #: What compilers read, and what its process loads.
        self.root, self.built = folder / "source", folder / "built"
        try:
            self.root.mkdir()
            self.built.mkdir()
            (self.root / "emulator").mkdir()
            for header in (kernel_root() / "emulator").iterdir():
                (self.root / "emulator" / header.name).write_bytes(header.read_bytes())
            for name in _OF_CUDA:
                (self.root / name).write_text('#include "emulator/cuda_pipeline.h"\n')
            digest = self._copy(path)
            (self.root / _UNIT).write_text(_unit(self._file, symbol, declaration, digest))
        except BaseException:
            self.close()
            raise

    def _copy(self, path: Path) -> str:
        """Copy the file and what it includes, so that all runs of one session compile the same; returns their digest.

        What is included otherwise (by an absolute path, by `<…>`) is read where it is, and the hosts' caches know of
        it. The copies lie to each other as the originals do.
        """
        files = included_files(path)
        self.texts = tuple(included_files(path, everywhere=True).values())
        top = os.path.commonpath([os.path.dirname(name) for name in files])
        digest = hashlib.sha256()
        for name, text in files.items():
            below = os.path.relpath(name, top)
            digest.update(below.encode() + b"\0" + text.encode() + b"\0")
            copy = self.root / "author" / below
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
        self._file = os.path.relpath(os.path.abspath(path), top)
        return digest.hexdigest()

    @property
    def adds_floats(self) -> bool:
        """Whether it may add floats by atomic operations, in an order that nobody chooses."""
        return any("atomicAdd" in text for text in self.texts)

    def close(self) -> None:
        self._removed()


def _undeclared(path: Path, symbol: str, text: str) -> UsageError:
    """That a file declares nothing, with a declaration to paste."""
    written = kernels_in(text)
    if symbol not in written and f" {symbol}(" not in text:
        there = there_is(symbol, list(written))
        return UsageError(f"it has no function {symbol}, and no // [gguf-verify] block; {there}")
    return UsageError(
        f"it has no // [gguf-verify] block, and there is no {path.with_suffix('.toml').name}: paste this block and "
        "correct it; `gguf-verify new-kernel` writes a whole kernel",
        "no-declaration", ("", *proposed(symbol, written.get(symbol))),
    )  # fmt: skip


def included_files(path: Path, everywhere: bool = False) -> dict[str, str]:
    """A file and all that it includes by a relative path, directly or not: absolute path → text.

    Args:
        everywhere: by an absolute path, too.

    Raises UsageError.
    """
    found: dict[str, str] = {}
    left = [os.path.abspath(path)]
    while left:
        name = left.pop()
        if name in found:
            continue
        if len(found) == _MOST_FILES:
            raise UsageError(f"{path} includes more than {_MOST_FILES - 1} files")
        found[name] = _read(Path(name))
        for included in _INCLUDE.findall(found[name]):
            other = os.path.join(os.path.dirname(name), included)
            if (everywhere or not os.path.isabs(included)) and os.path.isfile(other):
                left.append(os.path.normpath(other))
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as f:
            raw = f.read(_MOST_TEXT + 1)
        if len(raw) > _MOST_TEXT:
            raise UsageError(f"{path} is larger than {_MOST_TEXT:,} bytes")
        return raw.decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8") from None


def _unit(file: str, symbol: str, declaration: CudaDeclaration, digest: str) -> str:
    """The source that is compiled: the emulator's header, if needed, then the author's file, whose names stay free."""
    sizes = ", ".join("0" if not kind else str(INTEGERS[kind]().itemsize) for kind, _ in declaration.parameters)
    return f"""// {digest}
#ifdef __CUDACC__
#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(1024) unsigned char NAME[]
#else
#define half_to_float gguf_verify_half_to_float
#define float_to_half gguf_verify_float_to_half
#include "emulator/cuda_on_cpu.hpp"
#undef half_to_float
#undef float_to_half
#endif
#include "author/{file}"
#ifndef __CUDACC__
template <class... A> constexpr bool gguf_verify_fits(void (*)(A...)) {{
    constexpr size_t is[] = {{(std::is_pointer<A>::value ? 0 : sizeof(A))...}}, declared[] = {{{sizes}}};
    if (sizeof is != sizeof declared) return false;
    for (size_t i = 0; i < sizeof is / sizeof *is; ++i)
        if (is[i] != declared[i]) return false;
    return true;
}}
static_assert(gguf_verify_fits({symbol}), "the parameters of {symbol} are not those that are declared");
#endif
"""


class CudaKernels:
    """The kernels of a source, compiled here and loaded nowhere: files in a folder of the source, for its process.

    Args:
        host: compiles.
        seconds: for compiling all types, and for all under one kind of schedule.
    """

    def __init__(self, source: CudaSource, host: Host, seconds: float) -> None:
        self._source, self.host, self._seconds = source, host, seconds
        self._placed: dict[tuple[str, bool], Placed] = {}

    def all(
        self, wanted: frozenset[str] | None = None, progress: Callable[[str], None] | None = None
    ) -> dict[str, Placed]:
        """For each wanted type that it declares; None: for all. `progress` is told of each.

        Raises UsageError where one does not compile, EnvironmentFault where what compiles is missing.
        """
        self.host.check()
        declared = self._source.declaration.of.formats
        needed = [fmt for fmt in declared if wanted is None or fmt in wanted]
        where = "the CPU" if HOSTS[self.host.name].emulated else "the GPU"
        made: dict[str, Placed] = {}
        try:
            with foreign_source(self._source.root, self._seconds):
                for i, fmt in enumerate(needed, 1):
                    if progress is not None:
                        progress(f"compiling {fmt} for {where} ({i} of {len(needed)})")
                    made[fmt] = self._of(fmt, None)
                return made
        except EnvironmentFault as error:
            if HOSTS[self.host.name].emulated and any(_PTX.search(text) for text in self._source.texts):
                raise UsageError(
                    "it does not compile for the CPU, which cannot run inline PTX (asm): verify it with --host "
                    "gpu, or give it another way where __CUDACC__ is not defined"
                ) from None
            root = self._source.root
            raise UsageError(str(error).replace(f"{root}/author/", "").replace(f"{root}/", "")) from None

    def under(self, fmt: str, schedule: Schedule) -> Placed:
        """For launches under a schedule. Raises EnvironmentFault."""
        with foreign_source(self._source.root, self._seconds):
            return self._of(fmt, schedule)

    def _of(self, fmt: str, schedule: Schedule | None) -> Placed:
        checked = schedule is not None and schedule.checked
        if (fmt, checked) not in self._placed:
            source = self._source
            defines = source.declaration.defines(fmt)
            built = self.host.build(source.root, _UNIT, source.symbol, defines, schedule if checked else None)
            self._placed[fmt, checked] = built.placed(source.built, f"{fmt}-checked" if checked else fmt)
        return self._placed[fmt, checked]
