"""What a kernel's process may do at all. Its own message tells: each call is made with arguments that do nothing, so
that "not permitted" is told from "not valid"."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import stat
from pathlib import Path

from ._attack import Targets, Told, attack, call, tell

_FILTERED = "seccomp: calls that a kernel does not need fail with EPERM"
_REFUSED = {errno.EPERM, errno.ENOSYS, errno.EACCES}

#: Numbers on x86-64, and arguments that no call takes for good.
CALLS: dict[str, tuple[object, ...]] = {
    "io_uring_setup": (425, 0, None), "add_key": (248, None, None, None, 0, 0), "keyctl": (250, 0xFFFF, 0, 0, 0, 0),
    "bpf": (321, 0xFFFF, None, 0), "userfaultfd": (323, 0x7FFFFFFF), "perf_event_open": (298, None, 0, -1, -1, 0),
    "mount": (165, None, None, None, 0, None), "umount2": (166, None, 0xFFFF), "pivot_root": (155, None, None),
    "chroot": (161, None), "setns": (308, -1, 0), "unshare": (272, 0x7FFF), "ptrace": (101, 0x7FFF, 0, 0, 0),
    "process_vm_readv": (310, 0x7FFFFFFF, None, 0, None, 0, 1), "kexec_load": (246, 0, 0xFFFF, None, 0xFFFF),
    "init_module": (175, None, 0, None), "finit_module": (313, -1, None, 0), "open_by_handle_at": (304, -1, None, 0),
    "acct": (163, 1), "swapon": (167, None, 0x7FFFFFFF), "quotactl": (179, 0, None, 0, None),
    "fanotify_init": (300, 0x7FFFFFFF, 0), "move_mount": (429, -1, None, -1, None, 0x7FFFFFFF),
    "fsopen": (430, None, 0x7FFFFFFF), "pidfd_getfd": (438, -1, -1, 0x7FFF),
    "process_madvise": (440, -1, None, 0, 0, 0x7F),
    "syslog": (103, 9999, None, 0), "settimeofday": (164, 1, None), "sethostname": (170, None, 1 << 20),
    "ioperm": (173, 1 << 40, 1, 1), "iopl": (172, 99),
}  # fmt: skip

_FAMILIES = {"netlink": (16, 3, 0), "packet": (17, 3, 0), "vsock": (40, 1, 0), "alg": (38, 5, 0), "inet": (2, 1, 0),
             "raw": (2, 3, 1), "bluetooth": (31, 3, 1)}  # fmt: skip


@attack(_FILTERED, r"told: .*mount", alone=True)
def calls_the_kernel(t: Targets) -> None:
    """It tries the calls of the operating system that sandboxes were broken by."""
    worked = []
    for name, (number, *arguments) in CALLS.items():
        try:
            call(number, *(0 if a is None else a for a in arguments))  # type: ignore[arg-type]
            worked.append(name)
        except OSError as error:
            if error.errno not in _REFUSED:
                worked.append(name)
    for name, (family, kind, protocol) in _FAMILIES.items():
        with contextlib.suppress(OSError):
            socket.socket(family, kind, protocol).close()
            worked.append(f"socket {name}")
    raise Told(tell("calls", worked))


@attack("a launcher that passes three descriptors and the link", r"told: descriptors (?!none)", alone=True)
def lists_descriptors(t: Targets) -> None:
    """It lists the descriptors that it inherited."""
    found, sockets = [], 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            where = os.readlink(f"/proc/self/fd/{fd}")
            mode = os.fstat(int(fd)).st_mode
            # the link is a socket, what it shares with the judge is memory
            if int(fd) > 2 and not where.startswith(("/proc/", "/memfd:", "socket:")):
                found.append(f"{fd} {where} {stat.filemode(mode)}")
            sockets += stat.S_ISSOCK(mode)
    if sockets > 1:
        found.append(f"{sockets} sockets")
    raise Told(tell("descriptors", found))


@attack("an allow-list of variables for processes that are not ours", r"told: variables (?!none)", alone=True)
def lists_variables(t: Targets) -> None:
    """It looks for secrets among the variables of its own process and of the verifier."""
    found = set(os.environ)
    for pid in t.ancestors():
        with contextlib.suppress(OSError):
            held = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found |= {f"verifier's {v.partition(b'=')[0].decode()}" for v in held if v}
    secret = sorted(name for name in found if name.endswith(("TOKEN", "SECRET", "KEY", "PASSWORD", "_SOCK")))
    raise Told(tell("variables", secret))


@attack("hard limits, which only root can raise, and no capabilities", r"told: limits (?!none)", alone=True)
def raises_its_limits(t: Targets) -> None:
    """It takes back the limits that it was given, and uses the rights of root."""
    worked = []
    for name in (
        "RLIMIT_AS",
        "RLIMIT_DATA",
        "RLIMIT_NPROC",
        "RLIMIT_FSIZE",
        "RLIMIT_CPU",
        "RLIMIT_CORE",
        "RLIMIT_NOFILE",
    ):
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        if hard == resource.RLIM_INFINITY:
            continue
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(number, (hard, hard + 1))
            worked.append(f"{name} raised")
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    if int(status["CapEff"], 16) & ~4:  # root may go on reading its files (CAP_DAC_READ_SEARCH)
        worked.append(f"raised: capabilities {status['CapEff']}")
    if status.get("NoNewPrivs") != "1":
        worked.append("new privileges")
    raise Told(tell("limits", worked))


_DEVICES = (
    "/dev/mem", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/tty", "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern", "/sys/fs/cgroup/cgroup.procs",
)  # fmt: skip


@attack("a read-only view of the file system", r"told: devices (?!none)", alone=True)
def opens_devices(t: Targets) -> None:
    """It opens what the operating system's kernel shows as files, to write."""
    worked = []
    for path in _DEVICES:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))  # opened, and nothing is written
            worked.append(path)
    raise Told(tell("devices", worked))


@attack("the layers of each", r"told: (?!nothing)", alone=True)
def tells_what_it_may(t: Targets) -> None:
    """It tells which of these gave it something."""
    worked = []
    for tries in (lists_descriptors, lists_variables, raises_its_limits, calls_the_kernel):
        try:
            tries(t)
        except Told as told:
            if not str(told).endswith("none"):
                worked.append(str(told).removeprefix("told: ")[:70])
    raise Told("told: nothing" if not worked else tell("of", worked))
