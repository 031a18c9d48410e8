"""Runs one command and leaves none of its processes behind: `python -I -S keeper.py SPEC COMMAND …`.

SPEC is JSON:

    lifeline    a pipe. A byte on it ends the command by SIGTERM. When its other end is closed (our death closes it
                too), the command is killed.
    log         a file that keeps the last output of the command, as `Log` writes it; without one, the command shares
                this process's output.
    printed     the two ends of the pipe for the command's output.
    echo        whether to also print the output on standard error, without control characters.
    confine     restrictions of the command, for `guard.apply`; without it, it may do all that we may.
    watch       limits of the command and everything it started, together: "memory" (bytes), "processes" (and threads),
                "log" (bytes printed), "folder_size" (bytes below "folder"). If one is exceeded, all are killed, and the
                log says why. If control groups can be made, one limits the memory as well.
    fork        whether the command is a fork of this process rather than a program. Memory that it inherits is then not
                counted.
    namespace   whether the command makes a process namespace, with bubblewrap, which reports signals as exit codes.

When the command ends, everything it started is killed, including descendants in sessions of their own: as orphans they
become this process's children (PR_SET_CHILD_SUBREAPER). The exit status is the command's. If a signal ended the
command, the same signal ends this process. Uses only the standard library, and of that no module that takes long to
import: a keeper is started with every command.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import re
import resource
import select
import signal
import struct
import sys
import time
from importlib.machinery import SourceFileLoader
from types import ModuleType

TYPE_CHECKING = False  # as in `typing`
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Time limit in seconds for killed descendants to be gone.
_PATIENCE = 10.0
#: Seconds between two checks of the command's resources, and of its folder.
_LOOK, _LOOK_AT_FOLDER = 0.05, 0.5
#: Number of bytes after which output is no longer echoed.
_MOST_ECHO = 1 << 24
#: Exit codes of a shell and of bubblewrap for signals start here.
_SIGNALS_FROM = 128
#: The fields of /proc/PID/status that a look reads; sizes are in KiB.
_FIELD = re.compile(rb"^(RssAnon|RssShmem|VmPTE|VmData|Threads):\s*(\d+)", re.MULTILINE)
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")


class Log:
    """The first and last bytes of a command's output, and why it was killed, in a file that two processes map.

    The file begins with the total number of bytes printed (8 bytes), and the reason in UTF-8, padded with zeros. The
    first `HEAD` bytes follow, then a ring of `RING` bytes.
    """

    REASON, HEAD, RING = 504, 1 << 16, 1 << 16
    _RING_AT = 8 + REASON + HEAD
    SIZE = _RING_AT + RING

    def __init__(self, handle: int) -> None:
        self._map = mmap.mmap(handle, self.SIZE)
        self._map.madvise(mmap.MADV_DONTFORK)  # otherwise a forked command could change it

    @property
    def total(self) -> int:
        """Total number of bytes printed."""
        return int.from_bytes(self._map[:8], "little")

    @property
    def reason(self) -> str:
        """Why the command was killed; "" if it was not."""
        return self._map[8 : 8 + self.REASON].rstrip(b"\0").decode("utf-8", "replace")

    @reason.setter
    def reason(self, words: str) -> None:
        self._map[8 : 8 + self.REASON] = words.encode()[: self.REASON].ljust(self.REASON, b"\0")

    def add(self, raw: bytes) -> None:
        """Add output."""
        total, kept = self.total, raw[-self.RING :]
        head = raw[: max(0, self.HEAD - total)]
        if head:
            self._map[8 + self.REASON + total : 8 + self.REASON + total + len(head)] = head
        at = self._RING_AT + (total + len(raw) - len(kept)) % self.RING
        first = min(len(kept), self.SIZE - at)
        self._map[at : at + first] = kept[:first]
        self._map[self._RING_AT : self._RING_AT + len(kept) - first] = kept[first:]
        self._map[:8] = struct.pack("<Q", total + len(raw))

    def last(self, nbytes: int, since: int = 0) -> bytes:
        """Return the last `nbytes` bytes of the output after the first `since`."""
        total = self.total
        n = max(0, min(nbytes, total - since, self.RING))
        start = (total - n) % self.RING
        ring = self._map[self._RING_AT :]
        return (ring[start:] + ring[:start])[:n]

    def first(self) -> bytes:
        """Return the first bytes of the output."""
        return self._map[8 + self.REASON : 8 + self.REASON + min(self.total, self.HEAD)]

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def _content(path: str) -> bytes:
    """Return what a file of /proc holds. Several are read in each look, twenty times a second: `open` takes longer."""
    handle = os.open(path, os.O_RDONLY)
    try:
        found = b""
        while more := os.read(handle, 1 << 16):
            found += more
        return found
    finally:
        os.close(handle)


def _children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    out: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                out += map(int, _content(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        return out
    return out


def _descendants(pid: int) -> list[int]:
    """Return the descendants of a process, as seen at one moment."""
    found: list[int] = []
    left = _children(pid)
    while left:
        found += left
        left = [child for parent in left for child in _children(parent)]
    return found


def _status(pid: int) -> dict[str, int]:
    """Return a process's threads, its memory in bytes that no file backs (including page tables), and its bytes that
    RLIMIT_DATA counts."""
    try:
        found = dict(_FIELD.findall(_content(f"/proc/{pid}/status")))
    except OSError:
        return {"processes": 0, "memory": 0, "data": 0}

    def sized(*names: bytes) -> int:
        return sum(int(found.get(name, 0)) for name in names) << 10

    threads = int(found.get(b"Threads", 1))
    return {"processes": threads, "memory": sized(b"RssAnon", b"RssShmem", b"VmPTE"), "data": sized(b"VmData")}


def _below(folder: str) -> int:
    """Return the bytes that files below a folder take on disk; each counts as at least 4096."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += max(4096, os.lstat(os.path.join(root, name)).st_blocks * 512)
    return total


def _signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_all(group: int | None) -> None:
    """Kill the group, then every orphan that becomes our child, until there is none.

    They are stopped first, so that a process that keeps starting processes cannot outrun this.
    """
    if group is not None:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE
    me = os.getpid()
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        found = _descendants(me)
        _signal_all(found, signal.SIGSTOP)
        _signal_all(found, signal.SIGKILL)
        time.sleep(0.002)


def _sibling(name: str) -> Any:
    """Import a module by its path relative to this one; the package is not on the path here."""
    path = os.path.join(os.path.dirname(__file__), f"{name}.py")
    loader = SourceFileLoader(os.path.basename(name), path)
    module = ModuleType(loader.name)
    module.__file__ = path
    loader.exec_module(module)
    return module


def _start(run: Callable[[], object], spec: dict[str, Any], output: int | None, group: Any) -> int:
    """Start the command in its own session, and in a `MemoryGroup` if there is one. It is killed if this process is."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    guard = _sibling("guard") if spec.get("confine") else None
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        os.write(2 if output is None else output, f"cannot be started: {error.strerror}\n".encode())
        os._exit(127)
    if pid:
        return pid
    try:
        os.setsid()
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(127)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if output is not None:
            os.dup2(output, 1)
            os.dup2(output, 2)
        if group is not None:
            group.enter()
        if guard is not None:
            if spec.get("fork") and "memory" in spec["confine"]["limits"]:
                spec["confine"]["limits"]["memory"] += _status(os.getpid())["data"]
            guard.apply(spec["confine"])
        run()
        os._exit(0)
    except OSError as error:
        os.write(2, f"cannot be started: {error.strerror or error}\n".encode())
    os._exit(127)


class _Watch:
    """Checks whether the command stays within its limits."""

    def __init__(self, limits: dict[str, Any], log: Log | None, inherited: int) -> None:
        """`inherited`: bytes of memory that each process shares with the one that it was forked from."""
        self._limits, self._log, self._inherited = limits, log, inherited
        self._folder_at = 0.0
        self.every = _LOOK if limits else None

    def exceeded(self) -> str:
        """Return the exceeded limit, in words; "" if none is."""
        limits = self._limits
        if self._log is not None and self._log.total > limits.get("log", self._log.total):
            return f"printed more than {_bytes(limits['log'])}"
        if "memory" in limits or "processes" in limits:
            found = [_status(pid) for pid in _descendants(os.getpid())]
            if sum(f["processes"] for f in found) > limits.get("processes", 1 << 62):
                return f"started more than {limits['processes']:,} processes and threads"
            if sum(max(0, f["memory"] - self._inherited) for f in found) > limits.get("memory", 1 << 62):
                return _took(limits["memory"])
        if "folder_size" in limits and time.monotonic() - self._folder_at > _LOOK_AT_FOLDER:
            self._folder_at = time.monotonic()
            if _below(limits["folder"]) > limits["folder_size"]:
                return f"wrote more than {_bytes(limits['folder_size'])} into its folder"
        return ""


def _took(limit: int) -> str:
    return f"took more than {_bytes(limit)} of memory"


def _bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if n >= size and n % size == 0:
            return f"{n // size:,} {unit}"
    return f"{n:,} bytes"


class _Output:
    """Reads the command's output."""

    def __init__(self, handle: int, log: Log, echo: bool) -> None:
        self.handle, self._log = handle, log
        #: Stream for the echo. Commands to a CI log are escaped.
        self._echo = _standard_error() if echo else None
        os.set_blocking(handle, False)

    def read(self) -> bool:
        """Read the available output. Returns whether more may come."""
        try:
            raw = os.read(self.handle, 1 << 16)
        except BlockingIOError:
            return True
        if not raw:
            return False
        if self._echo is not None and self._log.total < _MOST_ECHO:
            with contextlib.suppress(OSError):
                self._echo.write(_CONTROL.sub(b"?", raw).decode(errors="surrogateescape"))
                self._echo.flush()
        self._log.add(raw)
        return True

    def drain(self) -> None:
        """Read the rest after all writers have ended."""
        rest = select.poll()
        rest.register(self.handle, select.POLLIN)
        with contextlib.suppress(OSError):
            while rest.poll(0) and self.read():
                pass


def _standard_error() -> Any:
    stream = os.fdopen(2, "w", encoding="utf-8", errors="surrogateescape", newline="", closefd=False)
    return stream if stream.isatty() else _sibling("../support/inert").Inert(stream)


def keep(run: Callable[[], object], spec: dict[str, Any]) -> int:
    """Run the command, which `run` becomes or is; returns its status as `os.waitpid` does."""
    lifeline = spec["lifeline"]
    os.set_inheritable(lifeline, False)
    log, output, theirs = None, None, None
    if "log" in spec:
        os.set_inheritable(spec["log"], False)
        log = Log(spec["log"])
        ours, theirs = spec["printed"]
        for each in (ours, theirs):
            os.set_inheritable(each, False)
        output = _Output(ours, log, spec.get("echo", False))
    ended, note = os.pipe()
    os.set_blocking(note, False)
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(note)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    inherited = _status(os.getpid())["memory"] if spec.get("fork") else 0
    limits = spec.get("watch", {})
    group = _sibling("memory_group").make(limits["memory"]) if "memory" in limits else None
    pid = _start(run, spec, theirs, group)
    if theirs is not None:
        os.close(theirs)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # so that a reader of our output does not wait for us
    watch = _Watch(limits, log, inherited)
    reads = select.poll()  # unlike select(), works for descriptors above 1023
    for each in (lifeline, ended, *([output.handle] if output is not None else [])):
        reads.register(each, select.POLLIN)
    status, looked = None, 0.0
    while status is None:
        done, how = os.waitpid(pid, os.WNOHANG)
        if done:
            status = how
            break
        wait = None if watch.every is None else 1000 * watch.every
        ready = {each for each, _ in reads.poll(wait)}
        if output is not None and output.handle in ready and not output.read():
            reads.unregister(output.handle)
        if ended in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(ended, 4096)
        if lifeline in ready:
            if not os.read(lifeline, 1):
                break
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        if watch.every is not None and time.monotonic() - looked >= watch.every:
            looked = time.monotonic()
            if words := watch.exceeded():
                if log is not None:
                    log.reason = words
                break
        # orphans that have ended stay zombies until the command ends
    if status is None:
        for kill in (os.killpg, os.kill):  # its group may not exist yet
            with contextlib.suppress(OSError):
                kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    kill_all(pid)
    if output is not None:
        output.drain()
    if group is not None:
        if group.exceeded and log is not None and not log.reason:
            log.reason = _took(limits["memory"])
        group.remove()
    return status


def end_as(status: int, namespace: bool = False) -> None:
    """End this process in the same way as the command ended; does not return."""
    code = os.waitstatus_to_exitcode(status)
    if namespace and _SIGNALS_FROM < code <= _SIGNALS_FROM + signal.SIGRTMAX:
        code = _SIGNALS_FROM - code
    if code < 0:
        number = signal.Signals(-code)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(code)


def prepare() -> None:
    """Prepare this process for keeping a command: ignore signals, which its parent handles."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)


def _become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def main() -> None:
    """Run the command line; does not return."""
    spec = json.loads(sys.argv[1])
    prepare()
    end_as(keep(lambda: _become(sys.argv[2:]), spec), spec.get("namespace", False))


if __name__ == "__main__":
    main()
