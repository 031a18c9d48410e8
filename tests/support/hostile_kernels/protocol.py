"""Attacks on the conversation with the verifier: what an honest process would never send."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time

from ._attack import LIFE, Targets, attack, lasting, link_of

_CHECKED = "the parent's side of the conversation: sizes, types and order are checked, and each answer has a deadline"


def _framed(content: bytes) -> bytes:
    return struct.pack("!i", len(content)) + content


#: What is sent in the place of an answer.
GARBAGE = (
    b"\xff" * 64,
    struct.pack("!i", -1) + struct.pack("!Q", 1 << 62),
    struct.pack("!i", 0x7FFFFFFF),
    _framed(b""),
    _framed(b"[" * 10000),
    _framed(b'{"ok":' * 2000 + b"1" + b"}" * 2000),
    _framed(b"\xff\xfe"),
    _framed(b'{"ok": NaN, "adds_floats": 1e999, "unset": "a"}'),
    _framed(b'{"ok": true, "unset": [[[]]], "adds_floats": {}}'),
    _framed(
        json.dumps({"fault": "a\x1b[2J\nb", "cause": ["x"], "finding": {"kind": {}, "lines": [None] * 9}}).encode()
    ),
    _framed(b'{"environment": {"a": 1}}'),
    _framed(b'{"usage": ["a"]}'),
    _framed(b'{"mapped": 99999999999999, "ok": true, "written": -1}'),
    _framed(b'{"ok": true}') * 3000,
    _framed(b'{"ok": 1' + b"0" * 5000 + b"}"),
    b"",
)


def _send(t: Targets, what: bytes) -> None:
    with contextlib.suppress(OSError):
        link_of().sendall(what)


def _garbage(number: int) -> None:
    def send(t: Targets) -> None:
        _send(t, GARBAGE[number])
        time.sleep(0.05)

    send.__name__ = f"sends_garbage_{number}"
    send.__doc__ = f"It sends garbage of kind {number} before its answer, and goes on."
    attack(_CHECKED, r"", alone=True, each=True, exits=(1, 2, 3), moments=("call", "import"))(send)


for _number in range(len(GARBAGE)):
    _garbage(_number)


@attack(_CHECKED, r"", alone=True, exits=(1, 3))
def writes_everywhere(t: Targets) -> None:
    """It writes forged answers into every descriptor that it has, but its log."""
    for fd in range(3, 256):
        with contextlib.suppress(OSError):
            os.set_blocking(fd, False)
            os.write(fd, _framed(b'{"ok": true}') * 2)


@attack("a deadline for the whole answer, not for its next byte", r"", alone=True, limit=1.0, seconds=45.0)
def drips(t: Targets) -> None:
    """It answers by one byte every half a second."""
    link = link_of()
    end = time.monotonic() + LIFE
    message = _framed(b" " * 10000)
    for at in range(len(message)):
        link.send(message[at : at + 1])
        time.sleep(0.5)
        if time.monotonic() > end:
            os._exit(0)


@attack("a deadline for the whole answer, not for its next byte", r"", alone=True, limit=1.0, seconds=45.0)
def never_reads(t: Targets) -> None:
    """It answers once, and never takes the next question from the link."""
    _send(t, _framed(b'{"ok": true}'))
    lasting()


@attack(_CHECKED, r"", alone=True, exits=(1, 3))
def closes_everything(t: Targets) -> None:
    """It closes each of its descriptors, the link and the log too, and goes on."""
    os.closerange(0, 256)
    lasting(life=8.0)


@attack(_CHECKED, r"", alone=True)
def half_closes(t: Targets) -> None:
    """It closes the direction of the link that it answers in, and goes on."""
    import socket

    link_of().shutdown(socket.SHUT_WR)
    lasting(life=8.0)


@attack(_CHECKED, r"", alone=True)
def sends_descriptors(t: Targets) -> None:
    """It sends a hundred descriptors over the link, which would stay open in the verifier."""
    import socket

    for _ in range(20):
        with contextlib.suppress(OSError):
            socket.send_fds(link_of(), [_framed(b'{"ok": true}')], [0, 1, 2, 0, 1])
