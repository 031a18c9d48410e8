"""The kernel under other schedules than the usual one: does it give the same bits whatever order its threads run in?

A GPU promises no order of threads, warps and blocks, and an asynchronous copy may take until the wait for it. A host
that emulates one can choose. Under every schedule the bits must be those of the ordinary launch, and a checked build
must find nothing. Shapes are tiny: a race between threads, or a read outside a buffer, does not need many outputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replace_fields
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from ..checks import ALONE, CHECKED, LAUNCHES
from ..formats.element import SLICE
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..gguf.matrices import label, matrix_of
from ..hosts.choice import HOSTS
from ..hosts.schedule import Schedule
from ..kernels.interface import Kernel
from ..kernels.tasks import Task
from ..results.calls import Call
from ..results.failures import Failure, frames_of
from ..results.options import Options
from ..results.rungs import RungResult
from ..semantics.exact import product
from ..semantics.gates import judge
from ..support.errors import EnvironmentFault, KernelFault, KernelFinding, NotRun, NotTried
from ..support.text import counted
from .calls import calling
from .explain import Explanations, Place, WrongCall
from .generated_inputs import drawn
from .judging import KERNEL, leave_weak
from .run import Matrix, Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
AnyKernel = TypeVar("AnyKernel", Kernel, Task)


#: Why something was skipped.
BRIEF = "--effort quick"


def schedules(options: Options) -> tuple[Schedule, ...]:
    """Those of a run. Seeds of both parities, because they decide on which side of inputs memory ends."""
    if options.probes == "brief":
        return (Schedule(checked=True),)
    return (
        Schedule(checked=True), Schedule("descending"), Schedule("seeded", 2 * options.seed + 1),
        Schedule("seeded", 2 * options.seed + 2, older=True),
    )  # fmt: skip


def shapes(seed: int) -> tuple[tuple[int, int, int], ...]:
    """Tokens, rows and slices of 32 values: few tokens, and more stages than a pipeline has, so that its ring is used
    anew; a part of a tile; whole tiles. A kernel may have code of its own for each of these numbers of tokens."""
    rng = np.random.default_rng(seed)
    few, some = rng.integers(0, 4, 4), rng.integers(0, 40, 4)
    return (
        (1 + int(few[0]), 60 + int(some[0]), 9 + int(few[1])), (17 + int(some[1]), 13 + int(some[2]), 3 + int(few[2])),
        (64, 64, 18), (9 + int(few[3]), 17 + int(some[3]) // 2, 67),
    )  # fmt: skip


def inputs(fmt: WeightFormat, rows: Bytes, like: Floats, seed: int) -> Iterator[tuple[Bytes, Floats]]:
    """Weights uint8[N, row bytes] and activations float32[M, K]: the blocks of `rows` in `shapes`, and values of the
    size of `like`, the last token's of every code: an index may depend on it."""
    size = fmt.unit // fmt.block_size * fmt.block_bytes
    units = rows[:, : rows.shape[1] // size * size].reshape(-1, size)
    for m, n, slices in shapes(seed) if len(units) else ():
        wide = -(-slices * SLICE // fmt.unit)
        x = drawn((m, wide * fmt.unit), like, seed)
        x[-1] = _of_any_code(x[-1], seed)
        yield np.resize(units, (n, wide * size)), x


def _of_any_code(x: Floats, seed: int) -> Floats:
    """Activations float32[K] of the same size that get codes of every size, zero too, and a slice of zeros where there
    are several."""
    made = x * np.random.default_rng(seed).standard_normal(len(x), np.float32)
    made[::7] = 0
    made[SLICE : len(x) // (2 * SLICE) * SLICE][:SLICE] = 0
    return np.asarray(made, np.float32)


def check_schedules(
    run: Run, result: RungResult, matrix: Matrix, like: Floats, first_row: int, explanations: Explanations, call: Call
) -> None:
    """Run the kernel of a type under `schedules`, and record where it does not give the bits of the ordinary launch.

    Args:
        matrix: weights of the type.
        like: activations float32[M, K], whose size random ones get.
        first_row: of the matrix in its tensor, for failures.
        explanations: of the rung.
        call: of which the calls are variants; their number counts shapes and, of each, schedules.

    Raises KernelFault where the ordinary launch does; EnvironmentFault if checks are requested and cannot be made.
    """
    failed, untried = set[str](), set[Schedule]()
    unset: dict[str, dict[str, None]] = {}
    every = schedules(run.options)
    for i, (rows, x) in enumerate(inputs(matrix.fmt, matrix.rows, like, run.options.seed)):
        m, n, k = len(x), len(rows), x.shape[1]
        kernel = run.kernel.of(matrix.fmt, m, n, k)
        expected: Floats | None = None
        for j, schedule in enumerate(every):
            this = replace(call, number=i * len(every) + j, m=m, n=n, k=k)
            if run.only is not None and run.only.number != this.number:
                continue
            kind = "checked" if schedule.checked else "order"
            if kind in failed or schedule in untried:
                continue
            under = offered(run, result, kernel, schedule, matrix.tensor)
            if under is None:
                continue
            if schedule.checked and (blind := kernel.host.blind_to()) is not None:
                result.note(f"kernel {kernel.name}: {blind}", first=True)
            try:
                y, found = run_under(under, matrix.fmt, rows, x, schedule)
            except NotTried as error:
                untried.add(schedule)
                result.leave(kernel.name, not_tried(schedule, error), matrix.tensor.name)
                continue
            except EnvironmentFault as error:
                if run.options.sanitize and schedule.checked:
                    raise
                omit(result, schedule, f"kernel {kernel.name} could not be run so ({schedule.words}): {error}")
                continue
            made(run, result, schedule)
            unset.setdefault(kernel.name, {}).update(dict.fromkeys(under.unset))
            if y is not None:
                if expected is None:
                    with calling(this):
                        expected = kernel.product(kernel.upload(matrix.fmt, rows), x)
                found = difference(y, expected, under_schedule(schedule))
                if found is not None and kernel.order is None and under.adds_floats:
                    result.note(
                        f"kernel {kernel.name}: the bits of its outputs depend on the order in which threads add "
                        "floats by atomic operations; it declares no order, so they are judged by the bound"
                    )
                    wrong = _wrong(run, result, matrix, kernel, rows, x, expected, this)
                    if wrong is not None:  # the order is not to blame
                        failed.add(kind)
                        wrong = replace_fields(wrong, where=label(matrix.tensor, first_row), first_row=first_row)
                        result.fail(_failure(wrong, matrix_of(matrix.tensor, first_row)))
                        explanations.add(wrong)
                        continue
                    wrong = _wrong(run, result, matrix, kernel, rows, x, y, this)
                    found = None if wrong is None else _changing(wrong, schedule)
            if found is not None:
                failed.add(kind)
                name, number = label(matrix.tensor, first_row), matrix_of(matrix.tensor, first_row)
                where = f"{name}: at {counted(m, 'tokens')}, N = {n}, K = {k}"
                result.fail(
                    Failure(f"{where}: {found}", matrix.tensor.name, matrix=number, call=this, trace=frames_of(found))
                )
                from ..diagnosis.experiments import Experiments

                tried = Experiments(kernel, matrix.fmt, run.semantics(matrix.fmt), rows, x, run.options.threads)
                who = f"kernel under another schedule, M={m}, N={n}, K={k}"
                explanations.add_fault(found, tried, Place(who, matrix.tensor.name, name, this))
    for name, places in unset.items():
        if places:
            result.note(
                f"kernel {name}: it reads what nothing has written, and its outputs do not depend on it: "
                f"{', '.join(places)}"
            )


def _wrong(
    run: Run, result: RungResult, matrix: Matrix, kernel: Kernel, rows: Bytes, x: Floats, y: Floats, call: Call
) -> WrongCall | None:  # fmt: skip
    """Outputs that may be of any order of summation, if one is outside the bound."""
    semantics, name = run.semantics(matrix.fmt), matrix.tensor.name
    encoded = semantics.bytes_of(x)
    judgement = judge(y, product(semantics, matrix.fmt, rows, encoded))
    if judgement.power.lacking:
        leave_weak(result, KERNEL, matrix.tensor, x.shape[1])
    if judgement.passed:
        return None
    m, n = (int(i) for i in np.argwhere(judgement.bad)[0])
    who = f"kernel, M={len(x)}, N={len(rows)}, K={x.shape[1]}"
    return WrongCall(
        matrix.fmt, semantics, rows, x, encoded, y, kernel.order, who, name, name, m, n, call=call, kernel=kernel
    )  # fmt: skip


def _failure(wrong: WrongCall, matrix: int | None) -> Failure:
    """That outputs are outside the bound in the usual order too."""
    where = (
        f"{wrong.where}: at {counted(len(wrong.taken), 'tokens')}, N = {len(wrong.rows)}, K = {wrong.taken.shape[1]}"
    )
    words = f"{where}: the output is outside the bound, the first at row {wrong.n} token {wrong.m}"
    return Failure(words, wrong.tensor, matrix=matrix, call=wrong.call)


def _changing(wrong: WrongCall, schedule: Schedule) -> KernelFinding:
    where = f"the first at row {wrong.n} token {wrong.m}, and within it in the usual order"
    return KernelFinding("changing", f"{under_schedule(schedule)} the output is outside the bound, {where}")


def made(run: Run, result: RungResult, schedule: Schedule) -> None:
    """Record a launch under a schedule."""
    if run.only is not None:
        return result.count(ALONE)
    result.count(CHECKED if schedule.checked else LAUNCHES)
    result.did("walls")
    return result.did("alignment") if schedule.checked else None


def omit(result: RungResult, schedule: Schedule, why: str, scope: str = "") -> None:
    """Record that a schedule was not tried."""
    for check in ("races", "alignment") if schedule.checked else ("schedules", "walls"):
        result.omit(check, why, scope)


def may_run(run: Run, schedule: Schedule) -> bool:
    """Whether a schedule's launches are cheap enough, or requested: other programs check those of a GPU."""
    return not schedule.checked or run.options.sanitize or HOSTS[run.kernel.host.name].emulated


def offered(run: Run, result: RungResult, kernel: AnyKernel, schedule: Schedule, tensor: Tensor) -> AnyKernel | None:
    """A kernel under a schedule; None if it is not run so, which is recorded."""
    may = may_run(run, schedule)
    under = kernel.under(schedule) if may else None
    if under is None:
        why = "its host cannot do that" if may else "--sanitize looks for them"
        if run.options.sanitize and schedule.checked:  # it was requested
            result.leave(kernel.name, why, tensor.name)
        else:
            omit(result, schedule, f"kernel {kernel.name}: {why}")
    return under


def not_tried(schedule: Schedule, why: NotTried) -> str:
    """That an order was not tried, in words."""
    return f"not tried in another order of threads ({schedule.words}): {why}"


def run_under(
    kernel: Kernel, fmt: WeightFormat, rows: Bytes, x: Floats, schedule: Schedule
) -> tuple[Floats | None, KernelFault | None]:
    """The outputs under a schedule, or their fault. Raises EnvironmentFault if it cannot be run so."""
    try:
        return kernel.product(kernel.upload(fmt, rows), x), None
    except KernelFinding as finding:
        return None, finding
    except NotRun as error:
        raise NotTried(str(error)) from None
    except KernelFault as error:
        return None, KernelFault(f"{under_schedule(schedule)}: {error}")


def under_schedule(schedule: Schedule) -> str:
    """When, in words, as `difference` takes it."""
    return f"under another schedule ({schedule.words})"


def difference(y: Floats, expected: Floats, when: str) -> KernelFault | None:
    """The fault of outputs y [M, N] with other bits than those of the ordinary launch; `when`: in words."""
    ours, theirs = y.view(np.uint32), expected.view(np.uint32)
    if np.array_equal(ours, theirs):
        return None
    differ = np.argwhere(ours != theirs)
    token, row = (int(i) for i in differ[0])
    return KernelFinding(
        "changing",
        f"the outputs depend on the order in which threads run, or on how long copies take: {len(differ)} of {y.size} "
        f"differ {when}, the first row {row} token {token}: {expected[token, row]:.9g}, then {y[token, row]:.9g}",
    )
