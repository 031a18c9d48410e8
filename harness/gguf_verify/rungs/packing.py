"""The packing rung, of kernels that repack weights: are the packed bytes the whole rows, so that they can be had again?

What the author's pack makes is taken apart by the author's unpack, in a process that gets the packed bytes alone, and
must be the rows, byte for byte: those of the model, blocks of random bytes, and the model's blocks at the numbers of
rows and columns of the probe plan. Where there is no unpack, the packing is taken apart by inference if it only moves
bits (`diagnosis.permutation`); else nothing is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..diagnosis.permutation import Lost, Moves, find_moves
from ..formats import BlockFormat
from ..gguf import Tensor, printable
from ..gguf.matrices import matrix_of, rows_of_matrix, where
from ..kernels.tasks import Packed, Repacker
from ..results import MAX_HEX_BYTES, Call, Failure, RungResult, TensorValues
from ..support.errors import KernelFault
from .calls import begin_alone, end_alone
from .interface import Rung
from .run import Run
from .scale_blocks import any_bits
from .task_calls import BROKEN, MOST_WRONG, Found, TaskCalls, laid_out, quantized_matrices, shapes_of, small_shapes

Bytes = npt.NDArray[np.uint8]

#: What cannot be verified, and what to do.
NO_UNPACK = "what it packs was not taken apart: {why}; give an unpack that makes the rows again, @kernel(unpack=f)"
#: Bytes that are held of what was packed.
_MOST_HELD = 1 << 28
#: Shapes that a packing is tried at where its bits are looked for, which takes some twenty calls each.
_INFERRED = 6


def check(run: Run, result: RungResult) -> None:
    """Judge the kernel's packing. Raises EnvironmentFault."""
    only = begin_alone(run, result)
    rung = _Packing(TaskCalls(run, result, only))
    first: dict[str, Tensor] = {}
    course = run.course({t.name: t for t in quantized_matrices(run, result)})
    for tensor in course.each("packing", result):
        first.setdefault(tensor.type.name, tensor)
        if rung.broken:
            result.leave(tensor.name, BROKEN, culprit="kernel")
            continue
        rung.tensor(tensor)
    rung.take_apart()
    for tensor in run.progress("packing, probes", list(first.values()), unit="type"):
        rung.probes(tensor)
    if only is not None:
        return end_alone(result, only)
    rung.report()
    result.skip("vectors", run.vectors())
    return None


RUNG = Rung(
    "packing", 2, "Are the packed weights the whole rows, so that they can be had again?", ("blocks",), check,
    ("repack",),
)  # fmt: skip


@dataclass(frozen=True)
class _Matrix:
    """One that is packed and taken apart.

    Args:
        call: that packs it.
        rows: makes its rows, uint8[n, row bytes].
        words: which one it is, where it is no part of the tensor.
        start: the row of the tensor that its first one is; -1: of none.
        judged: is told how many of its blocks are wrong; None: it cannot be taken apart.
    """

    call: Call
    tensor: Tensor
    fmt: BlockFormat
    rows: Callable[[], Bytes]
    words: str
    judged: Callable[[int | None], None]
    start: int = -1

    @property
    def shown(self) -> str:
        return f"at N = {self.call.n}, K = {self.call.k}"


class _Packing:
    def __init__(self, calls: TaskCalls) -> None:
        assert isinstance(calls.kernel, Repacker)
        self._calls, self._result, self._kernel = calls, calls.result, calls.kernel
        #: Type → bytes of the file's rows, and of what they were packed into.
        self._sizes: dict[str, tuple[int, int]] = {}
        #: What was packed and not taken apart yet: the process that packs ends before the other one starts.
        self._packed: list[tuple[_Matrix, Packed]] = []

    @property
    def broken(self) -> bool:
        """`TaskCalls.broken`."""
        return self._calls.broken

    def tensor(self, tensor: Tensor) -> None:
        """Pack a tensor, matrix by matrix."""
        fmt, rows = _format(tensor), self._calls.run.row_bytes(tensor)
        matrix, found = rows_of_matrix(tensor), list[tuple[int, int | None]]()
        starts = range(0, len(rows), matrix)

        def judged(blocks: int, wrong: int | None) -> None:
            found.append((blocks, wrong))
            if len(found) == len(starts) and self._calls.only is None:
                self._record(tensor, found)

        for number, start in enumerate(starts):
            n = min(matrix, len(rows) - start)
            call = Call(kind="tensor", number=number, first_row=start, n=n, k=tensor.k)
            if self._calls.wants(call):
                part = partial(np.ascontiguousarray, rows[start : start + matrix])
                told = partial(judged, n * tensor.k // fmt.block_size)
                self._pack(_Matrix(call, tensor, fmt, part, "", told, start))

    def _record(self, tensor: Tensor, found: Sequence[tuple[int, int | None]]) -> None:
        """What came of a tensor's matrices: their blocks, and how many of them are wrong."""
        if any(wrong is None for _, wrong in found):
            return
        blocks = sum(blocks for blocks, _ in found)
        self._result.count("tensors")
        self._result.count("blocks", blocks)
        record = TensorValues(tensor.name, tensor.type.name, blocks, sum(wrong or 0 for _, wrong in found))
        self._result.details.append(record)

    def probes(self, tensor: Tensor) -> None:
        """What the probe plan asks of a type."""
        fmt, found = _format(tensor), Found(tensor.type.name)

        def judged(values: str, n: int, k: int, wrong: int | None) -> None:
            if wrong == 0:
                found.right(values, k, n=n)
            elif wrong is not None:
                found.wrong += 1

        for number, (values, n, k, make) in enumerate(self._plan(tensor, fmt)):
            call = Call(kind="probe", number=number, n=n, k=k)
            if not self._calls.wants(call):
                continue
            if found.wrong >= MOST_WRONG or self.broken:
                found.not_covered.append(("the rest of the plan", "the kernel is wrong already"))
                break
            if self._calls.out_of_time(found):
                break
            words = f" of {n} rows and K = {k} ({values})"
            self._pack(_Matrix(call, tensor, fmt, make, words, partial(judged, values, n, k)))
        self.take_apart()
        self._calls.under_schedules(tensor, self._scheduled(tensor, fmt))
        if self._calls.only is None:
            self._calls.record(found)

    def _plan(self, tensor: Tensor, fmt: BlockFormat) -> Iterator[tuple[str, int, int, Callable[[], Bytes]]]:
        options = self._calls.run.options
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)
        shapes = shapes_of(self._kernel.domain, fmt.block_size, options.seed, options.probes == "brief")
        sizes = list(dict.fromkeys((n, k) for _, n, k in shapes))
        for n, k in sizes[: None if self._kernel.unpacks else _INFERRED]:
            yield "the model's", n, k, partial(laid_out, fmt, blocks, n, k)
        for n, k in sizes[: 3 if self._kernel.unpacks else 1]:
            made = any_bits(fmt, n * k // fmt.block_size, options.seed)
            yield "random bytes", n, k, partial(np.resize, made, (n, fmt.row_bytes(k)))

    def _scheduled(self, tensor: Tensor, fmt: BlockFormat) -> Iterator[tuple[Call, str, Callable[[Any], Bytes]]]:
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)
        for _, n, k in small_shapes(self._kernel.domain, fmt.block_size, self._calls.run.options.seed):
            rows = laid_out(fmt, blocks, n, k)
            words = f"{printable(tensor.name, 64)}: at N = {n}, K = {k}"
            yield Call(kind="schedule", n=n, k=k), words, partial(_packed, fmt, rows)
            if self._kernel.unpacks:
                made = self._kernel.pack(fmt, rows)
                yield Call(kind="schedule", n=n, k=k), words + ", unpack", partial(_unpacked, fmt, made, n, k)

    # ---- judging -----------------------------------------------------------------------------------------------------

    def _pack(self, of: _Matrix) -> None:
        """Pack a matrix, and hold what it becomes; take all apart that is held, where that is much."""
        rows = of.rows()
        packed = self._calls.make(of.call, of.tensor, of.shown, lambda: self._kernel.pack(of.fmt, rows))
        if packed is None:
            return of.judged(1)
        if of.start >= 0:
            file, own = self._sizes.get(of.fmt.name, (0, 0))
            self._sizes[of.fmt.name] = file + rows.size, own + packed.bytes.size
        if not self._kernel.unpacks:
            return of.judged(self._inferred(of.call, of.tensor, of.fmt, rows, packed.bytes, of.shown))
        self._packed.append((of, packed))
        if sum(held.bytes.size for _, held in self._packed) > _MOST_HELD:
            self.take_apart()
        return None

    def take_apart(self) -> None:
        """Take apart what was packed, and compare."""
        held, self._packed = self._packed, []
        for of, packed in held:
            unpack = partial(self._kernel.unpack, of.fmt, packed, of.call.n, of.call.k)
            made = self._calls.make(of.call, of.tensor, of.shown, unpack, counts=False)
            of.judged(1 if made is None else self._compared(of, made))

    def _compared(self, of: _Matrix, made: Bytes) -> int:
        """How many blocks are not those that were packed, which is recorded."""
        tensor, fmt, start, rows = of.tensor, of.fmt, of.start, of.rows()
        n, k = len(rows), of.call.k
        wrong = made.reshape(n, -1, fmt.block_bytes) != rows.reshape(n, -1, fmt.block_bytes)
        if not wrong.any():
            return 0
        bad = np.argwhere(wrong.any(axis=-1))
        row, block = (int(i) for i in bad[0])
        at = int(wrong[row, block].argmax())
        place = (
            where(tensor, start + row, block=block) if start >= 0
            else f"{printable(tensor.name, 64)}{of.words}: row {row} block {block}"
        )  # fmt: skip
        byte = block * fmt.block_bytes + at
        got, expected = int(made.reshape(n, -1)[row, byte]), int(rows[row, byte])
        raw = rows[row, block * fmt.block_bytes : (block + 1) * fmt.block_bytes]
        self._result.fail(
            Failure(
                f"{place}: byte {at} of the block comes back as {got:#04x}, it was {expected:#04x}; {len(bad):,} of "
                f"{n * k // fmt.block_size:,} blocks are not those that were packed", tensor.name,
                start + row if start >= 0 else row, block, None,
                tensor.block_offset(start + row, block) if start >= 0 else None,
                raw.tobytes()[:MAX_HEX_BYTES].hex(), float(got), float(expected), None, None,
                tensor.part if start >= 0 else 0, matrix_of(tensor, start + row) if start >= 0 else None, call=of.call,
                block_type=fmt.name,
            ), len(bad),
        )  # fmt: skip
        return len(bad)

    def _inferred(
        self, call: Call, tensor: Tensor, fmt: BlockFormat, rows: Bytes, packed: Bytes, shown: str
    ) -> int | None:
        """Without an unpack, where the packing only moves bits: how many blocks are wrong."""
        found: list[Moves | Lost | str] = []

        def infer() -> Bytes:
            found.append(find_moves(lambda part: self._kernel.pack(fmt, part).bytes, rows.shape))
            return rows

        if self._calls.make(call, tensor, shown, infer) is None:
            return 1
        moves = found[0]
        if isinstance(moves, Moves):
            if np.array_equal(moves.rows(packed, rows.shape), rows):
                self._result.note(
                    "it declares no unpack: its bits are those of the rows in another order, as planted bits show, and "
                    "were taken apart accordingly"
                )
                return 0
            moves = "its bits are not those of the rows in another order"
        name = printable(tensor.name, 64)
        if isinstance(moves, Lost):
            row, byte = divmod(moves.byte, rows.shape[1])
            self._result.fail(
                Failure(
                    f"{name}: {shown}: {moves.count:,} of {moves.bits:,} bits of the rows are nowhere in what it "
                    f"packs, the first bit {moves.bit} of byte {byte % fmt.block_bytes} of block "
                    f"{byte // fmt.block_bytes} of row {row}", tensor.name, row, byte // fmt.block_bytes, call=call,
                    block_type=fmt.name,
                )
            )  # fmt: skip
            return 1
        self._result.leave(tensor.name, NO_UNPACK.format(why=moves))
        return None

    def report(self) -> None:
        """Sizes of what was packed."""
        for name, (file, own) in self._sizes.items():
            self._result.figures[f"bytes of {name} in the file"] = file
            self._result.figures[f"bytes of {name} packed"] = own
            if own > file:
                self._result.note(
                    f"packed {name} is larger than the file's rows: {own:,} bytes for {file:,}, {own / file:.3g} times"
                )


def _packed(fmt: BlockFormat, rows: Bytes, kernel: Repacker) -> Bytes:
    return kernel.pack(fmt, rows).bytes


def _unpacked(fmt: BlockFormat, packed: Packed, n: int, k: int, kernel: Repacker) -> Bytes:
    return kernel.unpack(fmt, packed, n, k)


def _format(tensor: Tensor) -> BlockFormat:
    fmt = tensor.type.format
    if fmt is None:
        raise KernelFault("the tensor has no block format")
    return fmt
