"""A rung's work in pieces: what is planned, who judges it, and how what is found comes together.

A rung that multiplies follows llama.cpp's graph and decides; it judges nothing itself. Its *plan* is an iterator of
steps. A step may hold a *task*: a record that a run of the same model, kernel and options can judge anywhere and at any
time, since it holds all that was decided before, and the arrays that llama.cpp gave. What a task finds is merged in the
order of the plan, so that a rung's result does not depend on who judged what, or when.

Decisions that depend on what was found before (that a type's probes are over, for example) are taken when a task is
given out, as far as is known by then. Where the merge finds that one was wrong, the task is judged again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..results import OpenedFiles, PartialResult

if TYPE_CHECKING:
    from .run import Run

On = TypeVar("On", contravariant=True)
Found = TypeVar("Found", covariant=True)
T = TypeVar("T", bound="Task[Any, Any]")


class Task(Protocol[On, Found]):
    """What can be judged by itself, on what every process that judges it has opened: of a rung's tasks, a `Run`. It can
    be pickled, and so can what it finds."""

    def judge(self, on: On, /) -> Found:
        """What is found in a run of the same model, kernel and options. Raises EnvironmentFault."""
        ...


@dataclass
class Step(Generic[T]):
    """A step of a plan: what is recorded without judging, and the task that follows, if any."""

    said: PartialResult = field(default_factory=lambda: PartialResult(name=""))
    task: T | None = None


class Later(Protocol):
    """Tasks that are judged while whoever gives them out goes on with something else."""

    def give(self, task: Task[Run, Any], /) -> None:
        """Have one more judged."""
        ...

    def found(self, all_of_them: bool = False) -> Iterator[tuple[Task[Run, Any], Any]]:
        """The tasks whose turn has come, in the order in which they were given, each with what it found; or all. Raises
        what a task raises."""
        ...


class Judges(Protocol):
    """Who judges tasks."""

    #: How many tasks keep it busy: work that needs no plan is divided into some more.
    wanted: int
    #: Whether it has more cores than this process: then a file is scanned in tasks.
    scans: bool
    #: Files that kernels opened in other processes.
    opened: OpenedFiles

    def each(self, run: Run, plan: Generator[Step[T]]) -> Iterator[tuple[Step[T], Any]]:
        """The steps in order, each with what its task found (None without a task). Raises what the plan or a task
        raises, after all that came before it in the plan."""
        ...

    def again(self, run: Run, task: Task[Run, Found]) -> Found:
        """What one more task finds."""
        ...

    def later(self, run: Run) -> Later:
        """For tasks that no plan holds, since what comes next depends on something else."""
        ...


class Here:
    """Each task is judged in this process when its turn comes, before the next is planned."""

    wanted, scans, opened = 1, False, OpenedFiles()

    def each(self, run: Run, plan: Generator[Step[T]]) -> Iterator[tuple[Step[T], Any]]:
        with closing(plan):
            for step in plan:
                yield step, None if step.task is None else step.task.judge(run)

    def again(self, run: Run, task: Task[Run, Found]) -> Found:
        return task.judge(run)

    def later(self, run: Run) -> Later:
        return _LaterHere(run)


class _LaterHere:
    """They are judged when they are asked for."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._due = deque[Task[Any, Any]]()

    def give(self, task: Task[Run, Any]) -> None:
        self._due.append(task)

    def found(self, all_of_them: bool = False) -> Iterator[tuple[Task[Run, Any], Any]]:
        while self._due:
            task = self._due.popleft()
            yield task, task.judge(self._run)
