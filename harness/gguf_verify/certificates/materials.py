"""Digests of everything that a verdict depends on: the kernel's sources, this project's files, llama.cpp's libraries.

They are collected before a run and again after it, together with the files that were opened for the kernel during the
run. A file that was touched in between is not certified, even if its content is the same again: the run may have used
other content.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path, PurePosixPath

from ..kernels.families import DEFAULT_KERNEL
from ..kernels.foreign.names import Further, file_of, names_foreign
from ..kernels.foreign.opening import files_named
from ..llama.library import Llama
from ..processes.mapped import UNSEEN
from ..results.environment import OpenedFiles
from ..support.errors import EnvironmentFault
from ..support.paths import PACKAGE, kernel_root
from ..support.sources import combined, file_digest
from ..support.version import project_version
from .records import Project

#: Folders of the package that hold no sources; kernels are counted separately.
_SKIPPED = {"__pycache__", "_kernels"}
_SYSTEM = ("/usr/", "/lib/", "/lib32/", "/lib64/", "/etc/", "/opt/", "/nix/store/", "/gnu/store/")


@dataclass(frozen=True)
class Materials:
    """Digests, and the file status that reveals a change.

    Args:
        kernel: file of the kernel → digest; names are relative, and the file named on the command line is first.
        packages: installed packages that the kernel's sources import, or of which a file was mapped → version.
        unknown: parts of the kernel without a digest → why.
        shipped: the kernel is one of the project's.
        kernel_name: the kernel as for `--kernel`, without this machine's folders.
        project: this installation.
        libraries: shared library of llama.cpp → digest.
        system: path → digest of each system file that was opened for the kernel.
        places: resolved path → name of each file of the kernel, the main file first.
        touched: file → status fields that change when the file is written to.
    """

    kernel: dict[str, str]
    packages: dict[str, str]
    unknown: dict[str, str]
    shipped: bool
    kernel_name: str
    project: Project
    libraries: dict[str, str]
    system: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    touched: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def difference(self, later: Materials) -> str:
        """Describe what changed between this and a later collection; "" for nothing."""
        for path in sorted({*self.touched, *later.touched}):
            if self.touched.get(path) != later.touched.get(path):
                return f"{Path(path).name} changed during the run"
        return "" if self == later else "something that the verdict depends on changed during the run"

    def with_opened(self, opened: OpenedFiles) -> Materials:
        """Add the files that were opened for the kernel during a run. Raises EnvironmentFault if one changed during the
        run."""
        files, unknown, system = {**self.kernel}, {**self.unknown}, {**self.system}
        for path, sha256 in opened.files.items():
            real = os.path.realpath(path)
            if path == UNSEEN:
                unknown["files opened by its processes"] = "hidden"
            elif sha256 is None:
                why = "it cannot be read, or was replaced during the run"
                unknown[Path(path).name] = why if os.path.isabs(path) else "the system does not list them"
            elif sha256 != file_digest(path) or (real in self.places and self.kernel[self.places[real]] != sha256):
                raise EnvironmentFault(f"{Path(path).name} changed during the run")
            elif of_the_system(path):
                system[path] = sha256
            elif real not in self.places:
                main, name = next(iter(self.places.items()), ("", ""))
                files[_placed(name, os.path.relpath(path, os.path.dirname(main)), files)] = sha256
        packages = {**self.packages, **opened.packages}
        return replace(self, kernel=files, packages=packages, unknown=unknown, system=system)


def of_the_system(path: str) -> bool:
    """Whether a file is in a system folder, whose name reveals nothing about the user."""
    return os.path.normpath(path) == path and path.startswith(_SYSTEM)


def shown_name(path: Path | str) -> str:
    """Return a file's name for certificates: relative to the current folder if it is below that, else the last part."""
    absolute = Path(os.path.abspath(path))
    try:
        return absolute.relative_to(Path.cwd()).as_posix()
    except ValueError:
        return absolute.name


def collect(kernel: str = DEFAULT_KERNEL, further: Further | None = None) -> Materials:
    """Collect the digests for a run of a kernel (as given to `--kernel`) and its further options.

    Raises EnvironmentFault if llama.cpp or a source of the project cannot be read.
    """
    touched: dict[str, tuple[int, ...]] = {}
    project = _project(touched)
    libraries = llama_libraries(touched)
    if not names_foreign(kernel):
        root = kernel_root()
        files = {f"kernels/{name}": _digest(root / name, touched) for name in _below(root)}
        return Materials(files, {}, {}, True, kernel, project, libraries, touched=touched)
    further = further or Further()
    given, entry = file_of(kernel, further.declared)
    path = Path(os.path.abspath(given))
    files, places = dict[str, str](), dict[str, str]()
    for file in (path, *map(Path, map(os.path.abspath, files_named(kernel, further)))):
        if os.path.realpath(file) not in places:
            placed = _placed(shown_name(path), os.path.relpath(file, path.parent), files)
            files[placed] = _digest(file, touched)
            places[os.path.realpath(file)] = placed
    shown = entry if entry == kernel else f"{shown_name(path)}:{entry}" if entry else shown_name(path)
    return Materials(files, {}, {}, False, shown, project, libraries, places=places, touched=touched)


def _placed(main: str, name: str, taken: dict[str, str]) -> str:
    """Return the name of a kernel's file, given its path relative to the kernel's main file.

    A file outside the main file's folder keeps only its last part: the folders above are specific to this machine.
    """
    beside = str(PurePosixPath(main).parent / name)
    if ".." not in PurePosixPath(name).parts and not os.path.isabs(name) and beside not in taken:
        return beside
    base = PurePosixPath(name).name
    found, number = f"outside/{base}", 2
    while found in taken:
        found, number = f"outside/{number}/{base}", number + 1
    return found


def project() -> Project:
    """Return this installation's digest: one digest over the sorted pairs (name, SHA-256) of every file of the package
    and of `kernels/`, as JSON (`support.sources.combined`), without Python's caches. Raises EnvironmentFault."""
    return _project({})


def _project(touched: dict[str, tuple[int, ...]]) -> Project:
    roots = (("gguf_verify", PACKAGE), ("kernels", kernel_root()))
    files = [(f"{top}/{name}", _digest(root / name, touched)) for top, root in roots for name in _below(root)]
    return Project(version=project_version(), sha256=combined(files), files=len(files))


def _below(root: Path) -> list[str]:
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if not name.endswith(".pyc")]
    return sorted(found)


def llama_libraries(touched: dict[str, tuple[int, ...]] | None = None) -> dict[str, str]:
    """Return name → digest of each shared library that llama.cpp's process loads. Raises EnvironmentFault if llama.cpp
    is not installed or does not start."""
    with Llama() as llama:
        paths = llama.versions()["libraries"]
    found = {Path(path).name: _digest(Path(path), {} if touched is None else touched) for path in paths}
    if not found:
        raise EnvironmentFault("llama.cpp's process does not report the libraries that it has loaded")
    return found


def llama_version() -> str:
    """Return the installed version of llama-cpp-python; "" if it is not installed."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return ""


def _digest(path: Path, touched: dict[str, tuple[int, ...]]) -> str:
    digest = file_digest(path)
    if digest is None:
        raise EnvironmentFault(f"cannot read {path.name}, whose digest a certificate needs")
    now = path.stat()
    touched[os.path.abspath(path)] = (now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    return digest
