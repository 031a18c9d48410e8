"""The order of summation of a kernel that declares none: found, replayed, and its bits compared (`--order find`).

The tree is found by probes (`order_probes`) for the same numbers of tokens, rows and columns as the product, if it has
at most MOST summands. Else it is found for shorter rows, recognised as a rule, and tried for random pairs of the
product.

The rounding inside a term is one of those that kernels have (`semantics.replay`, `semantics.integer_sums`). It is
proven by the bits of random products. Only then is the product itself compared:

- All bits are equal: the order is that of the kernel, whatever data it gets.
- The bits of some rows differ: the tree is found again in some of these rows. If it is the same there, the output is
  not the sum that the kernel makes elsewhere, which is a failure, even within the bound.
- Most rows differ, or have another tree, or in some rows the same weights give other bits than in others, as they do
  behind the last whole tile: the product has no single order. This is reported, and is no failure.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...gguf.matrices import matrix_of, where
from ...kernels.interface import Kernel
from ...results.failures import Failure
from ...results.products import OrderRecord
from ...semantics.definition import Semantics
from ...semantics.replay import FoundOrder, compared
from ...semantics.summation import NoOrder, as_text
from ...semantics.sums import Floats, Rows
from ...semantics.terms.codes import CodeTerm
from ...semantics.terms.values import ValueTerm
from ..run import Run
from .call import Outputs
from .gemm import GemmJudge
from .order_probes import ProbeFault, Probes
from .sum_probes import SumProbes
from .value_probes import ValueProbes

Bytes = npt.NDArray[np.uint8]

#: Rows with other bits in which the tree is found again; random products that tell whether another loop made them.
_AGAIN, _FURTHER = 4, 16


def check_order(judged: GemmJudge, made: Outputs) -> None:
    """Find the order of a kernel that declares none, and compare the bits of its output for the graph's activations.

    Raises KernelFault where the kernel's call does.
    """
    fmt, kernel, run, result = judged.matrix.fmt, made.kernel, judged.run, judged.result
    if not isinstance(fmt, BlockFormat) or kernel.order is not None or not run.kernel.is_under_test(fmt):
        return
    m, n, k = judged.gemm.shape
    tensor, shape = judged.matrix.tensor, f"{fmt.name}, M = {m}, N = {n:,}, K = {k:,}"
    try:
        probes = probes_of(kernel, judged.semantics, fmt, judged.matrix.rows, run.options.seed)
        found = _found(run, probes, (m, n, k))
        weights = judged.matrix.rows

        def further(rows: Rows) -> Iterator[tuple[Bytes, Floats]]:
            return ((x, np.ascontiguousarray(y[:, rows])) for x, y in probes.random(m, weights, _FURTHER))

        found, wrong = compared(found, judged.semantics, fmt, weights, judged.own.encoded, made.own, further)
        rows = np.flatnonzero(wrong.any(axis=0))
        if len(rows) and found.aside:  # other rows at this size may be those of a last tile
            raise NoOrder(f"at this shape {len(rows):,} of {n:,} rows have other bits than {found.words}")
        if 2 * len(rows) > n:
            raise NoOrder(f"at this shape {len(rows):,} of {n:,} rows have other bits than {found.words}")
        again = rows[np.linspace(0, len(rows) - 1, min(len(rows), _AGAIN)).astype(int)]
        places = [(int(wrong[:, row].argmax()), int(row)) for row in again]
        alike = [at for at in places if _has_tree(probes, found, (m, n, k), at)]
        if places and not alike:
            token, row = places[0]
            raise NoOrder(f"row {row} of token {token} is added in another order than others, {found.words}")
    except NoOrder as why:
        result.note(f"{shape}: no order could be found: {why}")
        result.details.append(OrderRecord(tensor=tensor.name, type=fmt.name, m=m, n=n, k=k, why=str(why)))
        return
    result.details.append(
        OrderRecord(
            tensor=tensor.name, type=fmt.name, m=m, n=n, k=k, order=found.words, tree=as_text(found.tree),
            differing=int(wrong.sum()),
        )
    )  # fmt: skip
    if not alike:
        compared_rows = n - sum(row < n for row in found.aside)
        result.note(
            f"{shape}: order found: {found.words}; bits equal ({m * compared_rows:,} outputs): {as_text(found.tree)}"
        )
        return
    (token, row), *_ = alike
    at = judged.gemm.first_row + row
    result.fail(
        Failure(
            f"{where(tensor, at, token)}: the output has other bits than the kernel's own order of summation gives "
            f"({found.words}), which is found in this row, too", tensor.name, at, token=token,
            got=float(made.own[token, row]), matrix=matrix_of(tensor, at), culprit="kernel", call=judged.call("own"),
        ), int(wrong.sum())
    )  # fmt: skip


def _found(run: Run, probes: Probes, shape: tuple[int, int, int]) -> FoundOrder:
    """Return the order of products of a shape [M, N, K], for which a run searches once, unless a call fails.

    Raises NoOrder.
    """

    def search() -> FoundOrder | NoOrder:
        try:
            return probes.order(*shape)
        except ProbeFault:
            raise
        except NoOrder as why:
            return why

    key = ("order", probes.kernel, probes.semantics, probes.fmt.name, *shape, probes.seed)
    found = run.resources.get(key, search)
    if isinstance(found, NoOrder):
        raise NoOrder(*found.args)
    return found


def _has_tree(probes: Probes, found: FoundOrder, shape: tuple[int, int, int], at: tuple[int, int]) -> bool:
    """Whether the tree of one output is that of an order."""
    try:
        return probes.tree_in(*shape, found, *at) == found.tree
    except NoOrder:  # it has another one
        return False


def probes_of(kernel: Kernel, semantics: Semantics, fmt: BlockFormat, rows: Bytes, seed: int) -> Probes:
    """Return the probes of a kernel. Raises NoOrder for a kernel, definition or type of which no order can be found.

    Args:
        rows: weights of the file, uint8[N, row bytes].
    """
    inner = semantics.inside or semantics
    if kernel.adds_floats:
        raise NoOrder("it adds floats by atomic operations, or declares that its bits may differ")
    if semantics.oracle is not None or not all(of.plain or _adds_in_tensor_cores(of) for of in (semantics, inner)):
        raise NoOrder("its definition rounds sums or outputs, fuses operations, or is an oracle")
    term = inner.term
    if isinstance(term, ValueTerm) and not term.in_parts:
        return ValueProbes.of(kernel, semantics, fmt, rows, seed, term)
    if not isinstance(term, CodeTerm):
        raise NoOrder("its definition does not multiply sums of integers by scales, block by block, or values")
    return SumProbes.of(kernel, semantics, fmt, rows, seed, term)


def _adds_in_tensor_cores(semantics: Semantics) -> bool:
    return semantics.accumulation.name == "tensor" and semantics.output == "float32" and semantics.epilogue is None
