"""The boundary: bubblewrap with an empty root, into which only what a process needs is bound, read-only.

A process sees the system's programs and libraries (/usr), Python with its packages, this project, the files that it is
shown by name, devices without content, GPUs if it may use them, and its own folder. The user's home, sockets, FIFOs,
terminals and files do not exist there, so no rule needs to list them; nor does the network, or any process but its own.

Sources: bwrap(1); the places that ld.so(8), site (Python) and CUDA's driver read.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..support.paths import PACKAGE, kernel_root
from . import syscalls

if TYPE_CHECKING:
    from .sandbox import Confinement

#: System folders to search for bubblewrap; PATH could list untrusted ones.
_FOLDERS = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin"
#: Top-level folders that may be links into /usr, or folders of their own.
_TOPS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
#: The system's programs and libraries, and files that the loader and compilers read beside them.
_INSTALLED = ("/usr", "/opt", "/nix/store", "/gnu/store")
_SYSTEM = (*_INSTALLED, "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
           "/etc/alternatives", "/etc/localtime", "/sys/devices/system/cpu", "/sys/devices/system/node")  # fmt: skip
#: Files that GPU drivers read besides their devices.
_OF_DEVICES = ("/sys", "/etc/OpenCL", "/etc/vulkan", "/etc/nvidia", "/etc/egl", "/run/opengl-driver")
_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd", "/dev/dxg")
#: System settings, which root may write without any capability.
_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
#: Variables that list folders of libraries and headers, or hold one.
_LISTS = ("LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_HOMES = ("CUDA_HOME", "CUDA_PATH", "VK_ICD_FILENAMES", "VK_DRIVER_FILES")
#: Names of folders of installed packages.
_PACKAGES = frozenset({"site-packages", "dist-packages"})
#: Size limit in bytes of /tmp, and of /dev/shm.
_ROOM = 1 << 26


def interpreter() -> str:
    """Return the path of this Python that leads only through bound folders."""
    return os.path.abspath(sys.executable)


def spelled_out(variables: dict[str, str]) -> dict[str, str]:
    """Make the folders in these variables absolute: a process inside may run elsewhere, and ".." leads through folders
    that it does not see."""
    out = dict(variables)
    for name in ("PYTHONPATH", *_LISTS, *_HOMES):
        if name in out:
            out[name] = os.pathsep.join(each and os.path.abspath(each) for each in out[name].split(os.pathsep))
    return out


def program() -> str | None:
    """Return the path of bubblewrap, or None."""
    return shutil.which("bwrap", path=_FOLDERS)


@cache
def version() -> str:
    """Return bubblewrap's version, or "?"."""
    done = subprocess.run([program() or "bwrap", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix("bubblewrap ") or "?"


@cache
def fault() -> str | None:
    """Return why there is no boundary here, in words, or None."""
    if program() is None:
        return "bubblewrap is not installed"
    if (why := syscalls.filter_fault()) is not None:
        return why
    handle = os.memfd_create("gguf-verify-filter", 0)
    try:
        os.write(handle, syscalls.filter_program(False))
        os.lseek(handle, 0, os.SEEK_SET)
        done = subprocess.run(
            [*_namespaces(), *_root(()), *_closed(handle), "true"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            pass_fds=[handle],
        )
    except (OSError, subprocess.TimeoutExpired):
        return "bubblewrap does not run here"
    finally:
        os.close(handle)
    if done.returncode == 0:
        return None
    said = (done.stderr.strip().splitlines() or [""])[-1][:200]
    if "uid map" in said or "namespace" in said or "permitted" in said.lower():
        return f"user namespaces are refused here ({said}); {_ALLOW}"
    return f"bubblewrap does not run here: {said}"


#: Hint on how to allow user namespaces.
_ALLOW = (
    "Ubuntu: an AppArmor profile for bwrap, or sysctl kernel.apparmor_restrict_unprivileged_userns=0; Docker: "
    "--security-opt seccomp=unconfined --security-opt apparmor=unconfined"
)


def command(confined: Confinement, folder: Path, filter_of: int) -> list[str]:
    """Return the beginning of a command line that runs the rest of it inside the boundary.

    Args:
        folder: the process's own. Unless the confinement gives it, it is in memory, and ends with the process.
        filter_of: descriptor of the filter program of `syscalls`.
    """
    used = devices_of(confined.devices)
    out = [*_namespaces(), *_root(used)]
    of_python = (path for path in python() if not _has_copy(path, confined.copies))
    held = _ordered([*of_python, *project(), *confined.shown, *(map(Path, _of_devices()) if used else ())])
    for path in held:
        out += ["--ro-bind", str(path), str(path)]
    for original, copy in confined.copies.items():
        for place, source in _placed(original, copy, [*held, folder]):
            if source.is_symlink():
                out += ["--symlink", os.readlink(source), str(place)]
            else:
                out += ["--ro-bind", str(source), str(place)]
    if confined.folder is None:
        out += ["--size", str(confined.limits.folder_size), "--tmpfs", str(folder)]
    else:
        out += ["--bind", str(folder), str(folder)]
    return [*out, *_closed(filter_of)]


def _has_copy(path: Path, copies: Mapping[Path, Path]) -> bool:
    """Whether a process sees a copy in place of a path. Python itself is never replaced by a copy."""
    if str(path) in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        return False
    places = ((each, copy) for folder, copy in copies.items() for each in (folder, Path(os.path.realpath(folder))))
    return any(path.is_relative_to(each) and os.path.lexists(copy / path.relative_to(each)) for each, copy in places)


def devices_of(may_use: bool) -> list[str]:
    """Return the device files of this machine's GPUs, if a process may use them."""
    if not may_use:
        return []
    return sorted(path for pattern in _DEVICES for path in glob.glob(pattern))


def _namespaces() -> list[str]:
    # root keeps the capability to read files, such as a model in another user's home that the process is shown
    root = ["--cap-drop", "ALL", "--cap-add", "CAP_DAC_READ_SEARCH"] if os.geteuid() == 0 else ["--unshare-user"]
    return [program() or "bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net",
            "--unshare-uts", "--unshare-cgroup-try", "--hostname", "boundary", *root]  # fmt: skip


def _root(devices: Iterable[str]) -> list[str]:
    """Return the arguments for what every process sees, and for these devices."""
    out: list[str] = []
    for top in _TOPS:
        path = f"/{top}"
        if os.path.islink(path):
            out += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            out += ["--ro-bind", path, path]
    for path in _SYSTEM:
        out += ["--ro-bind-try", path, path]
    out += ["--dev", "/dev", "--proc", "/proc"]
    for path in ("/tmp", "/dev/shm"):
        out += ["--size", str(_ROOM), "--tmpfs", path]
    for path in devices:
        out += ["--dev-bind-try", path, path]
    # CUDA writes the names of its threads below /proc, and fails to start if it cannot
    for path in _SETTINGS if devices else ():
        out += ["--ro-bind-try", path, path]
    return out if devices else [*out, "--remount-ro", "/proc"]


def _closed(filter_of: int) -> list[str]:
    return ["--remount-ro", "/dev", "--remount-ro", "/", "--seccomp", str(filter_of), "--"]


def python() -> tuple[Path, ...]:
    """Return the folders of this Python and its packages, as its processes search them, and those of libraries and
    headers that environment variables list."""
    named = ("PYTHONPATH", "PATH", "CC", "CXX", *_LISTS, *_HOMES)
    return _python(interpreter(), *(os.environ.get(name, "") for name in named))


def path_elsewhere() -> tuple[Path, ...]:
    """Return entries of Python's path (PYTHONPATH, .pth files) that belong neither to Python or its packages nor to
    this project."""
    return _elsewhere(interpreter(), os.environ.get("PYTHONPATH", ""))


@cache
def _elsewhere(program: str, variable: str) -> tuple[Path, ...]:
    ours = {PACKAGE.parent, *(Path(os.path.realpath(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib"))}
    found = (Path(os.path.abspath(each)) for each in _sys_path(program, variable))
    others = ((path, Path(os.path.realpath(path))) for path in dict.fromkeys(found) if path.exists())
    return tuple(path for path, real in others if ours.isdisjoint((real, *real.parents)) and not _holds_packages(real))


def _holds_packages(folder: Path) -> bool:
    """Whether a folder really holds packages that the system, this Python or its user installed, and not only has such
    a name."""
    homes = (sys.prefix, sys.base_prefix, site.getuserbase(), *_INSTALLED)
    tops = {Path(os.path.realpath(each)) for each in homes}
    return folder.name in _PACKAGES and not tops.isdisjoint(folder.parents)


@cache
def _sys_path(program: str, _variable: str) -> tuple[str, ...]:
    asked = [program, "-P", "-c", "import json, sys; print(json.dumps(sys.path))"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return tuple(path for path in json.loads(done.stdout) if path) if done.returncode == 0 else ()


@cache
def _python(program: str, path: str, *_variables: str) -> tuple[Path, ...]:
    found = list(_sys_path(program, path))
    found += [each for folder in tuple(found) for each in _linked(folder) if not _holds_home(each)]
    found += [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix]
    found += filter(None, (sysconfig.get_config_var("LIBDIR"), os.path.realpath(sys.executable)))
    for name in (*_LISTS, *_HOMES):
        found += [os.path.abspath(each) for each in os.environ.get(name, "").split(os.pathsep) if each]
    found += [str(path) for name in ("CC", "CXX") for path in compiler(os.environ.get(name, ""))]
    found += map(str, compiler("nvcc"))
    return tuple(Path(path) for path in found if path and os.path.isabs(path) and os.path.exists(path))


def _linked(folder: str) -> Iterator[str]:
    """Yield the targets of links in a folder of packages: some installers link packages, or each of their files."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield os.path.realpath(entry.path)
            elif entry.is_dir():
                with contextlib.suppress(OSError), os.scandir(entry.path) as below:
                    yield from {os.path.dirname(os.path.realpath(each.path)) for each in below if each.is_symlink()}


def compiler(name: str) -> tuple[Path, ...]:
    """Return the path of a program, and the folders of files installed with it."""
    path = Path(shutil.which(name) or "")
    if path == Path():
        return ()
    real = path.resolve()
    beside = (each.parent.parent for each in (path, real) if each.parent.name == "bin")
    return path, real, *(folder for folder in beside if not _holds_home(folder))


def _holds_home(folder: str | Path) -> bool:
    """Whether a folder contains the user's home."""
    return Path(os.path.realpath(os.path.expanduser("~"))).is_relative_to(os.path.realpath(folder))


def project() -> tuple[Path, ...]:
    """Return the folders of this project that its processes read."""
    return PACKAGE, kernel_root()


def _placed(folder: Path, copy: Path, held: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield binds of a copy, split where needed so that paths bound before stay visible or can still be bound."""
    if folder in held:
        return
    if not any(path.is_relative_to(folder) for path in held):
        yield folder, copy
        return
    for each in sorted(copy.iterdir()):
        if folder != Path("/") or each.name not in _TOPS:
            yield from _placed(folder / each.name, each, held)


def _of_devices() -> Iterator[str]:
    return filter(os.path.exists, _OF_DEVICES)


def _ordered(paths: Iterable[Path]) -> list[Path]:
    """Return each path and the target of its links, without those inside /usr or inside another one."""
    every = {Path(os.path.abspath(path)) for path in paths} | {Path(os.path.realpath(path)) for path in paths}
    bound = {path for path in every if path.exists() and path != Path("/")}
    held = bound | {Path(path) for path in _SYSTEM}
    return sorted(path for path in bound if held.isdisjoint(path.parents))
