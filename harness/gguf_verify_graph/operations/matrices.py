"""Judgement of products of matrices: one matrix of weights after the other, by the definitions that a backend may have.

For each matrix W[N, K] and the rows a[M, K] that it is multiplied by, `semantics` gives the exact product, its bound
and its spread, and judges the output by its gate (`semantics.gates`):

    |y - o| ≤ min(bound, max(32·spread, 2^-23·|o|))

Values that are not finite: a sum with an infinite or NaN product is infinite or NaN in any order, and the output must
equal it. With quantized activations, a scale beyond the range of half makes a product infinite or NaN (the lanes decide
which of the two): the output must not be finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.tensor_types import WeightFormat, tensor_type
from gguf_verify.llama.node import BF16, F16, F32, Array, Bytes, Node, NoDefinition, Operand, demand
from gguf_verify.semantics.definitions import llama_cpu_semantics
from gguf_verify.semantics.gates import judge as judge_product
from gguf_verify.semantics.sums import Product

from .consistency import admitted
from .definition import Definition, loosened
from .in_order import Ordered, affordable, same_bits, told_apart
from .judging import Extent, Judged, Place, checked, in_range

Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]

#: Number of outputs judged at a time.
_OUTPUTS = 1 << 21


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix of weights, and the rows that it is multiplied by.

    Args:
        weights: returns its rows, uint8[N, row bytes], when needed.
        taken: indices of the rows of activations.
        made: indices of the resulting rows of the output, counted over all dimensions but the fastest.
    """

    weights: Callable[[], Bytes]
    taken: Rows
    made: Rows


def weight_format(operand: Operand) -> WeightFormat:
    """Return the format of weights. Raises NoDefinition for a type without products."""
    known = tensor_type(operand.type_id)
    if known is None or known.weights is None:
        raise NoDefinition(f"products with weights of {operand.type}")
    return known.weights


def matrix_of(operand: Operand, i3: int, i2: int) -> Bytes:
    """Return the bytes of the rows of one matrix of an operand, uint8[N, row bytes]."""
    data = np.ascontiguousarray(operand.data[i3, i2])
    return data.view(np.uint8).reshape(data.shape[0], -1)


def shared(node: Node, w: Operand, m: int, of: Callable[[int, int], Bytes]) -> list[Matrix]:
    """Return the matrices of an operand, each with the rows of all output matrices that it produces, m rows each.

    In dimensions 2 and 3, equally many consecutive matrices of the output share one matrix of the operand.

    Args:
        of: returns the bytes of a matrix by its i3 and i2.

    Raises NoDefinition if the output's dimensions are not multiples of the operand's.
    """
    n3, n2 = w.ne[3], w.ne[2]
    i3s, i2s = node.output.ne[3], node.output.ne[2]
    if not n3 or not n2 or i3s % n3 or i2s % n2:
        raise NoDefinition(f"{node.operation} of {w.ne} repeated to {node.output.ne}")
    rows = np.arange(i3s * i2s * m).reshape(n3, i3s // n3, n2, i2s // n2, m).swapaxes(1, 2).reshape(n3, n2, -1)
    return [Matrix(partial(of, i3, i2), rows[i3, i2], rows[i3, i2]) for i3 in range(n3) for i2 in range(n2)]


def activations(node: Node, operand: Operand, fmt: WeightFormat) -> Array:
    """Return the rows of activations [rows, …] over all dimensions: values as float32, blocks unchanged as uint8.

    Raises NoDefinition for a type that is not multiplied by such weights.
    """
    definition = llama_cpu_semantics(fmt)
    taken = definition.activations
    if operand.blocks:
        if node.backend != "CPU" or taken is None or operand.type_id != taken.type_id:
            raise NoDefinition(f"{node.operation} of {fmt.name} and {operand.type}")
        return np.ascontiguousarray(operand.data).reshape(-1, operand.data.shape[3])
    widened = {"F16": (F16,), "BF16": (BF16,), "F32": (F16, BF16)}.get(fmt.name, ())
    allowed = (F32, *widened) if node.backend == "CPU" else (F32, F16, BF16)
    demand(operand.type_id in allowed, f"{node.operation} of {fmt.name} and {operand.type}")
    rows = np.ascontiguousarray(operand.data).reshape(-1, operand.ne[0])
    if operand.type_id == BF16:
        return (rows.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        values: Floats = rows.astype(np.float32)
    if isinstance(fmt, BlockFormat) and not np.isfinite(values).all():
        raise NoDefinition(f"{node.operation} of {fmt.name} with activations that are not finite")
    return values


def judged(node: Node, definitions: Sequence[Definition], x: Array, matrices: Sequence[Matrix]) -> Judged:
    """Judge a node whose output rows are products of these matrices by one of its definitions.

    The outputs show which definition that is. No tuned limit is involved:

    - where most inexact outputs are halves, outputs are in half (of other sums one in 2^13 is a half). Definitions of
      the other kind are then excluded, if there are both kinds;
    - a definition with a known order (`in_order`) if every output, or all but a few, have the known bits;
    - the first definition, among those with sums in float32 or in tensor cores, that every output passes;
    - if there is none, but more than half of the inexact outputs pass one of them, that one: too many pass for it to be
      chance, and the others are wrong. This does not apply if the outputs' bits are those of sums in half, which may
      lie within the error of the weights of a sum in float32;
    - otherwise the first one with sums or outputs in half that every output passes. Its tolerance is wide, so these
      errors must also be of similar size (`consistency`): one wrong output among right ones is rejected;
    - otherwise the one with the fewest wrong outputs.

    So a wrong output passes only where one of the path's possible definitions, whose name is reported, admits it and
    all others.

    Args:
        x: the rows of activations, as returned by `activations`.

    Raises NoDefinition if no definition admits the output and one of them has no finite value for it.
    """
    return identified(node, definitions, x, matrices)[1]


def identified(
    node: Node, definitions: Sequence[Definition], x: Array, matrices: Sequence[Matrix]
) -> tuple[Definition | None, Judged]:
    """Return the definition that the outputs show, and the judgement by it.

    The definition is None if the judgement is only the one with the fewest wrong outputs. Otherwise as `judged`.
    """
    demand(node.output.type_id == F32, f"{node.operation} with an output of {node.output.type}")
    y = np.ascontiguousarray(node.output.data).reshape(-1, node.output.ne[0])
    found: list[tuple[Definition, Judged]] = []
    undefined = None
    kind, short = _of_kind(definitions, y), are_short(y)
    known: dict[str, Judged] | None = None
    for wide in (False, True):
        of_most: list[tuple[Definition, Judged]] = []
        for definition in kind:
            if definition.ordered is not None:
                known = _by_bits(kind, node, y, x, matrices) if known is None else known
                if (made := known.get(definition.title)) is not None:
                    return definition, made
                continue
            if definition.in_half is not wide:
                continue
            try:
                one, inexact = _by(definition, node, y, x, matrices)
            except NoDefinition as e:
                undefined = e
                continue
            if one.passed:
                return definition, one
            found.append((definition, one))
            if not wide and 2 * one.wrong < inexact and not short:
                of_most.append((definition, one))
        if of_most:
            return min(of_most, key=lambda one: one[1].wrong)  # the sharpest of several comes first
    if undefined is not None or not found:
        raise undefined or NoDefinition(f"{node.operation} of {node.source(0).type}")
    return None, min(found, key=lambda one: (one[1].wrong, one[1].utilisation))[1]


def _by_bits(
    definitions: Sequence[Definition], node: Node, y: Floats, x: Array, matrices: Sequence[Matrix]
) -> dict[str, Judged]:
    """Return title → judgement by a definition with a known order, where the outputs have that order."""
    ordered = [(d, d.ordered) for d in definitions if d.ordered is not None]
    if not ordered or 2 * are_halves(y).sum() <= y.size or not affordable(len(y), y.shape[1], x.shape[1]):
        return {}

    def of(definition: Definition, order: Ordered, *flushed: tuple[bool, bool, bool]) -> Floats:
        out = np.full(y.shape, np.nan, np.float32)
        for matrix in matrices:
            out[matrix.made] = order.bits(matrix.weights(), definition.taken(x[matrix.taken]), *flushed)
        return out

    bits = [of(*each) for each in ordered]
    if not all(np.isfinite(each).all() for each in bits):
        return {}
    wrong = [~same_bits(y, each) for each in bits]
    found = {}
    for i, (definition, order) in enumerate(ordered):
        if wrong[i].any():
            if any(not each.any() for each in wrong):
                continue
            flushed = [of(definition, order, which) for which in Ordered.FLUSHED]
            others, uncertain = [each for each in bits if each is not bits[i]], np.zeros(y.shape, bool)
            for matrix in matrices:
                uncertain[matrix.made] = order.uncertain(matrix.weights())
            if not told_apart(wrong[i], bits[i], others, flushed, uncertain):
                continue
        shape = node.output.shape
        found[definition.title] = checked(node, definition.title, wrong[i].reshape(shape), bits[i].reshape(shape))
    return found


def judged_apart(
    node: Node, definitions: Callable[[int], Sequence[Definition]], x: Array, matrices: Sequence[Matrix]
) -> Judged:
    """Judge as `judged` does, where each matrix may have another definition.

    Args:
        definitions: returns those of a matrix multiplied by this number of rows of activations.

    Raises NoDefinition.
    """
    parts = [judged(node, definitions(len(matrix.taken)), x, [matrix]) for matrix in matrices]
    worst = max(parts, key=lambda one: (one.wrong > 0, one.utilisation))
    wrong = [one for one in parts if one.wrong]
    first = min(wrong, key=lambda one: one.place) if wrong else worst
    spans = zip(*(one.extent for one in wrong), strict=True)
    extent = tuple((min(s[0] for s in of), max(s[1] for s in of), max(s[2] for s in of)) for of in spans)
    return replace(
        first,
        definition=", ".join(dict.fromkeys(one.definition for one in (wrong or parts))),
        elements=sum(one.elements for one in parts),
        wrong=sum(one.wrong for one in parts),
        utilisation=worst.utilisation,
        ambiguous=sum(one.ambiguous for one in parts),
        extent=extent,
    )


def _of_kind(definitions: Sequence[Definition], y: Floats) -> Sequence[Definition]:
    """Return the definitions with outputs in half, or those without, to match the outputs; all if of one kind."""
    finite = y[np.isfinite(y) & (y != 0)]
    halves = 2 * np.count_nonzero(are_halves(finite)) > finite.size
    kind = [d for d in definitions if (d.semantics.output == "float16") == halves]
    return kind or definitions


def are_short(y: Floats) -> bool:
    """Return whether most outputs have the bits of sums in half.

    Sums in half have at most 11 significant bits; the sum of a few parts, added in float32, mostly has 21 or fewer. One
    in eight sums in float32 has as few.
    """
    finite = y.view(np.uint32)[np.isfinite(y) & (y != 0)]
    return bool(2 * int((finite & np.uint32(7) == 0).sum()) > finite.size)


def are_halves(y: Floats) -> npt.NDArray[np.bool_]:
    """Return which values are exactly representable as a half; NaN counts as one."""
    with np.errstate(all="ignore"):
        return np.asarray((y.astype(np.float16).astype(np.float32) == y) | np.isnan(y))


def _by(definition: Definition, node: Node, y: Floats, x: Array, matrices: Sequence[Matrix]) -> tuple[Judged, int]:
    """Return the judgement by one definition, and the number of inexact outputs (exact ones carry no information)."""
    found = _Worst(node.output.shape, definition)
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
            found.add(y[matrix.made, start : start + step], made, matrix.made, start)
    return found.judged(), found.inexact


class _Worst:
    """The wrong elements and the worst element of the products added so far.

    Args:
        shape: of the output.
        definition: the definition to judge by.
    """

    def __init__(self, shape: Place, definition: Definition) -> None:
        self._definition = definition
        self._shape, self._n, self._elements, self._wrong, self._utilisation = shape, shape[3], 0, 0, -1.0
        self.inexact = self.ambiguous = 0
        #: Rows, and columns, that contain a wrong element.
        self._rows, self._columns = np.zeros(prod(shape[:3]), bool), np.zeros(shape[3], bool)
        self._at: tuple[int, float, float, float] = (0, 0.0, 0.0, 0.0)

    def add(self, y: Floats, product: Product, rows: Rows, column: int) -> None:
        """Add outputs float32[M, n] of some rows, starting at a column."""
        if not y.size:
            return
        judgement = judge_product(y, product)
        p = judgement.product
        with np.errstate(all="ignore"):
            expected = in_range(p.exact)
            once = 2.0**-23 * np.abs(expected) + 2.0**-149
            tolerance = np.minimum(p.bound, np.maximum(p.limit * p.spread, once))
            difference = np.abs(y - expected)
            if self._definition.alike:
                tolerance = admitted(difference, tolerance, expected, self._definition.unit)
            ratio = np.where(difference == 0, 0.0, difference / tolerance)
        ratio[np.isnan(ratio)] = np.inf
        special = ~np.isfinite(expected)
        wrong = judgement.bad | (self._definition.alike & ~(ratio <= 1))
        if (special & np.isfinite(p.bound) & np.isfinite(y)).any():
            raise NoDefinition("sums that may overflow")
        if special.any():
            as_it_is = (y == expected) | (np.isnan(y) & np.isnan(expected))
            met = ~np.isfinite(y) if self._definition.semantics.encoding.quantizes else as_it_is
            wrong[special] = ~met[special]
            ratio[special] = np.where(met, 0.0, np.inf)[special]
        if self._definition.semantics.output == "float16":
            none = ~are_halves(y)
            wrong, ratio = wrong | none, np.where(none, np.inf, ratio)
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
        self.inexact += int((difference != 0).sum())

    def judged(self) -> Judged:
        """Return the judgement of everything added."""
        place, got, expected, tolerance = self._at
        at: Place = (0, 0, 0, 0)
        if self._elements:
            i3, i2, i1, i0 = (int(i) for i in np.unravel_index(place, self._shape))
            at = (i3, i2, i1, i0)
        return Judged(
            self._definition.title,
            self._elements,
            self._wrong,
            max(0.0, self._utilisation),
            at,
            got,
            expected,
            tolerance,
            ambiguous=self.ambiguous,
            extent=self._extent(),
        )

    def _extent(self) -> tuple[Extent, ...]:
        if not self._wrong:
            return ()
        rows = self._rows.reshape(self._shape[:3])
        flags = [rows.any(axis=(1, 2)), rows.any(axis=(0, 2)), rows.any(axis=(0, 1)), self._columns]
        where = [np.flatnonzero(axis) for axis in flags]
        return tuple((int(of[0]), int(of[-1]), len(of)) for of in where)
