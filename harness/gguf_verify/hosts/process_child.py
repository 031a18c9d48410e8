"""A host in a separate process where its kernels may crash: `python -m gguf_verify.hosts HOST THREADS PLACEMENT FILL
FD`.

Its requests are those of `process_host`. Each is answered by {"ok": …} or by {fault: one line}, except requests that
make buffers, so that the caller need not wait: their fault is the answer to the next request.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import select
import signal
import sys
import threading
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..support import protocol
from ..support.errors import EnvironmentFault, HarnessError, KernelFault, KernelFinding, NotRun
from ..support.numbers import CODES, number_type
from ..support.sealed import has_fixed_size, mapped_here, of_fixed_size
from .base import Blocks, Grid, Placed, Placement, Role, Sparse

#: Arrays of more bytes are passed as shared memory, which the other process maps.
SHARED_FROM = 1 << 16
#: Requests without an answer.
UNANSWERED = frozenset({"upload", "output"})

Bytes = npt.NDArray[np.uint8]


def send_bytes(link: Connection, header: dict[str, Any], array: Bytes | None = None) -> None:
    """Send a header, and bytes if there are any. Raises OSError if the peer is gone."""
    if array is None or array.nbytes < SHARED_FROM:
        protocol.send(link, header, *([] if array is None else [array]))
        return
    handle, shared = shared_memory(array.nbytes)
    try:
        shared[:] = array.reshape(-1).view(np.uint8)
        send_shared(link, header, handle, array.nbytes)
    finally:
        os.close(handle)


def send_shared(link: Connection, header: dict[str, Any], handle: int, nbytes: int) -> None:
    """Send a header and shared memory. Raises OSError."""
    protocol.send(link, {**header, "mapped": nbytes})
    reduction.send_handle(link, handle, 0)  # the process id is only used on Windows


def receive_bytes(link: Connection) -> tuple[dict[str, Any], Bytes | None]:
    """Receive a header and bytes, which are copied on write.

    Raises EOFError and OSError, also if shared memory has another size than announced, or a size that the peer could
    reduce, so that reading it would be a fatal signal.
    """
    header, arrays = protocol.receive(link)
    if "mapped" not in header:
        return header, arrays[0] if arrays else None
    handle, nbytes = reduction.recv_handle(link), header.pop("mapped")
    try:
        if type(nbytes) is not int or os.fstat(handle).st_size != nbytes or not has_fixed_size(handle):
            raise OSError(errno.EPROTO, "it is not the shared memory that was announced")
        mapped = mmap.mmap(handle, nbytes, flags=mmap.MAP_PRIVATE)
    finally:
        os.close(handle)
    return header, np.frombuffer(mapped, np.uint8)


def shared_memory(nbytes: int) -> tuple[int, Bytes]:
    """Return a file descriptor of new memory, and its bytes. Raises EnvironmentFault."""
    try:
        handle = of_fixed_size(nbytes)
        try:
            return handle, np.frombuffer(mapped_here(handle, nbytes), np.uint8)
        except BaseException:
            os.close(handle)
            raise
    except OSError as error:
        raise EnvironmentFault(f"no shared memory of {nbytes:,} bytes: {error.strerror}") from None


class Server:
    """Answers requests with a host."""

    def __init__(self, link: Connection, name: str, threads: int, placement: Placement, fill: int | None) -> None:
        from .choice import make_host

        self._link, self._host = link, make_host(name, threads)
        self._host.placement, self._host.fill = placement, fill
        self._held: dict[int, Any] = {}

    def serve(self) -> None:
        """Serve until the peer requests the end. Raises EOFError, OSError if it is gone."""
        late: dict[str, Any] | None = None
        while True:
            header, array = receive_bytes(self._link)
            for number in header.get("free", ()):
                self._held.pop(number, None)
            said, made = self._done(header, array)
            if header["ask"] in UNANSWERED:
                late = late or said if "ok" not in said else late
            else:
                send_bytes(self._link, late or said, made)
                late = None
            if header["ask"] == "end":
                return

    def _done(self, header: dict[str, Any], array: Bytes | None) -> tuple[dict[str, Any], Bytes | None]:
        try:
            said, made = self._answered(header, array)
        except KernelFault as error:
            kind = error.kind if isinstance(error, KernelFinding) else None
            return {"kernel": str(error), "finding": kind, "not_run": isinstance(error, NotRun)}, None
        except HarnessError as error:
            return {"environment": str(error)}, None
        except MemoryError:
            return {"environment": "out of memory"}, None
        except KeyError:  # an object that an earlier, failed request should have made
            return {"environment": "it is not held"}, None
        return {"ok": said}, made

    def _answered(self, header: dict[str, Any], array: Bytes | None) -> tuple[Any, Bytes | None]:
        """Carry out a request; return its result, and bytes. Raises KeyError if an object in it is not held."""
        host, held = self._host, self._held
        match header["ask"]:
            case "load":
                root, file, entry, defines, target = header["kernel"]
                held[header["id"]] = host.load(Path(root), file, entry, defines, target)
            case "load_placed":
                held[header["id"]] = host.load_placed(Placed(header["entry"], header["parts"]))
            case "upload":
                assert array is not None
                held[header["id"]] = host.upload(array)
            case "output":
                held[header["id"]] = host.output(header["nbytes"])
            case "begin":
                assert array is not None
                host.begin(held[header["id"]], array)
            case "launch":
                host.launch(*self._launched(header), header["overlaps"])
            case "alone":
                written = host.launch_alone([Blocks(*self._launched(header), (header["number"],))])
                return len(written.at), np.concatenate([written.at.view(np.uint8), written.words.view(np.uint8)])
            case "download":
                return True, host.download(held[header["id"]])
            case "contents":
                return True, host.contents(held[header["id"]])
            case "resident":
                return host.resident(held[header["kernel"]], header["threads"], header["shared"]), None
            case "end":
                pass
            case unknown:
                raise KeyError(unknown)
        return True, None

    def _launched(self, header: dict[str, Any]) -> tuple[Any, Grid, Grid, list[Any], int]:
        """Return kernel, grid, block, arguments and bytes of shared memory."""
        args = [self._argument(*given) for given in header["args"]]
        return self._held[header["kernel"]], tuple(header["grid"]), tuple(header["block"]), args, header["shared"]

    def _argument(self, kind: str, value: Any, number: int | None = None, what: str = "", role: Role = "input") -> Any:
        if kind == "sparse":
            return Sparse(value, None if number is None else self._held[number], what, role)
        return self._held[value] if kind == "buffer" else number_type(kind, CODES).type(value)


def _end_with(link: Connection) -> None:
    """End this process when the peer closes its end, whatever a kernel is doing.

    (PR_SET_PDEATHSIG would send its signal when the parent's thread ends that started this process.)
    """
    closed = select.poll()
    closed.register(link.fileno(), select.POLLHUP)
    closed.poll()
    os._exit(0)


def main() -> None:
    name, threads, placement = sys.argv[1], int(sys.argv[2]), cast(Placement, sys.argv[3])
    fill = int(sys.argv[4]) if sys.argv[4] else None
    link = Connection(int(sys.argv[5]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        Server(link, name, threads, placement, fill).serve()
        return  # end normally, so that a tool that runs this process sees all that was done
    os._exit(0)
