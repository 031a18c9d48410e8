"""The processes of Ray that judge tasks: how they are started, and what they are given."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from ..rungs.tasks import T
from ..support.errors import EnvironmentFault
from ..support.progress import Steps
from .connection import RETRIES
from .in_order import InOrder
from .local import sharing_a_card
from .worker import Budgeted, Judged, Refused, Work, Worker

#: Seconds in which workers end by themselves.
_TO_CLOSE = 10.0


@contextmanager
def cluster(
    address: str, work_of: Callable[[int], Work], on_card: Callable[[int], int] | None, time_limit: float,
    progress: bool,
) -> Iterator[Cluster]:  # fmt: skip
    """Workers for what `work_of` makes, given the threads that each has.

    Args:
        on_card: how many share a GPU, given the CPUs that there are for it; None: there is one for each CPU, without a
            GPU.

    Raises EnvironmentFault.
    """
    with Steps(progress) as told:
        told("workers of Ray open the files")
        there = ray.cluster_resources()
        cpus = int(there.get("CPU", 0))
        cards = int(there.get("GPU", 0))
        if not (cpus if on_card is None else cards):
            raise EnvironmentFault(f"--ray {address}: it has no {'CPU' if on_card is None else 'GPU'} for a worker")
        sharing = 0 if on_card is None else on_card(cpus // cards)
        count = sharing * cards or cpus
        work = work_of(max(1, cpus // count))
        takes: dict[str, Any] = {"num_cpus": 0, "num_gpus": 1 / sharing} if sharing else {"num_cpus": 1, "num_gpus": 0}
        if sharing > 1:
            takes["runtime_env"] = {"env_vars": sharing_a_card(sharing)}
        kind = ray.remote(Worker).options(**takes, max_restarts=-1, max_task_retries=RETRIES)
        workers = [kind.remote(work) for _ in range(count)]
        try:
            opened = Cluster(workers)
            opened.begin(time_limit)
            yield opened
        finally:
            _end(workers)


class Cluster(InOrder):
    """Workers of Ray."""

    def __init__(self, workers: list[Any]) -> None:
        super().__init__(len(workers))
        self._actors = workers

    def begin(self, time_limit: float) -> None:
        """Wait until a worker has opened its work. Raises EnvironmentFault."""
        begun = [worker.open.remote() for worker in self._actors]
        ready, _ = ray.wait(begun, timeout=time_limit)
        if not ready:
            raise EnvironmentFault(f"no worker of Ray began within {time_limit:g} s (--time-limit): do others use it?")
        for answer in ready:
            if isinstance(found := _value(answer), Refused):
                raise found.error

    @property
    def _workers(self) -> list[int]:
        return [*range(len(self._actors))]

    def _keep(self, task: T) -> tuple[Any, T]:
        """From then on its arrays are those of the object store."""
        kept = ray.put(task)
        return kept, ray.get(kept)

    def _send(self, worker: int, kept: Any, left: float | None, words: str) -> Any:
        return self._actors[worker].judge.remote(kept, left, words)

    def _ready(self, waits: bool) -> list[Any]:
        ready, _ = ray.wait([*self._given], num_returns=1, timeout=None if waits else 0)
        return list(ready)

    def _answer(self, known_by: Any, on: Budgeted) -> Judged | Refused:
        found: Judged | Refused = _value(known_by)
        return found


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


def _end(workers: list[Any]) -> None:
    """End the workers, and what they started; at once where a signal ended the run."""
    if not isinstance(sys.exc_info()[1], KeyboardInterrupt):
        with contextlib.suppress(ray.exceptions.RayError):
            ray.wait([worker.close.remote() for worker in workers], num_returns=len(workers), timeout=_TO_CLOSE)
    for worker in workers:
        ray.kill(worker)
