"""Attacks over sockets: to listeners of the test on this machine alone."""

from __future__ import annotations

import socket

from ._attack import Targets, attack

_NO_NETWORK = "a network namespace; else Landlock (TCP, abstract sockets) and seccomp (socket)"


@attack(_NO_NETWORK, r"reached: tcp4")
def connects_by_ipv4(t: Targets) -> None:
    """It connects to a listener on 127.0.0.1."""
    socket.create_connection(("127.0.0.1", t.tcp4), 1).send(b"secrets")


@attack(_NO_NETWORK, r"reached: tcp6|tcp6: none")
def connects_by_ipv6(t: Targets) -> None:
    """It connects to a listener on ::1."""
    socket.create_connection(("::1", t.tcp6), 1).send(b"secrets")


@attack(f"{_NO_NETWORK}: Landlock knows no UDP", r"reached: udp")
def sends_datagrams(t: Targets) -> None:
    """It sends a datagram to 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"secrets", ("127.0.0.1", t.udp))


@attack("no socket(AF_UNIX) by seccomp: a read-only view does not forbid to connect", r"reached: unix")
def connects_to_a_socket_file(t: Targets) -> None:
    """It connects to a socket in the user's home, as those of agents, of D-Bus and of Docker are."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(t.unix)


@attack("a network namespace; else Landlock's scope of abstract sockets", r"reached: abstract")
def connects_to_an_abstract_socket(t: Targets) -> None:
    """It connects to a socket that has a name without a file."""
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(f"\0{t.abstract}")


@attack(_NO_NETWORK, r"reached: tcp4", alone=True)
def connects_by_io_uring(t: Targets) -> None:
    """It makes a socket and connects by io_uring, whose operations pass by the filters of system calls."""
    from ._io_uring import connect

    connect("127.0.0.1", t.tcp4)
