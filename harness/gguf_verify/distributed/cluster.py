"""The processes of Ray that judge tasks: how they are started, what they are given, and in which order what they find
comes back."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import ray

from ..llama import LlamaRefused
from ..rungs.tasks import Found, Step, T, Task
from ..support.errors import EnvironmentFault, HarnessError
from ..support.progress import Steps
from .connection import RETRIES
from .worker import Budgeted, Judged, Refused, Work, Worker

#: Tasks of a worker: those that are given out, so that it never waits, and those whose turn has not come to be merged.
_GIVEN, _UNMERGED = 2, 4
#: Seconds in which workers end by themselves.
_TO_CLOSE = 10.0


@contextmanager
def cluster(
    address: str, work_of: Callable[[int], Work], gpus: bool, time_limit: float, progress: bool
) -> Iterator[Cluster]:
    """Workers for what `work_of` makes, given the threads that each has: one for each GPU, or else for each CPU.

    Raises EnvironmentFault.
    """
    with Steps(progress) as told:
        told("workers of Ray open the files")
        there = ray.cluster_resources()
        cpus = int(there.get("CPU", 0))
        count = int(there.get("GPU", 0)) if gpus else cpus
        if not count:
            raise EnvironmentFault(f"--ray {address}: it has no {'GPU' if gpus else 'CPU'} for a worker")
        work = work_of(max(1, cpus // count))
        kind = ray.remote(Worker).options(
            num_cpus=0 if gpus else 1, num_gpus=1 if gpus else 0, max_restarts=-1, max_task_retries=RETRIES
        )
        workers = [kind.remote(work) for _ in range(count)]
        try:
            opened = Cluster(workers)
            opened.begin(time_limit)
            yield opened
        finally:
            _end(workers)


class Cluster:
    """Workers, and the tasks that they have.

    Each has at most two tasks, so that arrays wait in the object store for no more than that; results wait for their
    turn.
    """

    def __init__(self, workers: list[Any]) -> None:
        self._workers = workers
        #: Tasks that keep all busy.
        self.wanted = _GIVEN * len(workers)
        self._given: dict[Any, int] = {}

    def begin(self, time_limit: float) -> None:
        """Wait until a worker has opened its work. Raises EnvironmentFault."""
        begun = [worker.open.remote() for worker in self._workers]
        ready, _ = ray.wait(begun, timeout=time_limit)
        if not ready:
            raise EnvironmentFault(f"no worker of Ray began within {time_limit:g} s (--time-limit): do others use it?")
        for answer in ready:
            self._value(answer)

    def each(self, on: Budgeted, plan: Generator[Step[T]]) -> Iterator[tuple[Step[T], Any]]:
        """As `Judges.each`; tasks are given out ahead of their turn."""
        queue = deque[tuple[Step[T], Any]]()
        over, broken = False, None
        with closing(plan):
            while queue or not over:
                if not over and self._room(queue):
                    try:
                        step = next(plan)
                        queue.append((step, None if step.task is None else self._give(on, step)))
                    except StopIteration:
                        over = True
                    except (HarnessError, LlamaRefused) as error:
                        over, broken = True, error
                self._look(waits=over or not self._room(queue))
                while queue and queue[0][1] not in self._given:
                    step, answer = queue.popleft()
                    yield step, None if answer is None else self._found(on, answer)
        if broken is not None:
            raise broken

    def again(self, on: Budgeted, task: Task[Any, Found]) -> Found:
        """As `Judges.again`."""
        answer = self._send(on, ray.put(task))
        while answer in self._given:
            self._look(waits=True)
        found: Found = self._found(on, answer)
        return found

    def _room(self, queue: deque[tuple[Step[T], Any]]) -> bool:
        n = len(self._workers)
        return len(self._given) < _GIVEN * n and len(queue) < _UNMERGED * n

    def _give(self, on: Budgeted, step: Step[T]) -> Any:
        """Give its task out. From then on its arrays are those of the object store."""
        kept = ray.put(step.task)
        step.task = ray.get(kept)
        return self._send(on, kept)

    def _send(self, on: Budgeted, kept: Any) -> Any:
        loads = [0] * len(self._workers)
        for i in self._given.values():
            loads[i] += 1
        i = loads.index(min(loads))
        left = on.budget.left if on.budget.limited else None
        answer = self._workers[i].judge.remote(kept, left, on.budget.words)
        self._given[answer] = i
        return answer

    def _look(self, waits: bool) -> None:
        """Note which answers have come; `waits` for one, where one is to come."""
        if self._given:
            ready, _ = ray.wait([*self._given], num_returns=1, timeout=None if waits else 0)
            for answer in ready:
                del self._given[answer]

    def _found(self, on: Budgeted, answer: Any) -> Any:
        """What a task found. Raises what the worker raised."""
        judged: Judged = self._value(answer)
        on.budget.cut |= judged.cut
        return judged.found

    @staticmethod
    def _value(answer: Any) -> Any:
        """Raises what the worker raised."""
        try:
            found = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except ray.exceptions.RayError as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise EnvironmentFault(
                f"a worker of Ray was lost, and so was each that took its task after it ({RETRIES} more): {first}"
            ) from error
        if isinstance(found, Refused):
            raise found.error
        return found


def _end(workers: list[Any]) -> None:
    """End the workers, and what they started; at once where a signal ended the run."""
    if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait([worker.close.remote() for worker in workers], num_returns=len(workers), timeout=_TO_CLOSE)
    for worker in workers:
        ray.kill(worker)


__all__ = ["Cluster", "cluster"]
