"""The packing rung, of kernels that repack weights: are the packed bytes the whole rows, so that they can be had again?

The author's unpack takes the packed bytes apart, in a process that gets only these, and the result must be the rows,
byte for byte: those of the model, blocks of random bytes, and the model's blocks at the numbers of rows and columns of
the probe plan. Without an unpack, the packing is taken apart by inference if it only moves bits
(`diagnosis.permutation`); else nothing is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from ...diagnosis.permutation import Lost, Moves, find_moves
from ...gguf.file import Tensor
from ...kernels.tasks import Packed, Repacker
from ...results.failures import Failure
from ...results.rungs import RungResult
from ...support.text import printable
from ..generated_inputs import any_bits
from ..run import Run
from .blocks import BROKEN, BlocksJudge, block_failure, block_format
from .judge import MOST_WRONG, Judged, TaskCall

Bytes = npt.NDArray[np.uint8]
#: What cannot be verified, and what to do.
NO_UNPACK = "what it packs was not taken apart: {why}; give an unpack that makes the rows again, @kernel(unpack=f)"
#: Packed bytes that are held until they are taken apart. The matrix that exceeds this is the last one of its batch.
MOST_HELD = 1 << 28
#: Most matrices that one process takes apart.
_TOGETHER = 16
#: Shapes that a packing is tried at where its bits are looked for, which takes some twenty calls each.
_INFERRED = 6

#: A matrix, what it was packed into (None: the kernel broke its contract), and the failures that were recorded.
_Packed = tuple[TaskCall, Packed | None, int]


class Packing(BlocksJudge):
    """The rung of a repacker: its packed bytes are taken apart, and the rows compared with those that were packed."""

    kernel: Repacker

    def __init__(self, run: Run, result: RungResult) -> None:
        super().__init__(run, result)
        #: Type → bytes of the file's rows, and of what they were packed into.
        self._sizes: dict[str, tuple[int, int]] = {}
        self._draw = np.random.default_rng((self.seed, 19))

    def outputs(self, call: TaskCall, given: Bytes, kernel: Repacker) -> Bytes:
        """The packed bytes of rows."""
        return kernel.pack(block_format(call.tensor), given).bytes

    def plan(self, tensor: Tensor) -> Iterator[TaskCall]:
        """The model's blocks, and random bytes."""
        fmt, sizes, numbers = block_format(tensor), self.sizes(tensor), count()
        for n, k in sizes[: None if self.kernel.unpacks else _INFERRED]:
            make = partial(self.laid_out, tensor, n, k)
            yield self.probe_of(next(numbers), tensor, "the model's", (n, k), make)
        for n, k in sizes[: 3 if self.kernel.unpacks else 1]:
            random = any_bits(fmt, n * k // fmt.block_size, self.seed)
            make = partial(np.resize, random, (n, fmt.row_bytes(k)))
            yield self.probe_of(next(numbers), tensor, "random bytes", (n, k), make)

    def scheduled(self, tensor: Tensor) -> Iterator[tuple[TaskCall, Callable[[Any], Bytes]]]:
        """All calls of pack, then those of unpack, so that few processes are started."""
        fmt, unpacks = block_format(tensor), []

        def pack(rows: Bytes, ordinary: Callable[[], Packed], kernel: Repacker) -> Bytes:
            return (ordinary() if kernel is self.kernel else kernel.pack(fmt, rows)).bytes

        def unpack(ordinary: Callable[[], Packed], n: int, k: int, kernel: Repacker) -> Bytes:
            return kernel.unpack(fmt, ordinary(), n, k)

        for of in self.small(tensor):
            rows = of.make()
            ordinary = cache(partial(self.kernel.pack, fmt, rows))
            yield of, partial(pack, rows, ordinary)
            unpacks.append((replace(of, words=f"{of.words}, unpack"), partial(unpack, ordinary, of.call.n, of.call.k)))
        if self.kernel.unpacks:
            yield from unpacks

    # ---- judging -----------------------------------------------------------------------------------------------------

    def correct(self, of: TaskCall) -> bool:
        """Pack a matrix, and take it apart."""
        return any(judged.correct for judged in self.judge([of]))

    def judge(self, calls: Iterable[TaskCall]) -> Iterator[Judged]:
        """Pack matrices and take them apart, in batches, since each of the two ends the other's process."""
        batch: list[_Packed] = []
        held = 0
        for of in calls:
            rows, failed = of.make(), self.result.n_failures
            packed = self.make(of, partial(self.kernel.pack, block_format(of.tensor), rows))
            if packed is not None:
                held += packed.bytes.size
                if of.start is not None:
                    file, own = self._sizes.get(of.tensor.type.name, (0, 0))
                    self._sizes[of.tensor.type.name] = file + rows.size, own + packed.bytes.size
            batch.append((of, packed, self.result.n_failures - failed))
            if held > MOST_HELD:
                yield from self._take_apart(batch)
                batch, held = [], 0
        yield from self._take_apart(batch)

    def _take_apart(self, batch: Sequence[_Packed]) -> Iterator[Judged]:
        """Take a batch apart in random order, at most `_TOGETHER` matrices in one process: what that keeps of others
        must not replace what a matrix was packed into."""
        found, packs, probes = {}, not self.broken, 0
        for number, i in enumerate(self._draw.permutation(len(batch)).tolist()):
            of, packed, wrong = batch[i]
            found[i] = Judged(of, False if wrong else None, wrong)
            if packed is None or (of.start is None and probes >= MOST_WRONG):
                continue
            if packs and self.broken:  # since unpack broke its contract
                self.result.leave(of.tensor.name, BROKEN, culprit="kernel")
                continue
            if number % _TOGETHER == 0:
                self.kernel.forget()
            failed = self.result.n_failures
            right = self._unpack(of, packed) if self.kernel.unpacks else self._infer(of, packed)
            wrong = self.result.n_failures - failed
            found[i] = Judged(of, right if right or wrong else None, wrong)
            probes += not right and of.start is None
        yield from (found[i] for i in range(len(batch)))

    def _unpack(self, of: TaskCall, packed: Packed) -> bool:
        """Whether the author's unpack makes the rows again. If not, the reason is recorded."""
        call, fmt = of.call, block_format(of.tensor)
        made = self.make(of, partial(self.kernel.unpack, fmt, packed, call.n, call.k), counts=False)
        if made is None:
            return False
        rows = of.make().reshape(call.n, -1, fmt.block_bytes)
        wrong = made.reshape(rows.shape) != rows
        bad = np.argwhere(wrong.any(axis=-1))
        if not len(bad):
            return True
        row, block = (int(i) for i in bad[0])
        byte = int(wrong[row, block].argmax())
        got, expected = int(made.reshape(rows.shape)[row, block, byte]), int(rows[row, block, byte])
        what = (
            f"byte {byte} of the block comes back as {got:#04x}, it was {expected:#04x}; {len(bad):,} of "
            f"{call.n * call.k // fmt.block_size:,} blocks are not those that were packed"
        )
        failure = block_failure(of, (row, block), rows[row, block], what, (float(got), float(expected)))
        self.result.fail(failure, len(bad))
        return False

    def _infer(self, of: TaskCall, packed: Packed) -> bool:
        """Without an unpack: whether the packing only moves bits, and loses none. If not, the reason is recorded."""
        tensor, fmt, rows = of.tensor, block_format(of.tensor), of.make()
        found: list[Moves | Lost | str] = []

        def infer() -> Bytes:
            found.append(find_moves(lambda part: self.kernel.pack(fmt, part).bytes, rows.shape))
            return rows

        if self.make(of, infer) is None:
            return False
        moves = found[0]
        if isinstance(moves, Moves):
            if np.array_equal(moves.rows(packed.bytes, rows.shape), rows):
                self.result.note(
                    "it declares no unpack: its bits are those of the rows in another order, as planted bits show, and "
                    "were taken apart accordingly"
                )
                return True
            moves = "its bits are not those of the rows in another order"
        if isinstance(moves, Lost):
            row, byte = divmod(moves.byte, rows.shape[1])
            self.result.fail(
                Failure(
                    f"{printable(tensor.name, 64)}: {of.words}: {moves.count:,} of {moves.bits:,} bits of the rows "
                    f"are nowhere in what it packs, the first bit {moves.bit} of byte {byte % fmt.block_bytes} of "
                    f"block {byte // fmt.block_bytes} of row {row}", tensor.name, row, byte // fmt.block_bytes,
                    call=of.call, block_type=fmt.name,
                )
            )  # fmt: skip
        else:
            self.result.leave(tensor.name, NO_UNPACK.format(why=moves))
        return False

    def report(self) -> None:
        """Record the sizes of packed matrices, and the vectors, which this rung skips."""
        for name, (file, own) in self._sizes.items():
            self.result.figures[f"bytes of {name} in the file"] = file
            self.result.figures[f"bytes of {name} packed"] = own
            if own > file:
                self.result.note(
                    f"packed {name} is larger than the file's rows: {own:,} bytes for {file:,}, {own / file:.3g} times"
                )
        self.result.skip("vectors", self.run.vectors())
