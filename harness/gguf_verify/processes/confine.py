"""What a process may do from now on: Landlock, seccomp and limits of resources. Only the standard library is used.

`apply` confines the calling process and all that it starts, for good. It is called between fork and exec, by `keeper`
or in a fork. Where bubblewrap runs the process, it makes the view of the file system itself, and takes the same
`filter_program`.

Sources: landlock(7), seccomp(2), linux/landlock.h, linux/filter.h and the table of system calls of Linux on x86-64.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# ---- Landlock ------------------------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_READS = _EXECUTE | _READ_FILE | _READ_DIR
#: Rights of a file; the others are of folders.
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
#: ABI → how many rights over files it knows.
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_SCOPES = 0b11  # abstract sockets and signals
_NETWORK = 0b11  # bind and connect of TCP

# ---- seccomp -------------------------------------------------------------------------------------------------------

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _EACCES, _ENOSYS = 1, 13, 38
_X86_64 = 0xC000003E
_X32 = 0x40000000
#: Of x86-64. What reaches into other processes, the system or the kernel's rarer parts.
_DENIED = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "pidfd_getfd": 438,
    "pidfd_open": 434, "pidfd_send_signal": 424, "process_madvise": 440, "process_mrelease": 448, "tkill": 200,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "mount_setattr": 442,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "keyctl": 250, "add_key": 248, "request_key": 249, "init_module": 175,
    "finit_module": 313, "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "swapon": 167,
    "swapoff": 168, "quotactl": 179, "acct": 163, "syslog": 103, "settimeofday": 164, "clock_settime": 227,
    "adjtimex": 159, "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "memfd_secret": 447, "shmget": 29,
    "msgget": 68, "semget": 64, "mq_open": 240, "vhangup": 153, "connect": 42, "migrate_pages": 256, "move_pages": 279,
}  # fmt: skip
#: What changes files that cannot be opened for writing, which Landlock lets pass: modes, owners, times, attributes.
_OF_METADATA = {
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452, "chown": 92, "fchown": 93, "lchown": 94,
    "fchownat": 260, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463, "removexattr": 197,
    "lremovexattr": 198, "fremovexattr": 199, "removexattrat": 466, "utime": 132, "utimes": 235, "futimesat": 261,
    "utimensat": 280, "file_setattr": 469,
}  # fmt: skip
_FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR = 0x40086602, 0x401C5820
#: glibc makes do without: it then calls clone, whose flags can be looked at.
_CLONE3, _CLONE = 435, 56
_NAMESPACES = 0x7E020080
_SOCKET, _AF_UNIX = 41, 1
_IOCTL, _TIOCSTI, _TIOCLINUX = 16, 0x5412, 0x541C
_MEMFD_CREATE = 319
#: System calls whose first argument is a process that they act on, or a group of processes by its negative number.
_ON_PROCESS = {
    "kill": 62, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "sched_setaffinity": 203,
    "setpgid": 109,
}  # fmt: skip
#: Which argument must be 0, this process, because Landlock lets any process of the same user be changed so.
_OWN_ALONE = (
    (302, 16), (144, 16), (142, 16), (314, 16),  # prlimit64, sched_setscheduler, sched_setparam, sched_setattr
    (141, 16), (141, 24), (251, 24),  # setpriority of a process, not of a user; ioprio_set
)  # fmt: skip

_CAP_DAC_READ_SEARCH = 2
#: Settings of the system, which root may write without any capability.
SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 38, 22, 24, 47


def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 if it has none."""
    if platform.system() != "Linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))))


def has_seccomp() -> bool:
    """Whether `filter_program` can be applied: its numbers of system calls are those of Linux on x86-64."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    return os.path.exists("/proc/sys/kernel/seccomp")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _called(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def filter_program(protected: Sequence[int] = (), devices: bool = False, metadata: bool = True) -> bytes:
    """A seccomp filter for x86-64, as an array of `struct sock_filter`.

    Args:
        protected: processes that must not be signalled or changed, by numbers that mean the same to the confined
            process; -1 and their groups with them.
        devices: whether CUDA is used, which opens sockets of its own (and cannot connect them).
        metadata: whether it may change modes, owners, times and attributes of files, as far as its view of them lets
            it.
    """
    out: list[tuple[int, int, int, int]] = []

    def load(at: int) -> None:
        out.append((0x20, 0, 0, at))

    def answer(value: int) -> None:
        out.append((0x06, 0, 0, value & 0xFFFFFFFF))

    def when_equal(value: int, answers: int) -> None:
        out.append((0x15, 0, 1, value & 0xFFFFFFFF))
        answer(answers)

    def of_call(number: int, *rest: tuple[int, int, int, int]) -> None:
        """Instructions for one system call; they load what they look at, and the number is loaded again after them."""
        load(0)
        out.append((0x15, 0, len(rest), number))
        out.extend(rest)

    deny, no_such = _ERRNO | _EPERM, _ERRNO | _ENOSYS
    load(4)
    out.append((0x15, 1, 0, _X86_64))
    answer(_KILL)
    load(0)
    out.append((0x35, 0, 1, _X32))
    answer(deny)
    for number in (*_DENIED.values(), *(() if metadata else _OF_METADATA.values())):
        when_equal(number, deny)
    when_equal(_CLONE3, no_such)
    if not devices:
        when_equal(_MEMFD_CREATE, no_such)  # memory that no limit counts
        when_equal(_SOCKET, _ERRNO | _EACCES)
    else:
        of_call(_SOCKET, (0x20, 0, 0, 16), (0x15, 1, 0, _AF_UNIX), (0x06, 0, 0, _ERRNO | _EACCES))
    of_call(_CLONE, (0x20, 0, 0, 16), (0x45, 0, 1, _NAMESPACES), (0x06, 0, 0, deny))
    for request in (_TIOCSTI, _TIOCLINUX, _FS_IOC_SETFLAGS, _FS_IOC_FSSETXATTR):
        of_call(_IOCTL, (0x20, 0, 0, 24), (0x15, 0, 1, request), (0x06, 0, 0, deny))
    if protected:
        values = sorted({sign * pid & 0xFFFFFFFF for pid in protected for sign in (1, -1)} | {0xFFFFFFFF})
        for number in _ON_PROCESS.values():
            tests = [i for value in values for i in ((0x15, 0, 1, value), (0x06, 0, 0, deny))]
            of_call(number, (0x20, 0, 0, 16), *tests)
        for number, at in _OWN_ALONE:
            of_call(number, (0x20, 0, 0, at), (0x15, 1, 0, 0), (0x06, 0, 0, deny))
    answer(_ALLOW)
    return b"".join(struct.pack("HBBI", *instruction) for instruction in out)


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def _filter(program: bytes) -> None:
    held = ctypes.create_string_buffer(program, len(program))
    given = _Filter(len(program) // 8, ctypes.addressof(held))
    _called("seccomp", _libc().prctl(_PR_SET_SECCOMP, 2, ctypes.byref(given)))


def _without_privileges() -> None:
    """No program that is run may gain rights, and of root's capabilities only that to read files is left."""
    libc = _libc()
    for number in range(64):
        if number != _CAP_DAC_READ_SEARCH:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, 4, 0, 0, 0)
    left = 1 << _CAP_DAC_READ_SEARCH if os.geteuid() == 0 else 0
    header = struct.pack("Ii", 0x20080522, 0)
    libc.syscall(126, header, struct.pack("6I", left, left, 0, 0, 0, 0))
    _called("no_new_privs", libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _protect_settings() -> None:
    """In this process's view of the file system, root can no longer write the system's settings below /proc. Where that
    cannot be done, `_landlock` sees it."""
    libc, bind, read_only, remount = _libc(), 4096, 1, 32
    private = 1 << 18 | 16384
    if libc.unshare(0x20000) or libc.mount(None, b"/", None, private, None):
        return
    for path in map(os.fsencode, SETTINGS):
        if libc.mount(path, path, None, bind, None) == 0:
            libc.mount(None, path, None, remount | bind | read_only, None)


def _landlock(
    writable: Iterable[str], devices: Iterable[str], hidden: Sequence[str] | None, shown: Iterable[str]
) -> None:  # fmt: skip
    """Only `writable` can be written, and what is `hidden` can be neither read nor listed, but for what is `shown`.
    Where that is None, reading is not limited at all: descriptors of files outside its view can be opened again."""
    abi, libc = landlock_abi(), _libc()
    rights = (1 << _RIGHTS[min(abi, 5)]) - 1
    if hidden is None:
        rights &= ~_READS
    attributes = struct.pack("QQQ", rights, _NETWORK if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = _called("landlock", libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0))

    def allow(path: str, allowed: int) -> None:
        with contextlib.suppress(OSError):
            # a link beside what is hidden may lead to a folder that holds it; where it leads is allowed by itself
            handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                kind = os.fstat(handle).st_mode
                if not stat.S_ISDIR(kind):
                    allowed &= _OF_FILES
                rule = struct.pack("=Qi", allowed & rights, handle)
                _called("landlock", libc.syscall(_ADD_RULE, rules, 1, rule, 0))
            finally:
                os.close(handle)

    for path in () if hidden is None else (*_all_but(hidden), *map(os.path.realpath, shown)):
        allow(path, _READS)
    for path in map(os.path.realpath, writable):
        allow(path, rights & ~_IOCTL_DEVICE)
    used = [os.path.realpath(path) for path in devices]
    for path in used:
        allow(path, _READ_FILE | _WRITE_FILE | _IOCTL_DEVICE | _READ_DIR)
    if used:  # CUDA names its threads there, and does not start without
        safe = not any(os.access(path, os.W_OK) for path in SETTINGS)
        allow("/proc" if safe else os.path.realpath("/proc/self"), _READS | _WRITE_FILE | _TRUNCATE)
    _called("landlock", libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _all_but(hidden: Sequence[str]) -> list[str]:
    """The least set of paths that hold everything but what is hidden, and nothing of that. Names that are made later
    beside what is hidden are not in it."""
    left, out = ["/"], []
    away = [os.path.realpath(path) for path in hidden]
    while left:
        folder = left.pop()
        if folder in away:
            continue
        if not any(path.startswith(folder.rstrip("/") + "/") for path in away):
            out.append(folder)
            continue
        with contextlib.suppress(OSError):
            left += [os.path.join(folder, name) for name in os.listdir(folder)]
    return out


def limit(limits: Mapping[str, int]) -> None:
    """Set limits of this process, which it cannot raise again: "memory" (bytes of private memory that can be written),
    "file_size" (bytes) and "cpu" (seconds). Each process that it starts has them, too."""
    names = {"memory": resource.RLIMIT_DATA, "file_size": resource.RLIMIT_FSIZE, "cpu": resource.RLIMIT_CPU}
    for name, which in names.items():
        if name in limits:
            _, most = resource.getrlimit(which)
            value = limits[name] if most == resource.RLIM_INFINITY else min(limits[name], most)
            resource.setrlimit(which, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def apply(spec: Mapping[str, Any]) -> None:
    """Confine this process. Raises OSError where that fails, and it must then not run what is not trusted.

    Args:
        spec: "writable", "devices", "hidden" (see `_landlock`) and "shown" paths, "protected" processes and "limits",
            as `Confinement` has them; "landlock" and "seccomp" say whether they are applied.
    """
    limit(spec["limits"])
    if not spec["landlock"] and not spec["seccomp"]:
        return
    if spec["devices"] and os.geteuid() == 0:
        _protect_settings()
    _without_privileges()
    if spec["landlock"]:
        _landlock(spec["writable"], spec["devices"], spec["hidden"], spec["shown"])
    if spec["seccomp"]:
        protected = (*spec["protected"], os.getppid())  # the last is what keeps this process
        _filter(filter_program(protected, bool(spec["devices"]), metadata=False))
