"""Calls of kernels that multiply nothing: the probe plan, other schedules, and the record of what they cover."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ...checks import ALONE
from ...formats import BlockFormat
from ...gguf.file import Tensor
from ...gguf.matrices import matrix_of, may_be_matrix, where
from ...hosts.schedule import Schedule
from ...kernels.domain import Domain
from ...kernels.tasks import Task
from ...results.calls import Call
from ...results.failures import MAX_HEX_BYTES, Failure
from ...results.products import TypeEnvelope
from ...results.rungs import RungResult
from ...support.errors import EnvironmentFault, KernelFault, KernelFinding, NotTried
from ...support.text import printable
from ..calls import calling
from ..plan import PLAN, in_words, plan
from ..run import Run
from ..schedules import BRIEF, made, may_run, not_done, not_tried, omit, schedules, shapes

Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

#: Wrong calls after which no further probes of a type are made.
MOST_WRONG = 3
#: Calls that are too large for memory, as reports name them.
INDICES = "indices of 2^31 and more"


@dataclass(frozen=True)
class Probe:
    """A call of the probe plan.

    Args:
        values: what is special about the blocks or activations, in words.
        k, m, n: columns, and tokens or rows.
        make: makes the blocks or activations.
    """

    values: str
    k: int
    make: Callable[[], npt.NDArray[Any]]
    m: int = 0
    n: int = 0


@dataclass(frozen=True)
class BlocksCall:
    """A call with rows of blocks.

    Args:
        call, tensor, fmt: the call, the tensor that failures name, and the type.
        rows: makes the rows, uint8[n, row bytes].
        start: the row of the tensor that is the first one; None: a probe.
        values: the blocks of a probe, in words.
        words: the shape and the blocks of a probe, for failures.
    """

    call: Call
    tensor: Tensor
    fmt: BlockFormat
    rows: Callable[[], Bytes]
    start: int | None = None
    values: str = ""
    words: str = ""

    @property
    def size(self) -> str:
        """Its shape, in words."""
        return f"at N = {self.call.n}, K = {self.call.k}"

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return self.call.n * self.call.k // self.fmt.block_size

    def failure(
        self, at: tuple[int, int], raw: Bytes, what: str, numbers: tuple[float, float],
        bound: float | None = None, use: float | None = None,
    ) -> Failure:  # fmt: skip
        """The failure of one block.

        Args:
            at: its row and its number in the row.
            raw: its bytes.
            numbers: the number that it gives, and the expected one.
            use: the utilisation of the bound.
        """
        (row, block), tensor, of_file = at, self.tensor, self.start is not None
        row += self.start or 0
        place = (
            where(tensor, row, block=block) if of_file
            else f"{printable(tensor.name, 64)}{self.words}: row {row} block {block}"
        )  # fmt: skip
        return Failure(
            f"{place}: {what}", tensor.name, row, block, None, tensor.block_offset(row, block) if of_file else None,
            raw.tobytes()[:MAX_HEX_BYTES].hex(), *numbers, bound, use, tensor.part if of_file else 0,
            matrix_of(tensor, row) if of_file else None, call=self.call, block_type=self.fmt.name,
        )  # fmt: skip


@dataclass
class Found:
    """The findings of the probes of one type, or of one encoding."""

    name: str
    calls: int = 0
    tokens: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    indices: list[str] = field(default_factory=list)
    not_covered: list[tuple[str, str]] = field(default_factory=list)
    wrong: int = 0

    def right(self, values: str, k: int, m: int = 0, n: int = 0) -> None:
        """Record a correct call. A size of 0 has no meaning."""
        self.calls += 1
        self.values.add(values)
        self.columns.add(k)
        self.tokens |= {m} - {0}
        self.rows |= {n} - {0}


class TaskCalls:
    """The calls of a kernel in one rung, whose faults are recorded.

    Args:
        run, result: of the rung.
        only: the one call to make; None for all.
    """

    def __init__(self, run: Run, result: RungResult, only: Call | None) -> None:
        self.run, self.result, self.only = run, result, only
        assert isinstance(run.kernel, Task)
        self.kernel: Task = run.kernel
        self._faults = 0

    @property
    def broken(self) -> bool:
        """Whether the kernel broke its contract so often that it is not called any more."""
        return self._faults >= MOST_WRONG

    def out_of_time(self, found: Found) -> bool:
        """Whether the budget does not suffice for the next probe, which is recorded."""
        budget = self.run.budget
        if not budget.spent:
            return False
        budget.cut = True
        found.not_covered.append(("the rest of the plan", budget.words))
        self.result.leave(f"probes of {found.name}", budget.words, "")
        return True

    def wants(self, call: Call) -> bool:
        """Whether the run makes this call."""
        only = self.only
        return only is None or (only.kind, only.number, only.use) == (call.kind, call.number, call.use)

    def probes(self, found: Found, plan: Iterable[Probe], correct: Callable[[Call, Probe], bool]) -> None:
        """Make the calls of a plan.

        Args:
            correct: makes and judges a call; whether it is correct.
        """
        for number, probe in enumerate(plan):
            call = Call(kind="probe", number=number, m=probe.m, n=probe.n, k=probe.k)
            if not self.wants(call):
                continue
            if found.wrong >= MOST_WRONG or self.broken:
                found.not_covered.append(("the rest of the plan", "the kernel is wrong already"))
                break
            if self.out_of_time(found):
                break
            if correct(call, probe):
                found.right(probe.values, probe.k, probe.m, probe.n)
            else:
                found.wrong += 1

    def make(self, call: Call, tensor: Tensor, words: str, do: Callable[[], T], counts: bool = True) -> T | None:
        """The result of a call; None if the kernel broke its contract, which is recorded. `counts`: whether
        it is counted as a call of its own."""
        if self.only is not None and counts:
            self.result.count(ALONE)
        try:
            with calling(call):
                return do()
        except KernelFault as error:
            self._faults += 1
            said = f"{printable(tensor.name, 64)}: {words}: {error}"
            self.result.fail(
                Failure(said, tensor.name, culprit=error.culprit, cause=error.cause, call=error.call or call)
            )
            return None

    def record(self, found: Found, tokens: str = "any", rows: str = "any") -> None:
        """Record for what the rung holds.

        Args:
            tokens, rows: in words, where the calls have none.
        """
        self.result.did("shapes", found.calls)
        self.result.did("indices", len(found.indices))
        for what, why in found.not_covered:
            self.result.omit("indices" if what == INDICES else "shapes", f"{what}: {why}")
        if self.run.options.probes == "brief":
            self.result.omit("shapes", f"a small part of the probe plan ({BRIEF})", "brief")
        self.result.envelopes.append(
            TypeEnvelope(
                type=found.name, plan=PLAN, probes=self.run.options.probes, domain=self.kernel.domain.words,
                calls=found.calls, tokens=in_words(found.tokens) if found.tokens else tokens,
                rows=in_words(found.rows) if found.rows else rows, columns=in_words(found.columns),
                values=tuple(sorted(found.values)), indices=tuple(found.indices),
                not_covered=tuple(found.not_covered), under_test=True,
            )
        )  # fmt: skip

    # ---- under other schedules ---------------------------------------------------------------------------------------

    def under_schedules(
        self, tensor: Tensor, inputs: Iterator[tuple[Call, str, Callable[[Any], npt.NDArray[Any]]]]
    ) -> None:
        """Make calls under the schedules that the host offers; each must give the bytes of the ordinary call.

        Args:
            inputs: a call, its shape in words, and what makes it with a kernel.

        Raises EnvironmentFault if checks are requested and cannot be made.
        """
        run, result, failed = self.run, self.result, set[str]()
        if self.broken:
            return
        if run.options.probes == "brief":
            omit(result, Schedule("descending"), BRIEF, "brief")
        every = schedules(run.options)
        for i, (call, words, make) in enumerate(inputs):
            ordinary: Bytes | None = None
            for j, schedule in enumerate(every):
                kind = "checked" if schedule.checked else "order"
                this = Call(kind="schedule", number=i * len(every) + j, m=call.m, n=call.n, k=call.k)
                if kind in failed or not self.wants(this):
                    continue
                under = self.kernel.under(schedule) if may_run(run, schedule) else None
                if under is None:
                    if run.options.sanitize and schedule.checked:
                        result.leave(self.kernel.name, not_done(run, schedule), tensor.name)
                    else:
                        omit(result, schedule, f"kernel {self.kernel.name}: {not_done(run, schedule)}")
                    continue
                try:
                    with calling(this):
                        got = make(under)
                        if ordinary is None:
                            ordinary = _bytes(make(self.kernel))
                        _same(_bytes(got), ordinary, schedule.words)
                    made(run, result, schedule)
                except KernelFault as error:
                    failed.add(kind)
                    said = str(error)
                    if not isinstance(error, KernelFinding):
                        said = f"under another schedule ({schedule.words}): {error}"
                    result.fail(Failure(f"{words}: {said}", tensor.name, culprit=error.culprit, call=this))
                except NotTried as error:
                    failed.add(kind)
                    result.leave(self.kernel.name, not_tried(schedule, error), tensor.name)
                except EnvironmentFault as error:
                    if run.options.sanitize and schedule.checked:
                        raise
                    omit(result, schedule, f"the kernel could not be run so ({schedule.words}): {error}")


def _bytes(array: npt.NDArray[Any]) -> Bytes:
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


#: Why a tensor is not looked at.
BROKEN = f"the kernel is not called any more: it broke its contract {MOST_WRONG} times"


def quantized_matrices(run: Run, result: RungResult) -> Iterator[Tensor]:
    """The selected matrices that such a kernel is about. Others are counted, or recorded as not covered."""
    for tensor in run.selected():
        if not may_be_matrix(tensor) or not tensor.nbytes:
            continue
        if not tensor.type.quantized:
            result.skip("matrices that are not quantized")
        elif (why := run.uncovered(tensor)) is not None:
            result.leave(tensor.name, why)
        else:
            yield tensor


def block_format(tensor: Tensor) -> BlockFormat:
    """The format of a quantized tensor."""
    fmt = tensor.type.format
    assert fmt is not None
    return fmt


def shapes_of(domain: Domain, unit: int, seed: int, brief: bool) -> list[tuple[int, int, int]]:
    """(M, N, K) of the probe plan, each once."""
    found: dict[tuple[int, int, int], None] = {}
    for probe in plan(domain, unit, False, seed, brief):
        found.update(dict.fromkeys((m, probe.n, probe.k) for m in probe.tokens))
    return list(found)


def small_shapes(domain: Domain, unit: int, seed: int) -> list[tuple[int, int, int]]:
    """(M, N, K) for calls under other schedules, within the domain."""
    out = []
    for m, n, slices in shapes(seed):
        k = -(-slices * 32 // unit) * unit
        if m in domain.m and n in domain.n and k in domain.k:
            out.append((m, n, k))
    return out or shapes_of(domain, unit, seed, True)[:1]


def laid_out(fmt: BlockFormat, blocks: Bytes, n: int, k: int) -> Bytes:
    """uint8[n, row bytes] of blocks uint8[..., block bytes], repeated as often as is needed, so that rows repeat
    late."""
    wide = k // fmt.block_size
    flat = blocks.reshape(-1, fmt.block_bytes)
    there = len(flat) - (len(flat) % wide == 0 and len(flat) > 1)
    return np.resize(flat[:there], (n, wide * fmt.block_bytes))
