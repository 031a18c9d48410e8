"""Sizes of products in which an index, a count or an offset passes what a type holds: short, float, int.

Of the largest ones only some thread blocks run, which is possible for some kernels on the CPU host. Products of some
millions of outputs run whole, for any kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..formats.element import SLICE
from ..kernels.domain import Domain
from .plan import near

Shape = tuple[int, int, int]

#: The first whole numbers that an index does not hold: a short, an unsigned short, a float, an int, an unsigned int.
LIMITS = (2**15, 2**16, 2**24, 2**31, 2**32)
#: Tokens and rows of outputs past 2^31 and past 2^32; and the many of either whose operands are so large, beside a few.
#: No size is even, so that what wraps at a power of two meets another place of a row. A grid can count the many in
#: tiles of 16, also in y.
_OUTPUTS, _MANY, _FEW = ((16_411, 151_937), (40_009, 128_257)), 1_000_003, 3
#: By how much indices pass a limit; tokens or rows that pass 2^24 by that.
_BEYOND, _PAST_FLOAT = 1.02, 17_112_761
#: Values of the large operand of products that run whole, and columns of a row: the first is tried to see how long the
#: next would take.
_WHOLE, _SHORT = (1_100_000, 18_000_000), 8192
#: The most bytes of the operands of one.
_MOST_BYTES = 1 << 28


def passes(what: str, shape: Shape) -> int:
    """The values of an operand ("M·N": of the output), or the tokens "M", rows "N" or columns "K" of a product."""
    return math.prod(shape["MNK".index(name)] for name in what.split("·"))


@dataclass(frozen=True)
class Huge:
    """A product of which only some thread blocks run.

    Args:
        m, n, k: tokens, rows, columns.
        what: what is large: "M·N", "N·K", "M·K", "M" or "N".
        small: (M, N) of a smaller one of the same K, in which no index of that, in values or bytes, reaches the limit;
            it differs in one of the two.
        limit: 2^31, or 2^24 for "M" and "N".
    """

    m: int
    n: int
    k: int
    what: str
    small: tuple[int, int]
    limit: int = 2**31

    @property
    def passes(self) -> int:
        """The values of its large operand, or its tokens or rows."""
        return passes(self.what, (self.m, self.n, self.k))

    @property
    def below(self) -> tuple[tuple[int, int], ...]:
        """(M, N) at which no index of the large operand reaches the limit: `small`; of outputs also as few with the
        dimension large that is smaller there, to distinguish a limit of that dimension from an overflow."""
        m, n = self.small
        if self.what != "M·N":
            return (self.small,)
        return self.small, (self.m, max(1, self.n * m // self.m)) if m != self.m else (max(1, self.m * n // self.n), n)

    @property
    def crossings(self) -> tuple[float, ...]:
        """At which shares of it the limits are."""
        return self.limit / self.passes, 2 * self.limit / self.passes


def huge(domain: Domain, unit: int, row: float, token: float) -> list[Huge]:
    """Products whose outputs, weights or activations pass 2^31, and 2^32, in values and in bytes, and whose tokens or
    rows pass 2^24, if the domain has such products.

    Args:
        unit: K is a multiple of this.
        row, token: bytes that a weight and an activation take.
    """
    each = {"M·N": 4.0, "N·K": row, "M·K": token, "M": 1.0, "N": 1.0}
    found = []
    for what, *wanted in _huge(unit, row, token):
        shape = _within(domain, unit, *wanted)
        if shape is None:
            continue
        m, n, _ = shape
        values, limit = passes(what, shape), 2**31 if "·" in what else 2**24
        below = 0.9 * limit / (values * max(1.0, each[what]))
        down = domain.n.down(int(n * below)) if what.startswith("N") else domain.m.down(int(m * below))
        if values > limit and down:
            found.append(Huge(*shape, what, (m, down) if what.startswith("N") else (down, n), limit))
    return found


def _huge(unit: int, row: float, token: float) -> Iterator[tuple[str, int, int, int]]:
    for m, n in _OUTPUTS:
        yield "M·N", m, n, unit
    for what, m, n, each in (("N·K", _FEW, _MANY, row), ("M·K", _MANY, _FEW, token)):
        yield what, m, n, _odd(_BEYOND * 2**32 / (_MANY * min(1.0, each)), unit)
    yield "N", _FEW, _PAST_FLOAT, unit
    yield "M", _PAST_FLOAT, _FEW, unit


@dataclass(frozen=True)
class Large:
    """Products that run whole and have more of something than a model's.

    Args:
        what: "M·N", "N·K", "M·K" or "K".
        limit: what the last one passes.
        seconds: that one may take.
        shapes: (M, N, K), the smaller one first.
    """

    what: str
    limit: int
    seconds: float
    shapes: tuple[Shape, ...]


def large(domain: Domain, unit: int, row: float, token: float) -> list[Large]:
    """Products with rows of more than 2^16 columns, bytes and blocks of 32, and those whose outputs, weights or
    activations pass 2^24 values, if the domain has such products. The arguments are those of `huge`."""
    rows = [_odd(_SHORT, unit), _odd(_BEYOND * 2**16 / min(1.0, row), unit), _odd(_BEYOND * 2**16 * SLICE, unit)]
    wanted = [("K", 2**16, 2.0, [(1, 3, k) for k in rows])]
    sides = [math.isqrt(values) | 1 for values in _WHOLE]
    for what in ("M·N", "N·K", "M·K"):
        shapes = []
        for side in sides:
            m, n = (side if name in what else few for name, few in (("M", 2), ("N", 3)))
            shapes.append((m, n, _odd(side, unit) if "K" in what else unit))
        wanted.append((what, 2**24, 10.0, shapes))
    found = []
    for what, limit, seconds, shapes in wanted:
        there = [_stretched(domain, unit, what, shape) for shape in shapes]
        fit = [s for s in there if s is not None and _bytes(s, row, token) <= _MOST_BYTES]
        if fit and passes(what, fit[-1]) > limit:
            found.append(Large(what, limit, seconds, tuple(dict.fromkeys(fit))))
    return found


def _stretched(domain: Domain, unit: int, what: str, wanted: Shape) -> Shape | None:
    """The nearest shape within the domain; where that is smaller in one dimension, larger in the other."""
    shape = _within(domain, unit, *wanted)
    if shape is None or "·" not in what or passes(what, shape) >= passes(what, wanted):
        return shape
    a, b = ("MNK".index(name) for name in what.split("·"))
    sizes = list(shape)
    for this, other in ((a, b), (b, a)):
        if shape[other] < wanted[other]:
            sizes[this] = _odd(passes(what, wanted) / shape[other], unit if this == 2 else 1)
    return _within(domain, unit, *sizes)


def _within(domain: Domain, unit: int, m: int, n: int, k: int) -> Shape | None:
    sizes = near(domain.m, m), near(domain.n, n), near(domain.k, -(-k // unit) * unit, unit)
    return None if None in sizes else sizes  # type: ignore[return-value]


def _odd(size: float, unit: int) -> int:
    """An odd number of units, at least `size`."""
    return (math.ceil(size / unit) | 1) * unit


def _bytes(shape: Shape, row: float, token: float) -> float:
    m, n, k = shape
    return n * k * row + m * k * token + 4 * m * n
