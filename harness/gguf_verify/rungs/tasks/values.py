"""The values rung, of kernels that dequantize: is every value of every block the one that the author says?

A kernel is run on the matrices of the model as they are; once for each type on blocks of any bits, on every half as a
scale, and on the model's blocks at the numbers of rows and columns of the probe plan. `semantics.dequantization` says
what the values should be. With float32 outputs, that is llama.cpp's `to_float`, bit for bit: the bytes rung compares
this project's decoder with it on every block of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np
import numpy.typing as npt

from ...formats import SLICE, BlockFormat
from ...gguf.file import Tensor
from ...gguf.matrices import rows_of_matrix
from ...kernels.tasks import Dequantizer
from ...results.failures import Failure
from ...results.rungs import MAX_FAILURES, RungResult
from ...semantics.dequantization import BOUNDED, Expected, expected_values, fitting
from ...semantics.epilogue import stored
from ...support.text import printable
from ..generated_inputs import any_bits, any_blocks, every_scale
from ..judging import KERNEL
from ..run import Run
from .blocks import BlocksJudge, block_failure, block_format
from .judge import TaskCall
from .large import REPEATED, Repeating

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]

#: Values of one call, and values that are judged at a time.
_CALL, _CHUNK = 1 << 24, 1 << 21
#: Columns, in units of 32 values, of the calls with every scale.
_WIDE = 8
#: Bytes of a value of each type of outputs.
_ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
#: Wrong blocks of one call that are recorded one by one, and values of them that the arithmetic is looked for with.
_PER_CALL, _LOOKED_AT = 3, 1 << 20


class Values(BlocksJudge):
    """The rung of a dequantizer: its values are compared with `semantics.dequantization.expected_values`."""

    kernel: Dequantizer

    def __init__(self, run: Run, result: RungResult) -> None:
        super().__init__(run, result)
        #: Types whose wrong values were explained.
        self._explained: set[str] = set()

    def most_rows(self, tensor: Tensor) -> int:
        """Some rows where a matrix is large, as the domain has them."""
        most, domain = max(1, min(rows_of_matrix(tensor), _CALL // tensor.k)), self.kernel.domain.n
        return domain.down(most) or domain.up(most) or most

    def outputs(self, call: TaskCall, given: Bytes, kernel: Dequantizer) -> Floats:
        """The values of rows."""
        return kernel.dequantize(block_format(call.tensor), given)

    def report(self) -> None:
        """Count the vectors, which are not for this rung."""
        self.result.skip("vectors", self.run.vectors())

    def plan(self, tensor: Tensor) -> Iterator[TaskCall]:
        """The model's blocks at every size, blocks of any bits, and every half as a scale."""
        fmt, seed, sizes, numbers = block_format(tensor), self.seed, self.sizes(tensor), count()

        def probe(values: str, made: Bytes, n: int, k: int) -> TaskCall:
            make = partial(np.resize, made, (n, fmt.row_bytes(k)))
            return self.probe_of(next(numbers), tensor, values, (n, k), make)

        for n, k in sizes:
            make = partial(self.laid_out, tensor, n, k)
            yield self.probe_of(next(numbers), tensor, "the model's", (n, k), make)
        for n, k in sizes[:3]:
            blocks = n * k // fmt.block_size
            yield probe("any bits", any_blocks(fmt, blocks, seed), n, k)
            yield probe("any bits, also no numbers", any_bits(fmt, blocks, seed), n, k)
        for made in every_scale(fmt, seed, self.brief):
            n, k = _shape_for(self.kernel, fmt, len(made))
            each = n * k // fmt.block_size
            for start in range(0, len(made), each) if each else ():
                yield probe("every scale", made[start : start + each], n, k)

    def repeating(self, tensor: Tensor) -> Repeating:
        """Calls in which blocks repeat."""
        fmt, kernel = block_format(tensor), self.kernel
        blocks = self.blocks(tensor)[:REPEATED]
        if len(blocks) < REPEATED:
            blocks = any_blocks(fmt, REPEATED, self.seed)
        size = _ITEMSIZE[kernel.output]

        def rows(n: int, k: int) -> Bytes:
            return np.resize(blocks, (n, fmt.row_bytes(k)))

        def outputs(n: int, k: int) -> Bytes:
            values = kernel.dequantize(fmt, rows(n, k))
            return stored(values.astype(np.float64), kernel.output).reshape(-1).view(np.uint8)

        return Repeating(
            "N·K", math.lcm(fmt.block_size, SLICE), max(fmt.block_bytes / fmt.block_size, float(size)),
            REPEATED * fmt.block_size, REPEATED * fmt.block_size * size, rows, outputs,
            partial(kernel.large, fmt, np.ascontiguousarray(blocks)),
        )  # fmt: skip

    # ---- judging -----------------------------------------------------------------------------------------------------

    def correct(self, of: TaskCall) -> bool:
        """Make a call, and judge its values."""
        fmt, rows = block_format(of.tensor), of.make()
        got = self.make(of, partial(self.outputs, of, rows, self.kernel))
        if got is None:
            return False
        if self.only is None:
            self.result.count("values of probes" if of.start is None else "values", got.size)
        blocks = rows.reshape(-1, fmt.block_bytes)
        values = got.reshape(-1, fmt.block_size)
        step, n_wrong, shown = max(1, _CHUNK // fmt.block_size), 0, 0
        for at in range(0, len(blocks), step):
            span = slice(at, at + step)
            expected = self._expected(fmt, blocks[span])
            wrong = expected.wrong(values[span])
            self._measure(expected, values[span], of.tensor)
            bad = np.flatnonzero(wrong.any(axis=1))
            n_wrong += int(wrong.sum())
            for i in bad[: max(0, min(_PER_CALL - shown, MAX_FAILURES - len(self.result.failures)))]:
                shown += 1
                n = int(wrong[i].sum())
                n_wrong -= n
                hint = self._explain(fmt, blocks, values) if shown == 1 else ""
                place = divmod(at + int(i), rows.shape[1] // fmt.block_bytes)
                said = _wrong_block(of, place, blocks[at + i], (wrong[i], values[at + i], expected, int(i)), hint)
                self.result.fail(said, n)
        self.result.fail_more("kernel", n_wrong, of.tensor.name)
        return not shown and not n_wrong

    def _expected(self, fmt: BlockFormat, blocks: Bytes) -> Expected:
        return expected_values(fmt, blocks, self.kernel.output, self.kernel.arithmetic(fmt), self.kernel.flushes)

    def _measure(self, expected: Expected, values: Floats, tensor: Tensor) -> None:
        utilisation = expected.utilisation(values)
        if utilisation is not None:
            self.result.measure(KERNEL, utilisation, 0.0, printable(tensor.name, 64))
        if expected.free is not None and (n := int(expected.free.sum())):
            what = "values that the declared arithmetic does not determine"
            self.result.figures[what] = self.result.figures.get(what, 0) + n

    def _explain(self, fmt: BlockFormat, blocks: Bytes, values: Floats) -> str:
        """An explanation of wrong values, once for each type."""
        if fmt.name in self._explained:
            return ""
        self._explained.add(fmt.name)
        n = max(1, _LOOKED_AT // fmt.block_size)
        found = [name for name in fitting(fmt, blocks[:n], values[:n], self.kernel.output) if name not in BOUNDED]
        if found:
            return f'. They are what arithmetic = "{found[0]}" gives: declare it, or mend the kernel'
        expected = self._expected(fmt, blocks[:n]).values
        order = _order(expected, values[:n])
        if order is not None:
            moved = int(np.flatnonzero(order != np.arange(len(order)))[0])
            return (
                f". Each block has the right values in another order: the value of place {order[moved]} lies at place "
                f"{moved} (the order of nibbles, or of values in a block?)"
            )
        return ""


def _wrong_block(
    of: TaskCall, place: tuple[int, int], raw: Bytes, block: tuple[Bools, Floats, Expected, int], hint: str
) -> Failure:
    """The failure of a block.

    Args:
        place: its row and its number in the row.
        block: which of its values are wrong, the values, and what is expected, with the block's number there.
    """
    wrong, values, expected, i = block
    j, n = int(wrong.argmax()), int(wrong.sum())
    got, right = float(values[j]), float(expected.values[i, j])
    bound = use = None
    if expected.bound is not None and expected.exact is not None:
        bound, right = float(expected.bound[i, j]), float(expected.exact[i, j])
        use = abs(got - right) / bound if bound else float("inf")
    more = f" (and {n - 1} further values of the block)" if n > 1 else ""
    return block_failure(of, place, raw, f"value {j} {_how(got, right, bound)}{more}{hint}", (got, right), bound, use)


def _shape_for(kernel: Dequantizer, fmt: BlockFormat, blocks: int) -> tuple[int, int]:
    """N and K of calls with this number of blocks, within the domain; (0, 0) if there is no such call."""
    domain = kernel.domain
    for slices in (_WIDE * 32, fmt.block_size):
        wanted = -(-slices // fmt.block_size) * fmt.block_size
        k = next((v for v in (domain.k.up(wanted), domain.k.down(wanted)) if v and v % fmt.block_size == 0), None)
        if k is not None:
            n = domain.n.down(max(1, blocks * fmt.block_size // k)) or domain.n.up(1)
            return (n, k) if n else (0, 0)
    return 0, 0


def _how(got: float, right: float, bound: float | None) -> str:
    if bound is None and got == right == 0:
        return f"is {got:+.0f}, expected {right:+.0f} (the sign of zero)"
    return "is outside the bound" if bound is not None else "is not the expected one"


def _order(expected: Floats, values: Floats) -> npt.NDArray[np.intp] | None:
    """Place in a block → the place whose value lies there, the same in all blocks; None where there is no such order,
    or the blocks do not tell."""
    bits, given = (np.ascontiguousarray(a).view(np.uint32) for a in (expected, values))
    size = bits.shape[1]
    few = slice(0, max(1, _LOOKED_AT // (size * size)))
    same = (given[few, :, None] == bits[few, None, :]).all(axis=0)  # [place, place of the value]
    if not (same.any(axis=1).all() and same.any(axis=0).all()):
        return None
    order = same.argmax(axis=1)
    if len(set(order.tolist())) != size or not np.array_equal(given, bits[:, order]):
        return None
    return None if np.array_equal(order, np.arange(size)) else order
