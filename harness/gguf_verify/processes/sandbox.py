"""How processes that are not trusted are confined here, and what that does not cover.

The *boundary* is bubblewrap with an empty root and a list of allowed system calls. Where it cannot be had, Landlock
*guards against accidents*: it keeps a process from writing, but hides little. In every mode, `keeper` ends what such a
process started, and counts what it uses.
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

#: What `--sandbox` takes: the boundary, or the guard where there is none; one of them, or an error; neither.
MODES = ("auto", "bubblewrap", "landlock", "none")
#: What each kind is called in a report.
_TITLES = {"bubblewrap": "boundary", "landlock": "accident guard", "none": "boundary"}
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

    It writes below its own folder alone, and has no network. Inside the boundary it sees no file but those of the
    system, of Python and of this project, and what it is `shown`; and no process but its own.

    Args:
        limits: of what it uses.
        devices: whether it may use this machine's GPUs, where it has any. Its memory is then counted, but not limited
            by the system, since CUDA reserves more than it uses.
        folder: its own, which is kept after its end; None: one that is removed.
        shown: files and folders that it may read.
        copies: path → the file or folder that lies there inside the boundary.
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
        by: what does it, in words.
        missing: what a confined process can still do that it should not, each in words.
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


def of_kernel(shown: tuple[Path, ...] = (), copies: Mapping[Path, Path] | None = None) -> Confinement:
    """What a process of a foreign kernel may do that starts now. The arguments are as of `Confinement`."""
    memory = min(int(_kernel_memory * GIB), machine_memory() * 3 // 4)
    return Confinement(Limits(memory=memory), devices=True, shown=shown, copies=copies or {})


def current() -> Sandbox:
    """How processes that start now are confined."""
    return _sandbox(_mode)


def of_fork() -> Sandbox:
    """How a fork of this process is confined, which bubblewrap cannot start."""
    return current() if current().kind == "none" else _guard("it is a function of this process")


@cache
def _sandbox(mode: str) -> Sandbox:
    if mode not in MODES:
        raise UsageError(f"no sandbox is called {mode!r}; there are: {', '.join(MODES)}")
    if mode == "none":
        return Sandbox("none", "none (turned off)", ("do all that you may do",))
    if mode == "landlock":
        if not guard.landlock_abi():
            raise EnvironmentFault("--sandbox landlock: this system has no Landlock")
        return _guard("")
    why = boundary.fault()
    if why is None:
        # without Landlock, a process can open a descriptor's file again for writing; before ABI 3, truncate it
        missing = () if guard.landlock_abi() >= 3 else ("change the model's file",)
        return Sandbox("bubblewrap", f"bubblewrap {boundary.version()}", missing)
    if mode == "bubblewrap":
        raise EnvironmentFault(f"--sandbox bubblewrap: {why}")
    return _guard(why)


def forget() -> None:
    """Look again what this machine has."""
    _sandbox.cache_clear()


def _guard(why_no_boundary: str) -> Sandbox:
    """What there is without the boundary."""
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


# ---- what a process is given -----------------------------------------------------------------------------------------


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that is not trusted: those that it may need, and its own folder in place of yours."""
    passed = {k: v for k, v in os.environ.items() if k in _PASSED or k.startswith(_PASSED_FROM)}
    # libraries that look up the user's name find no list of users
    return {"USER": "user", "LOGNAME": "user"} | boundary.spelled_out(passed) | dict.fromkeys(_FOLDERS, str(folder))


def spec_of(confined: Confinement, folder: Path, kind: str) -> dict[str, Any]:
    """`confined` as `keeper` takes it: "confine" and "watch".

    Args:
        kind: of `Sandbox`.
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
