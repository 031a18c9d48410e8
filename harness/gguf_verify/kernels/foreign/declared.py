r"""Declarations in TOML, for kernels other than Python functions: in a block of comments in FILE.cu, in a file beside
the code with the suffix .toml, or in a FILE.toml that names its code.

    // [gguf-verify]
    // formats = ["Q4_0"]                       types of weights
    // semantics = "q8_1"                       as in api.py, with all further keys: takes, output, ordered, domain, …
    // oracle = "file.py:NAME"                  an Oracle, in a file beside this one; it replaces semantics
    // parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]
    // block = 128                              threads: a number, an expression, or up to three of them
    // grid = "ceil(M * N, 128)"                blocks, likewise
    // shared = "4 * K"                         bytes of dynamic shared memory, if it uses any
    // macros = { TILE = 16 }                   optional; macros of one type: macros.Q4_0 = { BLOCK = "block_q4_0" }
    // flags = ["-use_fast_math"]               the author's own compiler flags
    // include = ["../common"]                  folders in which the compiler looks for headers
    // [/gguf-verify]

A parameter is the name of an operand (weights, activations, output, an operand of a fused operation, scratch memory), a
type and an expression ("int32 K / 32", "float32 1.0"), or "stream". Expressions: see `expressions`; operands: see
`layouts`.

Several launches run in order, each with its symbol and an optional condition:

    [[launches]]
    symbol = "quantize_q8_1"                 or symbol = { Q4_0 = "…", Q8_0 = "…" }, one for each type
    parameters = ["activations", "workspace", "int32 K"]
    grid = ["ceil(K, 256)", "M"]
    block = 256
    [[launches]]
    when = "M <= 8"
    …

A FILE.toml says where its code is: code = "file.cu", "file.ptx", "file.cubin", "lib.so" (C functions, which get
pointers, numbers and the stream, and return nothing or, with returns = "int32", a status, where 0 is success), or
"torch.ops" (PyTorch operators, which may return the output), with import = ["module"] and load = ["lib.so"].
Environment variables ($NAME) are expanded. A launch of a library or of PyTorch has only a symbol and parameters;
device = "cuda" gives it GPU memory.

A symbol is a `__global__` function: `extern "C"`, in a namespace, or a template with its arguments ("f<32, float>").
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...semantics.definition import OWN
from ...support.errors import KernelFault, UsageError
from ...support.near import meant, nearest
from ..comparisons import Compared, Comparison, Operands
from ..launches import Launched
from .api import KEYS, strings
from .declaration import Declaration, declaration_of_table
from .expressions import Expression
from .layouts import MATRICES, NUMBERS, Number, number_of
from .names import TORCH

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SYMBOL = re.compile(r"[A-Za-z_][\w:<>, .*&()+-]*")
_OF_LAUNCH = ("symbol", "parameters", "block", "grid", "shared", "when", "returns")
#: Return types of a C function: nothing, or a status where 0 is success.
_RETURNS = ("void", "int32")
_OF_CODE = ("code", "import", "load", "oracle", "macros", "flags", "include", "launches")
_STREAM = "stream"
#: Required keys, each with an example for the message.
_NEEDED = {
    "formats": 'formats = ["Q4_0"]', "semantics": 'semantics = "q8_1" (`gguf-verify identify` finds the definition)',
    "parameters": 'parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]',
    "block": "block = 128", "grid": 'grid = "ceil(M * N, 128)"',
}  # fmt: skip
#: Suffixes of code whose functions are launched with a grid.
_LAUNCHED = (".cu", ".ptx", ".cubin")
_MOST_LAUNCHES = 64

Three = tuple[Expression, Expression, Expression]


@dataclass(frozen=True)
class Step:
    """One launch of a kernel, or one call of a function, which has no `grid`."""

    symbols: Mapping[str, str]
    parameters: tuple[str | Number, ...]
    grid: Three | None
    block: Three
    shared: Expression
    when: Expression | None = None
    returns: str = "void"

    def symbol(self, fmt: str) -> str:
        """Return its function for a type of weights; "" stands for the symbol given on the command line."""
        return self.symbols.get(fmt) or self.symbols.get("", "")

    def happens(self, names: Mapping[str, int]) -> bool:
        """Return whether a call of this shape makes this launch. Raises KernelFault."""
        return self.when is None or bool(self.when.value(names))

    def launched(self, names: Mapping[str, int]) -> Launched:
        """Return grid, threads and shared memory. Raises KernelFault."""
        assert self.grid is not None
        grid, block = ((x.value(names), y.value(names), z.value(names)) for x, y, z in (self.grid, self.block))
        return Launched(grid, block, self.shared.value(names))


@dataclass(frozen=True)
class CallDeclaration:
    """The declaration in a comment or FILE.toml.

    Args:
        of: the declaration of the kernel as such.
        steps: the launches of a call, in order.
        macros, macros_of: macros for all types, and for single types.
        oracle: FILE.py and NAME of its oracle, if it has one.
        code: the code that the file names.
        flags, include: the author's own compiler flags and include folders.
        modules, libraries: modules to import and libraries to load before PyTorch's operators are looked up.
        unpack: for a repacking, the launch that unpacks its result.
        packed: for a repacking, the bytes of its result.
    """

    of: Declaration
    steps: tuple[Step, ...]
    macros: Mapping[str, str]
    macros_of: Mapping[str, Mapping[str, str]]
    oracle: tuple[str, str] | None = None
    code: str = ""
    flags: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    unpack: Step | None = None
    packed: Expression | None = None

    def oracle_in(self, folder: Path) -> tuple[Path, str] | None:
        """Return path and name of its oracle, which is beside the declaration."""
        return None if self.oracle is None else (folder / self.oracle[0], self.oracle[1])

    def defines(self, fmt: str) -> dict[str, str]:
        """Return the macros for a type of weights."""
        return {**self.macros, **self.macros_of.get(fmt, {})}

    def symbols(self, fmt: str) -> tuple[str, ...]:
        """Return the functions that calls with these weights need; "" stands for the symbol on the command line."""
        return tuple(dict.fromkeys(step.symbol(fmt) for step in self.all_steps))

    @property
    def all_steps(self) -> tuple[Step, ...]:
        """The launches of a call and that of `unpack`."""
        return self.steps if self.unpack is None else (*self.steps, self.unpack)

    def launched(self, names: Mapping[str, int]) -> tuple[Launched, ...] | None:
        """Return the launches of a call; None if they are not known. Raises KernelFault."""
        steps = [step for step in self.steps if step.happens(names)]
        return None if any(step.grid is None for step in steps) else tuple(step.launched(names) for step in steps)

    def compared(self, names: Mapping[str, int]) -> Compared:
        """Return the comparisons in the conditions and sizes of its launches. Raises KernelFault."""
        found: Compared = {}
        for i, step in enumerate(self.steps):
            happens = step.happens(names)
            if step.when is not None:
                place = f"when = {step.when.source!r}"
                found[Comparison(place, i << 16)] = Operands.of(step.when.value(names), 0)
                found |= _compared(step.when, place, i << 16, names)
            for key, of in (("grid", step.grid), ("block", step.block), ("shared", (step.shared,))) if happens else ():
                for axis, expression in enumerate(of or ()):
                    found |= _compared(expression, f"{key} = {expression.source!r}", (4 * i + axis) << 16, names)
        return found

    def messages(
        self, fmt: str, names: Mapping[str, int], symbol: str = "", unpacks: bool = False
    ) -> list[dict[str, Any]]:
        """Return the launches of a call, for messages to the kernel's process.

        Args:
            symbol: the function of launches without one.
            unpacks: return the launch that unpacks packed weights instead.

        Raises KernelFault if CUDA would refuse a launch, or if the call makes no launch.
        """
        out = []
        at = ", ".join(f"{name}={names[name]}" for name in "MNK")
        for step in (self.unpack,) if unpacks and self.unpack is not None else self.steps:
            if not step.happens(names):
                continue
            args = [p if isinstance(p, str) else p.plain(names) for p in step.parameters]
            said: dict[str, Any] = {"kernel": f"{fmt}/{step.symbol(fmt) or symbol}", "args": args}
            if step.grid is not None:
                launched = step.launched(names)
                if launched.refused:
                    raise KernelFault(f"at {at} {launched.refused}")
                said |= {"grid": launched.grid, "block": launched.block, "shared": launched.shared}
            elif step.returns != "void":
                said["returns"] = step.returns
            out.append(said)
        if not out:
            raise KernelFault(f"at {at} the kernel makes no launch: no condition (when) holds")
        return out


def _compared(expression: Expression, place: str, first: int, names: Mapping[str, int]) -> Compared:
    """Return the comparisons of an expression; their numbers follow `first`."""
    pairs = expression.compared(names).items()
    return {Comparison(place, first + 1 + number): Operands.of(*pair) for number, pair in pairs}


def parse(text: str, named: bool = True, kind: str = "") -> CallDeclaration:
    """Parse a declaration in TOML.

    Args:
        named: whether the command line names a symbol, which launches without one use.
        kind: the kind of code ("cu", "so", "torch"), if the declaration does not name its code.

    Raises UsageError.
    """
    try:
        said = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error).splitlines()[0][:120]
        at = re.search(r"at line (\d+)", why)
        line = text.splitlines()[int(at[1]) - 1].strip()[:60] if at and int(at[1]) <= len(text.splitlines()) else ""
        raise UsageError(f"its declaration is not valid TOML: {why}{f': {line!a}' if line else ''}") from None
    known = (*KEYS, *_OF_LAUNCH, *_OF_CODE)
    for key in said:
        if key not in known:
            raise UsageError(f"it declares {ascii(key)[:60]}, which is not a known key. {nearest(key, known)}".rstrip())
    computes = str(said.get("computes", "gemm"))
    if computes != "quantize" and "formats" not in said:
        _lacks("formats")
    oracle = _oracle(said) if "oracle" in said else None
    if computes in ("gemm", "experts") and not {"semantics", "oracle", "term"} & said.keys():
        _lacks("semantics")
    if said.get("semantics") == OWN:
        raise UsageError(f"semantics {OWN!r} needs an oracle: declare oracle in place of semantics")
    table = {key: said[key] for key in KEYS if key in said} | ({"semantics": OWN} if oracle else {})
    declared = declaration_of_table(table)
    code = str(said.get("code", "")) or {"so": "library.so", "torch": TORCH}.get(kind, "")
    if not code and not named:
        raise UsageError('it names no code: code = "FILE.cu", "FILE.so", "FILE.ptx", "FILE.cubin" or "torch.ops"')
    steps = _steps(said, declared, code, named)
    macros, macros_of = _macros(said.get("macros", {}), declared.formats)
    texts = {key: strings(said.get(key, []), key) for key in ("flags", "include", "import", "load")}
    unpack, packed = _repacking(said, declared, code)
    return CallDeclaration(
        declared,
        steps,
        macros,
        macros_of,
        oracle,
        code,
        texts["flags"],
        texts["include"],
        texts["import"],
        texts["load"],
        unpack,
        packed,
    )


def _repacking(said: dict[str, Any], declared: Declaration, code: str) -> tuple[Step | None, Expression | None]:
    """Return the launch that unpacks packed weights, and their size."""
    if declared.computes != "repack":
        return None, None
    if "packed" not in said:
        raise UsageError('a repacking must declare the bytes of its result: packed = "N * K / BLOCK * BYTES"')
    unpack = said.get("unpack")
    if unpack is None:
        return None, Expression(said["packed"])
    if not isinstance(unpack, dict) or not unpack.get("symbol"):
        raise UsageError("unpack must be a launch: a table of symbol, parameters, block and grid")
    return _step(unpack, declared, code, False), Expression(said["packed"])


def _lacks(key: str) -> None:
    raise UsageError(f"it declares no {key}: write, for example, {_NEEDED[key]}")


def put_in(text: str, folder: Path) -> str:
    """Expand environment variables in a path of a declaration, relative to the declaration's folder.

    Raises UsageError for a variable that is not set.
    """
    expanded = os.path.expandvars(text)
    if missing := re.search(r"\$\{?(\w+)", expanded):
        raise UsageError(f"{text}: set the environment variable {missing[1]}")
    return os.path.join(folder, expanded)


def _steps(said: dict[str, Any], declared: Declaration, code: str, named: bool) -> tuple[Step, ...]:
    tables = said.get("launches")
    if tables is None:
        tables = [{key: said[key] for key in _OF_LAUNCH if key in said}]
    elif any(key in said for key in _OF_LAUNCH):
        raise UsageError("a launch is declared outside [[launches]]: move it there")
    if not isinstance(tables, list) or not 0 < len(tables) <= _MOST_LAUNCHES:
        raise UsageError("launches must be tables, one [[launches]] for each launch")
    steps = tuple(_step(table, declared, code, named) for table in tables)
    used = [p for step in steps for p in step.parameters if isinstance(p, str)]
    without = {"dequantize": "activations", "repack": "activations", "quantize": "weights"}.get(declared.computes)
    for name in MATRICES:
        if name == without:
            continue
        if name not in used and not (name == "output" and code == TORCH):
            raise UsageError(f"parameters must name {name} once")
        if len(steps) == 1 and used.count(name) > 1:
            raise UsageError(f"parameters must name {name} once")
    return steps


def _step(table: object, declared: Declaration, code: str, named: bool) -> Step:
    if not isinstance(table, dict):
        raise UsageError("a launch is not a table")
    has_grid, in_c = not code or code.endswith(_LAUNCHED), bool(code) and not code.endswith((*_LAUNCHED, TORCH))
    for key in table:
        if key not in _OF_LAUNCH:
            raise UsageError(f"{ascii(key)[:60]} is not a key of launches: {nearest(key, _OF_LAUNCH)}".rstrip(": "))
    for key in ("parameters", "block", "grid") if has_grid else ("parameters",):
        if key not in table:
            _lacks(key)
    symbol = table.get("symbol", "")
    symbols = symbol if isinstance(symbol, dict) else {"": symbol}
    for of, name in symbols.items():
        if not isinstance(name, str) or (name and not _SYMBOL.fullmatch(name)) or of not in ("", *declared.formats):
            raise UsageError(f"symbol {ascii(name)[:60]} is neither a function's name nor a table of names by type")
    if not named and not all(symbols.get(fmt) or symbols.get("") for fmt in declared.formats):
        raise UsageError("each launch must name its function: symbol")
    parameters = tuple(_parameter(p, declared) for p in strings(table["parameters"], "parameters"))
    returns = table.get("returns", "void")
    if returns not in _RETURNS or (returns != "void" and not in_c):
        what = "a function of a C library returns" if in_c else "returns is only for functions of a C library:"
        raise UsageError(f"{what} one of {', '.join(_RETURNS)}, not {ascii(returns)[:40]}")
    return Step(
        symbols,
        parameters,
        _three(table["grid"]) if has_grid else None,
        _three(table.get("block", 1)),
        Expression(table.get("shared", 0)),
        Expression(table["when"]) if "when" in table else None,
        returns,
    )


def _parameter(said: str, declared: Declaration) -> str | Number:
    number = number_of(said)
    if number is not None:
        return number
    operands = (*MATRICES, *declared.layouts.own, *declared.others, _STREAM)
    if said.strip() in operands:
        return said.strip()
    known = [*operands, *(f"{kind} {size}" for kind in NUMBERS for size in "MNK")]
    raise UsageError(
        f"parameter {ascii(said)[:60]} is not one of {', '.join(operands)}, nor M, N, K or an expression of them after "
        f"one of {', '.join(NUMBERS)}{meant(said, known)}"
    )


def _oracle(said: dict[str, Any]) -> tuple[str, str]:
    found = re.fullmatch(r"([^:]+\.py):([^:/]+)", str(said["oracle"]))
    if found is None or "semantics" in said:
        raise UsageError('oracle must be "FILE.py:NAME", in place of semantics')
    return found[1], found[2]


def _three(value: object) -> Three:
    values = value if isinstance(value, list) else [value]
    if not 1 <= len(values) <= 3:
        raise UsageError("block and grid must have one to three dimensions")
    x, y, z = (Expression(v) for v in [*values, 1, 1][:3])
    return x, y, z


def _macros(said: object, formats: tuple[str, ...]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    if not isinstance(said, dict):
        raise UsageError("macros is not a table")
    common = {k: v for k, v in said.items() if not isinstance(v, dict)}
    of = {k: v for k, v in said.items() if isinstance(v, dict)}
    for table in (common, *of.values()):
        for name, value in table.items():
            if not _NAME.fullmatch(name) or not isinstance(value, str | int) or {"\n", "\0"} & set(str(value)):
                raise UsageError(f"macro {ascii(name)[:60]} is not a name with a string or a number")
    if unknown := of.keys() - set(formats):
        raise UsageError(f"macros are given for {ascii(min(unknown))[:60]}, which is not among its formats")
    return {k: str(v) for k, v in common.items()}, {f: {k: str(v) for k, v in t.items()} for f, t in of.items()}
