"""Tasks that are given out ahead of their turn, in this process; and what is the same in two reports."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gguf_verify.distributed.audits import ContentsOf, OpenAudit
from gguf_verify.distributed.worker import Place
from gguf_verify.processes.sandbox import environment
from gguf_verify.report.json import of_run
from gguf_verify.results.environment import Observed
from gguf_verify.results.report import Report
from gguf_verify.rungs.blocks import BlocksTask
from gguf_verify.rungs.budget import Budget
from gguf_verify.rungs.pool import Step
from gguf_verify.rungs.run import Run

#: Fields that hold times.
TIMES = ("seconds", "stages")


class Ahead:
    """As processes elsewhere: a task is judged with what was known when it was given out, `n` steps before it is
    merged; what goes there and what comes back is pickled."""

    scans, observed = True, Observed()

    def __init__(self, n: int) -> None:
        self.wanted = n
        #: Tasks that were judged again.
        self.again_judged = 0

    def each(self, run: Run, plan: Generator[Step[Any]]) -> Iterator[tuple[Step[Any], Any]]:
        queue = deque[tuple[Step[Any], Any]]()
        broken = None
        with closing(plan):
            while True:
                try:
                    step = next(plan)
                    queue.append((step, self._judged(run, step.task)))
                except StopIteration:
                    break
                except Exception as error:
                    broken = error
                    break
                if len(queue) > self.wanted:
                    yield queue.popleft()
            yield from queue
        if broken is not None:
            raise broken

    def again(self, run: Run, task: Any) -> Any:
        self.again_judged += 1
        return self._judged(run, task)

    def later(self, run: Run) -> _Later:
        return _Later(self, run)

    def _judged(self, run: Run, task: Any) -> Any:
        return None if task is None else pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task)).judge(run)))


class _Later:
    """What is asked for is judged at once, and told `n` tasks later."""

    def __init__(self, ahead: Ahead, run: Run) -> None:
        self._ahead, self._run = ahead, run
        self._judged = deque[tuple[Any, Any]]()

    def give(self, task: Any) -> None:
        self._judged.append((task, self._ahead._judged(self._run, task)))

    def found(self, all_of_them: bool = False) -> Iterator[tuple[Any, Any]]:
        while len(self._judged) > (0 if all_of_them else self._ahead.wanted):
            yield self._judged.popleft()


@dataclass(frozen=True)
class Lethal(BlocksTask):
    """It kills the process that judges it, the first time."""

    def judge(self, run: Run) -> Any:
        if self.tensor == "blk.0.attn_k.weight":
            die_once("blocks")
        return super().judge(run)


@dataclass(frozen=True)
class LethalContents(ContentsOf):
    """Likewise."""

    def judge(self, on: OpenAudit) -> Any:
        die_once("contents")
        return super().judge(on)


def die_once(name: str) -> None:
    """Kill this process, the first time that anyone asks for that under this name."""
    marker = Path(os.environ["LETHAL_MARKER"]).with_name(name)
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def told(report: Report) -> Any:
    """All that a report says, but for times."""
    return without_times(of_run(report))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, without_times(of)) for name, of in value.items() if name not in TIMES]
    return [without_times(of) for of in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Card:
    """A task, and a call, that tells which cards its process sees, and which share of their memory arrays may take; it
    ends when so many have begun."""

    folder: str
    number: int
    of: int

    def judge(self, on: Any) -> tuple[str | None, str | None]:
        card = self(environment(Path(self.folder)))  # that of what is confined
        return card, os.environ.get("CUPY_GPU_MEMORY_LIMIT")

    def __call__(self, variables: Mapping[str, str]) -> str | None:
        (Path(self.folder) / str(self.number)).touch()
        deadline = time.monotonic() + 60
        while len(list(Path(self.folder).iterdir())) < self.of and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(name.startswith("RAY_") for name in variables)
        return variables.get("CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class OpenNothing:
    """As `worker.Budgeted`, of a worker that has nothing open."""

    budget: Budget = field(default_factory=Budget)
    observed_here: Observed = field(default_factory=Observed)


@dataclass(frozen=True)
class Nothing:
    """Work that opens nothing."""

    place: Place

    def open(self, stack: ExitStack) -> Any:
        return OpenNothing()


@dataclass(frozen=True)
class Waits:
    """A task that finds its number; it may wait for another, or kill its process."""

    number: int
    mark: str
    waits: bool
    marks: bool
    dies: bool = False

    def judge(self, run: Run) -> int:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.marks:
            Path(self.mark).touch()
        while self.waits and not Path(self.mark).exists():
            time.sleep(0.01)
        return self.number
