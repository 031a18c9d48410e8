"""Runs a command, and tells what became of it and of every process that it started.

`python -I -S warden.py SAID ASKED`: ASKED is a JSON file: "command", "environment", "folder", "stdout" and "stderr"
(files), "pid" (a file that gets the command's number before it runs), the limits "seconds", "processes" and "memory"
(bytes), and "grace", the seconds that processes which were killed at the end of the run may take to go. SAID gets the
answer, the fields of `tests.support.hostile.Watched`.

The command leads a session with a terminal of its own. Its orphans become children of this process
(PR_SET_CHILD_SUBREAPER), so none is missed, however it hides. What is left in the end is counted, then killed, and so
is everything if a limit is exceeded or if the other end of standard input is closed. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import sys
import termios
import time
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
#: Seconds between two looks at the processes.
_LOOK = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read(path: str) -> bytes:
    """What a file holds; nothing where it cannot be read."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def processes() -> dict[int, tuple[int, str]]:
    """Every process → its parent and its state."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if fields:
                found[int(name)] = int(fields[1]), fields[0].decode()
    return found


def descendants() -> dict[int, str]:
    """The processes below this one → their states, those that have ended and were not waited for left out."""
    everything = processes()
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in everything.items():
        children.setdefault(parent, []).append(pid)
    found, left = {}, [os.getpid()]
    while left:
        for pid in children.get(left.pop(), []):
            left.append(pid)
            if everything[pid][1] not in "ZX":
                found[pid] = everything[pid][1]
    return found


def memory(pids: dict[int, str]) -> int:
    """Bytes of memory that processes hold and share with no file; pages that a fork shares count each time."""
    total = 0
    for pid in pids:
        fields = read(f"/proc/{pid}/statm").split()
        total += (int(fields[1]) - int(fields[2])) * _PAGE if fields else 0
    return total


def exact_memory(pids: dict[int, str]) -> int:
    """The same, each page once."""
    total = 0
    for pid in pids:
        lines = dict(line.split(b":", 1) for line in read(f"/proc/{pid}/smaps_rollup").splitlines() if b":" in line)
        total += int(lines.get(b"Pss_Anon", b"0 kB").split()[0]) << 10
    return total


def unnamed(pids: dict[int, str]) -> tuple[int, int]:
    """Bytes of files that processes hold open and that have no name: on disk (logs), and in memory."""
    disk: dict[tuple[int, int], int] = {}
    held: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    path = f"/proc/{pid}/fd/{fd}"
                    target = os.readlink(path)
                    if target.endswith(" (deleted)") and not target.startswith("/dev/"):
                        found = os.stat(path)
                        kind = held if target.startswith("/memfd:") else disk
                        kind[found.st_dev, found.st_ino] = 512 * found.st_blocks
    return sum(disk.values()), sum(held.values())


def kill_all() -> None:
    """Kill whatever is below this process, also what is being started meanwhile."""
    end = time.monotonic() + 20.0
    while reap() and time.monotonic() < end:
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def reap() -> bool:
    """Wait for every child that has ended; whether there are others. Only this is sure: a chain of processes, each of
    which starts the next one and ends, can pass by whoever reads /proc, but each link becomes a child of this one."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def start(asked: dict[str, Any], terminal: int) -> int:
    """Start the command; returns its process."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        os.close(terminal)
        for number, path in ((1, asked["stdout"]), (2, asked["stderr"])):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, number)
            os.close(handle)
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, 0)
        os.chdir(asked["folder"])
        with open(asked["pid"], "w") as f:
            f.write(str(os.getpid()))
        os.closerange(3, 256)
        os.execve(asked["command"][0], asked["command"], asked["environment"])
    except BaseException as error:
        os.write(2, f"warden: {error!r}\n".encode())
    os._exit(127)


class Watch:
    """What is seen of a run."""

    def __init__(self, asked: dict[str, Any], terminal: int) -> None:
        self._asked, self._terminal = asked, terminal
        self._end = time.monotonic() + asked["seconds"]
        self.said: dict[str, Any] = {
            "exit_code": None, "over": "", "stopped": [], "left": [], "terminal": "", "most_processes": 0,
            "most_memory": 0, "most_unnamed": 0,
        }  # fmt: skip

    def over(self) -> str:
        """Which limit is exceeded."""
        said, asked = self.said, self._asked
        if time.monotonic() > self._end:
            return f"it ran for more than {asked['seconds']} s"
        if said["most_processes"] > asked["processes"]:
            return f"it had more than {asked['processes']} processes"
        if said["most_memory"] > asked["memory"]:
            return f"it held more than {asked['memory']:,} bytes of memory"
        if said["most_unnamed"] > asked["memory"]:
            return f"it held more than {asked['memory']:,} bytes of files without a name"
        return ""

    def look(self) -> dict[int, str]:
        """Count, and let what was stopped go on; returns the processes."""
        found, said = descendants(), self.said
        for pid, state in found.items():
            if state in "Tt":
                command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]
                told = f"{pid}: {command}"
                if told not in said["stopped"]:
                    said["stopped"].append(told)
        said["most_processes"] = max(said["most_processes"], len(found))
        disk, in_memory = unnamed(found)
        held = memory(found) + in_memory
        if held > self._asked["memory"]:
            held = exact_memory(found) + in_memory
        said["most_memory"] = max(said["most_memory"], held)
        said["most_unnamed"] = max(said["most_unnamed"], disk)
        with contextlib.suppress(OSError):
            while said_there := os.read(self._terminal, 4096):
                said["terminal"] = (said["terminal"] + said_there.decode(errors="replace"))[:10000]
        return found


def main() -> None:
    said_file, asked_file = sys.argv[1:3]
    asked = json.loads(read(asked_file))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    terminal, theirs = os.openpty()
    os.set_blocking(terminal, False)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of the terminal
    pid = start(asked, theirs)
    watch, status = Watch(asked, terminal), None
    while status is None:
        done, how = os.waitpid(pid, os.WNOHANG)
        if done:
            status = how
            break
        if select.select([0], [], [], _LOOK)[0] and not os.read(0, 1):
            break  # nobody waits for the answer
        for seen, state in watch.look().items():
            if seen == pid and state == "T":
                os.kill(pid, signal.SIGCONT)
        watch.said["over"] = watch.over()
        if watch.said["over"]:
            break
    if status is not None:
        watch.said["exit_code"] = os.waitstatus_to_exitcode(status)
        end = time.monotonic() + asked["grace"]
        while (there := reap()) and time.monotonic() < end:
            watch.look()
            time.sleep(0.005)
        if there:
            for left in descendants() or [0]:
                command = read(f"/proc/{left}/cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]
                watch.said["left"].append(f"{left}: {command}")
    kill_all()
    with open(said_file, "w") as f:
        json.dump(watch.said, f)


if __name__ == "__main__":
    main()
