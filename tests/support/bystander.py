"""A process of the same user that has nothing to do with a run, and tells whether the run harmed it.

`python -I -S bystander.py` prints one line of JSON: its number, the address and size of memory that nobody should
write, and the number of a pipe's end. For each line on standard input it prints what happened to it since it started,
in words, as a list in JSON. Only the standard library is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys

_PR_SET_PTRACER = 0x59616D61
_MAGIC = b"nobody writes here. " * 16


def _words_of(kind: str, said: object) -> str:
    return f"{kind}: {said}"


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)  # Yama would protect us
    memory = ctypes.create_string_buffer(_MAGIC)
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    seen: list[str] = []
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda caught, _: seen.append(_words_of("signal", caught)))
    limits = resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_FSIZE)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    print(json.dumps({"pid": os.getpid(), "address": ctypes.addressof(memory), "size": len(_MAGIC), "pipe": writing}))
    sys.stdout.flush()
    for _ in sys.stdin:
        found = list(dict.fromkeys(seen))
        if memory.raw[: len(_MAGIC)] != _MAGIC:
            found.append(_words_of("memory", memory.raw[:40]))
        with contextlib.suppress(BlockingIOError):
            found.append(_words_of("pipe", os.read(reading, 100)))
        if (resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_FSIZE)) != limits:
            found.append("limits")
        if os.getpriority(os.PRIO_PROCESS, 0) != nice:
            found.append("priority")
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
