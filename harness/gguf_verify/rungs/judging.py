"""Judging an output matrix, and recording its wrong elements, for the rungs that compare numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..diagnosis.localisation import Blame
from ..formats.block import BlockFormat, decodes_rightly
from ..gguf.file import Tensor
from ..gguf.matrices import matrix_of, where
from ..hosts.memory import POISON
from ..llama.backends import Backend
from ..results.calls import OWN, Call
from ..results.failures import MAX_HEX_BYTES, Failure
from ..results.margins import Closer, Side
from ..results.rungs import RungResult
from ..semantics.definition import Semantics
from ..semantics.gates import Judgement, judge
from ..semantics.order import Order
from ..semantics.overflow import overflow_reason
from ..semantics.sums import Product
from ..support.errors import Culprit
from ..support.stages import stage
from .exact import ExactProducts
from .remade import PART, KernelCall, Remade, root_mean_square
from .run import Matrix, Run
from .sampling import Rows, SampledOutputs, Span, numbers_of

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: The kernel on activations that it quantized itself.
KERNEL = Side("kernel", True)

OUTSIDE = "is outside the bound"
#: An output that the order of the sums explains, but whose row is wrong for other activations.
OF_LANES = "has an error that rounding explains only if lanes hold large sums"
REMADE_WRONG = "and its row is outside what rounding explains for random activations"
#: Why a suspicion is no verdict.
SUSPECTED = (
    "its error is within the bound, but more than independent roundings explain, and the product cannot be made again "
    "with random activations"
)
#: What is added where the kernel quantizes its activations itself, and the expected output is of IEEE arithmetic.
INSIDE = (
    " of what IEEE arithmetic makes of its activations (its quantizer may differ: fast math, another rounding or scale)"
)
#: Why a product is not verified whose outputs pass by gates that cannot fail.
WEAK = (
    "its bound would accept zero, or 0.9 times the exact output, for most outputs: the declared rounding loses too much"
)
_FEWER_COLUMNS = " over so many columns. Declare a domain with a smaller K, or a rounding that loses less"
_LESS_LOST = ". Declare a rounding that loses less"
#: Why a product is not verified of which no output says anything.
UNDERFLOWS = (
    "all its outputs that are not zero are too small for the declared rounding to tell them from zero: they underflow. "
    "Declare outputs, and sums, of a wider type"
)
#: Why a product is not verified that could lack a block.
MISSES_BLOCKS = (
    "the loss of a single block of a row would not show in its outputs, and the parts of its rows could not be judged "
    "by themselves"
)
_BY_PARTS = (
    f"where the loss of a single block would not show in a product, it was made again with random activations that are "
    f"zero outside of {PART} columns, for each such part of its rows"
)
#: How often parts of rows are judged at most, until each has outputs that say something.
_TURNS = 3
#: Wrong elements of one output matrix that are looked at one by one; the rest is counted.
_PER_MATRIX = 3
#: Blocks of a wrong product's first row that are decoded a second time.
_DECODED = 8
#: Elements of an output that are judged at a time.
CHUNK_OUTPUTS = 1 << 22


def llama_side(backend: Backend, definition: Semantics) -> Side:
    """llama.cpp on a backend, as what computes this definition."""
    return Side(backend.label(definition), False)


def describe(value: np.float32, expected: Product, m: int, n: int, why: Callable[[], str | None]) -> str:
    """The fault of element (m, n) of an output, in words; `why` returns why it has no finite exact value."""
    exact, bound = float(expected.exact[m, n]), float(expected.bound[m, n])
    if value.view(np.uint32) == POISON:
        return "was never written"
    if not np.isfinite(exact):
        return f"has no finite exact value: {why() or 'the sum overflows'}"
    if np.isnan(value):
        return "is NaN"
    difference = abs(float(value) - exact)
    if not difference <= bound:
        return OUTSIDE
    if expected.ordered is not None:
        return "is within the bound but does not have the bits of the declared order"
    spread = float(expected.spread[m, n])
    score = difference / spread if spread else float("inf")
    if score <= expected.limit:
        return (
            "is within the bound of roundings in any order, but it, or all outputs of its token together, are further "
            "off than the orders that kernels have explain"
        )
    words = (
        f"is within the bound, but its error is {score:.3g} times the standard deviation of rounding errors, more than "
        f"the {expected.limit:g} that rounding can explain"
    )
    return words if score > expected.limit else f"{OF_LANES} ({score:.3g} standard deviations), {REMADE_WRONG}"


@dataclass(frozen=True)
class Output:
    """Outputs of one call, and the exact product that they are judged by.

    Args:
        side: the kernel or llama.cpp, whose outputs they are.
        tensor: the weights.
        rows: the numbers of their rows in the tensor, int[n].
        y: float32[M, n].
        expected, semantics: the exact product, and its definition.
        x: the activations of that product, uint8[M, row bytes].
        values: float32[M, K] from which x was quantized, if they are known.
        block: the block along K that y is the product of, if it is of a single one.
        call: that gave y.
        detail: more about the call, for messages.
        again: makes the product again, if its score is doubtful. None: suspicions are left unverified.
        blame: (m, n) → the cause of a wrong element along K, or None.
    """

    side: Side
    tensor: Tensor
    rows: Rows
    y: Floats
    expected: Product
    semantics: Semantics
    x: Bytes
    values: Floats | None = None
    block: int | None = None
    call: Call | None = None
    detail: str = ""
    again: Remade | None = None
    blame: Callable[[int, int], Blame | None] | None = None

    @property
    def k(self) -> int:
        return self.tensor.k if self.call is None else self.call.k or self.tensor.k

    @property
    def rank(self) -> int:
        """The rank of its call."""
        return OWN if self.call is None else self.call.rank

    @property
    def product(self) -> str:
        """The kind of product, for what could not be verified."""
        return f"{self.side.name}, {self.tensor.type.name}, K = {self.k:,}"

    def place(self, m: int, n: int, block: int | None = None) -> str:
        """Where element (m, n) lies."""
        return where(self.tensor, int(self.rows[n]), m, block)

    def size(self) -> float:
        """The root mean square of the activations."""
        return root_mean_square(self.semantics.values_of(self.x) if self.values is None else self.values)


def judge_output(result: RungResult, output: Output) -> Judgement:
    """Judge outputs, and record utilisation, score and failures. Raises KernelFault if a product is made again."""
    with stage("judging"):
        judgement = judge(output.y, output.expected)
        if output.again is not None and judgement.doubtful.any():
            judgement = output.again.settled(judgement, output.size())
    output = replace(output, expected=judgement.product)
    side, tensor, block = output.side, output.tensor, output.block
    result.measure(side, judgement.utilisation, judgement.score, output.place(*judgement.worst, block))
    if judgement.unsettled:
        m, n = (int(i) for i in np.argwhere(judgement.suspected)[0])
        name = f"{side.name}{output.detail}: {output.place(m, n, block)}"
        result.leave(name, f"{int(judgement.suspected.sum()):,} outputs: {SUSPECTED}", tensor.name)
        judgement = judgement.cleared(np.zeros(output.y.shape[1], bool))
    if judgement.power.lacking:
        leave_weak(result, side, tensor, output.k)
    elif judgement.power.empty and block is None and output.rank == OWN:
        result.leave_products(f"{side.name}, {tensor.type.name}, K = {tensor.k:,}", UNDERFLOWS, tensor.name)
    elif (closer := judgement.closer) is not None:
        result.keep_closer(Closer(1, closer.outputs, closer.judged, int(closer.together)))
    if judgement.verified and judgement.power.misses_blocks:
        if output.again is None:
            result.leave_products(output.product, MISSES_BLOCKS, tensor.name)
            return judgement
        return _judge_parts(result, output, judgement, output.again)
    if not judgement.passed:
        _record_wrong(result, output, judgement)
    return judgement


def _record_wrong(result: RungResult, output: Output, judgement: Judgement) -> None:
    """Record some of the wrong outputs one by one, and count the others."""
    side, tensor, y, expected = output.side, output.tensor, output.y, output.expected
    wrong = np.argwhere(judgement.bad)
    fault_of = _Blamed(output)
    # one element for each row of W first: different rows say more than different tokens
    _, firsts = np.unique(wrong[:, 1], return_index=True)
    more = fault_of.count(judgement.bad)
    first = [(int(wrong[i][0]), int(wrong[i][1])) for i in firsts[:_PER_MATRIX]]
    for culprit in (*(fault_of.culprit(m, n) for m, n in first), *(c for c, n_bad in more.items() if n_bad)):
        result.blamed.setdefault(culprit, 0)  # so that their order does not depend on how many are shown
    for m, n in first[: result.room(output.rank)]:
        got, exact, bound = y[m, n], float(expected.exact[m, n]), float(expected.bound[m, n])
        difference = abs(float(got) - exact)
        row, block, blamed = int(output.rows[n]), output.block, None
        written = got.view(np.uint32) != POISON
        alone = judgement.closer is None  # else few outputs, made again, need not fail
        if block is None and output.blame is not None and written and np.isfinite(exact) and alone:
            blamed = output.blame(m, n)
            block = None if blamed is None else blamed.block
        raw = None if block is None else block_of_row(tensor, row, block).tobytes()[:MAX_HEX_BYTES].hex()
        fmt, values = tensor.type.weights, None if output.values is None else output.values[m]
        assert fmt is not None
        why = partial(overflow_reason, output.semantics, fmt, _weights(output, row), output.x[m], values)
        what = describe(got, expected, m, n, why)
        place = where(tensor, row, m, block)
        if output.semantics.inside is not None and what == OUTSIDE:
            what += INSIDE
        if block is None and blamed is not None:
            place += f" ({blamed.advice})"
        at = None if block is None else 0 if output.block is not None else block
        kind, met = ("", None) if at is None else activations_of(tensor, output.semantics, output.x[m], at)
        culprit = fault_of.culprit(m, n)
        result.fail(
            Failure(
                f"{side.name}{output.detail}: {place}: the output {what}", tensor.name, row, block, m,
                None if block is None else tensor.block_offset(row, block * _unit(tensor)),
                raw, float(got), exact, bound, difference / bound if bound else float("inf"), tensor.part,
                matrix_of(tensor, row), culprit, kind, met, call=output.call, block_type=tensor.type.name,
            )
        )  # fmt: skip
        more[culprit] -= 1
    for culprit, n_more in more.items():
        result.fail_more(culprit, n_more, tensor.name)


def _judge_parts(result: RungResult, output: Output, judgement: Judgement, again: Remade) -> Judgement:
    """Judge each part of the rows of a product that passed; returns its judgement, in which the outputs whose parts are
    wrong fail. Raises KernelFault."""
    bad, k, size = judgement.bad.copy(), again.shape[1], output.size()
    shown: set[int] = set()
    for turn in range(_TURNS):
        for part in again.parts(size, turn):
            with stage("judging"):
                of_part = judge(part.y, part.expected)
            if not np.isfinite(part.expected.exact).all():
                continue
            if of_part.shows_blocks:
                shown.add(part.columns.start)
            if not of_part.passed:
                columns = f"columns {part.columns[0]:,} to {part.columns[-1]:,}"
                alone = replace(
                    output, y=part.y, expected=part.expected, x=part.x, values=None, again=None, blame=None, block=None,
                    detail=f"{output.detail}, activations zero outside of {columns}",
                )  # fmt: skip
                judge_output(result, alone)
                bad[part.token] |= of_part.bad[0]
        if bad.any() or len(shown) == -(-k // PART):
            break
    else:
        name = f"{output.side.name}, {output.tensor.type.name}, K = {k:,}"
        result.leave_products(name, MISSES_BLOCKS, output.tensor.name)
    result.note(_BY_PARTS)
    return replace(judgement, bad=bad)


def leave_weak(result: RungResult, side: Side, tensor: Tensor, k: int) -> None:
    """Record that a product of k columns was judged by gates that most of its outputs cannot fail."""
    fmt = tensor.type.weights
    cure = _LESS_LOST if fmt is not None and k <= fmt.unit else _FEWER_COLUMNS
    result.leave_products(f"{side.name}, {tensor.type.name}, K = {k:,}", WEAK + cure, tensor.name)


class _Blamed:
    """The culprit for each wrong output of a product: if there is no finite exact value, the weights of the file or
    else the definition; otherwise the side that computed it."""

    def __init__(self, output: Output) -> None:
        self._output, self._finite = output, np.isfinite(output.expected.exact)
        self._of_file: dict[int, bool] = {}
        fmt, size = output.tensor.type.weights, output.tensor.type.block_bytes
        blocks = row_of(output.tensor, int(output.rows[0])).reshape(-1, size)[:_DECODED]
        sound = not isinstance(fmt, BlockFormat) or decodes_rightly(fmt, blocks)
        #: The culprit for an output with a finite exact value.
        self._computed: Culprit = ("kernel" if output.side.of_kernel else "llama.cpp") if sound else "verifier"

    def culprit(self, m: int, n: int) -> Culprit:
        """The culprit for the wrong output of token m and row n."""
        if self._finite[m, n]:
            return self._computed
        if n not in self._of_file:
            fmt, raw = self._output.tensor.type.weights, _weights(self._output, int(self._output.rows[n]))
            assert fmt is not None
            with np.errstate(all="ignore"):
                self._of_file[n] = not fmt.finite(raw.reshape(-1, fmt.block_bytes)).all()
        return "file" if self._of_file[n] else "definition"

    def count(self, bad: npt.NDArray[np.bool_]) -> dict[Culprit, int]:
        """Culprit → the number of its wrong outputs."""
        counts: dict[Culprit, int] = {self._computed: int((bad & self._finite).sum())}
        outside = bad & ~self._finite
        for n in np.flatnonzero(outside.any(axis=0)):
            m = int(outside[:, n].argmax())
            who = self.culprit(m, int(n))
            counts[who] = counts.get(who, 0) + int(outside[:, n].sum())
        return counts


def _weights(output: Output, row: int) -> Bytes:
    """The bytes of the weights of a row of outputs."""
    return row_of(output.tensor, row) if output.block is None else block_of_row(output.tensor, row, output.block)


def judge_whole(
    run: Run, result: RungResult, matrix: Matrix, first_row: int, y: Floats, semantics: Semantics, x: Bytes,
    order: Order | None, exact: ExactProducts, call: Call | None = None,
) -> tuple[int, int] | None:  # fmt: skip
    """Judge a kernel's whole output float32[M, N], some rows of W at a time; the matrix begins with row `first_row`.
    Returns token and row of the first wrong element that is found."""
    step = max(1, CHUNK_OUTPUTS // len(y))
    sample = SampledOutputs(run, result, matrix, first_row, [semantics], [y], step)
    m, n = y.shape
    kernel = run.kernel.of(matrix.fmt, m, n, matrix.tensor.k)
    made_by = KernelCall(kernel, matrix.fmt, matrix.rows, len(y), True)

    def judged(spans: list[Span]) -> tuple[int, int] | None:
        first = None
        for span in spans:
            expected = exact.product(semantics, matrix.fmt, run.rows_of(matrix, span), x, order)
            part = np.ascontiguousarray(y[:, span])
            sample.saw(KERNEL, part, expected)
            output = Output(
                KERNEL, matrix.tensor, first_row + numbers_of(span), part, expected, semantics, x, call=call,
                again=made_by.remade(run, span),
            )  # fmt: skip
            judged = judge_output(result, output)
            if not judged.passed and first is None:
                n, m = (int(i) for i in np.argwhere(judged.bad.T)[0])
                first = m, int(numbers_of(span)[n])
        return first

    with exact.of(matrix.tensor):
        first = judged(sample.spans)
        everything = bool(sample.rest) and (first is not None or sample.suspicious(KERNEL, y, semantics, x))
        if everything:
            first = min(filter(None, (first, judged(sample.rest))), key=lambda at: at[1], default=None)
    sample.record(y.size, everything)
    return first


def _unit(tensor: Tensor) -> int:
    """Blocks of the file that the rungs treat as one: one, or 32 values of a type without blocks."""
    fmt = tensor.type.weights
    assert fmt is not None
    return fmt.unit // fmt.block_size


def activations_of(tensor: Tensor, semantics: Semantics, x: Bytes, block: int) -> tuple[str, str | None]:
    """Type and bytes in hex of the activations that a block of weights is multiplied by: the whole blocks that fit.

    Args:
        x: a token's activations uint8[row bytes], as the definition has them.
        block: of that token's row.
    """
    fmt = tensor.type.weights
    assert fmt is not None
    taken = semantics.activations
    if taken is None:  # also of a kernel that quantizes them itself: what it was given
        values = 1
        name, nbytes = {"float16": ("F16", 2), "bfloat16": ("BF16", 2)}.get(semantics.encoding.dtype, ("F32", 4))
        if semantics.of_elements:  # rounded to the weights' type, in bytes of that
            return "", None
    else:
        name, values, nbytes = taken.name, taken.block_size, taken.block_bytes
    first, stop = block * fmt.unit // values, -(-(block + 1) * fmt.unit // values)
    stop = min(stop, first + MAX_HEX_BYTES // nbytes)
    raw = x[first * nbytes : stop * nbytes].tobytes()
    return (name, raw.hex()) if raw else ("", None)


def block_of_row(tensor: Tensor, row: int, block: int) -> Bytes:
    """The bytes of one block of a row; of a type without blocks, those of 32 values (the last ones may be fewer)."""
    size = _unit(tensor) * tensor.type.block_bytes
    return row_of(tensor, row)[block * size : (block + 1) * size]


def row_of(tensor: Tensor, row: int) -> Bytes:
    """The bytes of one row of the tensor."""
    return tensor.raw[row * tensor.row_bytes : (row + 1) * tensor.row_bytes]
