"""Tasks on the blocks of the model's matrices: dequantizing and repacking."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...gguf.file import Tensor
from ...gguf.matrices import matrix_of, may_be_matrix, rows_of_matrix, where
from ...results.calls import Call
from ...results.failures import MAX_HEX_BYTES, Failure
from ...results.products import TensorValues
from ...support.text import printable
from ..plan import shapes_of
from ..rounds import each
from .judge import MOST_WRONG, Judged, TaskCall, TaskJudge

Bytes = npt.NDArray[np.uint8]

#: Why a tensor is skipped.
BROKEN = f"the kernel is not called any more: it broke its contract {MOST_WRONG} times"


class BlocksJudge(TaskJudge):
    """The rung of a kernel that takes rows of blocks, uint8[N, row bytes]."""

    def most_rows(self, tensor: Tensor) -> int:
        """The most rows of a call, all of one of the tensor's matrices."""
        return rows_of_matrix(tensor)

    def of_model(self) -> Generator[None, None, list[Tensor]]:
        """All blocks of all tensors."""
        tensors, first = {t.name: t for t in self._tensors()}, dict[str, Tensor]()

        def calls() -> Iterator[TaskCall]:
            for tensor in each(self.run, self.result.name, tensors, self.result):
                first.setdefault(tensor.type.name, tensor)
                if self.broken:
                    self.result.leave(tensor.name, BROKEN, culprit="kernel")
                else:
                    yield from self._calls(tensor)

        of_tensor: list[Judged] = []
        for judged in self.judge(calls()):
            of_tensor.append(judged)
            if judged.of.last:
                self._record_tensor(of_tensor)
                of_tensor = []
                yield
        return list(first.values())

    def _tensors(self) -> Iterator[Tensor]:
        """The selected matrices that such a kernel is about. Others are counted, or recorded as not covered."""
        for tensor in self.run.selected():
            if not may_be_matrix(tensor) or not tensor.nbytes:
                continue
            if not tensor.type.quantized:
                self.result.skip("matrices that are not quantized")
            elif (why := self.run.uncovered(tensor)) is not None:
                self.result.leave(tensor.name, why)
            else:
                yield tensor

    def _calls(self, tensor: Tensor) -> Iterator[TaskCall]:
        """Calls that together have all rows of a tensor, each those of one matrix."""
        rows, matrix, most = self.run.row_bytes(tensor), rows_of_matrix(tensor), self.most_rows(tensor)
        starts = [at + i for at in range(0, len(rows), matrix) for i in range(0, matrix, most)]
        wanted = []
        for number, start in enumerate(starts):
            part = rows[start : min(start + most, start - start % matrix + matrix)]
            call = Call(kind="tensor", number=number, first_row=start, n=len(part), k=tensor.k)
            if self.wants(call):
                wanted.append((call, part))
        for call, part in wanted:
            yield TaskCall(
                call, tensor, partial(np.ascontiguousarray, part), size_of(call), start=call.first_row,
                last=call is wanted[-1][0],
            )  # fmt: skip

    def _record_tensor(self, judged: Sequence[Judged]) -> None:
        """Record a tensor, unless something of it was not judged."""
        if self.only is not None or any(one.correct is None for one in judged):
            return
        tensor = judged[0].of.tensor
        blocks = tensor.n_rows * tensor.k // block_format(tensor).block_size
        self.result.count("tensors")
        if "blocks" in self.result.substance:
            self.result.count("blocks", blocks)
        wrong = sum(one.wrong for one in judged)
        self.result.details.append(TensorValues(tensor.name, tensor.type.name, blocks, wrong))

    def small(self, tensor: Tensor) -> Iterator[TaskCall]:
        """Calls with the model's blocks."""
        for _, n, k in self.small_shapes(block_format(tensor).block_size):
            call = Call(kind="schedule", n=n, k=k)
            yield TaskCall(call, tensor, partial(self.laid_out, tensor, n, k), size_of(call))

    def sizes(self, tensor: Tensor) -> list[tuple[int, int]]:
        """(N, K) of the probe plan, each once."""
        shapes = shapes_of(self.kernel.domain, block_format(tensor).block_size, self.seed, self.brief)
        return list(dict.fromkeys((n, k) for _, n, k in shapes))

    def probe_of(
        self, number: int, tensor: Tensor, values: str, size: tuple[int, int], make: Callable[[], Bytes]
    ) -> TaskCall:
        """A probe of (N, K)."""
        call = Call(kind="probe", number=number, n=size[0], k=size[1])
        return TaskCall(call, tensor, make, size_of(call), values)

    def blocks(self, tensor: Tensor) -> Bytes:
        """The blocks of a tensor, uint8[…, block bytes]."""
        return self.run.row_bytes(tensor).reshape(-1, block_format(tensor).block_bytes)

    def laid_out(self, tensor: Tensor, n: int, k: int) -> Bytes:
        """uint8[n, row bytes] of the blocks of a tensor, repeated as often as is needed, so that rows repeat late."""
        fmt, flat = block_format(tensor), self.blocks(tensor)
        wide = k // fmt.block_size
        there = len(flat) - (len(flat) % wide == 0 and len(flat) > 1)
        return np.resize(flat[:there], (n, wide * fmt.block_bytes))


def block_format(tensor: Tensor) -> BlockFormat:
    """The format of a quantized tensor."""
    fmt = tensor.type.format
    assert fmt is not None
    return fmt


def size_of(call: Call) -> str:
    """The shape of a call, in words."""
    return f"at N = {call.n}, K = {call.k}"


def block_failure(
    of: TaskCall, at: tuple[int, int], raw: Bytes, what: str, numbers: tuple[float, float],
    bound: float | None = None, use: float | None = None,
) -> Failure:  # fmt: skip
    """The failure of one block.

    Args:
        at: its row and its number in the row.
        raw: its bytes.
        numbers: the number that it gives, and the expected one.
        use: the utilisation of the bound.
    """
    (row, block), tensor, of_file, call = at, of.tensor, of.start is not None, of.call
    row += of.start or 0
    probe = f"{printable(tensor.name, 64)} of {call.n} rows and K = {call.k} (blocks of {of.values})"
    place = where(tensor, row, block=block) if of_file else f"{probe}: row {row} block {block}"
    return Failure(
        f"{place}: {what}", tensor.name, row, block, None, tensor.block_offset(row, block) if of_file else None,
        raw.tobytes()[:MAX_HEX_BYTES].hex(), *numbers, bound, use, tensor.part if of_file else 0,
        matrix_of(tensor, row) if of_file else None, call=call, block_type=tensor.type.name,
    )  # fmt: skip
