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

import re
import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...semantics import OWN
from ...support.errors import KernelFault, UsageError
from ...support.near import meant, nearest
from ..domain import domain_of
from ..launches import Launched
from .api import Declaration, strings
from .expressions import Expression

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS = {"formats", "semantics", "oracle", "takes", "ordered", "parameters", "block", "grid", "shared", "macros",
         "domain"}  # fmt: skip
#: What must be declared, with an example.
_NEEDED = {
    "formats": 'formats = ["Q4_0"]', "semantics": 'semantics = "q8_1"',
    "parameters": 'parameters = ["weights", "activations", "output", "int64 M", "int64 N", "int64 K"]',
    "block": "block = 128", "grid": 'grid = "ceil(M * N, 128)"',
}  # fmt: skip
_POINTERS = ("weights", "activations", "output")
#: C's integer types of parameters.
INTEGERS: dict[str, Any] = {"int32": np.int32, "uint32": np.uint32, "int64": np.int64, "uint64": np.uint64}


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
        args = [[INTEGERS[kind]().dtype.name, numbers[name]] if kind else name for kind, name in self.parameters]
        return {"kernel": fmt, "grid": launched.grid, "block": launched.block, "shared": launched.shared, "args": args}


def parse(text: str) -> CudaDeclaration:
    """TOML to a declaration. Raises UsageError."""
    try:
        said = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        why = str(error).splitlines()[0][:120]
        at = re.search(r"at line (\d+)", why)
        line = text.splitlines()[int(at[1]) - 1].strip()[:60] if at and int(at[1]) <= len(text.splitlines()) else ""
        raise UsageError(f"its declaration is not valid TOML: {why}{f': {line!a}' if line else ''}") from None
    if unknown := said.keys() - _KEYS:
        name = min(unknown)
        known = f"keys are {', '.join(sorted(_KEYS))}"
        raise UsageError(f"it declares {ascii(name)[:60]}, which is no key; {nearest(name, _KEYS)}{known}")
    for key, example in _NEEDED.items():
        if key not in said and not (key == "semantics" and "oracle" in said):
            raise UsageError(f"it declares no {key}: write, for example, {example}")
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
        elif len(words) == 2 and words[0] in INTEGERS and words[1] in ("M", "N", "K"):
            out.append((words[0], words[1]))
        else:
            known = [*_POINTERS, *(f"{kind} {size}" for kind in INTEGERS for size in ("M", "N", "K"))]
            raise UsageError(
                f"parameter {ascii(parameter)[:60]} is not one of {', '.join(_POINTERS)}, nor M, N or K after one of "
                f"{', '.join(INTEGERS)}{meant(parameter, known)}"
            )
    if missing := [name for name in _POINTERS if [p for _, p in out].count(name) != 1]:
        raise UsageError(f"parameters must name {missing[0]} once: they stand in the order of the function's own")
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


__all__ = ["INTEGERS", "CudaDeclaration", "parse"]
