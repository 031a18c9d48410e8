"""How processes that are not trusted are confined here, and what that does not cover.

bubblewrap gives a process a view of the file system, of processes and of the network that is its own; seccomp takes
system calls away from it. Where bubblewrap cannot run, Landlock confines files and signals instead. In every mode,
`keeper` ends what such a process started, and counts what it uses.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..support.errors import EnvironmentFault, UsageError
from . import confine

#: What `--sandbox` takes: the best that there is; one of two ways, or an error; none.
MODES = ("auto", "bwrap", "landlock", "off")
_mode = "auto"
#: GiB of memory that a foreign kernel's processes may take together.
KERNEL_MEMORY = 16.0
_kernel_memory = KERNEL_MEMORY

#: Variables that a process that is not trusted gets, and how the names of further ones begin. Others may hold secrets.
_PASSED = frozenset({
    "PATH", "LANG", "LANGUAGE", "TZ", "TERM", "USER", "LOGNAME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CC", "CXX", "CPATH",
    "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH", "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONHASHSEED", "PYTHONPYCACHEPREFIX",
})  # fmt: skip
_PASSED_FROM = ("LC_", "OMP_", "OPENBLAS_", "MKL_", "GOMP_", "KMP_", "NUMBA_", "CUDA_", "NVIDIA_", "NVRTC_", "CUPY_",
                "TRITON_", "TORCH_", "PYTORCH_", "GGML_", "LLAMA_CPP_", "GCC_", "COMPILER_", "VK_", "MESA_", "LP_",
                "HIP_", "ROCR_", "HSA_", "ONEAPI_", "SYCL_", "ZE_")  # fmt: skip
#: Variables that name folders in which libraries keep files.
_FOLDERS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "CUPY_CACHE_DIR",
            "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "NUMBA_CACHE_DIR",
            "MPLCONFIGDIR")  # fmt: skip
_DEVICES = ("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*", "/dev/kfd", "/dev/dxg")

GIB = 1 << 30


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Limits:
    """What a process and all that it started may use together, unless it says of each.

    Args:
        memory: bytes of memory that no file holds, other than the operands that the verifier shares.
        processes: processes and threads.
        file_size: bytes of each file.
        folder_size: bytes of the files in its folder.
        log: bytes that it may print.
        cpu: seconds of processor time of each process; a limit on waste, since each call has a deadline.
    """

    memory: int = field(default_factory=lambda: machine_memory() * 3 // 4)
    processes: int = 512
    file_size: int = GIB
    folder_size: int = GIB
    log: int = GIB // 4
    cpu: int = 24 * 3600


@dataclass(frozen=True)
class Confinement:
    """What a process may do that is not trusted.

    It reads every file but those below `hidden`, and writes below its own folder alone. It has no network, and does
    not see, signal or change processes that it did not start.

    Args:
        limits: of what it uses.
        hidden: folders that it must not see.
        devices: whether it may use this machine's GPUs, where it has any. Its memory is then counted, but not limited
            by the system, since CUDA reserves more than it uses.
        folder: its own, which is kept after its end; None: one that is removed.
        shown: folders below hidden ones that it may read.
    """

    limits: Limits = field(default_factory=Limits)
    hidden: tuple[Path, ...] = ()
    devices: bool = False
    folder: Path | None = None
    shown: tuple[Path, ...] = ()

    def hiding(self, *folders: Path) -> Confinement:
        """The same with further folders that must not be seen."""
        return replace(self, hidden=(*self.hidden, *folders))


@dataclass(frozen=True)
class Sandbox:
    """A way to confine processes on this machine.

    Args:
        kind: "bwrap", "landlock" or "off".
        by: what does it, in words.
        missing: what a confined process can still do that it should not, each in words.
    """

    kind: str
    by: str
    missing: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """All of it in one line."""
        return f"{self.by}; not confined: may {', '.join(self.missing)}" if self.missing else self.by


@contextmanager
def sandboxed(mode: str, kernel_memory: float | None = None) -> Iterator[Sandbox]:
    """How processes that start meanwhile are confined, in any thread.

    Args:
        mode: one of `MODES`.
        kernel_memory: GiB that a foreign kernel's processes may take together; None: as before.

    Raises EnvironmentFault where `mode` asks for what this machine does not have, UsageError for what is no mode.
    """
    global _mode, _kernel_memory
    before, found = (_mode, _kernel_memory), _sandbox(mode)
    _mode, _kernel_memory = mode, _kernel_memory if kernel_memory is None else kernel_memory
    try:
        yield found
    finally:
        _mode, _kernel_memory = before


def of_kernel(shown: tuple[Path, ...] = ()) -> Confinement:
    """What a process of a foreign kernel may do that starts now. `shown` as of `Confinement`."""
    memory = min(int(_kernel_memory * GIB), machine_memory() * 3 // 4)
    return Confinement(Limits(memory=memory), devices=True, shown=shown)


def current() -> Sandbox:
    """How processes that start now are confined."""
    return _sandbox(_mode)


def by_landlock() -> Sandbox:
    """How a fork of this process is confined, which no other program can start."""
    return current() if current().kind == "off" else _landlock("it is a function of this process")


@cache
def _sandbox(mode: str) -> Sandbox:
    if mode not in MODES:
        raise UsageError(f"no sandbox is called {mode!r}; there are: {', '.join(MODES)}")
    if mode == "off":
        return Sandbox("off", "none (turned off)", ("do all that you may do",))
    if mode == "landlock":
        if not confine.landlock_abi():
            raise EnvironmentFault("--sandbox landlock: this system has no Landlock")
        return _landlock("not asked for")
    fault = bubblewrap_fault()
    if fault is None:
        return _bubblewrap()
    if mode == "bwrap":
        raise EnvironmentFault(f"--sandbox bwrap: {fault}")
    return _landlock(fault)


def _bubblewrap() -> Sandbox:
    version = _bubblewrap_version()
    if confine.has_seccomp():
        return Sandbox("bwrap", f"bubblewrap {version} and seccomp")
    missing = ("connect to sockets in the file system", "use every system call (no filter for this architecture)")
    return Sandbox("bwrap", f"bubblewrap {version}", missing)


def _landlock(why_no_bubblewrap: str) -> Sandbox:
    """What confines without bubblewrap."""
    abi, seccomp = confine.landlock_abi(), confine.has_seccomp()
    by = [*([f"Landlock (ABI {abi})"] if abi else []), *(["seccomp"] if seccomp else [])]
    missing = ["see the names of other processes"]
    if not abi:
        missing.append("write every file that you may write")
        if not seccomp:
            missing.append("read and change the memory of your processes")
    if abi < 6:
        missing.append("signal your other processes, but not this one" if seccomp else "signal your processes")
    if not seccomp:
        missing.append("use the network" if abi < 4 else "use the network, but not by TCP")
        missing.append("change modes and times of your files")
    kind = "landlock" if abi or seccomp else "off"
    said = " and ".join(by) or "nothing that this system has"
    return Sandbox(kind, f"{said}, without bubblewrap ({why_no_bubblewrap})", tuple(missing))


# ---- bubblewrap ------------------------------------------------------------------------------------------------------


def bubblewrap_path() -> str | None:
    """The program, found in the system's folders alone: what decides what a process may do is not taken from a folder
    that somebody put on the path."""
    return shutil.which("bwrap", path="/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin")


@cache
def _bubblewrap_version() -> str:
    done = subprocess.run([bubblewrap_path() or "bwrap", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix("bubblewrap ") or "?"


@cache
def bubblewrap_fault() -> str | None:
    """Why bubblewrap cannot be used here, or None."""
    if bubblewrap_path() is None:
        return "it is not installed"
    command = [*bubblewrap(Confinement(), Path("/"), None), "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return "it does not run here"
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return f"it does not run here: {said[-1][:200]}" if said else "it does not run here"


def bubblewrap(confined: Confinement, folder: Path, seccomp: int | None) -> list[str]:
    """The beginning of a command line that runs the rest of it under bubblewrap.

    Args:
        folder: its own. Unless the confinement names it, files there lie in memory, and are gone with the process.
        seccomp: descriptor of a filter's program.
    """
    root = os.geteuid() == 0
    out = [bubblewrap_path() or "bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net",
           "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]  # fmt: skip
    # root keeps the right to read files, such as a model in another user's home
    out += ["--cap-drop", "ALL", "--cap-add", "CAP_DAC_READ_SEARCH"] if root else ["--unshare-user"]
    out += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    out += ["--size", str(confined.limits.folder_size), "--tmpfs", "/dev/shm"]
    used = devices_of(confined)
    for device in used:
        out += ["--dev-bind-try", device, device]
    # root's settings of the system are files there; CUDA names its threads in the rest, and does not start without
    for path in confine.SETTINGS if used else ():
        out += ["--ro-bind-try", path, path]
    if not used:
        out += ["--remount-ro", "/proc"]
    away = {path.resolve() for path in confined.hidden if path.is_dir()}
    hidden = sorted(str(path) for path in away if away.isdisjoint(path.parents))
    for path in hidden:
        out += ["--size", "65536", "--tmpfs", path]
    for path in map(str, confined.shown):
        out += ["--ro-bind", path, path]
    if folder != Path("/"):
        if confined.folder is None:
            out += ["--size", str(confined.limits.folder_size), "--tmpfs", str(folder)]
        else:
            out += ["--bind", str(folder), str(folder)]
    for path in hidden:
        out += ["--remount-ro", path]
    if seccomp is not None:
        out += ["--seccomp", str(seccomp)]
    return [*out, "--"]


def devices_of(confined: Confinement) -> list[str]:
    """The files of the GPUs that a process may use."""
    if not confined.devices:
        return []
    return sorted(path for pattern in _DEVICES for path in glob.glob(pattern))


# ---- what a process is given -----------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that is not trusted: those that it may need, and its own folder in place of yours."""
    passed = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_FROM)}
    return passed | dict.fromkeys(_FOLDERS, str(folder))


def spec_of(confined: Confinement, folder: Path, kind: str) -> dict[str, Any]:
    """`confined` as `keeper` takes it: "confine" and "watch".

    Args:
        kind: of `Sandbox`.
    """
    limits = confined.limits
    of_each = {"file_size": limits.file_size, "cpu": limits.cpu}
    if not devices_of(confined):
        of_each["memory"] = limits.memory
    plain = kind == "landlock"
    watch: dict[str, Any] = {"memory": limits.memory, "processes": limits.processes, "log": limits.log}
    if kind != "bwrap":
        watch |= {"folder": str(folder), "folder_size": limits.folder_size}
    return {
        "confine": {
            "landlock": plain and confine.landlock_abi() > 0, "seccomp": plain and confine.has_seccomp(),
            "writable": [str(folder), "/dev/null", "/dev/zero", "/dev/full"],
            "devices": devices_of(confined), "hidden": [str(path) for path in confined.hidden],
            "shown": [str(path) for path in confined.shown],
            "protected": _ancestors(), "limits": of_each,
        },
        "watch": watch, "namespace": kind == "bwrap",
    }  # fmt: skip


def _ancestors() -> list[int]:
    """This process and those that it comes from."""
    out: list[int] = []
    pid = os.getpid()
    while pid > 1 and len(out) < 16:
        out.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return [*out, 1]


__all__ = [
    "GIB", "KERNEL_MEMORY", "MODES", "Confinement", "Limits", "Sandbox", "bubblewrap", "bubblewrap_fault",
    "bubblewrap_path", "by_landlock", "current", "devices_of", "environment", "machine_memory", "of_kernel",
    "sandboxed", "spec_of",
]  # fmt: skip
