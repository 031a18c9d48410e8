"""A process that judges: `python -m gguf_verify.distributed.local_process FD`, where FD is its end of the socket.

It gets a `Work`, says what keeps it from being opened, or None, and answers tasks until None comes.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from .local import NAME
from .worker import Worker


def main(handle: int) -> None:
    """Judge what comes."""
    link = Connection(handle)
    worker = Worker(link.recv(), NAME)
    link.send(worker.open())
    tasks = SimpleQueue[Any]()
    threading.Thread(target=_read, args=[link, tasks], daemon=True).start()
    while (asked := tasks.get()) is not None:
        task, left, words = asked
        link.send(worker.judge(pickle.loads(task), left, words))
    worker.close()


def _read(link: Connection, tasks: SimpleQueue[Any]) -> None:
    """Read ahead of the work, so that whoever sends never waits for it."""
    with contextlib.suppress(EOFError, OSError):
        while (asked := link.recv()) is not None:
            tasks.put((link.recv_bytes(), *asked))
    tasks.put(None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
