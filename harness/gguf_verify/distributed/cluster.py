"""The processes of Ray that judge tasks: how they are started, and what they are given."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from ..rungs.pool import Answer, Pool, Refused, T, Workers
from ..support.errors import EnvironmentFault
from ..support.progress import Steps
from .connection import RETRIES
from .local import sharing_a_card
from .worker import Work, Worker

#: Seconds in which workers end by themselves.
_TO_CLOSE = 10.0


@contextmanager
def cluster(
    address: str, work_of: Callable[[int], Work], on_card: Callable[[int], int] | None, time_limit: float,
    progress: bool,
) -> Iterator[Pool]:  # fmt: skip
    """Workers for the work that `work_of` makes for a number of threads.

    Args:
        on_card: returns the number of workers that share a GPU, for a number of CPUs; None: one worker for each CPU,
            without a GPU.

    Raises EnvironmentFault.
    """
    with Steps(progress) as told:
        told("workers of Ray open the files")
        there = ray.cluster_resources()
        cpus = int(there.get("CPU", 0))
        gpus = int(there.get("GPU", 0))
        if not (cpus if on_card is None else gpus):
            raise EnvironmentFault(f"--ray {address}: it has no {'CPU' if on_card is None else 'GPU'} for a worker")
        sharing = 0 if on_card is None else on_card(cpus // gpus)
        count = sharing * gpus or cpus
        work = work_of(max(1, cpus // count))
        takes: dict[str, Any] = {"num_cpus": 0, "num_gpus": 1 / sharing} if sharing else {"num_cpus": 1, "num_gpus": 0}
        if sharing > 1:
            takes["runtime_env"] = {"env_vars": sharing_a_card(sharing)}
        kind = ray.remote(Worker).options(**takes, max_restarts=-1, max_task_retries=RETRIES)
        workers = [kind.remote(work) for _ in range(count)]
        try:
            opened = RayWorkers(workers)
            opened.begin(time_limit)
            yield Pool(opened, count)
        finally:
            # End the workers, and what they started; at once where a signal ended the run.
            if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.wait([worker.close.remote() for worker in workers], num_returns=len(workers), timeout=_TO_CLOSE)
            for worker in workers:
                ray.kill(worker)


class RayWorkers(Workers):
    """Actors of Ray."""

    scans = True

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors
        self._owed: list[list[Answer]] = [[] for _ in actors]

    def begin(self, time_limit: float) -> None:
        """Wait until a worker has opened its work. Raises EnvironmentFault."""
        begun = [actor.open.remote() for actor in self._actors]
        ready, _ = ray.wait(begun, timeout=time_limit)
        if not ready:
            raise EnvironmentFault(f"no worker of Ray began within {time_limit:g} s (--time-limit): do others use it?")
        for answer in ready:
            if isinstance(found := _value(answer), Refused):
                raise found.error

    def count(self) -> int:
        return len(self._actors)

    def keep(self, task: T) -> tuple[Any, T]:
        # from now on its arrays are those of the object store, not a second copy
        kept = ray.put(task)
        return kept, ray.get(kept)

    def submit(self, kept: Any, left: float | None, words: str) -> Answer:
        self._owed = [[answer for answer in owed if not answer.done()] for owed in self._owed]
        worker = min(range(len(self._actors)), key=lambda i: len(self._owed[i]))
        answer = Answer()
        reference = self._actors[worker].judge.remote(kept, left, words)
        reference.future().add_done_callback(lambda _: _settle(answer, reference))
        self._owed[worker].append(answer)
        return answer


def _settle(answer: Answer, reference: Any) -> None:
    try:
        answer.set_result(_value(reference))
    except Exception as error:
        answer.set_exception(error)


def _value(answer: Any) -> Any:
    """Raises what the worker raised."""
    try:
        return ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from error
    except ray.exceptions.RayError as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EnvironmentFault(
            f"a worker of Ray was lost, and so was each that took its task after it ({RETRIES} more): {first}"
        ) from error
