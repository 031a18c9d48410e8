"""The rung of a kernel that multiplies nothing: a chain of calls, the same for each task.

    the model's own input → probes → other schedules → indices of 2^31 and more

A subclass of `TaskJudge` describes its task: what the kernel is called with, what it should return, and how outputs are
compared with that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ...checks import ALONE
from ...gguf.file import Tensor
from ...hosts.schedule import Schedule
from ...kernels.tasks import Task
from ...results.calls import Call
from ...results.failures import Failure, frames_of
from ...results.products import TypeEnvelope
from ...results.rungs import RungResult
from ...support.errors import EnvironmentFault, KernelFault, KernelFinding, NotTried
from ...support.text import printable
from ..calls import begin_alone, calling, end_alone, limit_addresses
from ..interface import Steps
from ..plan import PLAN, in_words, shapes_of
from ..run import Run
from ..schedules import BRIEF, made, not_tried, offered, omit, schedules, shapes, under_schedule
from .large import Repeating

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

#: Wrong calls after which no further probes of a type are made.
MOST_WRONG = 3
#: Calls that are too large for memory, as reports name them.
INDICES = "indices of 2^31 and more"


@dataclass(frozen=True)
class TaskCall:
    """A call of the kernel.

    Args:
        call, tensor: the call, and the tensor that failures name.
        make: makes the input: rows uint8[N, row bytes], or activations float32[M, K].
        words: its shape, in words.
        values: the blocks or activations of a probe, in words.
        start: the first row or token of the model's own; None: a probe.
        last: the last call with the model's own rows of this tensor.
    """

    call: Call
    tensor: Tensor
    make: Callable[[], Array]
    words: str
    values: str = ""
    start: int | None = None
    last: bool = False


@dataclass(frozen=True)
class Judged:
    """The judgement of a call.

    Args:
        correct: whether its outputs are correct; None: that is not known, which is recorded.
        wrong: how many failures were recorded.
    """

    of: TaskCall
    correct: bool | None
    wrong: int


@dataclass
class Found:
    """The findings of the probes of one type, or of one encoding.

    Args:
        right: the correct calls.
        wrong: how many are not.
        indices: calls with indices of 2^31 and more, in words.
        not_covered: inputs that were not tried, and why.
    """

    name: str
    right: list[TaskCall] = field(default_factory=list)
    wrong: int = 0
    indices: list[str] = field(default_factory=list)
    not_covered: list[tuple[str, str]] = field(default_factory=list)


class TaskJudge(ABC):
    """The rung of one kernel.

    Args:
        run, result: of the rung, whose findings are recorded there.
    """

    kernel: Task
    #: Inputs that no probe covers, and why.
    never_covered: tuple[tuple[str, str], ...] = ()

    def __init__(self, run: Run, result: RungResult) -> None:
        self.run, self.result, self.only = run, result, begin_alone(run, result)
        assert isinstance(run.kernel, Task)
        self.kernel = run.kernel
        self.seed, self.brief = run.options.seed, run.options.probes == "brief"
        self._faults = 0

    # ---- the description of a task -----------------------------------------------------------------------------------

    @abstractmethod
    def of_model(self) -> Generator[None, None, Iterable[Tensor]]:
        """Judge the calls with the model's own input, in steps; returns the tensors to probe, one of each kind."""

    @abstractmethod
    def plan(self, tensor: Tensor) -> Iterator[TaskCall]:
        """The probes of a tensor's kind."""

    @abstractmethod
    def small(self, tensor: Tensor) -> Iterator[TaskCall]:
        """Calls for other schedules."""

    @abstractmethod
    def outputs(self, call: TaskCall, given: Array, kernel: Any) -> Array:
        """Outputs of a kernel. Raises KernelFault; EnvironmentFault under a schedule."""

    @abstractmethod
    def correct(self, of: TaskCall) -> bool:
        """Make and judge a call. Returns whether it is correct; wrong outputs are recorded."""

    @abstractmethod
    def report(self) -> None:
        """Record figures at the end."""

    def found(self, tensor: Tensor) -> Found:
        """The record of the probes of a tensor's kind."""
        return Found(tensor.type.name)

    def repeating(self, tensor: Tensor) -> Repeating | None:
        """Calls whose input repeats, of which some have indices of 2^31 and more; None if none are made."""
        return None

    def judge(self, calls: Iterable[TaskCall]) -> Iterator[Judged]:
        """Make and judge calls, in their order."""
        for call in calls:
            failed = self.result.n_failures
            correct = self.correct(call)
            yield Judged(call, correct, self.result.n_failures - failed)

    def scheduled(self, tensor: Tensor) -> Iterator[tuple[TaskCall, Callable[[Any], Array]]]:
        """Calls for other schedules, each with a function that makes it with a kernel."""
        for call in self.small(tensor):
            yield call, partial(self.outputs, call, call.make())

    # ---- the rung ----------------------------------------------------------------------------------------------------

    @classmethod
    def climb(cls, run: Run, result: RungResult) -> Steps:
        """The rung of the run's kernel. Raises EnvironmentFault."""
        rung = cls(run, result)
        kinds = yield from rung.of_model()
        for tensor in run.progress(f"{result.name}, probes", list(kinds), unit="type"):
            rung.probe(tensor)
            yield None
        limit_addresses(run, result)
        if rung.only is not None:
            end_alone(result, rung.only)
        else:
            rung.report()

    @property
    def broken(self) -> bool:
        """Whether the kernel broke its contract so often that it is not called any more."""
        return self._faults >= MOST_WRONG

    def wants(self, call: Call) -> bool:
        """Whether the run makes this call."""
        only = self.only
        return only is None or (only.kind, only.number, only.use) == (call.kind, call.number, call.use)

    def make(self, call: TaskCall, do: Callable[[], T], counts: bool = True) -> T | None:
        """The result of a call; None if the kernel broke its contract, which is recorded. `counts`: whether
        it is counted as a call of its own."""
        if self.only is not None and counts:
            self.result.count(ALONE)
        try:
            with calling(call.call):
                return do()
        except KernelFault as error:
            self._faults += 1
            said = f"{printable(call.tensor.name, 64)}: {call.words}: {error}"
            self.result.fail(
                Failure(said, call.tensor.name, culprit=error.culprit, cause=error.cause, call=error.call or call.call)
            )
            return None

    def probe(self, tensor: Tensor) -> None:
        """Judge the probes of a tensor's kind, and record for what they hold."""
        found, wanted = self.found(tensor), [call for call in self.plan(tensor) if self.wants(call.call)]
        for judged in self.judge(self._affordable(wanted, found)):
            if judged.correct:
                found.right.append(judged.of)
            elif judged.correct is not None:
                found.wrong += 1
            if found.wrong >= MOST_WRONG:
                break
        if (found.wrong >= MOST_WRONG or self.broken) and len(found.right) + found.wrong < len(wanted):
            found.not_covered.append(("the rest of the plan", "the kernel is wrong already"))
        self._under_schedules(tensor)
        self._check_large(found, tensor)
        if self.only is None:
            self._record(found)

    def _affordable(self, calls: Sequence[TaskCall], found: Found) -> Iterator[TaskCall]:
        """The calls until the kernel broke its contract too often, or the time is over, which is recorded."""
        budget = self.run.budget
        for call in calls:
            if self.broken:
                return
            if budget.spent:
                found.not_covered.append(("the rest of the plan", budget.words))
                self.result.leave(f"probes of {found.name}", budget.words, "")
                return
            yield call

    def _check_large(self, found: Found, tensor: Tensor) -> None:
        """Make calls with indices of 2^31 and more, after an ordinary one with the same input."""
        call, repeating, domain = Call(kind="index"), self.repeating(tensor), self.kernel.domain
        if repeating is None or not self.wants(call):
            return
        wrong = found.wrong > 0 or self.broken
        if self.only is None and (self.brief or wrong):
            found.not_covered.append((INDICES, "the kernel is wrong already" if wrong else BRIEF))
            return
        sizes, small = repeating.sizes(domain), repeating.small(domain)
        task = None
        if sizes and small is not None:
            shape = structs.replace(call, k=small[1], **{"n" if repeating.what == "N·K" else "m": small[0]})
            words = f"values that repeat: at {repeating.what} = {small[0]} × {small[1]}"
            if self.correct(TaskCall(shape, tensor, partial(repeating.input, *small), words, "values that repeat")):
                task = repeating.task(domain, self.seed)
        if task is None:
            found.not_covered.append((INDICES, "its domain ends before"))
            return
        indices, not_covered, wrong_words = task.check(sizes)
        if self.only is not None:
            self.result.count(ALONE, len(indices))
        found.indices += indices
        found.not_covered += not_covered
        if wrong_words:
            found.wrong += 1
            words = f"{printable(tensor.name, 64)}, {found.name}: {wrong_words}"
            self.result.fail(Failure(words, tensor.name, call=call))

    def _record(self, found: Found) -> None:
        """Record for what the rung holds."""
        found.not_covered += self.never_covered
        self.result.did("shapes", len(found.right))
        self.result.did("indices", len(found.indices))
        for what, why in found.not_covered:
            self.result.omit("indices" if what == INDICES else "shapes", f"{what}: {why}")
        if self.brief:
            self.result.omit("shapes", f"a small part of the probe plan ({BRIEF})", "quick")
        # a size of 0 means that this task has no such dimension
        tokens, rows, columns = ({getattr(of.call, size) for of in found.right} - {0} for size in "mnk")
        self.result.envelopes.append(
            TypeEnvelope(
                type=found.name, plan=PLAN, probes=self.run.options.probes, domain=self.kernel.domain.words,
                calls=len(found.right), tokens=in_words(tokens) or "any", rows=in_words(rows) or "any",
                columns=in_words(columns), values=tuple(sorted({of.values for of in found.right})),
                indices=tuple(found.indices), not_covered=tuple(found.not_covered), under_test=True,
            )
        )  # fmt: skip

    # ---- under other schedules ---------------------------------------------------------------------------------------

    def _under_schedules(self, tensor: Tensor) -> None:
        """Make calls under the schedules that the host offers; each must give the bytes of the ordinary call.

        Raises EnvironmentFault if checks are requested and cannot be made.
        """
        run, result, failed = self.run, self.result, set[str]()
        if self.broken:
            return
        if self.brief:
            omit(result, Schedule("descending"), BRIEF, "quick")
        every = schedules(run.options)
        for i, (of, outputs) in enumerate(self.scheduled(tensor)):
            ordinary: Bytes | None = None
            for j, schedule in enumerate(every):
                kind = "checked" if schedule.checked else "order"
                this = structs.replace(of.call, number=i * len(every) + j)
                if kind in failed or not self.wants(this):
                    continue
                under = offered(run, result, self.kernel, schedule, tensor)
                if under is None:
                    continue
                try:
                    with calling(this):
                        got = _bytes(outputs(under))
                        ordinary = _bytes(outputs(self.kernel)) if ordinary is None else ordinary
                        _same(got, ordinary, schedule.words)
                    made(run, result, schedule)
                except KernelFault as error:
                    failed.add(kind)
                    said = str(error) if isinstance(error, KernelFinding) else f"{under_schedule(schedule)}: {error}"
                    words = f"{printable(tensor.name, 64)}: {of.words}: {said}"
                    result.fail(Failure(words, tensor.name, culprit=error.culprit, call=this, trace=frames_of(error)))
                except NotTried as error:
                    failed.add(kind)
                    result.leave(self.kernel.name, not_tried(schedule, error), tensor.name)
                except EnvironmentFault as error:
                    if run.options.sanitize and schedule.checked:
                        raise
                    omit(result, schedule, f"the kernel could not be run so ({schedule.words}): {error}")

    def small_shapes(self, unit: int) -> list[tuple[int, int, int]]:
        """(M, N, K) for calls under other schedules, within the domain; K is a multiple of a unit."""
        domain, found = self.kernel.domain, []
        for m, n, slices in shapes(self.seed):
            k = -(-slices * 32 // unit) * unit
            if m in domain.m and n in domain.n and k in domain.k:
                found.append((m, n, k))
        return found or shapes_of(domain, unit, self.seed, True)[:1]


def _bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _same(got: Bytes, ordinary: Bytes, words: str) -> None:
    """Raises KernelFinding where the bytes differ."""
    if got.shape == ordinary.shape and np.array_equal(got, ordinary):
        return
    differ = np.flatnonzero(got != ordinary) if got.shape == ordinary.shape else np.zeros(1, int)
    raise KernelFinding(
        "changing",
        f"the outputs depend on the order in which threads run, or on how long copies take: {len(differ)} bytes of "
        f"{len(ordinary)} differ under another schedule ({words}), the first at {differ[0]}",
    )
