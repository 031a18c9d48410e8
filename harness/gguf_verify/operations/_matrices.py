"""Products of matrices, judged: one matrix of weights after the other, by the definitions that a backend may have.

For each matrix W[N, K] and the rows a[M, K] that meet it, `semantics` gives the exact product, its bound and its spread
and judges the output by its gate (`semantics.gates`):

    |y - o| ≤ min(bound, max(32·spread, 2^-23·|o|))

What is not finite: of values, a sum with an infinite or a NaN product is that, in any order, and must be met as it is.
Of quantized activations a scale beyond half's range makes a product infinite or NaN, which of the two depends on the
lanes: the output must not be finite.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, ElementFormat, WeightFormat, tensor_type
from ..semantics import SCORE_LIMIT, Product, Semantics, llama_cpu_semantics, screened
from ..semantics import judge as judge_product
from ..semantics.narrow import NARROW
from ..semantics.sums import concatenated
from ..semantics.values import of_values
from ..support.threads import each
from ._product_definitions import title
from .judging import Extent, Judged, Place
from .node import BF16, F16, F32, Array, Bytes, Doubles, Node, NoDefinition, Operand

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]

#: Outputs that are judged at a time; elements of a (K/32, M, n) working array of a product of values.
_OUTPUTS, _TILE = 1 << 21, 1 << 17
_TERM = 32
_THREADS = os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix of weights and what meets it.

    Args:
        weights: its rows, uint8[N, row bytes], made when they are needed.
        taken: numbers of the rows of activations.
        made: numbers of the rows of the output that they make, counted over all dimensions but the fastest.
    """

    weights: Callable[[], Bytes]
    taken: Rows
    made: Rows


def weight_format(operand: Operand) -> WeightFormat:
    """Raises NoDefinition for a type without products."""
    known = tensor_type(operand.type_id)
    if known is None or known.weights is None:
        raise NoDefinition(f"products with weights of {operand.type}")
    return known.weights


def matrix_of(operand: Operand, i3: int, i2: int) -> Bytes:
    """The bytes of the rows of one matrix of an operand, uint8[N, row bytes]."""
    data = np.ascontiguousarray(operand.data[i3, i2])
    return data.view(np.uint8).reshape(data.shape[0], -1)


def shared(node: Node, w: Operand, m: int, of: Callable[[int, int], Bytes]) -> list[Matrix]:
    """The matrices of an operand, each with the rows of all matrices of the output that meet it, m rows each: as many
    that follow each other, in dimension 2 and in dimension 3, as the output has for one of the operand.

    Args:
        of: gives the bytes of a matrix by its i3 and i2.

    Raises NoDefinition where the output is no multiple of the operand.
    """
    n3, n2 = w.ne[3], w.ne[2]
    i3s, i2s = node.output.ne[3], node.output.ne[2]
    if not n3 or not n2 or i3s % n3 or i2s % n2:
        raise NoDefinition(f"{node.operation} of {w.ne} repeated to {node.output.ne}")
    rows = np.arange(i3s * i2s * m).reshape(n3, i3s // n3, n2, i2s // n2, m).swapaxes(1, 2).reshape(n3, n2, -1)
    return [Matrix(partial(of, i3, i2), rows[i3, i2], rows[i3, i2]) for i3 in range(n3) for i2 in range(n2)]


def activations(node: Node, operand: Operand, fmt: WeightFormat) -> Array:
    """The rows of activations [rows, …] over all dimensions: values as float32, or blocks as they are, uint8.

    Raises NoDefinition for a type that such weights do not meet.
    """
    definition = llama_cpu_semantics(fmt)
    taken = definition.activations
    if operand.blocks:
        if node.backend != "CPU" or taken is None or operand.type_id != taken.type_id:
            raise NoDefinition(f"{node.operation} of {fmt.name} and {operand.type}")
        return np.ascontiguousarray(operand.data).reshape(-1, operand.data.shape[3])
    widened = {"F16": (F16,), "BF16": (BF16,), "F32": (F16, BF16)}.get(fmt.name, ())
    allowed = (F32, *widened) if node.backend == "CPU" else (F32, F16, BF16)
    if operand.type_id not in allowed:
        raise NoDefinition(f"{node.operation} of {fmt.name} and {operand.type}")
    rows = np.ascontiguousarray(operand.data).reshape(-1, operand.ne[0])
    if operand.type_id == BF16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        values: Floats = rows.astype(np.float32)
    if isinstance(fmt, BlockFormat) and not np.isfinite(values).all():
        raise NoDefinition(f"{node.operation} of {fmt.name} with activations that are not finite")
    return values


def judged(
    node: Node, definitions: Sequence[Semantics], fmt: WeightFormat, x: Array, matrices: Sequence[Matrix]
) -> Judged:  # fmt: skip
    """Judge a node whose output rows are products of these matrices by the first definition that it has: by which it
    passes, or more than half of what is not exact does. So a wrong output is judged by the definition of those beside
    it, and not by a wider one that would admit it. Where it has none, by the one that is closest.

    Args:
        x: the rows of activations, as `activations` gives them.

    Raises NoDefinition, where no definition admits the output and one of them has no finite value for it.
    """
    if node.output.type_id != F32:
        raise NoDefinition(f"{node.operation} with an output of {node.output.type}")
    y = np.ascontiguousarray(node.output.data).reshape(-1, node.output.ne[0])
    found, undefined = [], None
    for semantics in _of_bits(definitions, y):
        try:
            one, told = _by(semantics, node, y, fmt, x, matrices)
        except NoDefinition as e:
            undefined = e
            continue
        if 2 * one.wrong < told or one.passed:
            return one
        found.append(one)
    if undefined is not None or not found:
        raise undefined or NoDefinition(f"{node.operation} of {fmt.name}")
    return min(found, key=lambda one: (one.wrong, one.utilisation))


def _of_bits(definitions: Sequence[Semantics], y: Floats) -> Sequence[Semantics]:
    """Those whose sums are halves, where the outputs' bits say that theirs are: else one of sums in float32 whose
    weights may be far off would admit most of the outputs, and the others would seem wrong.

    A sum in half has at most 11 significant bits, and one of a few parts, which are added in float32, mostly 21 or
    less. Of sums in float32 one in eight has.
    """
    in_half = [s for s in definitions if s.accumulation.name == "float16"]
    told = y.view(np.uint32)[np.isfinite(y) & (y != 0)]
    short = int((told & np.uint32(7) == 0).sum())
    return in_half if in_half and 2 * short > told.size else definitions


def _by(
    semantics: Semantics, node: Node, y: Floats, fmt: WeightFormat, x: Array, matrices: Sequence[Matrix]
) -> tuple[Judged, int]:  # fmt: skip
    """The judgement by one definition, and how many outputs are not exactly what it gives: the others say nothing."""
    found = _Worst(node.output.shape)
    for matrix in matrices:
        w, rows = matrix.weights(), x[matrix.taken]
        a = rows if rows.dtype == np.uint8 else semantics.bytes_of(rows)
        step = max(1, _OUTPUTS // max(1, len(a)))
        for start in range(0, len(w), step):
            part = w[start : start + step]
            made = multiply(semantics, fmt, part, a)
            found.add(y[matrix.made, start : start + step], made, matrix.made, start, not semantics.encoding.quantizes)
    return found.judged(title(semantics)), found.told


def multiply(semantics: Semantics, fmt: WeightFormat, w: Bytes, x: Bytes) -> Product:
    """The product of weights uint8[N, row bytes] and activations uint8[M, row bytes] as the definition has them.

    Raises NoDefinition where sums in half may overflow, so that no finite value is defined.
    """
    if isinstance(fmt, ElementFormat) and semantics is not llama_cpu_semantics(fmt):
        made = _of_elements(semantics, fmt, w, x)
    else:
        made = screened(semantics, fmt, w, x, threads=_THREADS)
    if np.isfinite(semantics.accumulation.overflows) and not np.isfinite(made.exact).all():
        raise NoDefinition("sums in half that may overflow")
    return made


def _of_elements(semantics: Semantics, fmt: ElementFormat, w: Bytes, x: Bytes) -> Product:
    """Of weights that are not quantized, by another definition than that of their type."""
    term = semantics.term
    if semantics.encoding.quantizes or term.minima_apart or term.steps:
        raise NoDefinition(f"{title(semantics)} with weights of {fmt.name}")
    a = _padded(semantics.values_of(x).astype(np.float64))
    narrow = NARROW.get(term.weights)

    def tile(rows: Bytes) -> Product:
        with np.errstate(all="ignore"):
            values = _padded(fmt.decode(rows).astype(np.float64))
            return of_values(a, values if narrow is None else narrow.rounded(values), _TERM, semantics.accumulation)

    step = max(1, _TILE // max(1, len(a) * a.shape[1] // _TERM))
    return concatenated(each(tile, [w[start : start + step] for start in range(0, len(w), step)], _THREADS))


def _padded(values: Doubles) -> Doubles:
    """Filled up with columns of zeros to whole terms."""
    return np.pad(values, ((0, 0), (0, -values.shape[1] % _TERM)))


class _Worst:
    """What is wrong in the products that were added, and which element is the worst.

    Args:
        shape: of the output.
    """

    def __init__(self, shape: Place) -> None:
        self._shape, self._n, self._elements, self._wrong, self._utilisation = shape, shape[3], 0, 0, -1.0
        self.told = 0
        #: Rows, and columns, with a wrong element.
        self._rows, self._columns = np.zeros(prod(shape[:3]), bool), np.zeros(shape[3], bool)
        self._at: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)

    def add(self, y: Floats, product: Product, rows: Rows, column: int, as_it_is: bool) -> None:
        """Outputs float32[M, n] of some rows, from a column on.

        Args:
            as_it_is: a value that is not finite must be met as it is.
        """
        if not y.size:
            return
        judgement = judge_product(y, product)
        p = judgement.product
        with np.errstate(all="ignore"):
            most = 2.0**128 * (1 - 2.0**-25)
            expected = np.where(np.abs(p.exact) >= most, np.copysign(np.inf, p.exact), p.exact)
            once = 2.0**-23 * np.abs(expected) + 2.0**-149
            tolerance = np.minimum(p.bound, np.maximum(SCORE_LIMIT * p.spread, once))
            difference = np.abs(y - expected)
            ratio = np.where(difference == 0, 0.0, difference / tolerance)
        ratio[np.isnan(ratio)] = np.inf
        special = ~np.isfinite(expected)
        wrong = judgement.bad.copy()
        if special.any():
            met = (y == expected) | (np.isnan(y) & np.isnan(expected)) if as_it_is else ~np.isfinite(y)
            wrong[special] = ~met[special]
            ratio[special] = np.where(met, 0.0, np.inf)[special]
        places = rows[:, None] * self._n + (column + np.arange(y.shape[1]))
        if wrong.any():
            at = int(np.argmin(np.where(wrong, places, np.iinfo(np.intp).max)))
            self._rows[rows] |= wrong.any(axis=1)
            self._columns[column : column + y.shape[1]] |= wrong.any(axis=0)
            better = not self._wrong or bool(places.flat[at] < self._at[0])
        else:
            at = int(np.argmax(ratio))
            better = not self._wrong and bool(ratio.flat[at] > self._utilisation)
        if better:
            self._at = (
                int(places.flat[at]), float(y.flat[at]), float(expected.flat[at]), float(tolerance.flat[at])
            )  # fmt: skip
        self._elements, self._wrong = self._elements + y.size, self._wrong + int(wrong.sum())
        self._utilisation = max(self._utilisation, float(ratio.max()))
        self.told += int((difference != 0).sum())

    def judged(self, definition: str) -> Judged:
        place, got, expected, tolerance = self._at
        at: Place = (0, 0, 0, 0)
        if self._elements:
            i3, i2, i1, i0 = (int(i) for i in np.unravel_index(place, self._shape))
            at = (i3, i2, i1, i0)
        return Judged(
            definition, self._elements, self._wrong, max(0.0, self._utilisation), at, got, expected, tolerance,
            extent=self._extent(),
        )  # fmt: skip

    def _extent(self) -> tuple[Extent, ...]:
        if not self._wrong:
            return ()
        rows = self._rows.reshape(self._shape[:3])
        flags = [rows.any(axis=(1, 2)), rows.any(axis=(0, 2)), rows.any(axis=(0, 1)), self._columns]
        where = [np.flatnonzero(axis) for axis in flags]
        return tuple((int(of[0]), int(of[-1]), len(of)) for of in where)


__all__ = ["Matrix", "activations", "judged", "matrix_of", "multiply", "shared", "weight_format"]
