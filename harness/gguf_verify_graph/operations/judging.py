"""Operations, and the comparison of a node's output with its definition. Predicates are written so that NaN fails.

An operation states its expectation in one of three ways, each of which gives a `Judged`:

    within    float64 values and a bound for each: |y - o| ≤ bound. If the operation adds up many terms it also gives a
              spread, the standard deviation of the rounding errors if they are independent: then an element whose error
              exceeds SCORE_LIMIT spreads fails too, as in the gate of products (`semantics.gates`).
    equal     the same bits, for results that are moved, looked up or quantized
    checked   a predicate of the operation's own, where several answers are correct, such as the order of equal keys
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gguf_verify.llama.node import BF16, Array, Doubles, Node, NoDefinition
from gguf_verify.semantics.accumulation import SCORE_LIMIT

#: Largest error of one rounding to float32 near zero: half the spacing of subnormal numbers.
UNDERFLOW = 2.0**-150

#: From here on a number is rounded to infinity, by type.
OVERFLOWS = {"F32": 2.0**128 * (1 - 2.0**-25), "F16": 65520.0, "BF16": 2.0**128 * (1 - 2.0**-9)}

Place = tuple[int, int, int, int]
Extent = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Judged:
    """The judgement of a node's output.

    Args:
        definition: the definition used.
        elements: number of elements judged.
        wrong: number of elements that fail.
        utilisation: |y - o| / tolerance of the worst element, where the tolerance is the bound, or SCORE_LIMIT spreads
            if that is less. 0 where the output is exact; infinite for NaN, and for bits that differ.
        place: index [i3, i2, i1, i0] of the first wrong element, or of the worst one if none is wrong.
        got, expected, tolerance: values at `place`.
        ambiguous: number of elements for which the definition allows several values.
        by_bits: whether outputs are judged by bits or a predicate, so that the utilisation is 0 or infinite.
        extent: of the wrong elements, on each axis, i3 first: the first index, the last one, and their number.
    """

    definition: str
    elements: int
    wrong: int
    utilisation: float
    place: Place
    got: float
    expected: float
    tolerance: float
    ambiguous: int = 0
    by_bits: bool = False
    extent: tuple[Extent, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.wrong


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of ggml's graphs.

    Args:
        op: ggml's name (`ggml_op_name`).
        title: what the operation computes, in one line.
        judge: judges a node. Raises NoDefinition if no definition covers the node.
        draw: yields nodes with random inputs and blank outputs, of every kind that `judge` supports, for a backend to
            compute: shapes not divisible into vectors, broadcasts, rows that are not contiguous, values of every size.
        axes: names of the output's dimensions, the slowest first, for reports.
    """

    op: str
    title: str
    judge: Callable[[Node], Judged]
    draw: Callable[[np.random.Generator], Iterable[Node]]
    axes: tuple[str, str, str, str] = ("i3", "i2", "i1", "i0")


@dataclass(frozen=True, eq=False)
class Expected:
    """Expected values of a node's output: float64 values, and the tolerance of each."""

    definition: str
    exact: Doubles
    tolerance: Doubles


_WATCHED: ContextVar[list[Expected] | None] = ContextVar("_WATCHED", default=None)


@contextmanager
def watched() -> Iterator[list[Expected]]:
    """Record the expected values of nodes that are judged within the context, by every definition that is tried.

    Outputs that are judged by a predicate have no entry.
    """
    seen: list[Expected] = []
    token = _WATCHED.set(seen)
    try:
        yield seen
    finally:
        _WATCHED.reset(token)


def _note(definition: str, exact: Array, tolerance: Array) -> None:
    seen = _WATCHED.get()
    if seen is not None:
        seen.append(Expected(definition, np.asarray(exact, np.float64), np.asarray(tolerance, np.float64)))


def within(
    node: Node, definition: str, exact: Doubles, bound: Doubles | float, spread: Doubles | float | None = None
) -> Judged:
    """Judge float32, float16 or bfloat16 outputs.

    Args:
        exact: the expected values, in the output's shape or broadcast to it. The output must equal an infinite or NaN
            value, and must be infinite for a value beyond the range of its type.
        bound: largest error of a correct computation. For types other than float32 it excludes the rounding to the
            output's type, which is added here.
        spread: see above; None: only the bound counts.

    Raises NoDefinition for outputs of another type, and for an infinite bound, which would admit everything.
    """
    y, expected = node.output.values, np.broadcast_to(exact, node.output.shape)
    with np.errstate(all="ignore"):
        tolerance = np.broadcast_to(np.asarray(bound, np.float64), y.shape)
        if spread is not None:
            # one rounding of an otherwise exact result is correct, whatever the spread
            once = 2.0**-23 * np.abs(expected) + 2 * UNDERFLOW
            scored = np.maximum(SCORE_LIMIT * np.asarray(spread, np.float64), once)
            tolerance = np.minimum(tolerance, scored)
        tolerance = tolerance + _stored(node, expected, tolerance)
        if (np.isposinf(tolerance) & np.isfinite(expected)).any():
            raise NoDefinition(f"{node.operation} with an output that may be anything by {definition}")
        most = OVERFLOWS[node.output.type]
        infinite = np.copysign(np.inf, expected)
        near = (np.abs(expected) + tolerance >= most) & (y == infinite)
        expected = np.where((np.abs(expected) >= most) | near, infinite, expected)
        _note(definition, expected, tolerance)
        difference = np.abs(y - expected)
        special = ~np.isfinite(expected)
        met = np.where(special, (y == expected) | (np.isnan(y) & np.isnan(expected)), difference <= tolerance)
        ratio = np.where(difference == 0, 0.0, difference / tolerance)
        ratio = np.where(special, np.where(met, 0.0, np.inf), np.where(np.isnan(ratio), np.inf, ratio))
    return _judged(definition, ~met, ratio, y, expected, tolerance)


def in_range(exact: Doubles) -> Doubles:
    """Return the results, with those beyond float32's range as infinities."""
    return np.where(np.abs(exact) >= OVERFLOWS["F32"], np.copysign(np.inf, exact), exact)


def _stored(node: Node, expected: Doubles, tolerance: Doubles) -> Doubles | float:
    """Return the additional tolerance for rounding a result to the output's type."""
    unit = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}.get(node.output.type)
    if unit is None:
        raise NoDefinition(f"{node.operation} with an output of {node.output.type}")
    if not unit:
        return 0.0
    least = 2.0**-25 if node.output.type == "F16" else 2.0**-134
    return unit * (np.abs(expected) + tolerance) + least


def equal(node: Node, definition: str, data: Array, *others: Array) -> Judged:
    """Judge outputs by their bits.

    Args:
        data: expected, in the layout of `node.output.data`.
        others: alternatives in the same layout; an element may have the bits of any.
    """
    y = np.ascontiguousarray(node.output.data)
    bits = _bits(y)
    wrong, ambiguous = np.ones(y.shape, bool), np.zeros(y.shape, bool)
    first = _bits(np.ascontiguousarray(np.broadcast_to(data, y.shape), y.dtype))
    for other in (data, *others):
        allowed = _bits(np.ascontiguousarray(np.broadcast_to(other, y.shape), y.dtype))
        wrong &= bits != allowed
        ambiguous |= allowed != first
    ratio = np.where(wrong, np.inf, 0.0)
    got, expected = (_numbers(node, a) for a in (y, np.broadcast_to(data, y.shape)))
    if not others:
        _note(definition, expected, np.zeros(y.shape))
    return _judged(definition, wrong, ratio, got, expected, np.zeros(y.shape), int(ambiguous.sum()), True)


def checked(node: Node, definition: str, wrong: npt.NDArray[np.bool_], expected: Array) -> Judged:
    """Judge outputs by a predicate: `wrong` and one correct answer, in the shape of `node.output.data`."""
    y = node.output.data
    return _judged(
        definition,
        np.broadcast_to(wrong, y.shape),
        np.where(wrong, np.inf, 0.0),
        _numbers(node, y),
        _numbers(node, np.broadcast_to(expected, y.shape)),
        np.zeros(y.shape),
        by_bits=True,
    )


def _judged(
    definition: str,
    wrong: npt.NDArray[np.bool_],
    ratio: Doubles,
    y: Array,
    expected: Array,
    tolerance: Doubles,
    ambiguous: int = 0,
    by_bits: bool = False,
) -> Judged:
    if not wrong.size:
        return Judged(definition, 0, 0, 0.0, (0, 0, 0, 0), 0.0, 0.0, 0.0, by_bits=by_bits)
    count, flat = int(wrong.sum()), int(np.argmax(wrong)) if wrong.any() else int(np.argmax(ratio))
    at = np.unravel_index(flat, wrong.shape)
    i3, i2, i1, i0 = (int(i) for i in at)
    return Judged(
        definition,
        wrong.size,
        count,
        float(ratio.max()),
        (i3, i2, i1, i0),
        float(y[at]),
        float(expected[at]),
        float(tolerance[at]),
        ambiguous,
        by_bits,
        _extent(wrong) if count else (),
    )


def _extent(wrong: npt.NDArray[np.bool_]) -> tuple[Extent, ...]:
    out = []
    for axis in range(wrong.ndim):
        where = np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
        out.append((int(where[0]), int(where[-1]), len(where)))
    return tuple(out)


def _bits(array: Array) -> Array:
    return array.view(f"<u{array.dtype.itemsize}")


def _numbers(node: Node, data: Array) -> Array:
    """Return numbers to report for data in the output's type."""
    if node.output.type_id == BF16:
        return (np.ascontiguousarray(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return data
