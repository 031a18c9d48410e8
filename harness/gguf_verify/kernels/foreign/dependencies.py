"""What a foreign kernel is made of: the digests of its files and the versions of the packages that it imports.

A Python kernel is imported in a process of its own for that, which lists its modules. Modules that it imports only when
it is called are found in its text. The process may lie: no file is read that lies elsewhere than kernels may, and
inside the boundary the system lists those that were opened.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from ...processes.child import Spawned
from ...processes.sandbox import current, of_kernel
from ...support.errors import HarnessError
from ...support.paths import PACKAGE
from ...support.sources import file_digest
from ...support.text import printable
from .channel import Channel, Garbled, Late
from .child import end_with_parent, import_kernel
from .copies import MOST_BYTES, MOST_FILES, MOST_SECONDS, Copies
from .faults import one_line
from .opening import Further, parts_of
from .sources import START_LIMIT

#: Bytes of a process's answer.
_MOST_SAID = 1 << 24
#: Seconds for a process that has answered to end.
_ENDS = 10.0


def dependencies(path: Path, name: str, further: Further | None = None) -> dict[str, str]:
    """Names of files, as they lie to the kernel's folder, and of packages → digest or version; of a kernel that
    `opening.file_of` knows, and of what else is said of it. Where that is not known, an entry says why instead."""
    path = Path(os.path.abspath(path))
    if path.suffix == ".py":
        return _of_python(path, name)
    files, out = {path}, dict[str, str]()
    with contextlib.suppress(HarnessError):  # a run says it better
        parts = parts_of(path, name, further or Further())
        files = {Path(os.path.abspath(file)) for file in parts.files}
        if parts.oracle is not None:
            out |= _of_python(Path(os.path.abspath(parts.oracle[0])), parts.oracle[1], path.parent)
        if parts.modules:
            out |= _of_python(path, "", path.parent, parts.modules)
    return _digests(files, path.parent) | out


def _digests(files: set[Path], folder: Path) -> dict[str, str]:
    return {os.path.relpath(file, folder): file_digest(file) or "cannot be read" for file in files}


def _of_python(
    path: Path, name: str, folder: Path | None = None, modules: tuple[str, ...] = ()
) -> dict[str, str]:  # fmt: skip
    """Ask a process that imports NAME of FILE.py, or these modules.

    Args:
        folder: to which files are named; None: that of the file.
    """
    folder = folder or path.parent
    copies = Copies([path]) if current().kind == "bubblewrap" else None
    confined = of_kernel(copies={} if copies is None else copies.folders)
    process = Spawned("gguf_verify.kernels.foreign", stall=START_LIMIT, confined=confined)
    try:
        asked = {"path": str(path), "name": name, "modules": modules, "dependencies": True}
        process.link.send_bytes(json.dumps(asked).encode())
        channel = Channel(process.link.fileno(), _MOST_SAID)
        said = json.loads(channel.receive(time.monotonic() + START_LIMIT))
        process.wait(_ENDS)  # what it opens at its end is not there in one of two looks only
        files, elsewhere = _within_reach(map(str, said["files"]), path.parent)
        files |= {path} if copies is None else {path, *map(Path, copies.opened())}
        fault = {"its modules": printable(str(said["fault"]), 300)} if said["fault"] else {}
        return _digests(files, folder) | _versions(map(str, said["packages"])) | elsewhere | fault
    except Late:
        return _digests({path}, folder) | {"its modules": f"not imported within {START_LIMIT:g} s"}
    except (Garbled, RecursionError, OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return _digests({path}, folder) | {"its modules": "its process ended"}
    finally:
        process.close(60.0)
        if copies is not None:
            copies.close()


def _within_reach(names: Iterable[str], folder: Path) -> tuple[set[Path], dict[str, str]]:
    """Of the files that a process lists, those below the kernel's folder and the folders of PYTHONPATH, up to limits;
    and an entry where it lists others."""
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    roots = {os.path.realpath(root) + os.sep for root in (str(folder), *named)}
    end, left, found = time.monotonic() + MOST_SECONDS, MOST_BYTES, set[Path]()
    for name in list(names)[: MOST_FILES + 1]:
        if not os.path.realpath(name).startswith(tuple(roots)):
            outside = f"its process lists {printable(name, 100)}, outside of its folder and of PYTHONPATH"
            return found, {"its modules": outside}
        with contextlib.suppress(OSError, ValueError):
            left -= os.lstat(name).st_size
        if left < 0 or len(found) == MOST_FILES or time.monotonic() > end:
            return found, {"its modules": f"more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes"}
        found.add(Path(name))
    return found, {}


def _versions(packages: Iterable[str]) -> dict[str, str]:
    """Of installed packages, as they are installed here."""
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
            found[f"package {package}"] = metadata.version(package)
    return found


def tell(link: Connection, path: Path, name: str, modules: Sequence[str]) -> None:
    """The other side of `_of_python`: import the kernel, or these modules, and say what came with it."""
    end_with_parent()
    fault = ""
    try:
        for module in modules:
            importlib.import_module(module)
        if not modules:
            import_kernel(path, name)
    except HarnessError as error:
        fault = str(error)
    except BaseException as error:  # of a module, which may also raise SystemExit
        fault = f"a module cannot be imported: {one_line(error)}"
    files, packages = found_modules(path)
    link.send_bytes(json.dumps({"files": sorted(files), "packages": packages, "fault": fault}).encode())


def found_modules(path: Path) -> tuple[set[str], list[str]]:
    """Local files of this process's modules and of the modules that their text imports; and the installed packages."""
    left = [str(path)]
    installed: set[str] = set()
    for module in list(sys.modules.values()):
        _take(_file_of(module), str(getattr(module, "__name__", "")), left, installed)
    files: set[str] = set()
    while left and len(files) < MOST_FILES:
        file = os.path.abspath(left.pop())
        if file not in files and os.path.isfile(file):
            files.add(file)
            for imported in _imported(file):
                _look_up(imported, os.path.dirname(file), left, installed)
    owners = metadata.packages_distributions()
    return files, sorted({owner for top in installed for owner in owners.get(top, ())})


def _file_of(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


def _take(file: str | None, name: str, left: list[str], installed: set[str]) -> None:
    """A module's file is local, or its package is installed, or it belongs to Python or to this project: by its own
    name, too, since some systems link files of Python elsewhere (Debian's sitecustomize.py)."""
    if file is None:
        return
    at = os.path.realpath(file)
    if re.search(r"[/\\](site|dist)-packages[/\\]", at):
        installed.add(name.partition(".")[0])
    elif not any(path.startswith(f"{folder}{os.sep}") for folder in _standard() for path in (at, file)):
        left.append(file)


def _standard() -> Iterator[str]:
    for which in ("stdlib", "platstdlib"):
        yield os.path.realpath(sysconfig.get_path(which))
    yield os.path.realpath(PACKAGE)


def _imported(file: str) -> Iterator[str]:
    """Names that a source imports anywhere, also in functions; relative ones begin with a dot for each level."""
    if not file.endswith(".py"):
        return
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            yield from (f"{base}{'' if base.endswith('.') else '.'}{alias.name}" for alias in node.names)


def _look_up(name: str, folder: str, left: list[str], installed: set[str]) -> None:
    """Where an import would find a module, without importing it."""
    absolute = name.lstrip(".")
    up = len(name) - len(absolute)
    base = os.path.join(folder, *[os.pardir] * max(0, up - 1))
    for i, _ in enumerate(parts := absolute.split(".")):
        below = os.path.join(base, *parts[: i + 1])
        left += [file for file in (f"{below}.py", os.path.join(below, "__init__.py")) if os.path.isfile(file)]
    if up or not absolute or parts[0] in sys.modules:
        return
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(parts[0])
        if spec is not None and spec.origin:
            _take(spec.origin, parts[0], left, installed)


__all__ = ["dependencies", "found_modules", "tell"]
