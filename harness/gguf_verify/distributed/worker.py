"""A process that judges: it opens a run or an audit once, and judges tasks on it."""

from __future__ import annotations

import contextlib
import os
import platform
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from ..llama.process import LlamaRefused
from ..rungs.budget import Budget, BudgetSpent
from ..rungs.pool import Budgeted, Judged, Refused, Task
from ..support import scratch, stages
from ..support.errors import HarnessError


@dataclass(frozen=True)
class Place:
    """The folders of the process that requests the work.

    Args:
        folder: in which relative paths begin, where the worker has it.
        scratch: its folder of temporary files, where that is on the same machine.
    """

    folder: Path = field(default_factory=Path.cwd)
    scratch: Path = field(default_factory=scratch.top)

    def enter(self) -> None:
        """Work there, if the folders are on this machine."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        if (self.scratch / "lock").exists():
            scratch.join(self.scratch)


class Work(Protocol):
    """The run or audit that a worker opens. It can be pickled."""

    @property
    def place(self) -> Place: ...

    def open(self, stack: ExitStack) -> Budgeted:
        """Open it, until the stack is closed. Raises HarnessError, LlamaRefused; EnvironmentFault also where it is not
        what the process has that asks."""
        ...


class Worker:
    """An actor of Ray, or of a process of our own. Where its process is lost, Ray starts another, which opens the work
    anew.

    Args:
        name: what it is, in words.
    """

    def __init__(self, work: Work, name: str = "a worker of Ray") -> None:
        self._work, self._name = work, name
        self._stack = ExitStack()
        self._opened: Budgeted | None = None
        self._fault: Refused | None = None

    def open(self) -> Refused | None:
        """Open the work; what keeps it from being opened, or None."""
        if self._opened is None and self._fault is None:
            try:
                self._work.place.enter()
                self._opened = self._work.open(self._stack)
            except (HarnessError, LlamaRefused) as error:
                error.args = (f"{self._name} on {platform.node()}: {error}",)
                self._fault = Refused.of(error)
                self._stack.close()
        return self._fault

    def judge(self, task: Task[Any, Any], left: float | None = None, words: str = "") -> Judged | Refused:
        """The findings of a task, with the time of its stages; Refused if it cannot be judged here.

        Args:
            left: seconds that the rung has, where it has not as many as it takes; `words` say why that is all.
        """
        fault = self.open()
        if fault is not None:
            return fault
        assert self._opened is not None
        on = replace(self._opened, budget=Budget.of(left, words=words))
        before = stages.seconds()
        try:
            found = task.judge(on)
        except (HarnessError, LlamaRefused, BudgetSpent) as error:
            return Refused.of(error)
        part = getattr(found, "part", None)
        if part is not None:
            part.stages.update(stages.since(before))
        return Judged(found, on.observed_here)

    def close(self) -> None:
        """End what was started."""
        self._stack.close()
        self._opened = None
