"""What runs in a process that judges: it opens once what tasks are judged on, and judges them."""

from __future__ import annotations

import contextlib
import os
import pickle
import platform
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ..llama import LlamaRefused
from ..results import OpenedFiles
from ..rungs.budget import Budget, BudgetSpent
from ..rungs.tasks import Task
from ..support import scratch, stages
from ..support.errors import EnvironmentFault, HarnessError


@dataclass(frozen=True)
class Place:
    """Where the process works that asks.

    Args:
        folder: in which relative paths begin, where the worker has it.
        scratch: its folder of temporary files, where that is on the same machine.
    """

    folder: Path = field(default_factory=Path.cwd)
    scratch: Path = field(default_factory=scratch.top)

    def enter(self) -> None:
        """Work there, as far as it is on this machine."""
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        if (self.scratch / "lock").exists():
            scratch.join(self.scratch)


class Budgeted(Protocol):
    """A dataclass that tasks are judged on, in the time that is left."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def budget(self) -> Budget: ...

    @property
    def opened_here(self) -> OpenedFiles:
        """The files that its kernel opened in this process."""
        ...


class Work(Protocol):
    """What a worker opens. It can be pickled."""

    @property
    def place(self) -> Place: ...

    def open(self, stack: ExitStack) -> Budgeted:
        """Open it, until the stack is closed. Raises HarnessError, LlamaRefused; EnvironmentFault also where it is not
        what the process has that asks."""
        ...


@dataclass(frozen=True)
class Judged:
    """What a task found, whether the time that was left kept something from being looked for, and which files the
    kernel has opened."""

    found: Any
    cut: bool
    opened: OpenedFiles = field(default_factory=OpenedFiles)


@dataclass(frozen=True)
class Refused:
    """An error that ends a run, as a value: Ray would wrap an exception."""

    error: Exception

    @classmethod
    def of(cls, error: HarnessError | LlamaRefused | BudgetSpent) -> Refused:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return cls(EnvironmentFault(str(error)))
        return cls(error)


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
        """What the task finds, with the time of its stages; Refused where it cannot be judged here.

        Args:
            left: seconds that the rung has, where it has not as many as it takes; `words` say why that is all.
        """
        fault = self.open()
        if fault is not None:
            return fault
        assert self._opened is not None
        on = replace(self._opened, budget=Budget(left, words=words))
        before = stages.seconds()
        try:
            found = task.judge(on)
        except (HarnessError, LlamaRefused, BudgetSpent) as error:
            return Refused.of(error)
        part = getattr(found, "part", None)
        if part is not None:
            part.stages.update(stages.since(before))
        return Judged(found, on.budget.cut, on.opened_here)

    def close(self) -> None:
        """End what was started."""
        self._stack.close()
        self._opened = None
