"""Confinement of untrusted processes on this machine, and its gaps.

The *boundary* is bubblewrap with an empty root and an allow-list of system calls. Without it, Landlock *guards against
accidents*: it keeps a process from writing, but hides little. In every mode, `keeper` ends everything that such a
process started, and limits its resources.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..support.errors import EnvironmentFault, UsageError
from . import boundary, guard, syscalls

#: Values of `--sandbox`: auto is the boundary, or else the guard; the others are that one, or an error; or neither.
MODES = ("auto", "bubblewrap", "landlock", "none")
#: Kind → its name in reports.
_TITLES = {"bubblewrap": "boundary", "landlock": "accident guard", "none": "boundary"}
_mode = "auto"
#: Memory limit of a foreign kernel's processes together, in GiB.
KERNEL_MEMORY = 16.0
_kernel_memory = KERNEL_MEMORY

#: Environment variables passed to untrusted processes, and prefixes of more. Others may hold secrets.
_PASSED = frozenset(
    {
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "USER",
        "LOGNAME",
        "VIRTUAL_ENV",
        "LD_LIBRARY_PATH",
        "CC",
        "CXX",
        "CPATH",
        "CPLUS_INCLUDE_PATH",
        "C_INCLUDE_PATH",
        "LIBRARY_PATH",
        "SOURCE_DATE_EPOCH",
        "PYTHONPATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
        "PYTHONUTF8",
        "PYTHONHASHSEED",
        "PYTHONPYCACHEPREFIX",
    }
)
_PASSED_FROM = ("LC_", "OMP_", "OPENBLAS_", "MKL_", "GOMP_", "KMP_", "NUMBA_", "CUDA_", "NVIDIA_", "NVRTC_", "CUPY_",
                "TRITON_", "TORCH_", "PYTORCH_", "GGML_", "LLAMA_CPP_", "GCC_", "COMPILER_", "VK_", "MESA_", "LP_",
                "HIP_", "ROCR_", "HSA_", "ONEAPI_", "SYCL_", "ZE_")  # fmt: skip
#: Variables with folders in which libraries keep files.
_FOLDERS = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "CUPY_CACHE_DIR",
            "CUDA_CACHE_PATH", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_HOME", "NUMBA_CACHE_DIR",
            "MPLCONFIGDIR")  # fmt: skip

GIB = 1 << 30


def machine_memory() -> int:
    """Return this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Limits:
    """Limits of a process and everything it started together, unless stated otherwise.

    Args:
        memory: bytes of memory not backed by files, without operands that the verifier shares.
        processes: processes and threads.
        file_size: bytes of each file.
        folder_size: bytes of the files in its folder.
        log: bytes that it may print.
        cpu: seconds of processor time of each process; it only limits waste, because each call has a deadline.
    """

    memory: int = field(default_factory=lambda: machine_memory() * 3 // 4)
    processes: int = 512
    file_size: int = GIB
    folder_size: int = GIB
    log: int = GIB // 4
    cpu: int = 24 * 3600


@dataclass(frozen=True)
class Confinement:
    """The permissions of an untrusted process.

    It can write only below its own folder, and has no network. Inside the boundary it sees only files of the system, of
    Python and of this project, and those in `shown`; and only its own processes.

    Args:
        limits: its resource limits.
        devices: whether it may use this machine's GPUs, if any. Its memory is then counted, but not limited by the
            system, because CUDA reserves more than it uses.
        folder: its own folder, which is kept; None: one that is removed.
        shown: files and folders that it may read.
        copies: path → file or folder that takes its place inside the boundary.
    """

    limits: Limits = field(default_factory=Limits)
    devices: bool = False
    folder: Path | None = None
    shown: tuple[Path, ...] = ()
    copies: Mapping[Path, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Sandbox:
    """A way to confine processes on this machine.

    Args:
        kind: "bubblewrap", "landlock" or "none".
        by: the mechanism, in words.
        missing: what a confined process can do although it should not, in words.
    """

    kind: str
    by: str
    missing: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """All of it in one line, such as "boundary: bubblewrap 0.8.0"."""
        said = f"{_TITLES.get(self.kind, self.kind)}: {self.by}"
        return f"{said}; not confined: may {', '.join(self.missing)}" if self.missing else said


@contextmanager
def sandboxed(mode: str, kernel_memory: float | None = None) -> Iterator[Sandbox]:
    """Set how processes that start inside the block are confined, in any thread.

    Args:
        mode: one of `MODES`.
        kernel_memory: memory limit of a foreign kernel's processes together, in GiB; None: unchanged.

    Raises EnvironmentFault if this machine does not support `mode`, UsageError if it is not a mode.
    """
    global _mode, _kernel_memory
    before, found = (_mode, _kernel_memory), _sandbox(mode)
    _mode, _kernel_memory = mode, _kernel_memory if kernel_memory is None else kernel_memory
    try:
        yield found
    finally:
        _mode, _kernel_memory = before


def of_kernel(shown: tuple[Path, ...] = (), copies: Mapping[Path, Path] | None = None) -> Confinement:
    """Return the confinement of a foreign kernel's process that starts now. Arguments are as for `Confinement`."""
    memory = min(int(_kernel_memory * GIB), machine_memory() * 3 // 4)
    return Confinement(Limits(memory=memory), devices=True, shown=shown, copies=copies or {})


def current() -> Sandbox:
    """Return how processes that start now are confined."""
    return _sandbox(_mode)


def of_fork() -> Sandbox:
    """Return how a fork of this process is confined; bubblewrap cannot start one."""
    return current() if current().kind == "none" else _guard("it is a function of this process")


@cache
def _sandbox(mode: str) -> Sandbox:
    if mode not in MODES:
        raise UsageError(f"unknown sandbox {mode!r}; known sandboxes: {', '.join(MODES)}")
    if mode == "none":
        return Sandbox("none", "none (turned off)", ("do all that you may do",))
    if mode == "landlock":
        if not guard.landlock_abi():
            raise EnvironmentFault("--sandbox landlock: this system has no Landlock")
        return _guard("")
    why = boundary.fault()
    if why is None:
        # Without Landlock, a process can reopen a descriptor's file for writing; before ABI 3, it can truncate it.
        missing = () if guard.landlock_abi() >= 3 else ("change the model's file",)
        return Sandbox("bubblewrap", f"bubblewrap {boundary.version()}", missing)
    if mode == "bubblewrap":
        raise EnvironmentFault(f"--sandbox bubblewrap: {why}")
    return _guard(why)


def forget() -> None:
    """Clear the cache, so that the machine is inspected again."""
    _sandbox.cache_clear()


def _guard(why_no_boundary: str) -> Sandbox:
    """Return the confinement without the boundary."""
    abi, why_no_filter = guard.landlock_abi(), syscalls.filter_fault()
    by = [*([f"Landlock (ABI {abi})"] if abi else []), *([] if why_no_filter else ["seccomp"])]
    missing = ["read your files", "see your processes"]
    if not abi:
        missing.append("write your files")
    if abi < 3:
        missing.append("truncate your files")
    if abi < 6:
        missing.append("signal your processes")
    if why_no_filter:
        missing += ["use the network" if abi < 4 else "use the network, but not by TCP", "change modes of your files"]
    said = " and ".join(by) or "none"
    because = f" (no boundary: {why_no_boundary})" if why_no_boundary else ""
    return Sandbox("landlock" if by else "none", f"{said}{because}", tuple(missing))


# ---- environment and limits of a process -----------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of an untrusted process: those that it may need, with its own folder in place of the
    user's."""
    passed = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_FROM)}
    # libraries that look up the user's name find no user database
    return {"USER": "user", "LOGNAME": "user"} | boundary.spelled_out(passed) | dict.fromkeys(_FOLDERS, str(folder))


def spec_of(confined: Confinement, folder: Path, kind: str) -> dict[str, Any]:
    """Convert `confined` for `keeper`: "confine" and "watch".

    Args:
        kind: that of the `Sandbox`.
    """
    limits, devices = confined.limits, boundary.devices_of(confined.devices)
    of_each = {"file_size": limits.file_size, "cpu": limits.cpu}
    if not devices:
        of_each["memory"] = limits.memory
    guarded = kind == "landlock"
    filtered = guarded and syscalls.filter_fault() is None
    watch: dict[str, Any] = {"memory": limits.memory, "processes": limits.processes, "log": limits.log}
    if kind != "bubblewrap":
        watch |= {"folder": str(folder), "folder_size": limits.folder_size}
    return {
        "confine": {
            "landlock": guarded and guard.landlock_abi() > 0, "reads": True,
            "filter": syscalls.filter_program(bool(devices), boundary=False).hex() if filtered else "",
            "writable": [str(folder), "/dev/null", "/dev/zero", "/dev/full"], "devices": devices, "limits": of_each,
        },
        "watch": watch, "namespace": kind == "bubblewrap",
    }  # fmt: skip
