"""The sources of a kernel in CUDA C++, FILE.cu:SYMBOL: they are copied, and compiled for a host. What the file declares
stands in `declared`."""

from __future__ import annotations

import hashlib
import os
import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ...hosts import HOSTS
from ...hosts.base import Host, Placed
from ...hosts.foreign_sources import foreign_source
from ...hosts.schedule import Schedule
from ...support import scratch
from ...support.errors import EnvironmentFault, UsageError
from ...support.paths import kernel_root
from .api import HALVES
from .declared import CallDeclaration, Step, parse
from .layouts import Number
from .signature import kernels_in, misfit, proposed, there_is, unlike

_BLOCK = re.compile(r"//[ \t]*\[gguf-verify\][ \t]*\n(.*?)//[ \t]*\[/gguf-verify\]", re.S)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_PTX = re.compile(r"\basm\b\s*(?:volatile\b\s*)?\(")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_TEXT, _MOST_FILES = 1 << 22, 64
#: CUDA's headers that a kernel may include.
_OF_CUDA = ("cuda_pipeline.h", "cuda_pipeline_primitives.h")


class CudaSource:
    """FILE.cu:SYMBOL, its declaration, and a folder with all that compiling it needs. `texts` are those of the file and
    of what it includes.

    Raises UsageError where there is no such file or its declaration is not valid.
    """

    def __init__(
        self, path: Path, symbol: str, declared: CallDeclaration | None = None, declared_in: Path | None = None
    ) -> None:  # fmt: skip
        if symbol and not _NAME.fullmatch(symbol):
            raise UsageError(f"{ascii(symbol)[:60]} is not the name of a function")
        if declared is None:
            declared = parse(_declared_in(path, symbol))
        self.declaration = declaration = declared
        beside = (declared_in or path).parent
        #: Path and name of its oracle, if it has one.
        self.oracle = (beside / declaration.oracle[0], declaration.oracle[1]) if declaration.oracle else None
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
            self._digest = self._copy(path)
            self.hints = self._compared()
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

    def _compared(self) -> tuple[str, ...]:
        """What the sources write otherwise than the declaration, each in a line. Raises UsageError where a launch's
        parameters cannot be those of its function, or there is no such function."""
        written = {name: of for text in self.texts for name, of in kernels_in(text).items()}
        hints: dict[str, None] = {}
        of = self.declaration.of
        for step in self.declaration.steps:
            said = [
                p if isinstance(p, str) else f"{p.kind} {getattr(p.value, 'source', p.value)}" for p in step.parameters
            ]
            for symbol in {name or self.symbol for name in (step.symbols.values() or [""])}:
                if symbol not in written:
                    if not _may_have(symbol, self.texts):
                        raise UsageError(f"it has no function {symbol}; {there_is(symbol, list(written))}")
                    continue
                if (wrong := misfit(symbol, written[symbol], said)) is not None:
                    raise UsageError(wrong)
                if len(self.declaration.steps) == 1 and of.computes == "gemm":
                    given = of.given if of.given in HALVES else ""
                    hints |= dict.fromkeys(unlike(written[symbol], said, given, of.output))
        return tuple(hints)

    def unit(self, symbol: str, steps: Sequence[Step]) -> str:
        """The name of the source that is compiled for a function, which these launches call."""
        name = f"foreign-{hashlib.sha256(symbol.encode()).hexdigest()[:16]}.cu"
        path = self.root / name
        if not path.exists():
            path.write_text(_unit(self._file, symbol, steps[0].parameters, self._digest))
        return name

    @property
    def adds_floats(self) -> bool:
        """Whether it may add floats by atomic operations, in an order that nobody chooses."""
        return any("atomicAdd" in text for text in self.texts)

    def close(self) -> None:
        self._removed()


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
        found[name] = read_text(Path(name))
        for included in _INCLUDE.findall(found[name]):
            other = os.path.join(os.path.dirname(name), included)
            if (everywhere or not os.path.isabs(included)) and os.path.isfile(other):
                left.append(os.path.normpath(other))
    return found


def _declared_in(path: Path, symbol: str = "") -> str:
    """The declaration of FILE.cu. Raises UsageError; where there is none, with one to paste."""
    text, sidecar = read_text(path), path.with_suffix(".toml")
    found = _BLOCK.search(text)
    if found is None and not sidecar.is_file():
        nothing = f"it has no // [gguf-verify] block, and there is no {sidecar.name}"
        written = kernels_in(text)
        if symbol not in written and not _may_have(symbol, [text]):
            raise UsageError(f"{nothing}; it has no function {symbol}; {there_is(symbol, list(written))}")
        raise UsageError(
            f"{nothing}: paste this block and correct it; `gguf-verify new-kernel` writes a whole kernel",
            "no-declaration", ("", *proposed(symbol, written.get(symbol))),
        )  # fmt: skip
    lines = found[1].splitlines() if found is not None else []
    return "\n".join(re.sub(r"^\s*//", "", line) for line in lines) if lines else read_text(sidecar)


def _may_have(symbol: str, texts: Sequence[str]) -> bool:
    """Whether sources may define a function: they hold its name, or macros that make names."""
    name = re.split(r"[<(]|::", symbol)[-1 if "::" in symbol else 0]
    return any(name in text or "##" in text for text in texts)


def read_text(path: Path) -> str:
    """A text of an author. Raises UsageError."""
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


def _unit(file: str, symbol: str, parameters: Sequence[str | Number], digest: str) -> str:
    """The source that is compiled: the emulator's header, if needed, then the author's file, whose names stay free."""
    sizes = ", ".join("0" if isinstance(p, str) else str(np.dtype(p.kind).itemsize) for p in parameters)
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
    """The kernels of a source, compiled here and loaded nowhere: files in a folder of the source, for its process. They
    are found by keys: "TYPE/SYMBOL".

    Args:
        host: compiles.
        seconds: for compiling all types, and for all under one kind of schedule.
    """

    def __init__(self, source: CudaSource, host: Host, seconds: float) -> None:
        self._source, self.host, self._seconds = source, host, seconds
        self._placed: dict[tuple[str, bool], dict[str, Placed]] = {}

    def all(
        self, wanted: frozenset[str] | None = None, progress: Callable[[str], None] | None = None
    ) -> dict[str, Placed]:
        """For each wanted type that it declares; None: for all. `progress` is told of each.

        Raises UsageError where one does not compile, EnvironmentFault where what compiles is missing.
        """
        needed = [fmt for fmt in self._source.declaration.of.formats if wanted is None or fmt in wanted]
        where = "the CPU" if HOSTS[self.host.name].emulated else "the GPU"
        made: dict[str, Placed] = {}
        for i, fmt in enumerate(needed, 1):
            if progress is not None:
                progress(f"compiling {fmt} for {where} ({i} of {len(needed)})")
            made |= self.of(fmt)
        return made

    def of(self, fmt: str) -> dict[str, Placed]:
        """For one type. Raises as `all` does."""
        self.host.check()
        try:
            with foreign_source(self._source.root, self._seconds):
                return self._of(fmt, None)
        except EnvironmentFault as error:
            if HOSTS[self.host.name].emulated and any(_PTX.search(text) for text in self._source.texts):
                raise UsageError(
                    "it does not compile for the CPU, which cannot run inline PTX (asm): verify it with --host "
                    "gpu, or give it another way where __CUDACC__ is not defined"
                ) from None
            root = self._source.root
            raise UsageError(str(error).replace(f"{root}/author/", "").replace(f"{root}/", "")) from None

    def under(self, fmt: str, schedule: Schedule) -> dict[str, Placed]:
        """For launches under a schedule. Raises EnvironmentFault."""
        with foreign_source(self._source.root, self._seconds):
            return self._of(fmt, schedule)

    def _of(self, fmt: str, schedule: Schedule | None) -> dict[str, Placed]:
        checked = schedule is not None and schedule.checked
        if (fmt, checked) not in self._placed:
            source, made = self._source, {}
            declaration = source.declaration
            for number, symbol in enumerate(declaration.symbols(fmt)):
                name = symbol or source.symbol
                unit = source.unit(name, [step for step in declaration.steps if step.symbol(fmt) == symbol])
                built = self.host.build(
                    source.root, unit, name, declaration.defines(fmt), schedule if checked else None
                )
                file = f"{fmt}-{number}{'-checked' if checked else ''}"
                made[f"{fmt}/{name}"] = built.placed(source.built, file)
            self._placed[fmt, checked] = made
        return self._placed[fmt, checked]
