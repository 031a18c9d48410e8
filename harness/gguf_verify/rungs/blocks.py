"""The blocks rung: does one weight block times one activation block give llama.cpp's number?

Every block of every matrix is multiplied by one block of real activations; of weights that are not quantized, 32 values
count as a block (the last ones of a row may be fewer). Of a large matrix some rows and some columns of blocks are taken
(`sampling`): the kernel only gets the bytes of a column. The kernel runs with K = 32 on one column of blocks at a time,
and llama.cpp computes all columns in one operation on a view of the same bytes. At K = 32 no error hides behind a sum.

So that none hides behind a zero, each column takes its activations from the token whose codes hold the fewest zeros; if
zeros remain, the column is judged again on random activations without any. A second row of activations has the largest
code everywhere: integer sums then overflow a type that is too narrow. Where activations are rounded to F16 or BF16,
that row lies on ties instead.

llama.cpp's CUDA backend computes the same views. Each is judged with few tokens (MMVQ) and, with these repeated, with
more (MMQ).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..checks import ALONE
from ..formats.block import BlockFormat
from ..formats.element import SLICE
from ..formats.q8_1 import Q8_1
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..gguf.matrices import label, may_be_matrix
from ..llama.evaluations import Evaluation
from ..llama.process import LlamaRefused
from ..results.calls import Call
from ..results.failures import Failure
from ..results.margins import Sampled
from ..results.products import TensorBlocks
from ..results.rungs import PartialResult, RungResult
from ..semantics.cuda import NoDefinition
from ..semantics.definition import Semantics
from ..semantics.elements import round_to
from ..semantics.encodings.q8_1 import encode_q8_1
from ..semantics.order import Order
from ..semantics.sums import Product
from ..support.errors import KernelFault
from ..support.text import printable
from .calls import begin_alone, calling, end_alone, limit_addresses
from .exact import Distances, ExactProducts
from .explain import Attempts, Explanations, Place, WrongCall
from .generated_inputs import drawn, largest_codes, on_ties
from .graph_uses import not_multiplied
from .interface import Rung, Steps
from .judging import KERNEL, Output, judge_output, llama_side
from .known import Known
from .llama_quantizers import Quantizers
from .pool import Step
from .rounds import leave, rounds
from .run import Run
from .sampling import BlockSample, Rows

Floats = npt.NDArray[np.float32]


def check(run: Run, result: RungResult) -> Steps:
    """Judge every block's product. Raises EnvironmentFault if llama.cpp crashes."""
    wanted, only = {}, begin_alone(run, result)
    for tensor in run.selected():
        if not may_be_matrix(tensor):
            continue
        why = run.uncovered(tensor)
        if why is not None:
            result.leave(tensor.name, why)
        elif not tensor.nbytes:
            result.skip("empty tensors")
        elif len(tensor.shape) < 2:
            result.leave(tensor.name, f"{len(tensor.shape)} dimensions, not a matrix")
        else:
            wanted[tensor.name] = tensor
    products: set[str] = set()
    if wanted:
        exact = ExactProducts(run, result)
        explanations = Explanations(result, run.options.threads, holds=bool(run.options.save_case))
        plan = _plan(run, wanted, products, lambda: Known.of(result, explanations))
        try:
            for step, found in run.judges.each(run, plan):
                result.join(step.said)
                if found is not None:
                    assert step.task is not None
                    kind, now = run.model.tensors[step.task.tensor].type.name, Known.of(result, explanations)
                    if step.task.known.is_outdated(now, found.part, kind):
                        found = run.judges.again(run, replace(step.task, known=now))
                    result.join(found.part)
                    explanations.join(found.attempts)
                    exact.join(found.distances)
                yield explanations.attempts.first
            exact.report()
        except LlamaRefused as error:
            result.leave_all("tensors", str(error), error.culprit)
    if only is not None:
        end_alone(result, only)
        return
    result.skip("vectors", run.vectors(products))
    run.leave_idle(result)


RUNG = Rung(
    "blocks",
    2,
    "Does one weight block times one activation block give llama.cpp's number?",
    ("blocks",),
    check,
    turn=4,
)


def _plan(
    run: Run, wanted: dict[str, Tensor], products: set[str], known: Callable[[], Known]
) -> Generator[Step[BlocksTask]]:
    """The wanted tensors, as llama.cpp's graph multiplies them; `products` gets the names of all tensors that it
    multiplies. Raises LlamaRefused, EnvironmentFault."""
    rows_by_width: dict[int, Floats] = {}
    left, settled, refused = dict(wanted), set[str](), set[str]()
    done: Evaluation | None = None
    for turn in rounds(run, wanted, settled):
        for gemm in turn.progress(run, "blocks", run.session.llama.capture(run.session.prompt)):
            if isinstance(gemm, Evaluation):
                done = gemm
                continue
            tensor = run.model.tensors.get(gemm.tensor)
            if tensor is None or tensor.type.weights is None or run.uncovered(tensor):
                continue  # the layers rung says so
            vector = not may_be_matrix(tensor) and run.wants(gemm.tensor) and gemm.tensor not in products
            first = vector or gemm.tensor in left
            products.add(gemm.tensor)
            said = PartialResult(name="")
            if not np.isfinite(gemm.x).all():
                if first:
                    said.leave(gemm.tensor, "its activations are not finite")
                    left.pop(gemm.tensor, None)
                    settled.add(gemm.tensor)
                    yield Step(said)
                continue
            if not first and gemm.x.shape[1] in rows_by_width:
                continue
            x = _fewest_zeros(gemm.x, tensor.type.weights)
            rows_by_width.setdefault(x.shape[1], x)
            if first and tensor.k == x.shape[1] and turn.chooses(gemm.tensor):
                if run.budget.spent:
                    refused.add(gemm.tensor)
                    continue
                left.pop(gemm.tensor, None)
                yield Step(said, BlocksTask(tensor.name, x, known()))
    for tensor in left.values():
        said, task = PartialResult(name=""), None
        why = None if tensor.type.quantized or done is None else not_multiplied(tensor, done)
        if why is not None:
            said.skip(why)
            settled.add(tensor.name)
        elif tensor.name in turn.waiting:
            continue
        elif run.budget.spent:
            refused.add(tensor.name)
            continue
        elif tensor.k not in rows_by_width:
            said.leave(tensor.name, f"no GEMM of the graph has activations of its width, {tensor.k}")
        else:
            said.note(f"{printable(tensor.name, 64)} is no GEMM of this graph: checked on another tensor's activations")
            task = BlocksTask(tensor.name, rows_by_width[tensor.k], known())
        yield Step(said, task)
    end = Step[BlocksTask]()
    leave(run, end.said, wanted, {*turn.waiting, *refused} - settled)
    yield end


@dataclass(frozen=True)
class BlocksTask:
    """The blocks of one tensor, and the activations float32[1, K] that they are multiplied by."""

    tensor: str
    x: Floats
    known: Known

    def judge(self, run: Run) -> BlocksFound:
        """Run and judge the kernel, and llama.cpp. Raises EnvironmentFault."""
        part = self.known.part()
        exact, explanations = ExactProducts(run, part), self.known.explanations_in(part, run)
        _one_tensor(run, part, run.model.tensors[self.tensor], self.x, exact, explanations)
        limit_addresses(run, part)
        return BlocksFound(part, explanations.attempts, exact.distances)


@dataclass(frozen=True)
class BlocksFound:
    """The findings of one tensor: a part of the rung's result, the explanations of wrong calls, and the distances of an
    author's oracle."""

    part: PartialResult
    attempts: Attempts
    distances: Distances | None


def _zeros(x: Floats, fmt: WeightFormat) -> npt.NDArray[np.int64]:
    """How many codes, or values, of each 32 activations are zero to such weights, int64[M, K/32], for float32[M, K]."""
    if isinstance(fmt, BlockFormat):
        zero = Q8_1.codes(encode_q8_1(x).reshape(len(x), -1, Q8_1.block_bytes)).reshape(x.shape) == 0
    else:
        zero = round_to(fmt.name, x) == 0
    return np.asarray(np.add.reduceat(zero, np.arange(0, x.shape[1], SLICE), axis=1, dtype=np.int64))


def _fewest_zeros(x: Floats, fmt: WeightFormat) -> Floats:
    """float32[1, K]: each 32 values from the row of x in which the fewest are zero."""
    k = x.shape[1]
    best = np.repeat(_zeros(x, fmt).argmin(axis=0), SLICE)[:k]
    return np.ascontiguousarray(x[best, np.arange(k)].reshape(1, k))


def _one_tensor(
    run: Run, result: RungResult, tensor: Tensor, x: Floats, exact: ExactProducts, explain: Explanations
) -> None:
    fmt = tensor.type.weights
    assert fmt is not None
    why = run.backend.uncovered(fmt)
    if why is not None:
        result.leave(tensor.name, why)
        return
    failed = result.n_failures
    sample = BlockSample.of(run, tensor, fmt)
    judged = sum(map(len, sample.chunks))
    x = sample.activations(x)
    lacking = _zeros(x, fmt)[0] > 0
    x = np.concatenate([x, largest_codes(x) if isinstance(fmt, BlockFormat) else on_ties(fmt.name, x)])
    if lacking.any():
        k = x.shape[1]
        again = np.where(np.repeat(lacking, SLICE)[:k], drawn((1, k), x[:1], run.options.seed), x[:1])
        x = np.concatenate([x, again])
        name = "blocks judged again on drawn activations"
        result.figures[name] = result.figures.get(name, 0) + judged * int(lacking.sum())
    with exact.of(tensor):
        try:
            for numbers in sample.chunks:
                if run.only is not None and run.only.first_row != numbers[0]:
                    continue
                _one_chunk(run, result, tensor, sample, numbers, x, exact, explain)
        except KernelFault as error:
            name = printable(tensor.name, 64)
            result.fail(Failure.of(error, f"{name}: {error}", tensor.name))
            size = fmt.unit // fmt.block_size * fmt.block_bytes
            column = np.ascontiguousarray(run.row_bytes(tensor)[sample.chunks[0], :size])
            part = np.ascontiguousarray(x[:, : fmt.unit])
            kernel = run.kernel.of(fmt, len(part), len(column), part.shape[1])
            from ..diagnosis.experiments import Experiments

            tried = Experiments(kernel, fmt, run.semantics(fmt), column, part, run.options.threads)
            explain.add_fault(error, tried, Place(f"{KERNEL.name} on one block of K", tensor.name, name, error.call))
    if run.only is not None:
        return
    of, blocks = tensor.n_rows * -(-tensor.k // fmt.unit), judged * len(sample.columns)
    if blocks < of:
        result.keep_sampled(Sampled("blocks", of, blocks))
    tested = run.kernel.is_under_test(fmt)
    result.count_beside("tensors", 1, tested)
    result.count_beside("blocks", blocks, tested)
    result.details.append(TensorBlocks(tensor.name, fmt.name, blocks, result.n_failures - failed))


def _one_chunk(
    run: Run,
    result: RungResult,
    tensor: Tensor,
    sample: BlockSample,
    numbers: Rows,
    x: Floats,
    exact: ExactProducts,
    explain: Explanations,
) -> None:
    fmt, rows = sample.fmt, sample.weights(numbers)
    semantics, start = run.semantics(fmt), int(numbers[0])
    of_llama = _llama_products(run, result, tensor, fmt, rows, x, start)
    columns = _Columns(run, fmt, rows, x, exact)
    size = fmt.unit // fmt.block_size * fmt.block_bytes
    for i, b in enumerate(sample.columns.tolist()):
        if run.only is not None and (run.only.kind, run.only.number) != ("block", b):
            continue
        column = np.ascontiguousarray(rows[:, i * size : (i + 1) * size])
        part = np.ascontiguousarray(x[:, i * fmt.unit : (i + 1) * fmt.unit])
        tokens = (
            3 if len(part) == 3 and (part[2] != part[0]).any() else 2
        )  # the third differs where the first has zeros
        part = part[:tokens]
        own = semantics.bytes_of(part)
        kernel = run.kernel.of(fmt, tokens, len(column), part.shape[1])
        call = Call(kind="block", number=b, first_row=start, m=tokens, n=len(column), k=part.shape[1])
        with calling(call):
            y = kernel.product(kernel.upload(fmt, column), part)
        if run.only is not None:
            result.count(ALONE)
        expected = columns.product(semantics, i, column, own, kernel.order)
        judged = judge_output(
            result, Output(KERNEL, tensor, numbers, y, expected, semantics, own, part, block=b, call=call)
        )
        if not judged.passed:
            n, m = (int(at) for at in np.argwhere(judged.bad.T)[0])
            explain.add(
                WrongCall(
                    fmt, semantics, column, part, own, y, kernel.order, f"{KERNEL.name} on one block of K",
                    tensor.name, f"{label(tensor, start)} block {b}", m, n, first_row=int(numbers[n]) - n, block=b,
                    call=call, kernel=kernel,
                )
            )  # fmt: skip
        for llama_semantics, theirs, encoded in of_llama:
            if encoded is not None:
                width = encoded.shape[1] * fmt.unit // x.shape[1]
                of_part = np.ascontiguousarray(encoded[:tokens, i * width : (i + 1) * width])
            else:
                of_part = own if llama_semantics is semantics else llama_semantics.bytes_of(part)
            if of_part is own:
                llama = replace(expected, ordered=None)
            else:
                llama = columns.product(llama_semantics, i, column, of_part, None, encoded)
            output = Output(
                llama_side(run.backend, llama_semantics), tensor, numbers, theirs[i][:tokens], llama, llama_semantics,
                of_part, block=b, call=call,
            )  # fmt: skip
            judge_output(result, output)


class _Columns:
    """The exact products of single blocks: of all blocks together, where that is possible.

    Args:
        rows: uint8[N, row bytes].
        x: the activations float32[M, K].
    """

    def __init__(
        self, run: Run, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: Floats, exact: ExactProducts
    ) -> None:
        self._run, self._fmt, self._rows, self._x, self._exact = run, fmt, rows, x, exact
        self._made: dict[tuple[str, Order | None, bool], list[Product] | None] = {}

    def product(
        self, semantics: Semantics, b: int, column: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8],
        order: Order | None, encoded: npt.NDArray[np.uint8] | None = None,
    ) -> Product:  # fmt: skip
        """Of block b of all rows, uint8[N, block bytes], and its activations.

        Args:
            x: uint8[M, bytes], of the first M tokens.
            encoded: the activations of whole rows, where these are not what the definition's encoder makes.
        """
        key = semantics.name, order, encoded is None
        if key not in self._made:
            whole = semantics.bytes_of(self._x) if encoded is None else encoded
            alone = self._run.only is not None  # of which one block is wanted
            self._made[key] = None if alone else self._exact.blocks(semantics, self._fmt, self._rows, whole, order)
        made = self._made[key]
        if made is None:
            return self._exact.product(semantics, self._fmt, column, x, order)
        return made[b].rows(np.arange(len(x)))


def _llama_products(
    run: Run, result: RungResult, tensor: Tensor, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: Floats, start: int
) -> list[tuple[Semantics, Floats, npt.NDArray[np.uint8] | None]]:
    """llama.cpp's products float32[K/32, M, N], M 2 or 3, by each of its definitions; and the activations uint8[M, row
    bytes] as it quantized them, if the backend reveals that."""
    backend = run.backend
    out: list[tuple[Semantics, Floats, npt.NDArray[np.uint8] | None]] = []
    for tokens in backend.token_counts(len(x)):
        try:
            definition, theirs, encoded = backend.block_products(fmt, rows, x, tokens, run.options.threads)
        except NoDefinition as error:
            result.leave(tensor.name, backend.unsupported(error))
            continue
        if encoded is not None and start == 0:
            Quantizers(backend).check(result, definition, x, encoded, tensor)
        out.append((definition, theirs, encoded))
    return out
