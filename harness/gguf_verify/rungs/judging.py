"""Judging one output matrix and recording what is wrong with it, for the rungs that compare numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..diagnosis.localisation import Blame
from ..gguf import Tensor
from ..hosts.base import POISON
from ..results import MAX_FAILURES, MAX_HEX_BYTES, Failure, RungResult
from ..semantics import Judgement, Order, Product, Semantics, judge, product
from ..semantics.overflow import overflow_reason
from .author_oracle import Nearness
from .run import Matrix, matrix_of, where

OUTSIDE = "is outside the bound"
#: What is said of a kernel that quantizes activations itself.
INSIDE = (
    " of what IEEE arithmetic makes of its activations (its quantizer may differ: fast math, another rounding or scale)"
)
#: Of one output matrix, so many wrong elements are looked at one by one; the rest is counted.
_PER_MATRIX = 3
#: Elements of an output that are judged at a time.
CHUNK_OUTPUTS = 1 << 22


def describe(value: np.float32, expected: float, differs_only_in_bits: bool, why: Callable[[], str | None]) -> str:
    """What is wrong with one element, in words; `why` tells why it has no finite exact value."""
    if value.view(np.uint32) == POISON:
        return "was never written"
    if not np.isfinite(expected):
        return f"has no finite exact value: {why() or 'the sum overflows'}"
    if np.isnan(value):
        return "is NaN"
    if differs_only_in_bits:
        return "is within the bound but does not have the bits of the declared order"
    return OUTSIDE


def judge_output(
    result: RungResult, who: str, tensor: Tensor, y: npt.NDArray[np.float32], expected: Product,
    semantics: Semantics, x: npt.NDArray[np.uint8], block_of: Callable[[int, int], Blame | None] | None = None,
    first_row: int = 0, at_block: int | None = None, detail: str = "",
) -> Judgement:  # fmt: skip
    """Judge y float32[M, n], rows `first_row`… of the tensor, and record utilisation, score and failures.

    Args:
        who: whose output it is, for the record and in words.
        semantics: what y was judged under, with x, the activations uint8[M, row bytes] of it.
        block_of: (m, n) → what is to blame for a wrong element, or None.
        at_block: the block that y is the product of, where it is of one.
        detail: more about the call, for the words.
    """
    judgement = judge(y, expected)
    m, n = judgement.worst
    result.measure(who, judgement.utilisation, judgement.score, where(tensor, first_row + n, m, at_block))
    if judgement.passed:
        return judgement
    wrong = np.argwhere(judgement.bad)
    # one element a row of W first: different rows say more than different tokens
    _, firsts = np.unique(wrong[:, 1], return_index=True)
    room = MAX_FAILURES - len(result.failures)
    shown = [wrong[i] for i in firsts[: max(0, min(_PER_MATRIX, room))]]
    for m, n in shown:
        got, exact, bound = y[m, n], float(expected.exact[m, n]), float(expected.bound[m, n])
        difference = abs(float(got) - exact)
        row = first_row + int(n)
        block, blamed = at_block, None
        written = got.view(np.uint32) != POISON
        if block is None and block_of is not None and written and np.isfinite(exact):
            blamed = block_of(int(m), int(n))
            block = None if blamed is None else blamed.block
        raw = None if block is None else block_of_row(tensor, row, block).tobytes()[:MAX_HEX_BYTES].hex()
        what = describe(got, exact, difference <= bound, _reason(tensor, semantics, row, at_block, x[m]))
        place = where(tensor, row, int(m), block)
        if semantics.inside is not None and what == OUTSIDE:
            what += INSIDE
        if block is None and blamed is not None:
            place += f" ({blamed.advice})"
        result.fail(
            Failure(
                f"{who}{detail}: {place}: the output {what}", tensor.name, row, block, int(m),
                None if block is None else tensor.block_offset(row, block * _unit(tensor)),
                raw, float(got), exact, bound, difference / bound if bound else float("inf"), tensor.part,
                matrix_of(tensor, row),
            )
        )  # fmt: skip
    rest = len(wrong) - len(shown)
    result.n_failures += rest
    return judgement


def _reason(
    tensor: Tensor, semantics: Semantics, row: int, block: int | None, x: npt.NDArray[np.uint8]
) -> Callable[[], str | None]:
    fmt = tensor.type.weights
    assert fmt is not None
    w = run_row(tensor, row) if block is None else block_of_row(tensor, row, block)
    return lambda: overflow_reason(semantics, fmt, w, x)


def judge_whole(
    result: RungResult, who: str, matrix: Matrix, first_row: int, y: npt.NDArray[np.float32], semantics: Semantics,
    x: npt.NDArray[np.uint8], order: Order | None, threads: int, near: Nearness,
) -> None:  # fmt: skip
    """Judge a whole output float32[M, N], some rows of W at a time; the matrix begins with row `first_row`."""
    step = max(1, CHUNK_OUTPUTS // len(y))
    for start in range(0, len(matrix.rows), step):
        span = slice(start, start + step)
        expected = product(semantics, matrix.fmt, matrix.rows[span], x, order, threads)
        near.add(semantics, matrix.fmt, matrix.rows[span], x, expected)
        part = np.ascontiguousarray(y[:, span])
        judge_output(result, who, matrix.tensor, part, expected, semantics, x, None, first_row + start)
    near.judge(matrix.tensor)


def _unit(tensor: Tensor) -> int:
    """Blocks of the file that are one to the rungs: one, or 32 values of a type without blocks."""
    fmt = tensor.type.weights
    assert fmt is not None
    return fmt.unit // fmt.block_size


def block_of_row(tensor: Tensor, row: int, block: int) -> npt.NDArray[np.uint8]:
    """The bytes of one block of a row, or of its 32 values (the last ones may be fewer) of a type without blocks."""
    size = _unit(tensor) * tensor.type.block_bytes
    return run_row(tensor, row)[block * size : (block + 1) * size]


def run_row(tensor: Tensor, row: int) -> npt.NDArray[np.uint8]:
    """The bytes of one row of the tensor."""
    return tensor.raw[row * tensor.row_bytes : (row + 1) * tensor.row_bytes]
