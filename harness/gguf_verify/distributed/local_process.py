"""A process that judges: `python -m gguf_verify.distributed.local_process FD`, with its end of a socket.

It receives a `Work`, sends the fault that keeps it from opening that (or None), and answers tasks until it receives
None.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from multiprocessing.connection import Connection

from .local import NAME
from .worker import Worker


def main(handle: int) -> None:
    """Judge tasks."""
    link = Connection(handle)
    worker = Worker(link.recv(), NAME)
    link.send(worker.open())
    with contextlib.suppress(EOFError):
        while (given := link.recv()) is not None:
            link.send(worker.judge(pickle.loads(link.recv_bytes()), *given))
    worker.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
