"""Many mutants in one translation unit: each is a namespace around the flattened sources, so that the compiler reads
the headers of C++ and of the host only once."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.hosts import nvrtc
from gguf_verify.hosts.compiler import CHECKS, FLAGS, LINK_CHECKED, compiler, library_of_thread, runner_object
from gguf_verify.hosts.tables import headers
from gguf_verify.support import scratch
from gguf_verify.support.cache import tree_hash
from gguf_verify.support.errors import EnvironmentFault

from .mutator import PRELUDE

#: Flags like the CPU host's, with less optimisation. A run checks that the unmutated source gives the same bits.
MUTANT_FLAGS = [f for f in FLAGS if f not in ("-O2", "-ftree-vectorize")]
MUTANT_FLAGS += ["-O1", "-w", "-fmax-errors=0", "-fvisibility=hidden"]
#: Like `MUTANT_FLAGS`, with the instrumentation of a checked build.
_CHECKED_FLAGS = [*MUTANT_FLAGS, *CHECKS]

_INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|(FORMAT_HEADER))', re.MULTILINE)
_DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)

_PREAMBLE = """
#include "emulator/cuda_on_cpu.hpp"
#include <errno.h>
#include <unistd.h>
#include <map>
#include "hopper.cuh"
template <class T> struct Erased { typedef T type; };
template <class T> struct Erased<T*> { typedef void* type; };
template <class T> struct Erased<T* __restrict> { typedef void* type; };
template <class... A> auto erased(void (*kernel)(A...)) { return (void (*)(typename Erased<A>::type...))kernel; }
"""


@dataclass(frozen=True)
class Unit:
    """The input of one `Host.load`: a source and its macros."""

    file: str
    defines: tuple[tuple[str, str], ...]


@cache
def _read(path: Path) -> str:
    return path.read_text()


def flattened(root: Path, unit: Unit, changed: Mapping[str, str] | None = None, label: str = "") -> str:
    """The sources of a unit as one text. Its includes below `root` are replaced by the files' texts, except those of
    kernels/emulator and hopper.cuh, which stand before all units.

    Args:
        changed: file below root → its replacement text.
        label: prefix of file names in compiler messages.
    """
    seen: set[str] = set()
    defines = dict(unit.defines)

    def text_of(file: str) -> str:
        return (changed or {}).get(file) or _read(root / file)

    def resolve(name: str, of: str) -> str | None:
        if name.startswith(("emulator/", "tables/")) or "../emulator/" in name:
            return None
        for candidate in ((root / of).parent / name, root / name):
            if candidate.is_file():
                return str(candidate.resolve().relative_to(root.resolve()))
        raise FileNotFoundError(f"{of} includes {name}")

    def expand(file: str) -> str:
        if file in seen or file == "hopper.cuh":
            return ""
        seen.add(file)
        text = text_of(file)
        out, at = [f'#line 1 "{label}{file}"\n'], 0
        for match in _INCLUDE.finditer(text):
            out.append(text[at : match.start()])
            line = text.count("\n", 0, match.end()) + 2
            name = match[1] or defines["FORMAT_HEADER"].strip('"')
            target = resolve(name, file)
            out.append(f'\n{expand(target) if target else ""}\n#line {line} "{label}{file}"')
            at = match.end()
        out.append(text[at:])
        return "".join(out)

    text = expand(unit.file).replace("#pragma once", "").replace('extern "C" __global__', "static __global__")
    given = [f"#define {name} {value}\n" for name, value in unit.defines]
    names = {*_DEFINE.findall(text), *defines} - set(_DEFINE.findall(PRELUDE))
    ends = [f"#undef {name}\n" for name in sorted(names)]
    return "".join(given) + text + "\n" + "".join(ends)


def header_of(fmt: WeightFormat) -> str:
    """The format's own header, below kernels/."""
    return "formats/" + fmt.macros["FORMAT_HEADER"].strip('"')


@cache
def closure(root: Path, unit: Unit) -> frozenset[str]:
    """The files below root that make up a unit."""
    return frozenset(re.findall(r'^#line 1 "([^"]+)"', flattened(root, unit), re.MULTILINE))


#: A function of a source that is not constexpr: its name, and everything up to its closing brace.
_FUNCTION = re.compile(r"^__device__ __forceinline__ [^\n;{]*?(\w+)\([^;{}]*?\) \{\n.*?^\}", re.MULTILINE | re.DOTALL)


@cache
def lines_alive(root: Path, unit: Unit, entries: tuple[str, ...]) -> dict[str, frozenset[int]]:
    """File → the lines that the preprocessor leaves of it in this unit, without the functions that the entries do not
    call."""
    text = _whole(root, [("original", flattened(root, unit))], entries)
    with scratch.temporary("mutation") as folder:
        source, made = folder / "unit.cpp", folder / "unit.o"
        source.write_text(text)
        command = [compiler(), *MUTANT_FLAGS, f"-I{root}", str(source)]
        done = subprocess.run([*command, "-E"], capture_output=True, text=True, check=True)
        # without optimisation every called function has a symbol, even inline functions and templates
        subprocess.run([*command, "-O0", "-c", "-o", str(made)], capture_output=True, check=True)
        names = subprocess.run(["nm", str(made)], capture_output=True, text=True, check=True).stdout
    alive: dict[str, set[int]] = {}
    file, line = "", 0
    for row in done.stdout.splitlines():
        if match := re.match(r'# (\d+) "([^"]*)"', row):
            file, line = match[2], int(match[1])
            continue
        if row.strip():
            alive.setdefault(file, set()).add(line)
        line += 1
    for file in closure(root, unit) & alive.keys():
        whole = _read(root / file)
        for function in _FUNCTION.finditer(whole):
            if f"{len(function[1])}{function[1]}" not in names:
                first = whole.count("\n", 0, function.start()) + 1
                alive[file] -= set(range(first, first + function[0].count("\n") + 1))
    return {f: frozenset(lines) for f, lines in alive.items()}


@cache
def _common(root: Path) -> str:
    """The beginning of all units: the host's headers, and the tables that any source includes."""
    tables = [text for name, text in headers().items() if any(name in _read(p) for p in _sources(root))]
    return "\n".join([PRELUDE, _PREAMBLE, *tables])


def precompiled(root: Path, folder: Path, flags: Sequence[str] = MUTANT_FLAGS) -> Path:
    """The header with the beginning of all units, precompiled in `folder`; it is made once."""
    digest = hashlib.sha256("\0".join([_common(root), tree_hash(root), *flags, str(root)]).encode()).hexdigest()
    header = folder / f"common-{digest[:16]}.hpp"
    made = header.with_suffix(".hpp.gch")
    if not made.exists():
        header.write_text(_common(root))
        part = folder / f"common-{os.getpid()}.part"
        subprocess.run([compiler(), *flags, f"-I{root}", "-x", "c++-header", str(header), "-o", str(part)], check=True)
        part.replace(made)
    return header


def _whole(root: Path, bodies: Sequence[tuple[str, str]], entries: Sequence[str], common: bool = True) -> str:
    parts = [_common(root)] if common else []
    for name, text in bodies:
        launches = "".join(
            f'extern "C" __attribute__((visibility("default"))) int {name}_{entry}_launch('
            "const unsigned* g, const unsigned* b, void** a, unsigned s, int t, "
            "const cuda_on_cpu::Request* q, cuda_on_cpu::Report* r) "
            f"{{ return cuda_on_cpu::launch(erased({name}::{entry}), g, b, a, s, t, q, r); }}\n"
            for entry in entries
        )
        parts.append(f"namespace {name or 'original'} {{\n{text}\n}}\n" + (f'#line 1 "{name}/launch"\n{launches}'))
    return "\n".join(parts)


@cache
def _sources(root: Path) -> tuple[Path, ...]:
    return tuple(sorted(root.rglob("*.cuh")))


def compiled(
    root: Path, unit: Unit, entries: Sequence[str], variants: Mapping[str, Mapping[str, str]], library: Path,
    checked: bool = False,
) -> set[str]:  # fmt: skip
    """Compile variants of a unit into one library. Returns the names of those that do not compile.

    Args:
        variants: a C++ identifier → the files that the variant changes; {} is the original.
        library: where to write the shared library. Its functions are NAME_ENTRY_launch.
        checked: with the instrumentation of a checked build.

    Raises EnvironmentFault if no variant compiles and the messages do not say which ones failed.
    """
    left = dict(variants)
    bad: set[str] = set()
    suffixes = (".cpp", ".o", ".runner.o", ".of-thread.so")
    source, made, runner, of_thread = (library.with_suffix(suffix) for suffix in suffixes)
    flags = _CHECKED_FLAGS if checked else MUTANT_FLAGS
    # the first is fast and finds nearly all that do not compile
    steps = [*([] if checked else [["-fsyntax-only"]]), ["-c", "-o", str(made)]]
    try:
        while steps and left:
            bodies = [(name, flattened(root, unit, changed, f"{name}/")) for name, changed in left.items()]
            source.write_text(_whole(root, bodies, entries, common=False))
            header = precompiled(root, library.parent, flags)
            command = [compiler(), *flags, f"-I{root}", "-include", str(header), str(source), *steps[0]]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
            if done.returncode == 0:
                steps.pop(0)
                continue
            wrong = _named(done.stderr) & left.keys()
            if not wrong:
                raise EnvironmentFault(f"a batch of mutants does not compile: {done.stderr[:500]}")
            bad |= wrong
            left = {n: c for n, c in left.items() if n not in wrong}
        link = ["-shared", "-pthread", *(LINK_CHECKED if checked else [])]
        runner.write_bytes(runner_object(root, "checked" if checked else "plain"))
        linked = [made, runner]
        if not checked:
            of_thread.write_bytes(library_of_thread())
            linked.append(of_thread)
        command = [compiler(), *map(str, linked), *link, "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True)
    finally:
        of_thread.unlink(missing_ok=True)
        runner.unlink(missing_ok=True)
        source.unlink(missing_ok=True)
        made.unlink(missing_ok=True)
    return bad


#: Message of g++ when it gives up.
_ERRORS = (": error: ", ": sorry, unimplemented: ", "internal compiler error")


def _named(messages: str) -> set[str]:
    """The variants in which there are errors, or which led to an error in a header of the host."""
    named: set[str] = set()
    context: set[str] = set()
    for line in messages.splitlines():
        place = re.match(r"(?:In file included from |\s+from )?(\w+)/[\w./]+:\d+", line)
        if any(word in line for word in _ERRORS):
            named |= {place[1]} if place else context | set(re.findall(r"\b(m\d+)::", line))
            context = set()
        elif place:
            context.add(place[1])
    return named


#: The GPU architectures whose code is compared: one before Hopper, and Hopper, since some code is for one of them.
CARDS = ("80", "90a")


def ptx(root: Path, unit: Unit, changed: Mapping[str, str], sm: str) -> bytes | None:
    """Compile a variant to PTX with NVRTC; None if it does not compile. Raises EnvironmentFault without NVRTC."""
    nvrtc.version()
    with scratch.temporary("mutation") as folder:
        copy = folder / "kernels"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("emulator"))
        for file, text in changed.items():
            (copy / file).write_text(text)
        here = os.getcwd()
        os.chdir(copy)  # so that the PTX contains no folder names
        try:
            return nvrtc.compile_ptx(Path("."), unit.file, sm, dict(unit.defines))
        except EnvironmentFault:
            return None
        finally:
            os.chdir(here)
