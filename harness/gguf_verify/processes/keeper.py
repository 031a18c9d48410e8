"""Runs one command and leaves no process of it behind: `python -I -S keeper.py LIFELINE COMMAND …`.

A byte on the pipe LIFELINE asks the command to end, by SIGTERM. When the command is done, or the other end of LIFELINE
is closed (the nightly's death closes it too), the command and whatever it started are killed. That includes descendants
in sessions of their own: as orphans they become this process's children (PR_SET_CHILD_SUBREAPER). The exit status is
the command's. If a signal ended the command, the same signal ends this process. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Killed descendants must be gone within so many seconds.
_PATIENCE = 10.0


def _children() -> list[int]:
    """The processes whose parent is this one."""
    out = []
    me = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                # state, parent, … follow the last ")", since a process may have any name
                fields = f.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == me:
            out.append(int(name))
    return out


def _kill_all(group: int | None) -> None:
    """Kill the group, then every orphan that becomes our child, until there is none."""
    if group is not None:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in _children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _start(command: list[str]) -> int:
    """Start the command in a session of its own. If this process is killed, the command is killed too."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def main() -> None:
    """Run the command line; does not return."""
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(lifeline, False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the nightly answers these
        signal.signal(each, signal.SIG_IGN)
    ended, note = os.pipe()
    os.set_blocking(note, False)
    signal.set_wakeup_fd(note)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pid = _start(command)
    status = None
    while status is None:
        done, how = os.waitpid(pid, os.WNOHANG)
        if done:
            status = how
            break
        ready, _, _ = select.select([lifeline, ended], [], [])
        if lifeline in ready:
            if not os.read(lifeline, 1):
                break
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        if ended in ready:
            os.read(ended, 4096)
        # orphans that ended meanwhile stay as they are until the command is over
    if status is None:
        for kill in (os.killpg, os.kill):  # it may not have made its group yet
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    _kill_all(pid)
    if os.WIFSIGNALED(status):
        number = signal.Signals(os.WTERMSIG(status))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
