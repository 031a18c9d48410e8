"""Processes of this machine that judge tasks beside this one.

Judging a task on a GPU is mostly Python between launches, and a process runs one line of Python at a time. So several
processes share a GPU. Each opens the model, the kernel and its host itself. Until one is open, and when one is lost,
this process judges.

`concurrent.futures.ProcessPoolExecutor` does not fit: it imports the caller's main module again in each process, loses
all processes with one, and has no keeper that ends a process with its parent. So each process is a child of ours, with
a thread of `ThreadPoolExecutor` that hands over its tasks.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from ..processes.child import Spawned
from ..rungs.pool import Answer, Judged, Pool, Refused, T, Workers
from ..rungs.run import Run
from ..support.errors import EnvironmentFault
from .runs import RunWork

#: The name of a process in messages.
NAME = "a process that judges"
#: The most processes that pay: more would wait for llama.cpp, which only the planning process asks.
_MOST = 4
#: Cores for each, and bytes of weights from which they pay: opening a model takes a few seconds.
_CORES, _WORTH = 4, 1 << 30
#: Seconds in which a process ends by itself.
_TO_CLOSE = 10.0
#: Bytes of tasks that may wait to be merged, beside the usual number.
_WAITING = 1 << 28
#: The percentage of a GPU's memory for the arrays of all these processes. The planning process takes at most half of
#: the free memory.
_OF_CARD = 40


def paying(run: Run, cpus: int) -> int:
    """The number of processes that judge a run on a GPU with this number of CPUs, if the user requests none: several if
    the GPU multiplies a large model."""
    beside = min(_MOST, cpus // _CORES, run.kernel.host.processes_beside())
    return beside if beside > 1 and run.matrix_bytes() >= _WORTH else 1


def sharing_a_card(count: int) -> dict[str, str]:
    """Variables of processes that share a GPU."""
    return {"CUPY_GPU_MEMORY_LIMIT": f"{_OF_CARD / count:g}%"}


@contextmanager
def local_processes(work: RunWork, count: int, must_open: bool, verbose: bool) -> Iterator[Pool]:
    """A number of processes for a run's work.

    Args:
        must_open: raise EnvironmentFault if one cannot open it; else the others judge, or this process.
        verbose: what they print goes to standard error.
    """
    workers = LocalWorkers([LocalWorker(work, verbose, sharing_a_card(count)) for _ in range(count)], must_open)
    try:
        yield Pool(workers, count)
    finally:
        workers.close(at_once=isinstance(sys.exc_info()[1], KeyboardInterrupt))


class LocalWorker:
    """A process, and the thread that hands over its tasks, one after the other."""

    def __init__(self, work: RunWork, verbose: bool, environment: dict[str, str]) -> None:
        self.process = Spawned(f"{__package__}.local_process", environment=environment, verbose=verbose)
        self._thread = ThreadPoolExecutor(1, "gguf-verify judging")
        #: None, or the fault that kept the work from being opened.
        self.opening: Future[Refused | None] = self._thread.submit(self._open, work)
        self.lost = False
        #: Answers that it owes → bytes of the task.
        self.owes: dict[Answer, int] = {}

    def _open(self, work: RunWork) -> Refused | None:
        try:
            self.process.link.send(work)
            fault: Refused | None = self.process.link.recv()
        except (EOFError, OSError):
            self.lost = True
            return Refused(EnvironmentFault(f"{NAME} ended before it had opened the model"))
        return fault

    def submit(self, task: bytes, left: float | None, words: str) -> Answer:
        """Have a pickled task judged."""
        answer: Answer = self._thread.submit(self._judge, task, left, words)
        self.owes[answer] = len(task)
        return answer

    def _judge(self, task: bytes, left: float | None, words: str) -> Judged | Refused | None:
        try:
            self.process.link.send((left, words))
            self.process.link.send_bytes(task)
            answer: Judged | Refused = self.process.link.recv()
        except (EOFError, OSError):
            self.lost = True
            return None
        return answer

    def dismiss(self) -> None:
        """Let the process end by itself, if it is idle; else kill it."""
        if self.lost or not self.opening.done() or not all(answer.done() for answer in self.owes):
            self.process.kill()
        else:
            with contextlib.suppress(OSError):
                self.process.link.send(None)

    def close(self) -> None:
        """Wait for the end of a process that was dismissed or killed."""
        self.process.wait(_TO_CLOSE)
        self.process.kill()
        self._thread.shutdown(cancel_futures=True)
        self.process.close()


class LocalWorkers(Workers):
    """The processes of this machine.

    Args:
        must_open: see `local_processes`.
    """

    def __init__(self, workers: list[LocalWorker], must_open: bool) -> None:
        self.workers, self._must_open = workers, must_open

    def _open(self) -> list[LocalWorker]:
        """Those that take tasks."""
        found = []
        for worker in self.workers:
            if not worker.opening.done() or worker.lost:
                continue
            fault = worker.opening.result()
            if fault is None:
                found.append(worker)
            elif self._must_open:
                raise fault.error
        return found

    def count(self) -> int:
        return len(self._open())

    def keep(self, task: T) -> tuple[Any, T]:
        return pickle.dumps(task, pickle.HIGHEST_PROTOCOL), task

    def submit(self, kept: Any, left: float | None, words: str) -> Answer:
        for worker in self.workers:
            worker.owes = {answer: size for answer, size in worker.owes.items() if not answer.done()}
        return min(self._open(), key=lambda worker: len(worker.owes)).submit(kept, left, words)

    def more_may_wait(self) -> bool:
        return sum(sum(worker.owes.values()) for worker in self.workers) < _WAITING

    def close(self, at_once: bool) -> None:
        """End all processes."""
        for worker in self.workers:
            if at_once:
                worker.process.kill()
            else:
                worker.dismiss()
        for worker in self.workers:
            worker.close()
