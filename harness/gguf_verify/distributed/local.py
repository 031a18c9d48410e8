"""Processes of this machine that judge tasks beside this one.

What a task takes on a card is mostly Python between launches, and one process runs one line of it at a time. So several
processes share a card. Each opens the model, the kernel and its host itself. Until one has, and where one is lost, this
process judges.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

from ..processes.child import Spawned
from ..rungs.run import Run
from ..rungs.tasks import T
from .in_order import InOrder
from .runs import RunWork
from .worker import Budgeted, Judged, Refused

#: What a process is called.
NAME = "a process that judges"
#: Processes that pay, at most: more wait for llama.cpp, which the process that plans asks.
_MOST = 4
#: Cores for each, and bytes of weights from which they pay: to open a model takes some seconds.
_CORES, _WORTH = 4, 1 << 30
#: Seconds in which a process ends by itself.
_TO_CLOSE = 10.0
#: Bytes of tasks that wait to be merged, beside a few.
_WAITING = 1 << 28
#: Of a card's memory, the percentage for what these processes hold of arrays together. The one that plans takes at most
#: half of what is free.
_OF_CARD = 40


def paying(run: Run, cpus: int) -> int:
    """How many processes judge a run on a card, with so many CPUs for it, where nobody says: several where the card
    multiplies a large model."""
    beside = min(_MOST, cpus // _CORES, run.kernel.host.processes_beside())
    return beside if beside > 1 and run.matrix_bytes() >= _WORTH else 1


def sharing_a_card(count: int) -> dict[str, str]:
    """Variables of so many processes that share a card."""
    return {"CUPY_GPU_MEMORY_LIMIT": f"{_OF_CARD / count:g}%"}


@contextmanager
def local_processes(work: RunWork, count: int, must_open: bool, verbose: bool) -> Iterator[Processes]:
    """So many processes for a run's work.

    Args:
        must_open: raise EnvironmentFault where one cannot open it; else the others judge, or this process.
        verbose: what they print goes to standard error.
    """
    started = [_Process(verbose, sharing_a_card(count)) for _ in range(count)]
    opened = Processes(work, started, must_open)
    try:
        yield opened
    finally:
        opened.close(at_once=isinstance(sys.exc_info()[1], KeyboardInterrupt))


class _Process(Spawned):
    """`local_process` and the answers that it owes, the oldest first."""

    def __init__(self, verbose: bool, environment: dict[str, str]) -> None:
        super().__init__(f"{__package__}.local_process", environment=environment, verbose=verbose)
        self.owes = deque[int]()


class Processes(InOrder):
    """Processes, and what they are given.

    Args:
        work: what they open.
        must_open: as of `local_processes`.
    """

    scans = False

    def __init__(self, work: RunWork, processes: list[_Process], must_open: bool) -> None:
        super().__init__(len(processes))
        self._processes, self._must_open = processes, must_open
        self._opening, self._open = set(range(len(processes))), list[int]()
        #: Number of a task → the task as it was sent, until its answer is fetched; the answer, None where it is lost.
        self._tasks: dict[int, bytes] = {}
        self._come: dict[int, Judged | Refused | None] = {}
        self._count = 0
        for i in [*self._opening]:
            try:
                self._processes[i].link.send(work)
            except OSError:
                self._lose(i)

    @property
    def _workers(self) -> list[int]:
        links = {self._processes[i].link: i for i in self._opening}
        for link in wait(links, 0) if links else ():
            i = links[link]  # type: ignore[index]
            fault: Refused | None
            try:
                fault = self._processes[i].link.recv()
            except (EOFError, OSError):
                self._lose(i)
                continue
            self._opening.discard(i)
            if fault is None:
                self._open.append(i)
            elif self._must_open:
                raise fault.error
        return self._open

    @property
    def _more_may_wait(self) -> bool:
        return sum(map(len, self._tasks.values())) < _WAITING

    def _keep(self, task: T) -> tuple[Any, T]:
        return pickle.dumps(task, pickle.HIGHEST_PROTOCOL), task

    def _send(self, worker: int, kept: Any, left: float | None, words: str) -> int:
        self._count += 1
        self._tasks[self._count] = kept
        process = self._processes[worker]
        process.owes.append(self._count)
        try:
            process.link.send((left, words))
            process.link.send_bytes(kept)
        except OSError:
            self._lose(worker)
        return self._count

    def _ready(self, waits: bool) -> list[Any]:
        while True:
            if found := [number for number in self._given if number in self._come]:
                return found
            links = {self._processes[i].link: i for i in self._open if self._processes[i].owes}
            ready = wait(links, None if waits else 0) if links else []
            for link in ready:
                self._receive(links[link])  # type: ignore[index]
            if not waits and not ready:
                return []

    def _receive(self, worker: int) -> None:
        process = self._processes[worker]
        try:
            answer: Judged | Refused = process.link.recv()
        except (EOFError, OSError):
            self._lose(worker)
            return
        self._come[process.owes.popleft()] = answer

    def _lose(self, worker: int) -> None:
        """A process has ended; what it owes is judged here."""
        self._opening.discard(worker)
        if worker in self._open:
            self._open.remove(worker)
        while self._processes[worker].owes:
            self._come[self._processes[worker].owes.popleft()] = None

    def _answer(self, known_by: Any, on: Budgeted) -> Judged | Refused:
        task, answer = self._tasks.pop(known_by), self._come.pop(known_by)
        return self._here(on, pickle.loads(task)).found if answer is None else answer

    def close(self, at_once: bool) -> None:
        """End all: those that are idle by themselves, unless that is to be done at once."""
        idle = [] if at_once else [process for i in self._open if not (process := self._processes[i]).owes]
        for process in idle:
            with contextlib.suppress(OSError):
                process.link.send(None)
        for process in idle:
            process.wait(_TO_CLOSE)
        for process in self._processes:
            process.close()
