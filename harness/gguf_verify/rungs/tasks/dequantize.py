"""The values rung, of kernels that dequantize: is every value of every block the one that the author says?

A kernel is run on the matrices of the model as they are; once for each type on blocks of any bits, on every half as a
scale, and on the model's blocks at the numbers of rows and columns of the probe plan. `semantics.dequantization` says
what the values should be. With float32 outputs, that is llama.cpp's `to_float`, bit for bit: the bytes rung compares
this project's decoder with it on every block of the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec import structs

from ...formats import SLICE, BlockFormat
from ...gguf.file import Tensor
from ...kernels.tasks import Dequantizer
from ...results.calls import Call
from ...results.failures import Failure
from ...results.products import TensorValues
from ...results.rungs import MAX_FAILURES, RungResult
from ...semantics.dequantization import BOUNDED, Expected, expected_values, fitting
from ...semantics.epilogue import stored
from ...support.text import printable
from ..calls import begin_alone, end_alone
from ..course import Course
from ..generated_inputs import any_bits, any_blocks, every_scale
from ..interface import Rung, Steps
from ..judging import KERNEL
from ..run import Run
from .calls import (
    BROKEN,
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
from .large import REPEATED, LargeTask, check_large, columns_of, few, sizes_of

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


def check(run: Run, result: RungResult) -> Steps:
    """Judge the kernel's values. Raises EnvironmentFault."""
    only = begin_alone(run, result)
    rung = _Values(TaskCalls(run, result, only), result)
    first: dict[str, Tensor] = {}
    course = Course(run, {t.name: t for t in quantized_matrices(run, result)})
    for tensor in course.each("values", result):
        first.setdefault(tensor.type.name, tensor)
        if rung.broken:
            result.leave(tensor.name, BROKEN, culprit="kernel")
        else:
            rung.tensor(tensor)
        yield None
    for tensor in run.progress("values, probes", list(first.values()), unit="type"):
        rung.probes(tensor)
        yield None
    if only is not None:
        end_alone(result, only)
    else:
        result.skip("vectors", run.vectors())


RUNG = Rung(
    "values", 2, "Is every value of every block the one that the kernel's author says?", ("values",), check,
    ("dequantize",),
)  # fmt: skip


class _Values:
    def __init__(self, calls: TaskCalls, result: RungResult) -> None:
        assert isinstance(calls.kernel, Dequantizer)
        self._calls, self._result, self._kernel = calls, result, calls.kernel
        self._seed, self._brief = calls.run.options.seed, calls.run.options.probes == "brief"
        #: Types whose wrong values were explained.
        self._explained: set[str] = set()

    @property
    def broken(self) -> bool:
        """`TaskCalls.broken`."""
        return self._calls.broken

    def tensor(self, tensor: Tensor) -> None:
        """All blocks of a tensor, in calls of one of its matrices, or of some of its rows where it is large."""
        fmt = block_format(tensor)
        rows, failed = self._calls.run.row_bytes(tensor), self._result.n_failures
        matrix = tensor.shape[1] if len(tensor.shape) > 1 else 1
        most = max(1, min(matrix, _CALL // tensor.k))
        most = self._kernel.domain.n.down(most) or self._kernel.domain.n.up(most) or most
        starts = [at + i for at in range(0, len(rows), matrix) for i in range(0, matrix, most)]
        for number, start in enumerate(starts):
            part = rows[start : min(start + most, start - start % matrix + matrix)]
            call = Call(kind="tensor", number=number, first_row=start, n=len(part), k=tensor.k)
            if self._calls.wants(call):
                self._correct(BlocksCall(call, tensor, fmt, partial(np.asarray, part), start))
        self._result.count("tensors")
        blocks = len(rows) * tensor.k // fmt.block_size
        self._result.details.append(
            TensorValues(tensor.name, tensor.type.name, blocks, self._result.n_failures - failed)
        )

    def probes(self, tensor: Tensor) -> None:
        """Judge the probes of a type."""
        fmt, found = block_format(tensor), Found(tensor.type.name)

        def correct(call: Call, probe: Probe) -> bool:
            words = f" of {probe.n} rows and K = {probe.k} (blocks of {probe.values})"
            return self._correct(BlocksCall(call, tensor, fmt, probe.make, words=words))

        self._calls.probes(found, self._plan(tensor, fmt), correct)
        self._calls.under_schedules(tensor, self._scheduled(tensor, fmt))
        unit = math.lcm(fmt.block_size, SLICE)
        nbytes = max(fmt.block_bytes / fmt.block_size, float(_ITEMSIZE[self._kernel.output]))
        sizes = sizes_of(self._kernel.domain, unit, "N·K", nbytes)
        check_large(self._calls, found, tensor, sizes, lambda call: self._large(call, tensor, fmt, unit))
        if self._calls.only is None:
            self._calls.record(found)

    def _large(self, call: Call, tensor: Tensor, fmt: BlockFormat, unit: int) -> LargeTask | None:
        """Calls in which blocks repeat; None if a small one is wrong, or if there is none."""
        domain, kernel = self._kernel.domain, self._kernel
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)[:REPEATED]
        if len(blocks) < REPEATED:
            blocks = any_blocks(fmt, REPEATED, self._seed)
        k, some = columns_of(domain.k, unit), few(domain.n)
        n = None if k is None else domain.n.up(-(-REPEATED * fmt.block_size // k))
        if k is None or n is None or some is None:
            return None

        def rows(n: int, k: int) -> Bytes:
            return np.resize(blocks, (n, fmt.row_bytes(k)))

        def whole(n: int, k: int) -> npt.NDArray[np.uint32]:
            return stored(kernel.dequantize(fmt, rows(n, k)).astype(np.float64), kernel.output).reshape(-1).view("<u4")

        small = structs.replace(call, n=n, k=k)
        if not self._correct(BlocksCall(small, tensor, fmt, partial(rows, n, k), words=" (blocks that repeat)")):
            return None
        words = REPEATED * fmt.block_size * _ITEMSIZE[kernel.output] // 4
        large = partial(kernel.large, fmt, np.ascontiguousarray(blocks))
        return LargeTask(large, whole, whole(n, k)[:words], (some, k), self._seed)

    def _plan(self, tensor: Tensor, fmt: BlockFormat) -> Iterator[Probe]:
        domain, seed = self._kernel.domain, self._seed
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)
        sizes = list(dict.fromkeys((n, k) for _, n, k in shapes_of(domain, fmt.block_size, seed, self._brief)))

        def of(values: str, made: Bytes, n: int, k: int) -> Probe:
            return Probe(values, k, lambda: np.resize(made, (n, fmt.row_bytes(k))), n=n)

        for n, k in sizes:
            yield Probe("the model's", k, partial(laid_out, fmt, blocks, n, k), n=n)
        for n, k in sizes[:3]:
            count = n * k // fmt.block_size
            yield of("any bits", any_blocks(fmt, count, seed), n, k)
            yield of("any bits, also no numbers", any_bits(fmt, count, seed), n, k)
        for made in every_scale(fmt, seed, self._brief):
            n, k = _shape_for(self._kernel, fmt, len(made))
            each = n * k // fmt.block_size
            for start in range(0, len(made), each) if each else ():
                yield of("every scale", made[start : start + each], n, k)

    def _scheduled(
        self, tensor: Tensor, fmt: BlockFormat
    ) -> Iterator[tuple[Call, str, Callable[[Dequantizer], Floats]]]:
        blocks = self._calls.run.row_bytes(tensor).reshape(-1, fmt.block_bytes)
        for _, n, k in small_shapes(self._kernel.domain, fmt.block_size, self._seed):
            rows = laid_out(fmt, blocks, n, k)
            words = f"{printable(tensor.name, 64)}: at N = {n}, K = {k}"
            yield Call(kind="schedule", n=n, k=k), words, partial(_dequantized, fmt, rows)

    # ---- judging -----------------------------------------------------------------------------------------------------

    def _correct(self, of: BlocksCall) -> bool:
        """Make a call, and judge its values."""
        fmt, rows = of.fmt, of.rows()
        got = self._calls.make(of.call, of.tensor, of.size, lambda: self._kernel.dequantize(fmt, rows))
        if got is None:
            return False
        if self._calls.only is None:
            self._result.count("values of probes" if of.start is None else "values", got.size)
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
            for i in bad[: max(0, min(_PER_CALL - shown, MAX_FAILURES - len(self._result.failures)))]:
                shown += 1
                n = int(wrong[i].sum())
                n_wrong -= n
                hint = self._explain(fmt, blocks, values) if shown == 1 else ""
                place = divmod(at + int(i), rows.shape[1] // fmt.block_bytes)
                said = _wrong_block(of, place, blocks[at + i], (wrong[i], values[at + i], expected, int(i)), hint)
                self._result.fail(said, n)
        self._result.fail_more("kernel", n_wrong, of.tensor.name)
        return not shown and not n_wrong

    def _expected(self, fmt: BlockFormat, blocks: Bytes) -> Expected:
        return expected_values(fmt, blocks, self._kernel.output, self._kernel.arithmetic(fmt), self._kernel.flushes)

    def _measure(self, expected: Expected, values: Floats, tensor: Tensor) -> None:
        utilisation = expected.utilisation(values)
        if utilisation is not None:
            self._result.measure(KERNEL, utilisation, 0.0, printable(tensor.name, 64))
        if expected.free is not None and (n := int(expected.free.sum())):
            what = "values that the declared arithmetic does not determine"
            self._result.figures[what] = self._result.figures.get(what, 0) + n

    def _explain(self, fmt: BlockFormat, blocks: Bytes, values: Floats) -> str:
        """An explanation of wrong values, once for each type."""
        if fmt.name in self._explained:
            return ""
        self._explained.add(fmt.name)
        n = max(1, _LOOKED_AT // fmt.block_size)
        found = [name for name in fitting(fmt, blocks[:n], values[:n], self._kernel.output) if name not in BOUNDED]
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


def _dequantized(fmt: BlockFormat, rows: Bytes, kernel: Dequantizer) -> Floats:
    return kernel.dequantize(fmt, rows)


def _wrong_block(
    of: BlocksCall, place: tuple[int, int], raw: Bytes, block: tuple[Bools, Floats, Expected, int], hint: str
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
    return of.failure(place, raw, f"value {j} {_how(got, right, bound)}{more}{hint}", (got, right), bound, use)


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
