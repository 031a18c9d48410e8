"""The accident guard: Landlock, an allow-list of system calls, and resource limits. Uses only the standard library.

It keeps a program from writing files, using the network and exhausting resources by mistake or by habit. It does not
hide the user's files and processes, so it is no boundary against a malicious program; `boundary` is, and its resource
limits are set here too.

`apply` restricts the calling process and everything it starts, permanently. It is called between fork and exec, by
`keeper` or in a fork.

Sources: landlock(7), linux/landlock.h, prctl(2), seccomp(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import stat
import struct
import sys

TYPE_CHECKING = False  # as in `typing`, whose import takes longer
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_READS = _EXECUTE | _READ_FILE | _READ_DIR
#: Rights that apply to files; the others apply to folders.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
#: ABI → number of file system rights it knows.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SCOPES = 0b11  # abstract sockets and signals
_NETWORK = 0b11  # bind and connect of TCP
#: Readable paths of /dev, which also contains terminals.
_SOURCES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/fd")

_CAP_DAC_READ_SEARCH = 2
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 38, 22, 24, 47


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI version; 0 if it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _called(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def _filter(program: bytes) -> None:
    """Install a filter program made by `syscalls`."""
    held = ctypes.create_string_buffer(program, len(program))
    given = _Filter(len(program) // 8, ctypes.addressof(held))
    _called("seccomp", _libc().prctl(_PR_SET_SECCOMP, 2, ctypes.byref(given)))


def _landlock(writable: Iterable[str], devices: Iterable[str], reads: bool) -> None:
    """Allow writing only to `writable`; with `reads`, allow reading in /dev only `_SOURCES`."""
    abi, libc = landlock_abi(), _libc()
    rights = (1 << _RIGHTS[min(abi, 5)]) - 1
    if not reads:
        rights &= ~_READS
    attributes = struct.pack("QQQ", rights, _NETWORK if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _called("landlock", libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))

    def allow(path: str, allowed: int) -> None:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                if not stat.S_ISDIR(os.fstat(handle).st_mode):
                    allowed &= _OF_FILES
                if not allowed & rights:
                    return
                rule = struct.pack("=Qi", allowed & rights, handle)
                _called("landlock", libc.syscall(_ADD_RULE, rules, 1, rule, 0))
            finally:
                os.close(handle)

    if reads:
        allow("/", _READ_DIR)
        for name in os.listdir("/"):
            if name != "dev":
                allow(f"/{name}", _READS)
        for path in _SOURCES:
            allow(path, _READS)
    for path in writable:
        allow(path, rights & ~_IOCTL_DEVICE)
    used = list(devices)
    for path in used:
        allow(path, _READ_FILE | _WRITE_FILE | _IOCTL_DEVICE | _READ_DIR)
    if used:  # CUDA writes the names of its threads there, or fails to start
        allow(f"/proc/{os.getpid()}", _READS | _WRITE_FILE | _TRUNCATE)
    _called("landlock", libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def limit(limits: Mapping[str, int]) -> None:
    """Set limits that this process cannot raise again: "memory" (bytes of private writable memory), "file_size" (bytes)
    and "cpu" (seconds). Child processes inherit them, each with its own count."""
    names = {"memory": resource.RLIMIT_DATA, "file_size": resource.RLIMIT_FSIZE, "cpu": resource.RLIMIT_CPU}
    for name, which in names.items():
        if name in limits:
            _, most = resource.getrlimit(which)
            value = limits[name] if most == resource.RLIM_INFINITY else min(limits[name], most)
            resource.setrlimit(which, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def apply(spec: Mapping[str, Any]) -> None:
    """Restrict this process. Raises OSError on failure; the process must then not run untrusted code.

    Args:
        spec: "limits" as for `limit`; "landlock": whether to apply it, with "writable" and "devices" paths, and
            "reads": whether to restrict reading too; "filter": the program of `syscalls` in hexadecimal, or "".
    """
    limit(spec["limits"])
    if not spec["landlock"] and not spec["filter"]:
        return
    # Forbid gaining privileges by running programs, and drop root's capabilities, except that to read files.
    libc = _libc()
    for number in range(64):
        if number != _CAP_DAC_READ_SEARCH:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    left = 1 << _CAP_DAC_READ_SEARCH if os.geteuid() == 0 else 0
    header = struct.pack("Ii", 0x20080522, 0)
    _called("capset", libc.capset(header, struct.pack("6I", left, left, 0, 0, 0, 0)))
    _called("no_new_privs", libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    if spec["landlock"]:
        _landlock(spec["writable"], spec["devices"], spec["reads"])
    if spec["filter"]:
        _filter(bytes.fromhex(spec["filter"]))
