"""Opening of foreign kernels: each kind of code that `--kernel` names is found, its declaration read, and started."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...hosts.base import Host, Placed
from ...hosts.choice import HOSTS, make_host
from ...support.errors import EnvironmentFault, UsageError
from ...support.sources import file_digest
from ...support.text import printable
from .cuda import CudaKernels, CudaSource, read_text
from .declared import CallDeclaration, parse, put_in
from .names import TIME_LIMIT, TORCH, Further, file_of
from .process import ForeignKernel
from .signature import full_names, kernels_in
from .sources import File, Object

#: Kinds of code, by suffix; their declaration is in the file or beside it.
_FILE = re.compile(r"(?s)(.*\.(py|cu|ptx|cubin|so)):([^/]+)")
#: Compiling a kernel for one type may take this many times the time limit of a call, and at least this many seconds.
_COMPILE_TIMES, _COMPILE_LEAST = 10, 120.0
#: Most bytes of a file of binary code.
_MOST_CODE = 1 << 30


@dataclass(frozen=True)
class Named:
    """A kernel that the user named, as code of one kind.

    Args:
        shown: its name in reports.
        kind: "py", "cu", "ptx", "cubin", "so", or "torch".
        path: the file with the code; for PyTorch's operators, the file with the declaration.
        symbol: a function in it; "" if the declaration names all functions.
        declaration: the file that declares it; None if the code does.
    """

    shown: str
    kind: str
    path: Path
    symbol: str = ""
    declaration: Path | None = None

    def call_declaration(self, further: Further) -> CallDeclaration:
        """Read its declaration. Raises UsageError."""
        assert self.declaration is not None
        if not self.declaration.is_file():
            said = printable(str(self.declaration), 200)
            raise UsageError(
                f"{said}, the file for its declaration, does not exist: write formats, semantics and parameters into it"
            )
        found = parse(read_text(self.declaration), bool(self.symbol), self.kind)
        folder = self.declaration.parent
        loaded = [os.path.abspath(put_in(path, folder)) for path in found.libraries]
        return replace(
            found,
            modules=(*found.modules, *further.modules),
            libraries=(*loaded, *map(os.path.abspath, further.libraries)),
        )


def named(kernel: str, further: Further) -> Named:
    """Resolve a kernel's name. Raises UsageError."""
    declared = Path(further.declared) if further.declared else None
    if kernel.startswith(f"{TORCH}."):
        if declared is None:
            raise UsageError(
                f"operator {printable(kernel, 100)} has no declaration: add --declare FILE.toml, with "
                'formats, semantics and parameters such as ["weights", "activations", "int32 TYPE", "int32 N"]'
            )
        return Named(printable(kernel, 100), "torch", declared, kernel, declared)
    if kernel.endswith(".toml"):
        return _of_declaration(Path(kernel))
    found = _FILE.fullmatch(kernel)
    if found is None and (only := _only_function(kernel)):
        found = _FILE.fullmatch(f"{kernel}:{only}")
    if found is None or found[3] == ":":
        raise UsageError(
            f"kernel {printable(kernel, 200)} is neither FILE.py:NAME nor FILE.cu:SYMBOL, FILE.so:FUNCTION, "
            "FILE.ptx:SYMBOL, FILE.cubin:SYMBOL, FILE.toml, torch.ops.NAMESPACE.OPERATOR"
        )
    path, name = Path(found[1]), found[3]
    shown = printable(f"{path.name}:{name}", 100)
    if not path.is_file():
        raise UsageError(f"kernel {shown}: {printable(str(path), 200)} is not a file")
    beside = path.with_suffix(".toml")
    needs = found[2] in ("ptx", "cubin", "so") or (found[2] == "cu" and declared is not None)
    return Named(shown, found[2], path, name, (declared or beside) if needs else None)


def _only_function(kernel: str) -> str:
    """Return the only function of a source that is named without one; "" if it is no source.

    Raises UsageError if there are several or none.
    """
    path = Path(kernel)
    if path.suffix not in (".cu", ".py"):
        return ""
    shown = printable(path.name, 100)
    if not path.is_file():
        raise UsageError(f"kernel {shown}: {printable(str(path), 200)} is not a file")
    if path.suffix == ".cu":
        text = read_text(path)
        full, names = full_names(text), list(kernels_in(text))
        names = [full.get(name, name).partition("<")[0] for name in names]
    else:
        names = _functions_of(path)
    if len(names) == 1:
        return names[0]
    if not names:
        if path.suffix == ".py":
            raise UsageError(f"kernel {shown}: it has no function; one that it imports is named by {shown}:NAME")
        raise UsageError(f"kernel {shown}: it has no __global__ function; if a macro makes one, name it: {shown}:NAME")
    listed = ", ".join(f"{shown}:{printable(name, 60)}" for name in names[:8])
    raise UsageError(f"kernel {shown}: it has {len(names)} functions; name one: {listed}")


def _functions_of(path: Path) -> list[str]:
    """Return the functions of a Python source that `@kernel` declares; all of its functions if there is none.

    Raises UsageError if it is no Python.
    """
    shown = printable(str(path), 200)
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse(read_text(path)).body
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise UsageError(f"{shown}{line}: {type(error).__name__}: {printable(error.msg, 200)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{shown}: no valid Python: {type(error).__name__}: {printable(str(error), 200)}") from None
    found = [node for node in body if isinstance(node, ast.FunctionDef)]
    return [node.name for node in found if any(map(_is_kernel, node.decorator_list))] or [node.name for node in found]


def _is_kernel(decorator: ast.expr) -> bool:
    """Whether a decorator is `kernel` or `….kernel`, called or not."""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")) == "kernel"


def _of_declaration(path: Path) -> Named:
    """Resolve a FILE.toml that names its code. Raises UsageError."""
    shown = printable(path.name, 100)
    if not path.is_file():
        raise UsageError(f"kernel {shown}: {printable(str(path), 200)} is not a file")
    try:
        code = parse(read_text(path), False).code
        if code == TORCH:
            return Named(shown, "torch", path, "", path)
        file = Path(put_in(code, path.parent))
        if not file.is_file():
            raise UsageError(f"its code, {printable(str(file), 200)}, is not a file")
        if file.suffix not in (".cu", ".ptx", ".cubin", ".so"):
            raise UsageError(f"its code, {printable(file.name, 100)}, is not a .cu, .ptx, .cubin or .so")
        return Named(shown, file.suffix.removeprefix("."), file, "", path)
    except UsageError as error:
        raise UsageError(f"kernel {shown}: {error}") from None


def open_foreign(
    kernel: Any,
    host: Host,
    time_limit: float = TIME_LIMIT,
    verbose: bool = False,
    further: Further | None = None,
    wanted: frozenset[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ForeignKernel:
    """Open a foreign kernel: a name that `named` resolves, or a function or callable object with a declaration.

    Args:
        host: the host for CUDA C++, and for the shipped kernels of types that are not quantized.
        time_limit, verbose: as in `ForeignKernel`.
        further: further options of the command line.
        wanted: names of the types to open it for; a kernel in CUDA C++ is compiled for those that it also declares.
            None: all types that it declares.
        progress: called with a description of each step.

    Raises UsageError if there is no such kernel, its declaration is invalid, or it does not compile; EnvironmentFault.
    """
    if not isinstance(kernel, str):
        return ForeignKernel(Object(kernel), host, time_limit, verbose)
    further = further or Further()
    found = named(kernel, further)
    if progress is not None:
        progress(f"starting {found.shown}")
    if found.kind == "py":
        asked = {"path": os.path.abspath(found.path), "name": found.symbol}
        source = File(found.shown, asked, (found.path, found.symbol))
        return ForeignKernel(source, host, time_limit, verbose)
    opened: dict[str, Callable[..., ForeignKernel]] = {
        "cu": partial(_source, wanted=wanted, progress=progress), "so": _functions, "torch": _functions,
    }  # fmt: skip
    try:
        return opened.get(found.kind, _binary)(found, host, time_limit, verbose, further)
    except (UsageError, EnvironmentFault) as error:
        if str(error).startswith("kernel "):
            raise
        raise type(error)(
            f"kernel {found.shown}: {printable(str(error), 600)}", error.id, [printable(d, 400) for d in error.details]
        ) from None


def _source(
    found: Named,
    host: Host,
    time_limit: float,
    verbose: bool,
    further: Further,
    wanted: frozenset[str] | None,
    progress: Callable[[str], None] | None,
) -> ForeignKernel:
    """Open a kernel in CUDA C++, which is compiled here."""
    given = None if found.declaration is None else found.call_declaration(further)
    cuda = CudaSource(found.path, found.symbol, given, found.declaration)
    try:
        builder = make_host(host.name, host.threads or 0)  # only compiles: a host in this process loads no foreign code
        kernels = CudaKernels(cuda, builder, max(_COMPILE_LEAST, _COMPILE_TIMES * time_limit))
        asked = _of_host(host, kernels.all(wanted, progress))
        source = File(found.shown, asked, cuda.oracle, close=cuda.close, on_host=True, shown=(cuda.built,))
        return ForeignKernel(source, host, time_limit, verbose, cuda.declaration, cuda.symbol, kernels)
    except BaseException:
        cuda.close()
        raise


def _of_host(host: Host, placed: Mapping[str, Placed]) -> dict[str, Any]:
    """Return the first message to a process that launches kernels on a host."""
    kernels = {key: asdict(kernel) for key, kernel in placed.items()}
    return {"host": host.name, "threads": host.threads or 0, "kernels": kernels}


def _binary(found: Named, host: Host, time_limit: float, verbose: bool, further: Further) -> ForeignKernel:
    """Open code that is already compiled for a GPU."""
    if HOSTS[host.name].emulated:
        raise EnvironmentFault(f"a .{found.kind} file only runs on a GPU: use --host gpu", "host-not-usable")
    declared, path = found.call_declaration(further), os.path.abspath(found.path)
    if os.path.getsize(path) > _MOST_CODE:
        raise UsageError(f"it is larger than {_MOST_CODE:,} bytes")
    placed = {
        f"{fmt}/{name or found.symbol}": Placed(name or found.symbol, {"code": path})
        for fmt in declared.of.kinds
        for name in declared.symbols(fmt)
    }
    return _unchanged(found, declared, _of_host(host, placed), (found.path,), host, time_limit, verbose, on_host=True)


def _functions(found: Named, host: Host, time_limit: float, verbose: bool, further: Further) -> ForeignKernel:
    """Open functions of a shared library, or operators of PyTorch."""
    declared, of_library = found.call_declaration(further), found.kind == "so"
    calls = {name or found.symbol for fmt in declared.of.kinds for name in declared.symbols(fmt)}
    arrays = declared.of.arrays if of_library else "torch"
    if arrays == "numpy" and declared.of.device == "cuda":
        arrays = "cupy"
    asked = {
        "calls": sorted(calls), "library": os.path.abspath(found.path) if of_library else "",
        "import": declared.modules, "load": declared.libraries, "device": declared.of.device, "arrays": arrays,
    }  # fmt: skip
    binaries = (*([found.path] if of_library else []), *map(Path, declared.libraries))
    return _unchanged(found, declared, asked, binaries, host, time_limit, verbose)


def _unchanged(
    found: Named,
    declared: CallDeclaration,
    asked: dict[str, Any],
    binaries: tuple[Path, ...],
    host: Host,
    time_limit: float,
    verbose: bool,
    on_host: bool = False,
) -> ForeignKernel:
    """Open binaries, which run unchanged. `asked` is the first message to their process."""
    assert found.declaration is not None
    code = tuple(
        f"{printable(path.name, 100)} unchanged, sha256 {(file_digest(str(path)) or 'unknown')[:16]}"
        for path in binaries
    )
    oracle = declared.oracle_in(found.declaration.parent)
    source = File(found.shown, asked, oracle, on_host=on_host, code=code, named=(found.path, *binaries))
    return ForeignKernel(source, host, time_limit, verbose, declared, found.symbol)


def files_named(kernel: str, further: Further) -> tuple[Path, ...]:
    """Return the files that a kernel's name and its declaration refer to. Raises UsageError.

    Files that those include or import are found when the kernel runs.
    """
    found = named(kernel, further)
    files = [file_of(kernel, further.declared)[0], found.path]
    if found.declaration is not None:
        files += [found.declaration, *map(Path, found.call_declaration(further).libraries)]
    return tuple(dict.fromkeys(files))
