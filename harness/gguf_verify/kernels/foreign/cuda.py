"""Sources of a kernel in CUDA C++, FILE.cu:SYMBOL, which are copied, and compiled for a host.

The module `declared` parses the declaration in the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ...hosts.author_cubin import OF_NVCC, OF_NVRTC, accepted
from ...hosts.base import Artefact, Host, Placed
from ...hosts.branches import not_compiled
from ...hosts.choice import HOSTS
from ...hosts.compilation import Author, Compilation, ForeignUnit, split_flags
from ...hosts.compiler import copy_emulator
from ...hosts.for_cpu import ForCpu, for_nvrtc
from ...hosts.foreign_sources import foreign_source
from ...hosts.gcov import executed
from ...hosts.launch_limits import as_json, from_json
from ...hosts.ptx import SYMBOL
from ...hosts.schedule import Schedule
from ...results.coverage import Executed
from ...support import scratch
from ...support.errors import EnvironmentFault, UsageError
from ...support.files import read_input
from ...support.numbers import number_type
from ...support.sources import file_digest
from ...support.text import printable
from .api import HALVES
from .declared import CallDeclaration, parse, put_in
from .impossible import impossible
from .signature import Parameter, full_names, kernels_in, misfit, proposed, there_is, unlike

_BLOCK = re.compile(r"//[ \t]*\[gguf-verify\][ \t]*\n(.*?)//[ \t]*\[/gguf-verify\]", re.S)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.M)
_NAME = re.compile(r"[A-Za-z_][\w:]*(?:<[\w:<>, *&()+-]*>)?")
_STRUCT = re.compile(r"\b(?:struct|class|union)\s+(?:(?:alignas|__align__)\([^()]*\)\s*)?(\w+)\s*(?::[^;{]*)?\{")
_MOST_TEXT, _MOST_FILES = 1 << 22, 64
#: A compiler's error line for a missing header.
_NO_HEADER = re.compile(r"fatal error: (\S+): No such file|(?:could not|cannot) open source file \"([^\"]+)\"")
#: A name between quotes or angle brackets, possibly escaped.
_NAME_OF_FILE = re.compile(r'["<]([^"<>\\\n\0]{1,4096})')
#: Definitions for the GPU's compilers that kernels may use and CUDA lacks.
_SUPPLIED = "#define DYNAMIC_SHARED(NAME) extern __shared__ __align__(1024) unsigned char NAME[]"


class CudaSource:
    """A source FILE.cu:SYMBOL with its declaration, and a folder with everything needed to compile it.

    Raises UsageError if there is no such file or its declaration is invalid.
    """

    def __init__(
        self, path: Path, symbol: str, declared: CallDeclaration | None = None, declared_in: Path | None = None
    ) -> None:
        if symbol and not _NAME.fullmatch(symbol):
            raise UsageError(f"{ascii(symbol)[:60]} is not the name of a function")
        if declared is None:
            declared = parse(_declared_in(path, symbol))
        self.declaration = declaration = declared
        beside = (declared_in or path).parent
        #: Path and name of its oracle, if it has one.
        self.oracle = declaration.oracle_in(beside)
        self.symbol = symbol
        self._folders, self._flags = _folders(declaration, beside)
        #: The author's files: absolute path → text.
        self.files = included_files(path, self._folders)
        folder = scratch.folder("foreign")
        self._removed = weakref.finalize(self, scratch.remove_folder, folder)
        #: Folders of the sources for the compilers, and of the code that its process loads.
        self.root, self.built = folder / "source", folder / "built"
        try:
            self.root.mkdir()
            self.built.mkdir()
            copy_emulator(self.root)
            self._copy(path)
            self.hints = self._compared()
        except BaseException:
            self.close()
            raise

    def _copy(self, path: Path) -> None:
        """Copy the file and its includes, so that all runs of one session compile the same text.

        Files that are included otherwise (by an absolute path, or from a folder of the compiler) are read in place, and
        the hosts' caches track them. The copies keep their relative places.
        """
        self.main = os.path.abspath(path)
        self._top = os.path.commonpath([os.path.dirname(name) for name in self.files])
        self._write("author", self.files)
        below = self._below(self.main)
        supplied = f"{_SUPPLIED}\n"
        (self.root / OF_NVCC).write_text(f'{supplied}#include "author/{below}"\n')
        (self.root / OF_NVRTC).write_text(f'{supplied}#include "rtc/author/{below}"\n')
        self._write("rtc/author", {name: for_nvrtc(text) for name, text in self.files.items()})

    def _write(self, folder: str, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            copy = self.root / folder / self._below(name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)

    @cached_property
    def elsewhere(self) -> tuple[Path, ...]:
        """Files that its text names by an absolute path or relative to the current folder.

        Compilers read them in place, for example through `.incbin`.
        """
        found = {os.path.abspath(path) for text in self.files.values() for path in _NAME_OF_FILE.findall(text)}
        named = {file for path in found if os.path.isfile(path) for file in (path, *_included(Path(path)))}
        return tuple(map(Path, sorted(named - {*self.files})))

    def _below(self, name: str) -> str:
        return os.path.relpath(name, self._top)

    def shown(self, name: str) -> str:
        """Return the name of one of the author's files, relative to the kernel's file."""
        return os.path.relpath(name, os.path.dirname(self.main))

    @cached_property
    def _for_cpu(self) -> ForCpu:
        """The files rewritten for the C++ compiler, below "cpu"."""
        made = ForCpu()
        self._write("cpu/author", {name: made.rewritten(text, self.shown(name)) for name, text in self.files.items()})
        return made

    def compiled_by(self, host: Host) -> tuple[str, Author]:
        """Return the file below `root` that a host compiles, and the author's compiler options."""
        if not HOSTS[host.name].emulated:
            return OF_NVCC, self.on_gpu
        made = self._for_cpu
        not_here = {
            f"{SYMBOL}{i}": f"inline PTX `{instruction}` is not available on a CPU: {file}:{line}; "
            "verify with --host gpu"
            for i, (instruction, file, line) in enumerate(made.missing)
        }
        folders = [f"cpu/author/{self._below(folder)}" for folder in self._seen_folders()]
        file = f"cpu/author/{self._below(self.main)}"
        return file, replace(self.on_gpu, include=tuple(folders), not_here=not_here)

    @property
    def on_gpu(self) -> Author:
        """The author's compiler options for a GPU."""
        folders = [f"author/{self._below(folder)}" for folder in self._seen_folders()]
        return Author(self._flags, tuple(folders), ordered=self.declaration.of.ordered)

    def _seen_folders(self) -> list[str]:
        """Return the author's include folders from which a file was copied."""
        return [folder for folder in self._folders if any(name.startswith(f"{folder}{os.sep}") for name in self.files)]

    def author_of(self, path: str) -> str | None:
        """Return the author's name of a file that a compiler names; None for a file of CUDA or of this project."""
        path = os.path.normpath(path)
        below = os.path.relpath(path, self.root / "cpu" / "author")
        name = os.path.normpath(os.path.join(self._top, below))
        if not below.startswith("..") and name in self.files:
            return self.shown(name)
        return self.shown(path) if Path(path) in self.elsewhere else None

    def not_run(self, compilation: Compilation, defines: Mapping[str, str]) -> list[str]:
        """Return the branches of the files that were excluded by the target of the compilation."""
        version = "".join(c for c in compilation.by.rpartition(" ")[2] if c.isdigit() or c == ".").split(".")
        major, minor = (
            (version[0], version[1]) if "NV" in compilation.by.upper()[:5] and len(version) > 1 else ("13", "0")
        )
        known = {
            "__CUDA_ARCH__": str(compilation.arch), "__CUDACC__": "1", "__CUDACC_VER_MAJOR__": major,
            "__CUDACC_VER_MINOR__": minor, "CUDART_VERSION": f"{major}0{minor}0", "CUDA_VERSION": f"{major}0{minor}0",
            **defines,
        }  # fmt: skip
        known["__CUDACC_RTC__" if compilation.by.startswith("NVRTC") else "__NVCC__"] = "1"
        if compilation.target == "the CPU":
            known["GGUF_VERIFY_ON_CPU"] = "1"
        for flag in split_flags(self._flags, ("-D",))[0]:
            name, _, value = flag[2:].partition("=")
            known[name] = value if "=" in flag else "1"
        return not_compiled(
            self.files, self.main, known, lambda of, name: _found(of, name, self._folders, self.files), self.shown
        )

    def plain(self, error: EnvironmentFault) -> UsageError:
        """Return a compiler's error with the author's own file names."""
        lines = [self._plain(line) for line in (str(error), *error.details)]
        symbol = self.symbol
        if "<" not in symbol and re.search(r"\bunit\.(cpp|cu):", lines[0]):  # where only the kernel is named
            for text in self.files.values():
                full = full_names(text).get(symbol.rpartition("::")[2], symbol)
                if full != symbol:
                    return UsageError(_to_name(symbol, full))
        return UsageError(lines[0], details=lines[1:])

    def _plain(self, line: str) -> str:
        def shown(found: re.Match[str]) -> str:
            return self.shown(os.path.normpath(os.path.join(self._top, found[1])))

        root = re.escape(f"{self.root}/")
        line = re.sub(rf"(?:{root})?(?:cpu/|rtc/|device/)?author/([^\s:()]+)", shown, line)
        line = re.sub(r"/\S*/(unit\.(?:cpp|cu))", r"\1", line.replace(f"{self.root}/", ""))
        if missing := _NO_HEADER.search(line):
            name = missing[1] or missing[2]
            line += (
                f': <{name}> was not found; name its folder by include = ["…"], or move the kernel to a file that '
                "does not include it"
            )
        return line

    def _compared(self) -> tuple[str, ...]:
        """Compare the sources with the declaration; return the differences, one line each.

        Raises UsageError if a launch's parameters cannot be those of its function, or there is no such function.
        """
        written = {name: of for text in self.files.values() for name, of in kernels_in(text).items()}
        structs = {name for text in self.files.values() for name in _STRUCT.findall(text)}
        hints: dict[str, None] = {}
        of = self.declaration.of
        for step in self.declaration.all_steps:
            said = [
                p if isinstance(p, str) else f"{p.kind} {getattr(p.value, 'source', p.value)}" for p in step.parameters
            ]
            for symbol in {name or self.symbol for name in (step.symbols.values() or [""])}:
                if ":" in symbol or "<" in symbol:
                    continue  # in a namespace, or a template: the compiler knows it
                if symbol not in written:
                    if not _may_have(symbol, list(self.files.values())):
                        raise UsageError(f"it has no function {symbol}; {there_is(symbol, list(written))}")
                    continue
                if (wrong := misfit(symbol, written[symbol], said, structs)) is not None:
                    raise UsageError(wrong)
                if len(self.declaration.steps) == 1 and of.computes == "gemm":
                    given = of.given if of.given in HALVES else ""
                    hints |= dict.fromkeys(unlike(written[symbol], said, given, of.output))
        return tuple(hints)

    @property
    def texts(self) -> dict[str, str]:
        """Return the author's files: the author's name → text."""
        return {self.shown(name): text for name, text in self.files.items()}

    @property
    def impossible(self) -> dict[str, dict[int, str]]:
        """Return the author's name of a file → line → why no product in the domain reaches it."""
        return impossible(self.declaration, self.symbol, self.texts)

    @property
    def adds_floats(self) -> bool:
        """Whether it may add floats by atomic operations, whose order is not defined."""
        return any(word in text for text in self.files.values() for word in ("atomicAdd", "red.", "atom."))

    def close(self) -> None:
        self._removed()


def _folders(declaration: CallDeclaration, beside: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return the author's include folders, declared or given as -I, and the other flags. Raises UsageError."""
    named, flags = split_flags(declaration.flags, ("-I", "-isystem"))
    folders = [re.sub(r"^(-I|-isystem=?)", "", flag) for flag in named]
    return [os.path.abspath(put_in(folder, beside)) for folder in (*declaration.include, *folders)], tuple(flags)


def _found(of: str, name: str, folders: Sequence[str], files: Collection[str] | None = None) -> str | None:
    """Return the file that another one includes by a relative name."""
    if os.path.isabs(name):
        return None
    for folder in (os.path.dirname(of), *folders):
        other = os.path.normpath(os.path.join(folder, name))
        if (other in files) if files is not None else os.path.isfile(other):
            return other
    return None


def included_files(path: Path, folders: Sequence[str] = (), everywhere: bool = False) -> dict[str, str]:
    """Return a file and all files that it includes by a relative path, directly or not: absolute path → text.

    Args:
        folders: further include folders.
        everywhere: whether to follow absolute paths, too.

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
        for quoted, angled in _INCLUDE.findall(found[name]):
            wanted = quoted or angled
            if everywhere and os.path.isabs(wanted) and os.path.isfile(wanted):
                left.append(os.path.normpath(wanted))
            elif (quoted or folders) and (other := _found(name if quoted else "", wanted, folders)) is not None:
                left.append(other)
    return found


def _included(path: Path) -> Iterable[str]:
    """Return the includes of a file; nothing if it is no text."""
    try:
        return included_files(path, everywhere=True)
    except UsageError:
        return ()


def _declared_in(path: Path, symbol: str = "") -> str:
    """Return the declaration of FILE.cu. Raises UsageError; if there is none, with a proposal to paste."""
    text, sidecar = read_text(path), path.with_suffix(".toml")
    found = _BLOCK.search(text)
    if found is None and not sidecar.is_file():
        nothing = f"it has no // [gguf-verify] block, and there is no {sidecar.name}"
        written = kernels_in(text)
        if symbol not in written and not _may_have(symbol, [text]):
            raise UsageError(f"{nothing}; it has no function {symbol}; {there_is(symbol, list(written))}")
        raise UsageError(
            f"{nothing}: paste this block and correct it; `gguf-verify new-kernel` writes a whole kernel",
            "no-declaration",
            ("", *proposed(symbol, written.get(symbol), text)),
        )
    if found is None or not found[1].splitlines():
        declared = read_text(sidecar)
        _check_filled(sidecar, declared, 1, kernels_in(text).get(symbol))
        return declared
    _check_filled(path, found[1], text[: found.start(1)].count("\n") + 1, kernels_in(text).get(symbol))
    return "\n".join(re.sub(r"^\s*//", "", line) for line in found[1].splitlines())


def _check_filled(path: Path, declared: str, first: int, parameters: Sequence[Parameter] | None) -> None:
    """Check that no "?" of a proposed declaration is left.

    Args:
        path, first: the file, and the line in it with which the declaration begins.
        parameters: those of the function, if they are known.

    Raises UsageError with the parameter and the line.
    """
    listed = re.search(r"\bparameters\s*=\s*\[([^\]]*)\]", declared)
    for i, each in enumerate(re.finditer(r'"([^"\n]*)"', listed[1]) if listed is not None else ()):
        if listed is None or "?" not in each[1]:
            continue
        line = first + declared[: listed.start(1) + each.start()].count("\n")
        known = parameters is not None and i < len(parameters)
        what = f", {parameters[i].type} {parameters[i].name}," if parameters is not None and known else ""
        raise UsageError(
            f"{printable(path.name, 100)}:{line}: parameter {i + 1}{what} is still {ascii(each[1])[:60]}: write a "
            "number, or M, N or K, in place of ?"
        )


def _to_name(symbol: str, full: str) -> str:
    """Return how a kernel must be named whose full name is another one."""
    name, _, parameters = full.partition("<")
    if not parameters:
        return f"{symbol} is in a namespace: name it {name}"
    return f"{symbol} is a template: name an instance, {name}<…>, with values for {parameters.removesuffix('>')}"


def _may_have(symbol: str, texts: Sequence[str]) -> bool:
    """Return whether sources may define a function: they hold its name, or macros that make names."""
    name = re.split(r"[<(]|::", symbol)[-1 if "::" in symbol else 0]
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    return any(word.search(text) or "##" in text for text in texts)


def read_text(path: Path) -> str:
    """Read a text of an author. Raises UsageError."""
    try:
        return read_input(path, "text", _MOST_TEXT).decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8") from None


def _digest_since(path: str, begun: int) -> str | None:
    """Return the sha256 of a file; None if it changed after `begun` in ns: a compiler may have read another text."""
    try:
        digest, changed = file_digest(path), os.stat(path).st_ctime_ns
    except OSError:
        return None
    return digest if changed <= begun else None


class CudaKernels:
    """The kernels of a source, compiled but not loaded: files in a folder of the source, for its process.

    Their keys are "TYPE/SYMBOL". Each type is compiled on first use.

    Args:
        host: compiles them.
        seconds: for compiling all types, and for all under one kind of schedule.
    """

    def __init__(self, source: CudaSource, host: Host, seconds: float) -> None:
        self.source, self.host, self._seconds = source, host, seconds
        #: Type and kind of build → its kernels.
        self._placed: dict[tuple[str, str], dict[str, Placed]] = {}
        #: Absolute path → sha256 of each file that was read, except the copies in the source's folder; None for a file
        #: that was changed meanwhile.
        self.opened: dict[str, str | None] = {
            name: hashlib.sha256(text.encode()).hexdigest() for name, text in source.files.items()
        }
        #: The compilation of each compiled type.
        self.compilations: dict[str, Compilation] = {}

    def all(
        self, wanted: Collection[str] | None = None, progress: Callable[[str], None] | None = None
    ) -> dict[str, Placed]:
        """Compile each wanted type that it declares; None: all. `progress` is called for each.

        Raises UsageError if one does not compile, EnvironmentFault if the compiler is missing.
        """
        needed = [fmt for fmt in self.source.declaration.of.kinds if wanted is None or not fmt or fmt in wanted]
        where = "the CPU" if HOSTS[self.host.name].emulated else "the GPU"
        made: dict[str, Placed] = {}
        for i, fmt in enumerate(needed, 1):
            if progress is not None:
                progress(f"compiling {fmt} for {where} ({i} of {len(needed)})")
            made |= self.of(fmt)
        return made

    def of(self, fmt: str) -> dict[str, Placed]:
        """Compile one type. Raises as `all` does."""
        self.host.check()
        try:
            return self._of(fmt, None)
        except EnvironmentFault as error:
            raise self.source.plain(error) from None

    def under(self, fmt: str, schedule: Schedule) -> dict[str, Placed]:
        """Compile one type for launches under a schedule. Raises EnvironmentFault."""
        return self._of(fmt, schedule)

    def _of(self, fmt: str, schedule: Schedule | None) -> dict[str, Placed]:
        begun = time.time_ns()
        with foreign_source(self.source.root, self._seconds, self.source.elsewhere) as source:
            try:
                return self._built(fmt, schedule)
            finally:
                for path in source.opened - {*self.source.files}:
                    digest = _digest_since(path, begun)
                    self.opened[path] = digest if self.opened.setdefault(path, digest) == digest else None

    def executed(self, fmt: str, counters: bytes) -> dict[str, Executed]:
        """Return what a library for a type has executed of the author's files, by its counters.

        Raises EnvironmentFault if they cannot be read.
        """
        placed = next(iter(self._placed.get((fmt, ""), {}).values()), None)
        if placed is None or "notes" not in placed.parts:
            return {}
        notes = Path(placed.parts["notes"]).read_bytes()
        with foreign_source(self.source.root, self._seconds) as source:
            return executed(source.root, notes, counters, self.source.author_of)

    def _built(self, fmt: str, schedule: Schedule | None) -> dict[str, Placed]:
        kind = "" if schedule is None else "checked" if schedule.checked else "traced" if schedule.traced else ""
        if (fmt, kind) not in self._placed:
            source, declaration = self.source, self.source.declaration
            defines, sizes = declaration.defines(fmt), self._sizes(fmt)
            file, author = source.compiled_by(self.host)
            unit = ForeignUnit(source.root, file, tuple(sizes), defines, replace(author, sizes=sizes))
            built, compilation = self.host.build_all(unit, schedule if kind else None)
            if not kind:
                not_run = source.not_run(compilation, defines)
                self.compilations[fmt] = compilation.of_source(source.shown(source.main), not_run)
                if HOSTS[self.host.name].emulated:
                    built = self._accepted(fmt, defines, built)
            first = next(iter(built.values())).placed(source.built, f"{fmt}-{kind}" if kind else fmt)
            self._placed[fmt, kind] = {f"{fmt}/{name}": Placed(a.entry, first.parts) for name, a in built.items()}
        return self._placed[fmt, kind]

    def _accepted(self, fmt: str, defines: dict[str, str], built: dict[str, Artefact]) -> dict[str, Artefact]:
        """Add the registers that its kernels use on a GPU to a build for the CPU, if CUDA's compiler is installed.

        Raises EnvironmentFault with the compiler's errors.
        """
        found = accepted(ForeignUnit(self.source.root, OF_NVRTC, tuple(built), defines, self.source.on_gpu))
        self.compilations[fmt] = replace(self.compilations[fmt], accepted=found.words)
        limits = from_json(next(iter(built.values())).parts["limits"])
        for entry, artefact in built.items():
            known = found.registers.get(entry) or None
            limits[artefact.entry] = replace(limits[artefact.entry], registers=known)
        return {
            entry: replace(artefact, parts={**artefact.parts, "limits": as_json(limits)})
            for entry, artefact in built.items()
        }

    def _sizes(self, fmt: str) -> dict[str, tuple[int, ...]]:
        """Return the functions that calls with these weights launch, with the bytes of their parameters."""
        out: dict[str, tuple[int, ...]] = {}
        for step in self.source.declaration.all_steps:
            kinds = ("" if isinstance(p, str) else p.kind for p in step.parameters)
            out.setdefault(
                step.symbol(fmt) or self.source.symbol, tuple(number_type(k).itemsize if k else 0 for k in kinds)
            )
        return out
