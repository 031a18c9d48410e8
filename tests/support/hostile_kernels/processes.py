"""Attacks by processes that stay. Each ends by itself after a minute."""

from __future__ import annotations

import os
import sys
import time

from ._attack import Targets, attack, lasting, orphan

_ENDS = "a PID namespace, whose end is that of all; else a keeper that is a subreaper and kills until none is left"
#: Processes of a bomb.
_MOST = 200


@attack(_ENDS, r"left:")
def leaves_orphans(t: Targets) -> None:
    """It leaves processes in sessions of their own, without a parent, with an empty environment."""
    for session in (True, False):
        orphan(lasting, session)

    def other() -> None:
        os.execve(sys.executable, ["innocent", "-I", "-S", "-c", "import time; time.sleep(60)"], {})

    orphan(other)


@attack(_ENDS, r"left:", each=True, alone=True)
def leaves_a_child_a_call(t: Targets) -> None:
    """Each call leaves a child that outlives the run."""
    if os.fork() == 0:
        lasting()


@attack(f"{_ENDS}; a limit of processes (a pids cgroup, RLIMIT_NPROC where it binds)", r"left:", alone=True)
def bombs(t: Targets) -> None:
    """Its processes double until there are some hundreds, in sessions of their own."""
    for _ in range(_MOST.bit_length() - 1):
        if os.fork() == 0:
            os.setsid()
    lasting()


@attack(_ENDS, r"left:", alone=True)
def respawns(t: Targets) -> None:
    """A process that is killed is replaced by another one, and each is the child of the last."""

    def again() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if os.fork() == 0:
                if os.fork():
                    os._exit(0)
                continue
            time.sleep(0.002)
            os._exit(0)

    orphan(again)


@attack(f"{_ENDS}; a deadline for the answer, not for its next byte", r"left:|over", alone=True, limit=1.0)
def holds_the_link_open(t: Targets) -> None:
    """It ends, and a child of its keeps every descriptor open, so that nobody sees the end."""
    if os.fork() == 0:
        lasting()
    os._exit(0)


@attack("the keeper's and the launcher's parent-death signal; they kill what is left", r"left:", alone=True)
def outlives_its_parent(t: Targets) -> None:
    """It takes back what would end it with its parent, then kills itself, while a child goes on."""
    import ctypes

    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0)  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        os.setsid()
        orphan(lasting)
        lasting()
    os._exit(1)


@attack(_ENDS, r"left:", alone=True)
def runs_at_exit(t: Targets) -> None:
    """It starts a process when its own ends, by a signal's handler or at exit."""
    import atexit
    import signal

    def start(*_: object) -> None:
        orphan(lasting)

    atexit.register(start)
    signal.signal(signal.SIGTERM, start)
    signal.signal(signal.SIGHUP, start)
    sys.exit(0)
