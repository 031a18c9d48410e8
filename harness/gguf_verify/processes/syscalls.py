"""System calls that a confined process may make: an allow-list, from which libseccomp makes a filter.

Other calls fail with EPERM, so that a program sees a missing permission. The list is grouped by purpose. Calls that
reach into other processes, the network, the system's settings or the kernel's rarer parts are not in it; there is no
deny-list.

Source: syscalls(2) of Linux; seccomp_rule_add(3) of libseccomp. The list suffices for NumPy, PyTorch, Triton, CuPy,
llama.cpp, compilers, and, with `devices`, for CUDA's driver.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache

_FILES = """
    read readv pread64 preadv preadv2 write writev pwrite64 pwritev pwritev2 open openat openat2 creat close close_range
    stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 lseek dup dup2 dup3 pipe pipe2
    flock ioctl getdents getdents64 getcwd chdir fchdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2
    link linkat symlink symlinkat readlink readlinkat truncate ftruncate fallocate fsync fdatasync sync_file_range
    fadvise64 readahead sendfile copy_file_range splice tee umask getxattr lgetxattr fgetxattr listxattr llistxattr
    flistxattr
"""
#: Calls that change metadata of files that can only be read, if the view of the files allows it. Landlock ignores them.
_OF_METADATA = "chmod fchmod fchmodat fchmodat2 utime utimes utimensat futimesat chown fchown lchown fchownat"
_EVENTS = """
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd eventfd2
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch timerfd_create timerfd_settime timerfd_gettime
    signalfd signalfd4
"""
_MEMORY = """
    mmap munmap mremap mprotect madvise brk mincore msync mlock mlock2 munlock membarrier get_mempolicy set_mempolicy
    mbind pkey_alloc pkey_free pkey_mprotect
"""
_PROCESSES = """
    fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp setpgid getsid setsid
    set_tid_address set_robust_list get_robust_list futex futex_wait futex_wake futex_waitv futex_requeue rseq
    sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_getscheduler sched_setscheduler sched_getattr
    sched_get_priority_max sched_get_priority_min getpriority setpriority prctl arch_prctl kill tgkill rt_sigaction
    rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend rt_sigqueueinfo sigaltstack pause
    restart_syscall getrlimit setrlimit getrusage times uname sysinfo getcpu capget getrandom getuid geteuid
    getgid getegid getgroups getresuid getresgid setuid setgid setreuid setregid setresuid setresgid
"""
#: Calls by which a process gives up rights.
_RESTRICTING = "landlock_create_ruleset landlock_add_rule landlock_restrict_self seccomp capset"
_TIME = """
    clock_gettime clock_getres clock_nanosleep gettimeofday time nanosleep alarm getitimer setitimer timer_create
    timer_settime timer_gettime timer_delete timer_getoverrun
"""
#: Calls on socket pairs and on inherited sockets; none of them creates a socket with an address.
_SOCKETS = """
    sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg shutdown getsockopt setsockopt getsockname getpeername
"""
#: Calls of CUDA's driver to communicate among its own processes; it cannot connect to anything outside.
_OF_CUDA = "bind listen accept accept4 memfd_create mknod mknodat"

#: fcntl(2) commands: descriptors, flags, record locks, queries of owners, pipe sizes, seals. Leases and owners that get
#: signals would affect other users of the same files.
_COMMANDS = (*range(8), 9, 11, 16, 36, 37, 38, *range(1030, 1035))

#: Types of socket pairs whose ends can send only to each other, and the bit mask of the type.
_CONNECTED, _KINDS = (1, 5), 0xF
_AF_UNIX = 1
#: Flags of clone(2) that make namespaces. clone3 has its flags in memory, where no filter sees them; glibc falls back
#: to clone.
_NAMESPACES = 0x7E020080
_EPERM, _EACCES, _ENOSYS = 1, 13, 38


@cache
def filter_fault() -> str | None:
    """Return why no filter can be made here, or None."""
    if not os.path.exists("/proc/sys/kernel/seccomp"):
        return "this system has no seccomp"
    try:
        import pyseccomp
    except (ImportError, OSError, RuntimeError):
        return "libseccomp is not installed"
    return None if pyseccomp.get_api() >= 1 else "libseccomp is too old"


@cache
def filter_program(devices: bool, boundary: bool = True) -> bytes:
    """Make the filter, an array of `struct sock_filter`.

    Args:
        devices: whether CUDA is used.
        boundary: whether the process sees only files that it may change or that are bound read-only.

    Raises OSError if libseccomp fails.
    """
    import pyseccomp as seccomp

    made = seccomp.SyscallFilter(seccomp.ERRNO(_EPERM))
    lists = (_FILES, _EVENTS, _MEMORY, _PROCESSES, _TIME, _SOCKETS, _RESTRICTING, *([_OF_CUDA] if devices else []),
             *([_OF_METADATA] if boundary else []))  # fmt: skip
    for name in " ".join(lists).split():
        if seccomp.resolve_syscall(seccomp.Arch.NATIVE, name) not in _NO_CALL:
            made.add_rule(seccomp.ALLOW, name)
    for number in _COMMANDS:
        made.add_rule(seccomp.ALLOW, "fcntl", seccomp.Arg(1, seccomp.EQ, number))
    for kind in _CONNECTED:
        made.add_rule(seccomp.ALLOW, "socketpair", seccomp.Arg(1, seccomp.MASKED_EQ, _KINDS, kind))
    made.add_rule(
        seccomp.ALLOW, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0)
    )  # only its own limits, not another process's
    made.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, _NAMESPACES, 0))
    made.add_rule(seccomp.ERRNO(_ENOSYS), "clone3")
    if devices:
        made.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, _AF_UNIX))
    else:
        made.add_rule(seccomp.ERRNO(_EACCES), "socket")
        made.add_rule(seccomp.ERRNO(_ENOSYS), "memfd_create")  # its memory escapes all limits
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return file.read()


#: libseccomp's results for an unknown name.
_NO_CALL = (-1,)
