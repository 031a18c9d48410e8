"""The packing rung, of kernels that repack weights: are the packed bytes the whole rows, so that they can be had again?

The author's unpack takes the packed bytes apart, in a process that gets only these, and the result must be the rows,
byte for byte: those of the model, blocks of random bytes, and the model's blocks at the numbers of rows and columns of
the probe plan. Without an unpack, the packing is taken apart by inference if it only moves bits
(`diagnosis.permutation`); else nothing is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from ...diagnosis.permutation import Lost, Moves, find_moves
from ...formats import BlockFormat
from ...gguf.file import Tensor
from ...gguf.matrices import rows_of_matrix
from ...kernels.tasks import Packed, Repacker
from ...results.calls import Call
from ...results.failures import Failure
from ...results.products import TensorValues
from ...results.rungs import RungResult
from ...support.text import printable
from ..calls import begin_alone, end_alone
from ..course import Course
from ..generated_inputs import any_bits
from ..interface import Rung, Steps
from ..run import Run
from .calls import (
    BROKEN,
    MOST_WRONG,
    BlocksCall,
    Found,
    Probe,
    TaskCalls,
    block_format,
    laid_out,
    quantized_matrices,
    shapes_of,
    small_shapes,
)

Bytes = npt.NDArray[np.uint8]
#: What cannot be verified, and what to do.
NO_UNPACK = "what it packs was not taken apart: {why}; give an unpack that makes the rows again, @kernel(unpack=f)"
#: Packed bytes that are held until they are taken apart. The matrix that exceeds this is the last one of its batch.
_MOST_HELD = 1 << 28
#: Most matrices that one process takes apart.
_TOGETHER = 16
#: Shapes that a packing is tried at where its bits are looked for, which takes some twenty calls each.
_INFERRED = 6


def check(run: Run, result: RungResult) -> Steps:
    """Judge the kernel's packing. Raises EnvironmentFault."""
    only = begin_alone(run, result)
    rung = _Packing(TaskCalls(run, result, only))
    course = Course(run, {t.name: t for t in quantized_matrices(run, result)})
    first = yield from rung.tensors(course.each("packing", result))
    for tensor in run.progress("packing, probes", list(first.values()), unit="type"):
        rung.probes(tensor)
        yield None
    if only is not None:
        end_alone(result, only)
    else:
        rung.report()
        result.skip("vectors", run.vectors())


RUNG = Rung(
    "packing", 2, "Are the packed weights the whole rows, so that they can be had again?", ("blocks",), check,
    ("repack",),
)  # fmt: skip


#: A matrix, what it was packed into, and, where that is None, what `_Packing._judged` yields.
_Packed = tuple[BlocksCall, Packed | None, int | None]


class _Packing:
    def __init__(self, calls: TaskCalls) -> None:
        assert isinstance(calls.kernel, Repacker)
        self._calls, self._result, self._kernel = calls, calls.result, calls.kernel
        #: Type → bytes of the file's rows, and of what they were packed into.
        self._sizes: dict[str, tuple[int, int]] = {}
        self._draw = np.random.default_rng((calls.run.options.seed, 19))

    def tensors(self, tensors: Iterable[Tensor]) -> Generator[None, None, dict[str, Tensor]]:
        """Judge tensors, matrix by matrix. Returns the first one of each type."""
        first: dict[str, Tensor] = {}

        def matrices() -> Iterator[BlocksCall]:
            for tensor in tensors:
                first.setdefault(tensor.type.name, tensor)
                if self._calls.broken:
                    self._result.leave(tensor.name, BROKEN, culprit="kernel")
                else:
                    yield from self._matrices(tensor)

        for _, judged in groupby(self._judged(matrices()), lambda each: each[0].tensor.name):
            self._record(list(judged))
            yield
        return first

    def _matrices(self, tensor: Tensor) -> Iterator[BlocksCall]:
        fmt, matrix = block_format(tensor), rows_of_matrix(tensor)
        for number, start in enumerate(range(0, tensor.n_rows, matrix)):
            n = min(matrix, tensor.n_rows - start)
            call = Call(kind="tensor", number=number, first_row=start, n=n, k=tensor.k)
            if self._calls.wants(call):
                yield BlocksCall(call, tensor, fmt, partial(self._rows, tensor, start, n), start)

    def _rows(self, tensor: Tensor, start: int, n: int) -> Bytes:
        return np.ascontiguousarray(self._calls.run.row_bytes(tensor)[start : start + n])

    def _record(self, judged: Sequence[tuple[BlocksCall, int | None]]) -> None:
        """Record a tensor, unless something of it was not judged.

        Args:
            judged: its matrices, as of `_judged`.
        """
        if self._calls.only is not None or any(wrong is None for _, wrong in judged):
            return
        tensor, blocks = judged[0][0].tensor, sum(matrix.blocks for matrix, _ in judged)
        self._result.count("tensors")
        self._result.count("blocks", blocks)
        record = TensorValues(tensor.name, tensor.type.name, blocks, sum(wrong or 0 for _, wrong in judged))
        self._result.details.append(record)

    def probes(self, tensor: Tensor) -> None:
        """Judge the probes of a type."""
        fmt, found = block_format(tensor), Found(tensor.type.name)
        plan = list(self._plan(tensor, fmt))
        for matrix, wrong in self._judged(self._probes(tensor, fmt, plan, found)):
            if wrong == 0:
                found.right(matrix.values, matrix.call.k, n=matrix.call.n)
            elif wrong is not None:
                found.wrong += 1
            if found.wrong >= MOST_WRONG:
                break
        if (found.wrong >= MOST_WRONG or self._calls.broken) and found.calls + found.wrong < len(plan):
            found.not_covered.append(("the rest of the plan", "the kernel is wrong already"))
        self._calls.under_schedules(tensor, self._scheduled(tensor, fmt))
        if self._calls.only is None:
            self._calls.record(found)

    def _probes(self, tensor: Tensor, fmt: BlockFormat, plan: Sequence[Probe], found: Found) -> Iterator[BlocksCall]:
        for number, probe in enumerate(plan):
            call = Call(kind="probe", number=number, n=probe.n, k=probe.k)
            words = f" of {probe.n} rows and K = {probe.k} ({probe.values})"
            if self._calls.wants(call):
                if self._calls.broken or self._calls.out_of_time(found):
                    break
                yield BlocksCall(call, tensor, fmt, probe.make, values=probe.values, words=words)

    def _plan(self, tensor: Tensor, fmt: BlockFormat) -> Iterator[Probe]:
        options = self._calls.run.options
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)
        shapes = shapes_of(self._kernel.domain, fmt.block_size, options.seed, options.probes == "brief")
        sizes = list(dict.fromkeys((n, k) for _, n, k in shapes))
        for n, k in sizes[: None if self._kernel.unpacks else _INFERRED]:
            yield Probe("the model's", k, partial(laid_out, fmt, blocks, n, k), n=n)
        for n, k in sizes[: 3 if self._kernel.unpacks else 1]:
            made = any_bits(fmt, n * k // fmt.block_size, options.seed)
            yield Probe("random bytes", k, partial(np.resize, made, (n, fmt.row_bytes(k))), n=n)

    def _scheduled(self, tensor: Tensor, fmt: BlockFormat) -> Iterator[tuple[Call, str, Callable[[Any], Bytes]]]:
        """All calls of pack, then those of unpack, so that few processes are started."""
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)

        def pack(rows: Bytes, ordinary: Callable[[], Packed], kernel: Repacker) -> Bytes:
            return (ordinary() if kernel is self._kernel else kernel.pack(fmt, rows)).bytes

        def unpack(ordinary: Callable[[], Packed], n: int, k: int, kernel: Repacker) -> Bytes:
            return kernel.unpack(fmt, ordinary(), n, k)

        unpacks = []
        for _, n, k in small_shapes(self._kernel.domain, fmt.block_size, self._calls.run.options.seed):
            rows = laid_out(fmt, blocks, n, k)
            ordinary = cache(partial(self._kernel.pack, fmt, rows))
            call, words = Call(kind="schedule", n=n, k=k), f"{printable(tensor.name, 64)}: at N = {n}, K = {k}"
            yield call, words, partial(pack, rows, ordinary)
            unpacks.append((call, words + ", unpack", partial(unpack, ordinary, n, k)))
        if self._kernel.unpacks:
            yield from unpacks

    # ---- judging -----------------------------------------------------------------------------------------------------

    def _judged(self, matrices: Iterable[BlocksCall]) -> Iterator[tuple[BlocksCall, int | None]]:
        """Pack matrices and take them apart, in batches, since each of the two ends the other's process. Yields the
        number of wrong blocks of each; None: that is not known, which is recorded."""
        batch: list[_Packed] = []
        held = 0
        for matrix in matrices:
            failed = self._result.n_failures
            packed = self._pack(matrix)
            held += 0 if packed is None else packed.bytes.size
            batch.append((matrix, packed, self._result.n_failures - failed or None))
            if held > _MOST_HELD:
                yield from self._take_apart(batch)
                batch, held = [], 0
        yield from self._take_apart(batch)

    def _pack(self, matrix: BlocksCall) -> Packed | None:
        """None where the kernel broke its contract, which is recorded."""
        rows = matrix.rows()
        packed = self._calls.make(matrix.call, matrix.tensor, matrix.size, lambda: self._kernel.pack(matrix.fmt, rows))
        if packed is not None and matrix.start is not None:
            file, own = self._sizes.get(matrix.fmt.name, (0, 0))
            self._sizes[matrix.fmt.name] = file + rows.size, own + packed.bytes.size
        return packed

    def _take_apart(self, batch: Sequence[_Packed]) -> Iterator[tuple[BlocksCall, int | None]]:
        """Take a batch apart in random order, at most `_TOGETHER` matrices in one process: what that keeps of others
        must not replace what a matrix was packed into. Yields as `_judged`."""
        found, packs, probes = {}, not self._calls.broken, 0
        for count, i in enumerate(self._draw.permutation(len(batch)).tolist()):
            matrix, packed, found[i] = batch[i]
            if packed is None or (matrix.start is None and probes >= MOST_WRONG):
                continue
            if packs and self._calls.broken:  # since unpack broke its contract
                self._result.leave(matrix.tensor.name, BROKEN, culprit="kernel")
                continue
            if count % _TOGETHER == 0:
                self._kernel.forget()
            failed = self._result.n_failures
            right = self._unpack(matrix, packed) if self._kernel.unpacks else self._infer(matrix, packed)
            found[i] = 0 if right else self._result.n_failures - failed or None
            probes += not right and matrix.start is None
        yield from ((batch[i][0], found[i]) for i in range(len(batch)))

    def _unpack(self, matrix: BlocksCall, packed: Packed) -> bool:
        """Whether the author's unpack makes the rows again. If not, the reason is recorded."""
        call, tensor, fmt = matrix.call, matrix.tensor, matrix.fmt
        unpack = partial(self._kernel.unpack, fmt, packed, call.n, call.k)
        made = self._calls.make(call, tensor, matrix.size, unpack, counts=False)
        if made is None:
            return False
        rows = matrix.rows().reshape(call.n, -1, fmt.block_bytes)
        wrong = made.reshape(rows.shape) != rows
        bad = np.argwhere(wrong.any(axis=-1))
        if not len(bad):
            return True
        row, block = (int(i) for i in bad[0])
        byte = int(wrong[row, block].argmax())
        got, expected = int(made.reshape(rows.shape)[row, block, byte]), int(rows[row, block, byte])
        what = (
            f"byte {byte} of the block comes back as {got:#04x}, it was {expected:#04x}; {len(bad):,} of "
            f"{matrix.blocks:,} blocks are not those that were packed"
        )
        failure = matrix.failure((row, block), rows[row, block], what, (float(got), float(expected)))
        self._result.fail(failure, len(bad))
        return False

    def _infer(self, matrix: BlocksCall, packed: Packed) -> bool:
        """Without an unpack: whether the packing only moves bits, and loses none. If not, the reason is recorded."""
        call, tensor, fmt, rows = matrix.call, matrix.tensor, matrix.fmt, matrix.rows()
        found: list[Moves | Lost | str] = []

        def infer() -> Bytes:
            found.append(find_moves(lambda part: self._kernel.pack(fmt, part).bytes, rows.shape))
            return rows

        if self._calls.make(call, tensor, matrix.size, infer) is None:
            return False
        moves = found[0]
        if isinstance(moves, Moves):
            if np.array_equal(moves.rows(packed.bytes, rows.shape), rows):
                self._result.note(
                    "it declares no unpack: its bits are those of the rows in another order, as planted bits show, and "
                    "were taken apart accordingly"
                )
                return True
            moves = "its bits are not those of the rows in another order"
        if isinstance(moves, Lost):
            row, byte = divmod(moves.byte, rows.shape[1])
            self._result.fail(
                Failure(
                    f"{printable(tensor.name, 64)}: {matrix.size}: {moves.count:,} of {moves.bits:,} bits of the rows "
                    f"are nowhere in what it packs, the first bit {moves.bit} of byte {byte % fmt.block_bytes} of "
                    f"block {byte // fmt.block_bytes} of row {row}", tensor.name, row, byte // fmt.block_bytes,
                    call=call, block_type=fmt.name,
                )
            )  # fmt: skip
        else:
            self._result.leave(tensor.name, NO_UNPACK.format(why=moves))
        return False

    def report(self) -> None:
        """Sizes of what was packed."""
        for name, (file, own) in self._sizes.items():
            self._result.figures[f"bytes of {name} in the file"] = file
            self._result.figures[f"bytes of {name} packed"] = own
            if own > file:
                self._result.note(
                    f"packed {name} is larger than the file's rows: {own:,} bytes for {file:,}, {own / file:.3g} times"
                )
