"""Attacks on the terminal of the run."""

from __future__ import annotations

import fcntl
import os
import termios

from ._attack import Targets, attack, every

_OWN_SESSION = "a session of its own, without a terminal (setsid), and no /dev/tty"


@attack(_OWN_SESSION, r"terminal: ")
def writes_to_the_terminal(t: Targets) -> None:
    """It writes a verdict and sequences of control characters to the terminal."""
    with open("/dev/tty", "wb", buffering=0) as f:
        f.write(f"\x1b[2J\x1b]0;{t.token}\x07VERIFIED".encode())


@attack(f"{_OWN_SESSION}; seccomp (TIOCSTI)", r"terminal: .*typed")
def types_at_the_terminal(t: Targets) -> None:
    """It types a command at the terminal, which the user's shell would run."""
    with open("/dev/tty", "wb", buffering=0) as f:
        for character in b"typed\n":
            fcntl.ioctl(f, termios.TIOCSTI, bytes([character]))


@attack(_OWN_SESSION, r"the report|exit code", alone=True)
def interrupts_by_the_terminal(t: Targets) -> None:
    """It types Ctrl-C and Ctrl-\\ at the terminal, and makes its own group the one in the foreground."""
    with open("/dev/tty", "wb", buffering=0) as f:
        every([b"\x03", b"\x1c"], lambda typed: fcntl.ioctl(f, termios.TIOCSTI, typed))
        os.tcsetpgrp(f.fileno(), os.getpgrp())
