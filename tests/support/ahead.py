"""Tasks that are given out ahead of their turn, in this process; and what is the same in two reports."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_verify.report.json import of_run
from gguf_verify.results import Report
from gguf_verify.rungs.blocks import BlocksTask
from gguf_verify.rungs.run import Run
from gguf_verify.rungs.tasks import Step

#: Fields that hold times.
TIMES = ("seconds", "stages")


class Ahead:
    """As processes elsewhere: a task is judged with what was known when it was given out, `n` steps before it is
    merged; what goes there and what comes back is pickled."""

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

    def _judged(self, run: Run, task: Any) -> Any:
        return None if task is None else pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task)).judge(run)))


@dataclass(frozen=True)
class Lethal(BlocksTask):
    """It kills the process that judges it, the first time."""

    def judge(self, run: Run) -> Any:
        marker = Path(os.environ["LETHAL_MARKER"])
        if self.tensor == "blk.0.attn_k.weight" and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().judge(run)


def told(report: Report) -> Any:
    """All that a report says, but for times."""
    return _without_times(of_run(report))


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return [(name, _without_times(of)) for name, of in value.items() if name not in TIMES]
    return [_without_times(of) for of in value] if isinstance(value, list) else value


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
