"""What attacks are made of: their registry, their targets, and the kernel that makes them."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Seconds after which every process that an attack leaves ends by itself.
LIFE = 60.0

libc = ctypes.CDLL(None, use_errno=True)


class Told(Exception):
    """What an attack tells the report by a message: the names of what worked."""


def tell(what: str, worked: Sequence[str]) -> str:
    """The words of such a message. They say "none" where nothing worked."""
    return f"told: {what} {', '.join(worked) or 'none'}"


class Targets:
    """What the test made for its attacks: the fields of targets.json beside the kernel.

    Args:
        kernel: the kernel's file.
    """

    token: str
    attacks: list[str]
    #: "call", "pack", "import", "oracle" or "worker".
    moment: str
    home: str
    cache: str
    tmp: str
    work: str
    project: str
    model: str
    report: str
    #: A report that says "verified".
    honest: str
    #: A shared library that forges a pass when a verifier loads it.
    forger: str
    root_file: str
    #: Where the run's output goes.
    outside: str
    bystander: dict[str, int]
    tcp4: int
    tcp6: int
    udp: int
    unix: str
    abstract: str
    pid_namespace: int
    lock: str

    def __init__(self, kernel: str) -> None:
        self.kernel = os.path.abspath(kernel)
        self.__dict__.update(json.loads(Path(kernel).with_name("targets.json").read_text()))

    @property
    def root(self) -> int:
        """The verifier's process, by its number outside of any PID namespace."""
        return int(Path(self.root_file).read_text())

    def victim(self, name: str) -> str:
        """A file of the user's that nobody but this attack touches."""
        return f"{self.home}/victims/{name}"

    def ancestors(self) -> list[int]:
        """The processes from this one's parent to the verifier, and not beyond."""
        found, root = [], self.root
        pid = os.getppid()
        while pid > 1 and pid != root:
            found.append(pid)
            pid = parent(pid)
        return [*found, root] if pid == root else [root]  # unknown: then nothing but the root is of the run for sure

    def family(self) -> list[int]:
        """The other processes of the run."""
        root, found = self.root, []
        for name in os.listdir("/proc"):
            pid = int(name) if name.isdigit() else 0
            above = pid
            while above > 1 and above != root:
                above = parent(above)
            if pid and pid != os.getpid() and above == root:
                found.append(pid)
        return found

    @property
    def contained(self) -> bool:
        """Whether this is another PID namespace than the test's, where -1 means nobody but the kernel's own."""
        return os.stat("/proc/self/ns/pid").st_ino != self.pid_namespace


def parent(pid: int) -> int:
    """A process's parent; 0 where it cannot be known."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def call(number: int, *arguments: Any) -> int:
    """A system call by its number on x86-64. Raises OSError."""
    if platform.machine() != "x86_64":
        raise OSError("the numbers are those of x86-64")
    ctypes.set_errno(0)
    said = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if said == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(said)


def every(targets: list[Any], act: Callable[[Any], object]) -> None:
    """Act on each, whatever becomes of the others."""
    for target in targets:
        try:
            act(target)
        except OSError as error:
            print(f"{target}: {error}")


def lasting(act: Callable[[], object] = lambda: None, life: float = LIFE) -> None:
    """The rest of a child's life: it waits for its end, and never returns."""
    end = time.monotonic() + life
    while time.monotonic() < end:
        act()
        time.sleep(0.05)
    os._exit(0)


def orphan(act: Callable[[], object], session: bool = True) -> None:
    """Run something in a process whose parent is gone."""
    pid = os.fork()
    if pid == 0:
        if session:
            os.setsid()
        if os.fork() == 0:
            try:
                act()
            finally:
                os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)


def link_of() -> socket.socket:
    """This process's end of its socket to the verifier. Raises OSError where it has none."""
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            return socket.socket(fileno=os.dup(fd))
    raise OSError("no socket")


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        tries: in words; the first line of the function's docstring.
        layer: what should stop it.
        seen: a regular expression of what the test sees where nothing stops it; "" where nothing but the verifier
            itself can show it.
        alone: it gets a run of its own, since it ends the kernel's process, holds it up, or hides what others do.
        each: it is made in each call.
        exits: the exit codes that a run may end with.
        moments: when it is made in runs of its own: "call", "pack", "import" or "oracle".
        harmless_if_stopped: where it is stopped, other attacks can follow in the same run.
        limit: seconds for a call.
        seconds: for the whole run, at most.
    """

    name: str
    tries: str
    function: Callable[[Targets], object]
    layer: str
    seen: str
    alone: bool
    each: bool
    exits: tuple[int, ...]
    moments: tuple[str, ...]
    limit: float
    seconds: float
    harmless_if_stopped: bool = False


ATTACKS: dict[str, Attack] = {}


def attack(
    layer: str, seen: str, alone: bool = False, each: bool = False, exits: tuple[int, ...] = (1,),
    moments: tuple[str, ...] = ("call",), limit: float = 5.0, seconds: float = 90.0,
    harmless_if_stopped: bool = False,
) -> Callable[[Callable[[Targets], object]], Callable[[Targets], object]]:  # fmt: skip
    """Register a function as an attack. The arguments are those of `Attack`."""

    def register(function: Callable[[Targets], object]) -> Callable[[Targets], object]:
        name = function.__name__
        assert name not in ATTACKS, name
        tries = (function.__doc__ or "").strip().partition("\n")[0]
        ATTACKS[name] = Attack(
            name, tries, function, layer, seen, alone, each, exits, moments, limit, seconds, harmless_if_stopped
        )
        return function

    return register


class Attacker:
    """Makes the attacks that targets.json names, when their moment has come."""

    def __init__(self, kernel: str) -> None:
        from . import attacks

        self.targets = Targets(kernel)
        self._attacks = [attacks()[name] for name in self.targets.attacks]
        self._made = False

    def make(self, moment: str) -> None:
        """Raises Told, and whatever ends the process."""
        if moment != self.targets.moment:
            return
        for each in self._attacks:
            if self._made and not each.each:
                continue
            try:
                each.function(self.targets)
            except Told:
                raise
            except Exception as error:
                print(f"{each.name}: {error!r}", flush=True)
        self._made = True


def declared(file: str) -> Any:
    """A kernel that returns zeros, and attacks."""
    import numpy as np

    from gguf_verify import Oracle, kernel

    attacker = Attacker(file)
    attacker.make("import")

    def pack(rows: Any, fmt: str) -> Any:
        attacker.make("pack")
        return rows

    def activations(x: Any) -> Any:
        attacker.make("oracle")
        return x.astype(np.float64)

    semantics = Oracle(activations=activations) if attacker.targets.moment == "oracle" else "q8_1"

    @kernel(formats=["Q4_0"], semantics=semantics, pack=pack)
    def gemm(weights: Any, given: Any, shape: Any) -> Any:
        attacker.make("call")
        return np.zeros((shape.m, shape.n), np.float32)

    return gemm
