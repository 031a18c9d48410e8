"""Work in a forked process with limits, which may crash or loop: what a mutant does must not reach the run."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from gguf_verify.support.errors import EnvironmentFault

#: Bytes of address space.
_MEMORY = 6 << 30

Answer = dict[str, Any]


def die_with_parent() -> None:
    """On Linux: this process gets SIGKILL once the one that started it has ended."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def forked(work: Callable[[Callable[[str], None]], Answer], seconds: float) -> Answer:
    """What `work` returns, from a forked process, with the processor's seconds that it `spent`.

    Args:
        work: gets a function that it tells which phase has begun.
        seconds: how long it may use the processor.

    Returns {"outcome": "died", "by": …, "phase": …} where the process dies or takes too long. Raises EnvironmentFault
    where `work` raises, since a kernel throws nothing.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _answer(work, seconds, write)
    os.close(write)
    # The limit counts the processor's time. This one is for a process that waits; other processes may use the cores.
    said, late = _read_all(read, 50 * seconds + 60)
    if late:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    _, status, used = os.wait4(pid, 0)
    phase = ""
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            answer: Answer = json.loads(line)
            if answer.get("outcome") == "error":
                raise EnvironmentFault(f"judging failed: {answer['by']}")
            if "outcome" in answer:
                return {**answer, "spent": used.ru_utime + used.ru_stime}
            phase = answer.get("phase", phase)
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if late or killed_by in (signal.SIGXCPU, signal.SIGKILL):
        return {"outcome": "died", "by": "time limit", "phase": phase}
    name = signal.Signals(killed_by).name if killed_by else f"exit code {os.WEXITSTATUS(status)}"
    return {"outcome": "died", "by": name, "phase": phase}


def _answer(work: Callable[[Callable[[str], None]], Answer], seconds: float, write: int) -> None:
    """Set the limits, work, write the answer, end the process."""
    code = 1
    try:
        die_with_parent()
        faulthandler.disable()
        cpu = int(seconds) + 1
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)

        def tell(answer: Answer) -> None:
            os.write(write, json.dumps(answer).encode() + b"\n")

        try:
            tell(work(lambda phase: tell({"phase": phase})))
        except Exception as error:
            tell({"outcome": "error", "by": repr(error)})
        code = 0
    finally:
        os._exit(code)


def _read_all(descriptor: int, seconds: float) -> tuple[bytes, bool]:
    """All bytes up to the end, and whether the time ran out before it."""
    said, end = b"", time.monotonic() + seconds
    rest = select.poll()
    rest.register(descriptor, select.POLLIN)
    while rest.poll(1000 * max(0.0, end - time.monotonic())):
        part = os.read(descriptor, 65536)
        if not part:
            return said, False
        said += part
    return said, True
