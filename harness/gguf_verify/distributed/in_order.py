"""Tasks that workers judge, given out ahead of their turn; what they find comes back in the plan's order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from ..llama import LlamaRefused
from ..results import OpenedFiles
from ..rungs.budget import BudgetSpent
from ..rungs.tasks import Found, Step, T, Task
from ..support.errors import HarnessError
from .worker import Budgeted, Judged, Refused

#: Tasks of a worker: those that are given out, so that it never waits, and those whose turn has not come to be merged.
_GIVEN, _UNMERGED = 2, 4


class InOrder(ABC):
    """Workers, numbered from 0, and the tasks that they have.

    Each has at most two tasks, so that the arrays of no more than that wait; results wait for their turn. What a task's
    answer is known by can be a key of a dictionary.
    """

    #: As of `Judges`.
    scans = True

    def __init__(self, count: int) -> None:
        #: Files that kernels opened in the workers.
        self.opened = OpenedFiles()
        #: Tasks that keep all busy.
        self.wanted = _GIVEN * count
        #: Answers that have not come → the worker.
        self._given: dict[Any, int] = {}

    # ---- what kind of workers they are -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _workers(self) -> list[int]:
        """Those that take tasks now. Where there are none, tasks are judged in this process."""

    def _keep(self, task: T) -> tuple[Any, T]:
        """A task as it is sent, and as it is held here until it is merged."""
        return task, task

    @abstractmethod
    def _send(self, worker: int, kept: Any, left: float | None, words: str) -> Any:
        """Have a worker judge a task in the time that is left (`Worker.judge`); what its answer is known by."""

    @abstractmethod
    def _ready(self, waits: bool) -> Iterable[Any]:
        """Which of the answers in `_given` have come; `waits` for one."""

    @abstractmethod
    def _answer(self, known_by: Any, on: Budgeted) -> Judged | Refused:
        """An answer that has come, once."""

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def each(self, on: Budgeted, plan: Generator[Step[T]]) -> Iterator[tuple[Step[T], Any]]:
        """As `Judges.each`; tasks are given out ahead of their turn."""
        queue = deque[tuple[Step[T], Any]]()
        over, broken = False, None
        with closing(plan):
            while queue or not over:
                if not over and self._room(queue):
                    try:
                        step = next(plan)
                        answer = None
                        if step.task is not None:
                            kept, step.task = self._keep(step.task)
                            answer = self._give(on, kept, step.task)
                        queue.append((step, answer))
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
        answer = self._give(on, *self._keep(task))
        while answer in self._given:
            self._look(waits=True)
        found: Found = self._found(on, answer)
        return found

    def later(self, on: Budgeted) -> _Later:
        """As `Judges.later`; where all workers are busy, a task is judged in this process."""
        return _Later(self, on)

    def _room(self, queue: deque[Any]) -> bool:
        return self._free and (len(queue) < _UNMERGED * max(1, len(self._workers)) or self._more_may_wait)

    @property
    def _more_may_wait(self) -> bool:
        """Whether more tasks may wait to be merged than usual: one that takes long is waited for by all that follow."""
        return False

    @property
    def _free(self) -> bool:
        n = len(self._workers)
        return not n or len(self._given) < _GIVEN * n

    def _give(self, on: Budgeted, kept: Any, task: Task[Any, Any]) -> Any:
        """What the answer is known by, where it is to come; else the answer."""
        workers = self._workers
        if not workers:
            return self._here(on, task)
        held = [*self._given.values()]
        worker = min(workers, key=held.count)
        left = on.budget.left if on.budget.limited else None
        answer = self._send(worker, kept, left, on.budget.words)
        self._given[answer] = worker
        return answer

    @staticmethod
    def _here(on: Budgeted, task: Task[Any, Any]) -> _Here:
        """Judge a task in this process."""
        try:
            return _Here(Judged(task.judge(on), False))
        except (HarnessError, LlamaRefused, BudgetSpent) as error:
            return _Here(Refused(error))

    def _look(self, waits: bool) -> None:
        """Note which answers have come; `waits` for one, where one is to come."""
        if self._given:
            for answer in self._ready(waits):
                self._given.pop(answer, None)

    def _found(self, on: Budgeted, answer: Any) -> Any:
        """What a task found. Raises what kept it from being judged."""
        found = answer.found if isinstance(answer, _Here) else self._answer(answer, on)
        if isinstance(found, Refused):
            raise found.error
        on.budget.cut |= found.cut
        self.opened = self.opened.with_(found.opened)
        return found.found


class _Here:
    """The answer of this process."""

    def __init__(self, found: Judged | Refused) -> None:
        self.found = found


class _Later:
    """As `Later`."""

    def __init__(self, workers: InOrder, on: Budgeted) -> None:
        self._workers, self._on = workers, on
        self._waiting = deque[Task[Any, Any]]()
        self._given = deque[tuple[Task[Any, Any], Any]]()

    def give(self, task: Task[Any, Any]) -> None:
        """As `Later.give`."""
        self._waiting.append(task)

    def found(self, all_of_them: bool = False) -> Iterator[tuple[Task[Any, Any], Any]]:
        """As `Later.found`."""
        of = self._workers
        while self._waiting:
            of._look(waits=False)
            kept, task = of._keep(self._waiting.popleft())
            self._given.append((task, of._give(self._on, kept, task) if of._free else of._here(self._on, task)))
        of._look(waits=False)
        while self._given:
            task, answer = self._given[0]
            if answer in of._given:
                if not all_of_them:
                    return
                of._look(waits=True)
                continue
            self._given.popleft()
            yield task, of._found(self._on, answer)
