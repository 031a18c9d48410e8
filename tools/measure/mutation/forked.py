"""Work in a forked process with limits. A mutant may crash or loop, and must not affect the run."""

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

#: Limit of the address space, in bytes.
_MEMORY = 6 << 30

Answer = dict[str, Any]


def die_with_parent() -> None:
    """On Linux: send this process SIGKILL when its parent ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def forked(work: Callable[[Callable[[str], None]], Answer], seconds: float) -> Answer:
    """Call `work` in a forked process and return its result, with the processor time as `spent`.

    Args:
        work: gets a function to call with the name of each phase that begins.
        seconds: limit of processor time.

    Returns {"outcome": "died", "by": …, "phase": …} if the process dies or takes too long. Raises EnvironmentFault if
    `work` raises, because a kernel never raises.
    """
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _answer(work, seconds, write)
    os.close(write)
    # RLIMIT_CPU counts processor time. This limit ends a process that waits; it is long, as the cores may be busy.
    output, late = _read_all(read, 50 * seconds + 60)
    if late:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    _, status, used = os.wait4(pid, 0)
    phase = ""
    for line in output.splitlines():
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
    """Set the limits, do the work, write the answer and end the process."""
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
    """Read all bytes. Returns them and whether the time ran out."""
    output, end = b"", time.monotonic() + seconds
    rest = select.poll()
    rest.register(descriptor, select.POLLIN)
    while rest.poll(1000 * max(0.0, end - time.monotonic())):
        part = os.read(descriptor, 65536)
        if not part:
            return output, False
        output += part
    return output, True
