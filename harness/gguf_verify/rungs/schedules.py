"""The kernel under other schedules than the usual one: does it give the same bits whatever order its threads run in?

A GPU promises no order of threads, warps and blocks, and an asynchronous copy may take until the wait for it. A host
that emulates one can choose. Under every schedule the bits must be those of the ordinary launch, and a checked build
must find nothing. Shapes are tiny: a race between threads, or a read outside a buffer, does not need many outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..formats import SLICE, WeightFormat
from ..gguf.matrices import label, matrix_of
from ..hosts.schedule import Schedule
from ..kernels.interface import Kernel
from ..results import Failure, RungResult
from ..support.errors import EnvironmentFault, KernelFault, KernelFinding
from .generated_inputs import drawn
from .run import Matrix, Run

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

LAUNCHES = "products under other schedules"


def schedules(seed: int) -> tuple[Schedule, ...]:
    """Those of a run. Seeds of both parities, because they decide on which side of inputs memory ends."""
    return (
        Schedule(checked=True), Schedule("descending"), Schedule("seeded", 2 * seed + 1),
        Schedule("seeded", 2 * seed + 2, older=True),
    )  # fmt: skip


def shapes(seed: int) -> tuple[tuple[int, int, int], ...]:
    """Tokens, rows and slices of 32 values: few tokens and several stages of a pipeline; part tiles; whole tiles."""
    rng = np.random.default_rng(seed)
    few, some = rng.integers(0, 4, 3), rng.integers(0, 40, 3)
    return (
        (1 + int(few[0]), 60 + int(some[0]), 9 + int(few[1])), (17 + int(some[1]), 13 + int(some[2]), 3 + int(few[2])),
        (64, 64, 4),
    )  # fmt: skip


def _inputs(run: Run, matrix: Matrix, like: Floats) -> Iterator[tuple[Bytes, Floats]]:
    """Weights uint8[N, row bytes] and activations float32[M, K]: the type's blocks in `shapes`."""
    fmt, rows, seed = matrix.fmt, matrix.rows, run.options.seed
    size = fmt.unit // fmt.block_size * fmt.block_bytes
    units = rows[:, : rows.shape[1] // size * size].reshape(-1, size)
    for m, n, slices in shapes(seed) if len(units) else ():
        wide = -(-slices * SLICE // fmt.unit)
        yield np.resize(units, (n, wide * size)), drawn((m, wide * fmt.unit), like, seed)


def check_schedules(run: Run, result: RungResult, matrix: Matrix, like: Floats, first_row: int) -> None:
    """Run the kernel of a type under `schedules`, and record where it does not give the bits of the ordinary launch.

    Args:
        matrix: weights of the type.
        like: activations float32[M, K], whose size drawn ones get.
        first_row: of the matrix in its tensor, for failures.

    Raises KernelFault where the ordinary launch does.
    """
    failed = set[str]()
    for rows, x in _inputs(run, matrix, like):
        m, n, k = len(x), len(rows), x.shape[1]
        kernel = run.kernel.of(matrix.fmt, m, n, k)
        expected: Floats | None = None
        for schedule in schedules(run.options.seed):
            kind = "checked" if schedule.checked else "order"
            if kind in failed:
                continue
            under = kernel.under(schedule)
            if under is None:
                what = "races and accesses outside of buffers were not looked for" if schedule.checked else (
                    "it did not run in other orders of threads"
                )  # fmt: skip
                result.note(f"kernel {kernel.name}: {what}: what runs it cannot do that")
                continue
            if expected is None:
                expected = kernel.product(kernel.upload(matrix.fmt, rows), x)
            try:
                said = _difference(under, matrix.fmt, rows, x, expected, schedule)
            except EnvironmentFault as error:
                result.note(f"the kernel could not be run under another schedule ({schedule.words}): {error}")
                continue
            result.count(LAUNCHES)
            if said is not None:
                failed.add(kind)
                where = f"{label(matrix.tensor, first_row)}: at {m} tokens, N = {n}, K = {k}"
                number = matrix_of(matrix.tensor, first_row)
                result.fail(Failure(f"{where}: {said}", matrix.tensor.name, matrix=number))


def _difference(
    kernel: Kernel, fmt: WeightFormat, rows: Bytes, x: Floats, expected: Floats, schedule: Schedule
) -> str | None:
    """What is wrong under a schedule, in words. Raises EnvironmentFault where it cannot be run so."""
    try:
        y = kernel.product(kernel.upload(fmt, rows), x)
    except KernelFinding as finding:
        return finding.words
    except KernelFault as error:
        return f"under another schedule ({schedule.words}): {error}"
    differ = np.argwhere(y.view(np.uint32) != expected.view(np.uint32))
    if not len(differ):
        return None
    token, row = (int(i) for i in differ[0])
    return (
        f"the outputs depend on the order in which threads run, or on how long copies take: {len(differ)} of {y.size} "
        f"differ under another schedule ({schedule.words}), the first row {row} token {token}: "
        f"{expected[token, row]:.9g}, then {y[token, row]:.9g}"
    )


__all__ = ["LAUNCHES", "check_schedules", "schedules", "shapes"]
