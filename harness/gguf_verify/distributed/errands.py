"""Calls that take minutes, as tasks of Ray: each runs where there is room, and again where its worker is lost."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray

from ..rungs.pool import Refused
from ..support.errors import EnvironmentFault, HarnessError
from ..support.text import printable
from .connection import RETRIES
from .identity import Expected
from .worker import Place

T = TypeVar("T")
#: How Ray names a kind of GPU among a machine's resources.
_KIND = "accelerator_type:"


@dataclass(frozen=True)
class Errand(Generic[T]):
    """One call.

    Args:
        call: what is called, with the variables of a process that it starts; it can be pickled, and so can what it
            returns.
        known: returns the identity of the process that runs it.
        expected: what must be found.
        gpu: it takes a GPU.
    """

    call: Callable[[Mapping[str, str]], T]
    known: Callable[[], Mapping[str, str]]
    expected: Expected
    gpu: bool


class Lost(Exception):
    """The process was lost that ran an errand, and so was each that ran it after that."""


class Errands(Generic[T]):
    """Errands that run in processes of the cluster that this process is connected with, by number.

    Args:
        address: of the cluster, for messages.
        errands: which.
        jobs: how many run at the same time on the machine with the fewest CPUs.

    Raises EnvironmentFault where the cluster has no CPU, or has GPUs of several kinds, which errands need.
    """

    def __init__(self, address: str, errands: Mapping[int, Errand[T]], jobs: int) -> None:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        if not machines:
            raise EnvironmentFault(f"--ray {address}: it has no CPU for a worker")
        share = min(machine["CPU"] for machine in machines) / jobs
        kinds = sorted({name.removeprefix(_KIND) for of in machines for name in of if name.startswith(_KIND)})
        gpus = any(machine.get("GPU") for machine in machines)
        if gpus and len(kinds) > 1 and any(errand.gpu for errand in errands.values()):
            raise EnvironmentFault(
                f"--ray {address}: it has GPUs of several kinds ({', '.join(kinds)}): name one kind's"
            )
        place, threads = Place(), os.environ.get("OMP_NUM_THREADS")
        self._running = {
            # where the cluster has no GPU, the errand says what is missing
            ray.remote(_run).options(
                num_cpus=int(share) if share >= 1 else share, num_gpus=int(errand.gpu and gpus), max_retries=RETRIES
            ).remote(errand, place, threads): number
            for number, errand in errands.items()
        }  # fmt: skip

    def __len__(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._running)

    def ended(self, seconds: float) -> list[tuple[int, T | Lost]]:
        """The first errands that end within this time. Raises EnvironmentFault if a process differs from this
        one."""
        try:
            ready, _ = ray.wait([*self._running], num_returns=1, timeout=seconds)
        except SystemError as error:  # so Ray has it that a signal's handler raises, unless that is a KeyboardInterrupt
            raise error.__cause__ or error from None
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise EnvironmentFault(f"--ray: the cluster was lost: {_first_line(error)}") from error
        return [(self._running.pop(answer), self._found(answer)) for answer in ready]

    def stop(self) -> None:
        """End those that run, with their processes; the others do not begin."""
        for answer in self._running:
            ray.cancel(answer, force=True)
        self._running.clear()

    @staticmethod
    def _found(answer: Any) -> T | Lost:
        try:
            found = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from error
        except ray.exceptions.RayError as error:
            return Lost(_first_line(error))
        if isinstance(found, Refused):
            raise found.error
        result: T = found
        return result


def _first_line(error: Exception) -> str:
    return printable(next(iter(str(error).strip().splitlines()), type(error).__name__), 200)


def _run(errand: Errand[T], place: Place, threads: str | None) -> T | Refused:
    """Run the errand, in a process of Ray."""
    place.enter()
    try:
        errand.expected.check(errand.known())
    except HarnessError as error:
        return Refused(EnvironmentFault(f"a worker of Ray on {platform.node()}: {error}"))
    # Ray's own variables are not for the errand, and might let it command Ray
    variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "OMP_NUM_THREADS"}
    return errand.call(variables | ({} if threads is None else {"OMP_NUM_THREADS": threads}))
