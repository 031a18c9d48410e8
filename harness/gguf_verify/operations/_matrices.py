"""Products of matrices, judged: one matrix of weights after the other, by the definitions that a backend may have.

For each matrix W[N, K] and the rows a[M, K] that meet it, `semantics` gives the exact product, its bound and its spread
and judges the output by its gate (`semantics.gates`):

    |y - o| ≤ min(bound, max(32·spread, 2^-23·|o|))

What is not finite: of values, a sum with an infinite or a NaN product is that, in any order, and must be met as it is.
Of quantized activations a scale beyond half's range makes a product infinite or NaN, which of the two depends on the
lanes: the output must not be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat, tensor_type
from ..semantics import SCORE_LIMIT, Product, llama_cpu_semantics
from ..semantics import judge as judge_product
from ._definition import Definition, loosened
from .judging import Extent, Judged, Place
from .node import BF16, F16, F32, Array, Bytes, Doubles, Node, NoDefinition, Operand

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]

#: Outputs that are judged at a time.
_OUTPUTS = 1 << 21
#: Of so many at a time the median of errors is taken; times the least one, up to which a definition is as near.
_SAMPLE, _AS_NEAR = 1 << 14, 2
#: Of the tolerance, what half of right outputs stay below (measured: 1/25); where these are halves, whose rounding the
#: tolerance holds.
_USUAL, _USUAL_OF_HALVES = 1 / 8, 1 / 2


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


def judged(node: Node, definitions: Sequence[Definition], x: Array, matrices: Sequence[Matrix]) -> Judged:
    """Judge a node whose output rows are products of these matrices by the definition that it has. Outputs tell which:
    more than half of what is not exact passes by it; its exact results are the nearest, by the median or up to a factor
    of two; and half of what is not exact uses a small part of the tolerance. The first such one counts, so a wrong
    output is judged by the definition of those beside it, and not by a wider one that would admit it. Where there is
    none, the one that is closest.

    Args:
        x: the rows of activations, as `activations` gives them.

    Raises NoDefinition, where no definition admits the output and one of them has no finite value for it.
    """
    if node.output.type_id != F32:
        raise NoDefinition(f"{node.operation} with an output of {node.output.type}")
    y = np.ascontiguousarray(node.output.data).reshape(-1, node.output.ne[0])
    near: list[_Fit] = []
    found, undefined = [], None
    for definition in _of_bits(definitions, y):
        try:
            fit = _by(definition, node, y, x, matrices)
        except NoDefinition as e:
            undefined = e
            continue
        found.append(fit.judged)
        if fit.judged.passed or 2 * fit.judged.wrong < fit.told:
            if fit.judged.passed and fit.usual and not near:
                return fit.judged
            near.append(fit)
    if near:
        least = min(fit.off for fit in near)
        nearest = [fit for fit in near if fit.off <= _AS_NEAR * least]
        return min(nearest, key=lambda fit: (not fit.usual, not fit.usual and not fit.judged.passed)).judged
    if undefined is not None or not found:
        raise undefined or NoDefinition(f"{node.operation} of {node.source(0).type}")
    return min(found, key=lambda one: (one.wrong, one.utilisation))


def judged_apart(node: Node, definitions: Sequence[Definition], x: Array, matrices: Sequence[Matrix]) -> Judged:
    """Likewise, where each matrix may have another definition. Raises NoDefinition."""
    parts = [judged(node, definitions, x, [matrix]) for matrix in matrices]
    worst = max(parts, key=lambda one: (one.wrong > 0, one.utilisation))
    wrong = [one for one in parts if one.wrong]
    first = min(wrong, key=lambda one: one.place) if wrong else worst
    spans = zip(*(one.extent for one in wrong), strict=True)
    extent = tuple((min(s[0] for s in of), max(s[1] for s in of), max(s[2] for s in of)) for of in spans)
    return replace(
        first, definition=", ".join(dict.fromkeys(one.definition for one in (wrong or parts))),
        elements=sum(one.elements for one in parts), wrong=sum(one.wrong for one in parts),
        utilisation=worst.utilisation, ambiguous=sum(one.ambiguous for one in parts), extent=extent,
    )  # fmt: skip


def _of_bits(definitions: Sequence[Definition], y: Floats) -> Sequence[Definition]:
    """Those whose sums are halves, where the outputs' bits say that theirs are: else one of sums in float32 whose
    weights may be far off would admit most of the outputs, and the others would seem wrong.

    A sum in half has at most 11 significant bits, and one of a few parts, which are added in float32, mostly 21 or
    less. Of sums in float32 one in eight has.
    """
    in_half = [d for d in definitions if d.in_half]
    told = y.view(np.uint32)[np.isfinite(y) & (y != 0)]
    short = int((told & np.uint32(7) == 0).sum())
    return in_half if in_half and 2 * short > told.size else definitions


@dataclass(frozen=True)
class _Fit:
    """A judgement by one definition.

    Args:
        told: how many outputs are not exactly what it gives: the others say nothing.
        off, used: by how much half of these are off at most, and what they use of the tolerance.
        halves: outputs are rounded to half.
    """

    judged: Judged
    told: int
    off: float
    used: float
    halves: bool

    @property
    def usual(self) -> bool:
        """As right computations are off. Of outputs in half so few may be wrong that partial sums in half, of which
        cuBLAS does not tell, are not taken for sums in float32."""
        if self.halves:
            return self.used <= _USUAL_OF_HALVES and 32 * self.judged.wrong <= self.told
        return self.used <= _USUAL


def _by(definition: Definition, node: Node, y: Floats, x: Array, matrices: Sequence[Matrix]) -> _Fit:
    found = _Worst(node.output.shape)
    for matrix in matrices:
        w, rows = matrix.weights(), x[matrix.taken]
        a = definition.taken(rows)
        step = max(1, _OUTPUTS // max(1, len(a)))
        for start in range(0, len(w), step):
            part = w[start : start + step]
            made = definition.multiply(part, a)
            if definition.slack is not None:
                slack, choices = definition.slack(part, rows)
                made, found.ambiguous = loosened(made, slack), found.ambiguous + (0 if start else choices)
            as_it_is = not definition.semantics.encoding.quantizes
            found.add(y[matrix.made, start : start + step], made, matrix.made, start, as_it_is)
    halves = definition.semantics.output == "float16"
    return _Fit(found.judged(definition.title), found.told, found.median(0), found.median(1), halves)


class _Worst:
    """What is wrong in the products that were added, and which element is the worst.

    Args:
        shape: of the output.
    """

    def __init__(self, shape: Place) -> None:
        self._shape, self._n, self._elements, self._wrong, self._utilisation = shape, shape[3], 0, 0, -1.0
        self.told = self.ambiguous = 0
        self._sample: list[Doubles] = []
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
        few = slice(None, None, max(1, difference.size // _SAMPLE))
        self._sample.append(np.stack([difference.ravel()[few], ratio.ravel()[few]]))

    def median(self, which: int) -> float:
        """Of a sample of the outputs that are off: by how much (0), or what they use of the tolerance (1)."""
        of = np.concatenate([np.zeros((2, 0)), *self._sample], axis=1)
        told = of[which][of[0] != 0]
        return float(np.median(np.where(np.isnan(told), np.inf, told))) if told.size else 0.0

    def judged(self, definition: str) -> Judged:
        place, got, expected, tolerance = self._at
        at: Place = (0, 0, 0, 0)
        if self._elements:
            i3, i2, i1, i0 = (int(i) for i in np.unravel_index(place, self._shape))
            at = (i3, i2, i1, i0)
        return Judged(
            definition, self._elements, self._wrong, max(0.0, self._utilisation), at, got, expected, tolerance,
            ambiguous=self.ambiguous, extent=self._extent(),
        )  # fmt: skip

    def _extent(self) -> tuple[Extent, ...]:
        if not self._wrong:
            return ()
        rows = self._rows.reshape(self._shape[:3])
        flags = [rows.any(axis=(1, 2)), rows.any(axis=(0, 2)), rows.any(axis=(0, 1)), self._columns]
        where = [np.flatnonzero(axis) for axis in flags]
        return tuple((int(of[0]), int(of[-1]), len(of)) for of in where)


__all__ = ["Matrix", "activations", "judged", "judged_apart", "matrix_of", "shared", "weight_format"]
