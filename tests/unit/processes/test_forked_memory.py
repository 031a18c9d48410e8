"""Memory that the verifier shares with other processes: a function of it that runs in a fork has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from gguf_verify.hosts.process_child import shared_memory
from gguf_verify.kernels.foreign.operands import MemoryFile
from gguf_verify.processes.child import Forked, Spawned
from gguf_verify.support.lanes import Lane
from gguf_verify.support.progress import progress_bar
from gguf_verify.support.sealed import mapped_here, of_fixed_size


def shared_mappings() -> set[str]:
    """The writable shared mappings of this process: lines of /proc/self/maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line for line in lines if line.split()[1].startswith("rw") and line.split()[1].endswith("s")}


@contextmanager
def everything_shared() -> Iterator[None]:
    """The log of another process's keeper, operands, lanes, and a bar of progress with its lock."""
    before = shared_mappings()
    with ExitStack() as stack:
        stack.enter_context(progress_bar("something", 1, "", shown=False))
        stack.enter_context(closing(Spawned("gguf_verify.distributed.local_process")))
        stack.enter_context(closing(MemoryFile(5000)))
        stack.enter_context(closing(Lane(of_fixed_size(4096), mapped=True)))
        handle, _shared = shared_memory(4096)
        stack.callback(os.close, handle)
        assert len(shared_mappings() - before) >= 4
        yield


def test_a_fork_has_no_memory_that_is_shared_with_others() -> None:
    def run(link: Connection) -> None:
        link.send(shared_mappings())

    before = shared_mappings()
    with everything_shared(), closing(Forked(run, False, 60.0)) as made:
        assert made.link.recv() - before == set()
        assert made.wait(60) == 0


def test_shared_memory_is_shared() -> None:
    """It is one memory in both mappings of its file, of which a fork has none."""
    handle = of_fixed_size(4096)
    one, other = (np.frombuffer(mapped_here(handle, 4096), np.uint8) for _ in range(2))
    one[7] = 9
    assert other[7] == 9
    os.close(handle)
