"""Attacks by signals, on the processes of the run and on a bystander. Nobody else is ever sent one."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import time

from ._attack import Targets, attack, call, every, lasting, libc

_SCOPED = "a PID namespace; else Landlock's scope of signals, or seccomp (kill, tgkill, pidfd_send_signal, sigqueue)"
_F_SETSIG = 10


@attack(_SCOPED, r"bystander: signal: 10\b")
def sends_by_kill(t: Targets) -> None:
    """It sends a bystander a signal by kill."""
    os.kill(t.bystander["pid"], signal.SIGUSR1)


@attack(_SCOPED, r"bystander: signal: 12\b")
def sends_by_tgkill(t: Targets) -> None:
    """It sends a bystander a signal by tgkill."""
    call(234, t.bystander["pid"], t.bystander["pid"], signal.SIGUSR2)


@attack(_SCOPED, r"bystander: signal: 28\b")
def sends_by_pidfd(t: Targets) -> None:
    """It sends a bystander a signal by pidfd_send_signal."""
    signal.pidfd_send_signal(os.pidfd_open(t.bystander["pid"]), signal.SIGWINCH)


@attack(_SCOPED, r"bystander: signal: 40\b")
def sends_by_sigqueue(t: Targets) -> None:
    """It sends a bystander a signal by rt_sigqueueinfo."""
    about = (ctypes.c_int * 32)(40, 0, -1)  # SI_QUEUE
    call(129, t.bystander["pid"], 40, ctypes.byref(about))


@attack(f"{_SCOPED} and fcntl (F_SETOWN)", r"bystander: signal: 41\b")
def sends_by_ownership(t: Targets) -> None:
    """It makes a bystander the owner of a socket that tells of data by a signal."""
    import socket

    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, t.bystander["pid"])
    fcntl.fcntl(ours, _F_SETSIG, 41)
    fcntl.fcntl(ours, fcntl.F_SETFL, fcntl.fcntl(ours, fcntl.F_GETFL) | os.O_ASYNC)
    theirs.send(b"x")
    time.sleep(0.05)  # it is sent by then or never: the kernel sends it with the data


def _verifier(t: Targets, number: int) -> None:
    every(t.ancestors(), lambda pid: os.kill(pid, number))


@attack(_SCOPED, r"the report", alone=True, harmless_if_stopped=True)
def kills_the_verifier(t: Targets) -> None:
    """It kills the processes above it."""
    _verifier(t, signal.SIGKILL)


@attack(_SCOPED, r"stopped", alone=True, harmless_if_stopped=True)
def stops_the_verifier(t: Targets) -> None:
    """It stops the processes above it."""
    _verifier(t, signal.SIGSTOP)


@attack(_SCOPED, r"the report|exit code", alone=True, harmless_if_stopped=True)
def ends_the_verifier(t: Targets) -> None:
    """It sends the processes above it the signals that end programs, one after the other."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU):
        _verifier(t, number)


@attack(_SCOPED, r"exit code|the report", alone=True, harmless_if_stopped=True)
def interrupts_the_verifier(t: Targets) -> None:
    """It sends the processes above it what Ctrl-C sends."""
    _verifier(t, signal.SIGINT)


@attack(f"{_SCOPED}; a session of its own", r"the report", alone=True)
def kills_its_group(t: Targets) -> None:
    """It kills its process group and the verifier's."""
    if os.getpgid(0) in (t.root, os.getpid()) or t.contained:  # the test's own group is neither
        every([t.root], lambda group: os.killpg(group, signal.SIGKILL))
        os.kill(0, signal.SIGKILL)


@attack(f"{_SCOPED}; a session of its own", r"stopped", alone=True, harmless_if_stopped=True)
def stops_its_group(t: Targets) -> None:
    """It stops the verifier's process group."""
    every([t.root], lambda group: os.killpg(group, signal.SIGSTOP))


@attack("a PID namespace; else Landlock's scope of signals", r"", alone=True)
def kills_everybody(t: Targets) -> None:
    """It kills every process that it may, where a PID namespace proves that these are its own."""
    if t.contained:
        os.kill(-1, signal.SIGKILL)


@attack(f"{_SCOPED}; no sight of the run's other processes", r"llama.cpp died|the report", alone=True)
def kills_the_others(t: Targets) -> None:
    """It kills the other processes of the run: llama.cpp's, keepers, compilers."""
    others = [pid for pid in t.family() if pid not in (t.root, os.getppid())]
    every(others, lambda pid: os.kill(pid, signal.SIGKILL))


@attack(f"{_SCOPED}; no sight of the run's other processes", r"stopped", alone=True)
def stops_the_others(t: Targets) -> None:
    """It stops the other processes of the run."""
    every([pid for pid in t.family() if pid != t.root], lambda pid: os.kill(pid, signal.SIGSTOP))
    time.sleep(0.5)  # so long it can be seen


@attack("a keeper that kills a process whatever it does with signals", r"left:", alone=True)
def ignores_signals(t: Targets) -> None:
    """Its children ignore every signal that they can, and some are stopped."""
    for number in range(6):
        pid = os.fork()
        if pid == 0:
            for each in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                libc.signal(each, 1)
            os.setsid()
            if number % 2:
                os.kill(os.getpid(), signal.SIGSTOP)
            lasting()
