"""A rung's work in parts: the plan, the judgement of tasks, and the order in which their findings are merged.

A rung that multiplies follows llama.cpp's graph and makes a plan: a generator of steps. A step may hold a *task*: a
frozen record that holds all decisions so far and llama.cpp's arrays, so that any run of the same model, kernel and
options can judge it, in any process and at any time. The findings of tasks are merged in the plan's order, so that a
rung's result does not depend on the process or the time in which a task was judged.

Some decisions depend on earlier findings (whether a type's probes are done, for example). They are predicted at
dispatch; the merge reruns a task whose prediction was wrong.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ..llama.process import LlamaRefused
from ..results.environment import Observed
from ..results.rungs import PartialResult
from ..support.errors import EnvironmentFault, HarnessError
from .budget import Budget, BudgetSpent

On = TypeVar("On", contravariant=True)
Found = TypeVar("Found", covariant=True)
T = TypeVar("T", bound="Task[Any, Any]")

#: For each worker, the number of tasks that it has, so that it never waits; and of those that wait to be merged.
_GIVEN, _UNMERGED = 2, 4


class Task(Protocol[On, Found]):
    """A part of the work that any process can do that has opened the same things: a `Run`, for a rung's tasks. A task
    can be pickled, and so can its findings."""

    def judge(self, on: On, /) -> Found:
        """The findings. Raises EnvironmentFault."""
        ...


@dataclass(frozen=True)
class Step(Generic[T]):
    """A step of a plan: findings without a judgement, and the task that follows, if any."""

    said: PartialResult = field(default_factory=lambda: PartialResult(name=""))
    task: T | None = None


class Budgeted(Protocol):
    """A dataclass on which tasks are judged, in the time that is left."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def budget(self) -> Budget: ...

    @property
    def observed_here(self) -> Observed:
        """The observations of its kernel in this process."""
        ...


@dataclass(frozen=True)
class Judged:
    """The findings of a task, and the observations of the kernel so far."""

    found: Any
    observed: Observed = field(default_factory=Observed)


@dataclass(frozen=True)
class Refused:
    """An error that ends a run, as a value: Ray would wrap an exception."""

    error: Exception

    @classmethod
    def of(cls, error: HarnessError | LlamaRefused | BudgetSpent) -> Refused:
        """The error, or its words if it cannot be pickled."""
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return cls(EnvironmentFault(str(error)))
        return cls(error)


#: The answer of a worker; None: the worker was lost, and this process judges the task.
Answer = Future[Judged | Refused | None]


class Workers:
    """Other processes that judge tasks. This class has none."""

    #: Whether they have more cores than this process, so that a file is scanned in tasks.
    scans = False

    def count(self) -> int:
        """The number of workers that take tasks now. Raises EnvironmentFault."""
        return 0

    def keep(self, task: T) -> tuple[Any, T]:
        """The task in the form in which it is submitted, and the form in which it is held until it is merged."""
        return task, task

    def submit(self, kept: Any, left: float | None, words: str) -> Answer:
        """Have a task judged, in the time that is left; see `Worker.judge`."""
        raise NotImplementedError

    def more_may_wait(self) -> bool:
        """Whether more tasks than usual may wait to be merged, since one that takes long delays all that follow."""
        return False


class Pool:
    """Judges tasks in workers, ahead of their turn; without workers, in this process, each in its turn.

    Args:
        workers: that judge.
        most: the number of workers, once all are open.
    """

    def __init__(self, workers: Workers | None = None, most: int = 0) -> None:
        self._workers = workers or Workers()
        #: The number of tasks that keep all workers busy: work without a plan is divided into a few more.
        self.wanted = max(1, _GIVEN * most)
        self.scans = self._workers.scans
        #: The observations of kernels in the workers.
        self.observed = Observed()
        self._pending = set[Answer]()

    def each(self, on: Budgeted, plan: Generator[Step[T]]) -> Iterator[tuple[Step[T], Any]]:
        """The steps of a plan in order, each with the findings of its task (None without a task). An error of the plan
        or of a task is raised after all that came before it in the plan."""
        queue, over, broken = deque[tuple[Step[T], Answer | None]](), False, None
        with closing(plan):
            while queue or not over:
                if not over and self._room(len(queue)):
                    try:
                        step = next(plan)
                        answer = None
                        if step.task is not None:
                            kept, task = self._workers.keep(step.task)
                            step, answer = replace(step, task=task), self._give(on, kept, task)
                        queue.append((step, answer))
                    except StopIteration:
                        over = True
                    except (HarnessError, LlamaRefused) as error:
                        over, broken = True, error
                elif pending := [answer for answer in self._pending if not answer.done()]:
                    wait(pending, return_when=FIRST_COMPLETED)
                while queue and (queue[0][1] is None or queue[0][1].done()):
                    step, answer = queue.popleft()
                    yield step, None if step.task is None or answer is None else self._result(on, step.task, answer)
        if broken is not None:
            raise broken

    def again(self, on: Budgeted, task: Task[Any, Found]) -> Found:
        """The findings of one more task. Raises its errors."""
        kept, task = self._workers.keep(task)
        found: Found = self._result(on, task, self._give(on, kept, task))
        return found

    def later(self, on: Budgeted) -> Later:
        """For tasks without a plan."""
        return Later(self, on)

    def _room(self, unmerged: int) -> bool:
        return self._free() and (unmerged < _UNMERGED * max(1, self._workers.count()) or self._workers.more_may_wait())

    def _free(self) -> bool:
        self._pending = {answer for answer in self._pending if not answer.done()}
        count = self._workers.count()
        return not count or len(self._pending) < _GIVEN * count

    def _give(self, on: Budgeted, kept: Any, task: Task[Any, Any]) -> Answer:
        """The answer to a task, of a worker, or else of this process."""
        if not self._workers.count():
            return _judged_here(on, task)
        answer = self._workers.submit(kept, on.budget.left if on.budget.limited else None, on.budget.words)
        self._pending.add(answer)
        return answer

    def _result(self, on: Budgeted, task: Task[Any, Any], answer: Answer) -> Any:
        """The findings of a task. Raises its errors."""
        found = answer.result()
        if found is None:
            return task.judge(on)
        if isinstance(found, Refused):
            raise found.error
        self.observed = self.observed.with_(found.observed)
        return found.found


class Later:
    """Tasks that are judged while the caller goes on with something else."""

    def __init__(self, pool: Pool, on: Budgeted) -> None:
        self._pool, self._on = pool, on
        self._waiting = deque[Task[Any, Any]]()
        self._given = deque[tuple[Task[Any, Any], Answer]]()

    def give(self, task: Task[Any, Any]) -> None:
        """Have one more judged."""
        self._waiting.append(task)

    def found(self, all_of_them: bool = False) -> Iterator[tuple[Task[Any, Any], Any]]:
        """The tasks that are judged, in the order in which they were given, each with its findings; or all tasks. If
        all workers are busy, this process judges. Raises the errors of a task."""
        pool = self._pool
        while self._waiting and pool._workers.count():
            kept, task = pool._workers.keep(self._waiting.popleft())
            answer = pool._give(self._on, kept, task) if pool._free() else _judged_here(self._on, task)
            self._given.append((task, answer))
        while self._given and (all_of_them or self._given[0][1].done()):
            task, answer = self._given.popleft()
            yield task, pool._result(self._on, task, answer)
        while self._waiting and not self._given:
            task = self._waiting.popleft()
            yield task, task.judge(self._on)


def _judged_here(on: Budgeted, task: Task[Any, Any]) -> Answer:
    answer = Answer()
    try:
        answer.set_result(Judged(task.judge(on)))
    except (HarnessError, LlamaRefused, BudgetSpent) as error:
        answer.set_result(Refused(error))
    return answer
