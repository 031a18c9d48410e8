r"""A foreign kernel in CUDA C++: FILE.cu:SYMBOL. A block of comments in the file, or FILE.toml, declares what it is:

    // [gguf-verify]
    // formats = ["Q4_0"]                       types of weights
    // semantics = "q8_1"                       as in api.py; add `ordered = true` if it keeps the definition's order
    // oracle = "file.py:NAME"                  an Oracle, in a file beside this one; it replaces semantics
    // takes = "float32"                        if it quantizes its activations itself, as in api.py
    // parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
    // block = 128                              threads: a number, an expression, or up to three of them
    // grid = "ceil(M * N, 128)"                blocks, likewise
    // shared = "4 * K"                         bytes of dynamic shared memory, if it uses any
    // domain = { M = 1 }                       where it works, if not everywhere: see gguf_verify.kernels.domain
    // macros = { TILE = 16 }                   optional; macros of one type: macros.Q4_0 = { BLOCK = "block_q4_0" }
    // [/gguf-verify]

SYMBOL is an `extern "C" __global__ void` function. Its parameters are the three pointers (weights and activations to
bytes as in api.py, output to float[M][N]) and integers, in the declared order. Expressions consist of integers, M, N,
K, + - *, / (which rounds down), parentheses, min, max and ceil(a, b), which is the quotient rounded up.

The file is compiled by the C++ compiler for the CPU and by NVRTC for a GPU. So it cannot include headers of CUDA (but
<cuda_pipeline.h>, for asynchronous copies) or of the C++ library, and a half is its 16 bits. Atomic operations and
fences work on both; inline PTX does not on the CPU. It may include other files by `#include "…"`. The macro
DYNAMIC_SHARED(name) declares dynamic shared memory, aligned to 1024 bytes. On the CPU all shared memory starts as 0xFF,
and a byte that is written outside the dynamic part makes the kernel fail.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import tomllib
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...hosts import HOSTS
from ...hosts.base import Host, Placed
from ...hosts.foreign_sources import foreign_source
from ...hosts.schedule import Schedule
from ...semantics import OWN
from ...support import scratch
from ...support.errors import EnvironmentFault, KernelFault, UsageError
from ...support.paths import kernel_root
from ..domain import domain_of
from ..launches import Launched
from .api import Declaration, strings

_BLOCK = re.compile(r"//[ \t]*\[gguf-verify\][ \t]*\n(.*?)//[ \t]*\[/gguf-verify\]", re.S)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.M)
_PTX = re.compile(r"\basm\b\s*(?:volatile\b\s*)?\(")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS = {"formats", "semantics", "oracle", "takes", "ordered", "parameters", "block", "grid", "shared", "macros",
         "domain"}  # fmt: skip
_POINTERS = ("weights", "activations", "output")
_INTEGERS: dict[str, Any] = {"int32": np.int32, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64}
_MOST_TEXT, _MOST_FILES, _MOST_EXPRESSION = 1 << 22, 64, 200
#: CUDA's headers that a kernel may include.
_OF_CUDA = ("cuda_pipeline.h", "cuda_pipeline_primitives.h")
_UNIT = "foreign.cu"  # NVRTC's own is unit.cu


class Expression:
    """Integer arithmetic of M, N and K. Raises UsageError for anything else."""

    def __init__(self, source: object) -> None:
        self.source = str(source)
        try:
            if isinstance(source, bool) or not isinstance(source, int | str) or len(self.source) > _MOST_EXPRESSION:
                raise ValueError
            self._root = ast.parse(self.source.strip(), mode="eval").body
            _value(self._root, {"M": 1, "N": 1, "K": 1})
        except ZeroDivisionError:
            pass
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise UsageError(f"{ascii(self.source)[:80]} is not an expression of M, N and K") from None

    def value(self, m: int, n: int, k: int) -> int:
        """Raises KernelFault where it divides by zero."""
        try:
            return _value(self._root, {"M": m, "N": n, "K": k})
        except ZeroDivisionError:
            raise KernelFault(f"{self.source} divides by zero at M={m}, N={n}, K={k}") from None


def _value(node: ast.AST, names: dict[str, int]) -> int:
    """The value of a syntax tree. Raises ValueError for anything but such arithmetic; ZeroDivisionError."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _value(left, names), _value(right, names)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a // b
        case ast.Call(func=ast.Name(id="min" | "max" | "ceil" as name), args=[first, second], keywords=[]):
            a, b = _value(first, names), _value(second, names)
            return -(-a // b) if name == "ceil" else min(a, b) if name == "min" else max(a, b)
    raise ValueError


@dataclass(frozen=True)
class CudaDeclaration:
    """What the comment or FILE.toml declares. `parameters` are pairs of type and name; the type of pointers is ""."""

    of: Declaration
    parameters: tuple[tuple[str, str], ...]
    block: tuple[Expression, Expression, Expression]
    grid: tuple[Expression, Expression, Expression]
    shared: Expression
    macros: dict[str, str]
    macros_of: dict[str, dict[str, str]]
    #: FILE.py and NAME of its oracle, if it has one.
    oracle: tuple[str, str] | None = None

    def defines(self, fmt: str) -> dict[str, str]:
        """The macros for such weights."""
        return {**self.macros, **self.macros_of.get(fmt, {})}

    def launched(self, m: int, n: int, k: int) -> Launched:
        """What a call launches. Raises KernelFault."""
        grid, block = ((x.value(m, n, k), y.value(m, n, k), z.value(m, n, k)) for x, y, z in (self.grid, self.block))
        return Launched(grid, block, self.shared.value(m, n, k))

    def launch(self, fmt: str, m: int, n: int, k: int) -> dict[str, Any]:
        """The same for a message, of the kernel of a type. Raises KernelFault where CUDA would not launch it."""
        launched = self.launched(m, n, k)
        if launched.refused:
            raise KernelFault(f"at M={m}, N={n}, K={k} {launched.refused}")
        numbers = {"M": m, "N": n, "K": k}
        args = [[_INTEGERS[kind]().dtype.name, numbers[name]] if kind else name for kind, name in self.parameters]
        return {"kernel": fmt, "grid": launched.grid, "block": launched.block, "shared": launched.shared, "args": args}


def parse(text: str) -> CudaDeclaration:
    """TOML to a declaration. Raises UsageError."""
    try:
        said = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"its declaration is not valid TOML: {str(error).splitlines()[0][:120]}") from None
    for key in ("formats", "semantics", "parameters", "block", "grid"):
        if key not in said and not (key == "semantics" and "oracle" in said):
            raise UsageError(f"it declares no {key} (see harness/gguf_verify/kernels/foreign/cuda.py)")
    if unknown := said.keys() - _KEYS:
        raise UsageError(f"it declares {ascii(min(unknown))[:60]}, which is not a known key")
    oracle = _oracle(said) if "oracle" in said else None
    semantics = OWN if oracle else str(said["semantics"])
    if semantics == OWN and oracle is None:
        raise UsageError(f"semantics {OWN!r} needs an oracle, which is declared in its place")
    declared = Declaration(
        strings(said["formats"], "formats"), semantics, said.get("ordered", False), takes=str(said.get("takes", "")),
        domain=domain_of(said.get("domain", {})),
    )  # fmt: skip
    macros, macros_of = _macros(said.get("macros", {}), declared.formats)
    return CudaDeclaration(
        declared, _parameters(strings(said["parameters"], "parameters")), _three(said["block"]), _three(said["grid"]),
        Expression(said.get("shared", 0)), macros, macros_of, oracle,
    )  # fmt: skip


def _oracle(said: dict[str, Any]) -> tuple[str, str]:
    found = re.fullmatch(r"([^:]+\.py):([^:/]+)", str(said["oracle"]))
    if found is None or "semantics" in said:
        raise UsageError('oracle is "FILE.py:NAME", in place of semantics')
    return found[1], found[2]


def _three(value: object) -> tuple[Expression, Expression, Expression]:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= 3:
        raise UsageError("block and grid must have one to three dimensions")
    x, y, z = (Expression(v) for v in [*values, 1, 1][:3])
    return x, y, z


def _parameters(declared: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    out = []
    for parameter in declared:
        words = parameter.split()
        if len(words) == 1 and words[0] in _POINTERS:
            out.append(("", words[0]))
        elif len(words) == 2 and words[0] in _INTEGERS and words[1] in ("M", "N", "K"):
            out.append((words[0], words[1]))
        else:
            raise UsageError(
                f"parameter {ascii(parameter)[:60]} is not one of {', '.join(_POINTERS)}, nor M, N or K after one of "
                f"{', '.join(_INTEGERS)}"
            )
    if missing := [name for name in _POINTERS if [p for _, p in out].count(name) != 1]:
        raise UsageError(f"parameters must name {missing[0]} once")
    return tuple(out)


def _macros(said: object, formats: tuple[str, ...]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    if not isinstance(said, dict):
        raise UsageError("macros is not a table")
    common = {k: v for k, v in said.items() if not isinstance(v, dict)}
    of = {k: v for k, v in said.items() if isinstance(v, dict)}
    for table in (common, *of.values()):
        for name, value in table.items():
            if not _NAME.fullmatch(name) or not isinstance(value, str | int) or "\n" in str(value):
                raise UsageError(f"macro {ascii(name)[:60]} is not a name with a text or number")
    if unknown := of.keys() - set(formats):
        raise UsageError(f"macros are given for {ascii(min(unknown))[:60]}, which is not among its formats")
    return {k: str(v) for k, v in common.items()}, {f: {k: str(v) for k, v in t.items()} for f, t in of.items()}


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
            raise UsageError(f"{path} has no // [gguf-verify] block, and there is no {sidecar.name}")
        lines = found[1].splitlines() if found is not None else []
        self.declared = "\n".join(re.sub(r"^\s*//", "", line) for line in lines) if lines else _read(sidecar)
        self.declaration = declaration = parse(self.declared)
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
    sizes = ", ".join("0" if not kind else str(_INTEGERS[kind]().itemsize) for kind, _ in declaration.parameters)
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

    def all(self) -> dict[str, Placed]:
        """For each type that it declares. Raises UsageError where one does not compile, EnvironmentFault where what
        compiles is missing."""
        self.host.check()
        try:
            with foreign_source(self._source.root, self._seconds):
                return {fmt: self._of(fmt, None) for fmt in self._source.declaration.of.formats}
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
