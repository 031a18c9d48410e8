"""The record of an exact product, and the arithmetic of its bound and its spread: see `exact`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.arrays import Array, beside, get, on_host, put
from .accumulation import IN_FLOAT32, SCORE_LIMIT, Accumulation

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

#: Indices of rows or of tokens.
Rows = npt.NDArray[np.intp]

UNIT_ROUNDOFF = 2.0**-24
#: Blocks for each output, beyond which their sums are not computed in a loop.
_MANY_BLOCKS = 1 << 12
#: The largest rounding error of a result below the normal numbers: half their spacing.
UNDERFLOW = 2.0**-150


@dataclass(frozen=True)
class LaneSpread:
    """Rounding errors of some outputs in the orders in which kernels add, float64[outputs] each: see `lanes`.

    Args:
        deviation: the largest standard deviation of the rounding errors.
        roundings: n; an error is at most √(3n) such deviations, even if all roundings go one way. 0 if no error may
            exceed the limit of the score.
    """

    deviation: Doubles
    roundings: Doubles


@dataclass(frozen=True)
class Lanes:
    """The function that returns the spread by lane orders.

    Args:
        of: takes a token and a row for each output.
        most: most outputs to examine, since each takes as long as a thousand of a product.
    """

    of: Callable[[Rows, Rows], LaneSpread]
    most: int


@dataclass(frozen=True)
class Errors:
    """Errors of correct kernels at some outputs, float64[M, n] each: see `closer`.

    Args:
        tolerance: the largest error.
        drift: the part that is certain, and of one sign.
        deviation: the standard deviation of the rest.
    """

    tolerance: Doubles
    drift: Doubles
    deviation: Doubles

    def loosened(self, slack: Doubles | float) -> Errors:
        """Return the same with a larger tolerance and drift."""
        return Errors(self.tolerance + slack, self.drift + slack, self.deviation)


#: Indices of tokens and of rows → the errors of correct kernels at these outputs.
ErrorsOf = Callable[[npt.NDArray[np.intp], npt.NDArray[np.intp]], Errors]


@dataclass(frozen=True)
class Product:
    """An exact product with its tolerances, `[M, N]` each: all arrays of NumPy, or all on a GPU.

    Args:
        exact: float64.
        bound: the largest difference from `exact` of a float32 computation in any order.
        spread: standard deviation of the rounding errors of a sum over blocks.
        ordered: float32, the result of the semantics' declared order, bit for bit; None if not requested.
        of_rows: returns the product of some rows of the weights, without `ordered`. None: this is the product.
            Otherwise `bound` and `spread` are at most those of the product, so an output that passes here passes there
            (`screen`).
        lanes: returns the spread by lane orders; None: only `spread` is known.
        limit: the largest score of an output that passes.
        scale: approximately the root of the sum of the squares of all terms, as large as `exact` if these do not
            cancel; None if not known.
        errors: returns the errors of correct kernels at some outputs, for a `closer` judgement; None if only the bound
            is known.
        columns: K, if `errors` is known.
        underflow: the possible loss of an output below the normal numbers of its type, or of its sums, for all or [M,
            N]; 0 if these are float32.
    """

    exact: Doubles
    bound: Doubles
    spread: Doubles
    ordered: Floats | None
    of_rows: Callable[[Rows], Product] | None = None
    lanes: Lanes | None = None
    limit: float = SCORE_LIMIT
    scale: Doubles | None = None
    errors: ErrorsOf | None = None
    columns: int = 0
    underflow: Doubles | float = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Return the numbers for another process, without the functions."""
        return {**self.__dict__, "of_rows": None, "lanes": None, "errors": None}

    def rows(self, index: Rows) -> Product:
        """Return the product of these rows of the activations, in this order."""
        there, of_rows, lanes, errors = put(index, self.exact), self.of_rows, self.lanes, self.errors
        return replace(
            self.placed(lambda of: of[there]),
            of_rows=None if of_rows is None else lambda rows: of_rows(rows).rows(index),
            lanes=None if lanes is None else Lanes(lambda tokens, rows: lanes.of(index[tokens], rows), lanes.most),
            errors=None if errors is None else lambda tokens, rows: errors(index[tokens], rows),
        )

    def at(self, tokens: Rows, rows: Rows) -> Product:
        """Return the product of single outputs, one for each token and row, as [1, outputs]; only of NumPy arrays."""
        lanes = self.lanes
        return replace(
            self.placed(lambda of: of[tokens, rows][None]),
            of_rows=None,
            lanes=None if lanes is None else Lanes(lambda _, at: lanes.of(tokens[at], rows[at]), lanes.most),
            errors=None,
            columns=0,
        )

    def loosened(self, slack: Doubles | float) -> Product:
        """Return the same, with bound and spread increased by float64[M, N] of NumPy."""
        more = slack if isinstance(slack, float) else put(slack, self.bound)
        return replace(
            self, bound=self.bound + more, spread=self.spread + more, errors=loosened_errors(self.errors, slack)
        )

    @property
    def in_order(self) -> Product:
        """The same for operations behind a sum of a declared order: its bits are known, so it has no error.

        The product itself if the order was not requested.
        """
        if self.ordered is None:
            return self
        exact, none = self.ordered.astype(np.float64), np.zeros_like(self.bound)
        return Product(exact, none, none, None)

    def placed(self, each: Callable[[Array], Array]) -> Product:
        """Return the same with every array replaced, for example by a copy on another device."""
        names = ("exact", "bound", "spread", "ordered", "scale", "underflow")
        arrays = {name: getattr(self, name) for name in names}
        changed = {name: each(of) for name, of in arrays.items() if not (of is None or isinstance(of, float))}
        return replace(self, **changed)

    def of_weights(self, rows: Rows | slice) -> Product:
        """Return the product of these rows of the weights, in this order."""
        at = put(rows, self.exact) if isinstance(rows, np.ndarray) else rows
        index, of_rows, lanes, errors = np.arange(self.exact.shape[1])[rows], self.of_rows, self.lanes, self.errors
        return replace(
            self.placed(lambda of: of[:, at]),
            of_rows=None if of_rows is None else lambda some: of_rows(index[some]),
            lanes=None if lanes is None else Lanes(lambda tokens, some: lanes.of(tokens, index[some]), lanes.most),
            errors=None if errors is None else lambda tokens, some: errors(tokens, index[some]),
        )

    def settled(self, rows: Rows) -> Product:
        """Return the same, with the product itself at some rows of the weights.

        At the others, which have passed, the spread is infinite, since it is not known.
        """
        return self if self.of_rows is None else self.with_rows(rows, self.of_rows(rows))

    def with_rows(self, rows: Rows, known: Product) -> Product:
        """Return the same, with the numbers of another product, which may be on another device, at some rows of the
        weights. After a screening, the spread of the others is infinite, since it is not known."""
        exact, bound = self.exact.copy(), self.bound.copy()
        spread = self.spread.copy() if self.of_rows is None else np.full_like(self.spread, np.inf)
        if len(rows):
            move = get if on_host(exact) else lambda of: put(get(of), exact)
            known, at = known.placed(move), put(rows, exact)
            exact[:, at], bound[:, at], spread[:, at] = known.exact, known.bound, known.spread
        return replace(self, exact=exact, bound=bound, spread=spread, of_rows=None)


def loosened_errors(errors: ErrorsOf | None, slack: Doubles | float) -> ErrorsOf | None:
    """Return the errors with a further loss of float64[M, N]."""
    if errors is None:
        return None
    return lambda tokens, rows: errors(tokens, rows).loosened(
        slack if isinstance(slack, float) else slack[np.ix_(tokens, rows)]
    )


def in_float32_range(p: Product) -> Product:
    """Return a product of a declared order; it is not finite where its sum overflows in that order."""
    assert p.ordered is not None
    finite = np.isfinite(p.ordered) | ~np.isfinite(p.exact)
    return p if finite.all() else replace(p, exact=np.where(finite, p.exact, np.copysign(np.inf, p.exact)))


def gamma(n: int) -> float:
    """Return γ_n of the bound."""
    return n * UNIT_ROUNDOFF / (1 - n * UNIT_ROUNDOFF)


def concatenated(parts: Sequence[Product]) -> Product:
    """Return the product of all rows of W from the products of parts, in order."""
    ordered = [p.ordered for p in parts if p.ordered is not None]
    scales = [p.scale for p in parts if p.scale is not None]
    return Product(
        np.concatenate([p.exact for p in parts], axis=1),
        np.concatenate([p.bound for p in parts], axis=1),
        np.concatenate([p.spread for p in parts], axis=1),
        np.concatenate(ordered, axis=1) if ordered else None,
        scale=np.concatenate(scales, axis=1) if len(scales) == len(parts) else None,
        underflow=_underflow_of(parts),
    )


def _underflow_of(parts: Sequence[Product]) -> Doubles | float:
    if all(isinstance(p.underflow, float) for p in parts):
        return max(p.underflow for p in parts)
    return np.concatenate([np.broadcast_to(p.underflow, p.exact.shape) for p in parts], axis=1)


def walk(term: Doubles) -> tuple[Doubles, Doubles]:
    """Return Σ_b t[b] and Σ_b S[b]² of [nb, M, n], in ascending b.

    A loop is three times as fast as cumsum, but not on a GPU, where each step is a call, nor for many blocks of few
    outputs.
    """
    if not on_host(term) or len(term) > _MANY_BLOCKS * term[0].size:
        sums = np.cumsum(term, axis=0)
        return sums[-1], (sums**2).sum(axis=0)
    total, squares, square = np.zeros(term.shape[1:]), np.zeros(term.shape[1:]), np.empty(term.shape[1:])
    for t in term:
        np.add(total, t, out=total)
        np.multiply(total, total, out=square)
        np.add(squares, square, out=squares)
    return total, squares


def spread_of(
    term: Doubles,
    carried: Doubles,
    lanes: Doubles,
    roundings: int,
    accumulation: Accumulation = IN_FLOAT32,
    partial: Doubles | None = None,
) -> Doubles:
    """Compute the spread [M, n] from [nb, M, n].

    Args:
        carried: Σ_b of the squares of all partial sums, [M, n].
        lanes: each block's sum of squares.
        roundings: roundings of a block, if each product is added by itself.
        accumulation: the arithmetic of the sum.
        partial: Σ_b of the magnitudes of partial sums, [M, n]; None: those of `term`. For an accumulation whose
            roundings are not independent.
    """
    weight = beside(lanes, np.arange(len(term), 0, -1) + 2.0)
    in_lanes = np.tensordot(weight, lanes, axes=1)  # Σ_b (running sum of lanes + 2·lanes)
    variance = carried + 2 * np.einsum("bmn,bmn->mn", term, term) + in_lanes
    steps = -(-roundings // accumulation.products)
    spread: Doubles = accumulation.unit * np.sqrt(steps / 3 * variance)
    if accumulation.independent:
        return spread
    running = (partial_sums(term) if partial is None else partial) + 2 * np.sqrt(lanes).sum(axis=0)
    spread *= accumulation.deviations / SCORE_LIMIT
    most: Doubles = np.maximum(spread, accumulation.unit * steps / SCORE_LIMIT * running)
    return most


def partial_sums(term: Doubles) -> Doubles:
    """Return Σ_b |S[b]| of [nb, M, n]."""
    total: Doubles = np.abs(np.cumsum(term, axis=0)).sum(axis=0)
    return total
