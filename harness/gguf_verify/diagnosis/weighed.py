"""Faults of factors: a part of the product has a wrong weight.

The correct product is a sum of parts, each with its factor in the definition:

    y = Σ_i c_i·T_i

It is split in several ways: the products of codes, the offset and the minimum; the bits of the codes; the values of the
codes; the bits of the codes and each two that are both set; the positions in a term; the groups of a block; the blocks
of K. A kernel that weights parts wrongly computes the same sum with other factors. For each split the factors are
fitted to the outputs by least squares and rounded to simple numbers. A fault is named if few factors differ from the
definition's and all outputs, including the correct ones, are within the bound of that sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, starmap

import numpy as np
import numpy.typing as npt

from ..results.diagnoses import FaultMatch
from .fault import Case
from .faults.tiles import end_of_k_dropped
from .observed import OBSERVED, observed
from .operands import Doubles, Floats, Predicted

#: Most tokens and rows to which factors are fitted; all others check them.
_TOKENS, _ROWS = 24, 64
#: Least number of outputs for each factor: fewer could be fitted by chance.
_OUTPUTS_EACH = 2
#: Least number of outputs that are not zero.
_FEWEST = 8
#: The most parts of one split.
_MOST_PARTS = 64
#: The uncertainty of a fitted factor, in standard deviations.
_DEVIATIONS = 6.0
#: In addition, the rounding of the fit itself: of a factor, and of the largest one.
_OF_FACTOR, _OF_FIT = 1e-7, 1e-9
#: The fraction of the squared error that the fit may leave: errors within the bound have passed no test of size.
_LEFT = 0.05
#: Denominators of simple factors, and the most wrong factors that are listed.
_DENOMINATORS, _LISTED = (1, 2, 3, 4, 8, 16, 32, 64), 6
_TIMES = {
    -1.0: "has the wrong sign", 0.0: "is missing", 0.25: "is a quarter of what it should be",
    1 / 3: "is a third of what it should be", 0.5: "is half of what it should be", 2.0: "is twice what it should be",
    4.0: "is four times what it should be",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A part of the product.

    Args:
        key: its name among the parts of any product.
        values: T, float64[M, N].
        meant: c, its factor in the definition.
        words: describes the part with another factor, as a clause.
        many: describes consecutive parts with one factor, from their names and the factor; None if parts have no order.
    """

    key: str
    values: Doubles
    meant: float
    words: Callable[[float], str]
    many: Callable[[str, float], str] | None = None


@dataclass(frozen=True)
class Split:
    """A way to split products into parts; `parts` returns those of a case, none if it cannot be split this way.

    Args:
        id: the fault of wrong factors.
        along_k: parts are consecutive parts of K.
    """

    id: str
    parts: Callable[[Case], Sequence[Part]]
    along_k: bool = False


@dataclass(frozen=True)
class Weighed:
    """A split with the factors of a kernel's parts, by key, if they differ from the definition's."""

    split: Split
    factors: Mapping[str, float]

    def predicted(self, case: Case) -> Predicted:
        """Return the outputs of a product with these factors."""
        total, growth = case.right.exact.copy(), 1.0
        for part in self.split.parts(case):
            factor = self.factors.get(part.key, part.meant)
            total += (factor - part.meant) * part.values
            growth = max(growth, abs(factor / part.meant) if part.meant else 1.0)
        return Predicted(total, growth * case.right.bound)

    def words(self, case: Case) -> str:
        """Describe the wrong factors."""
        wrong = list(self._clauses(self.split.parts(case)))
        more = f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        return "; ".join(wrong[:_LISTED]) + more

    def _clauses(self, parts: Sequence[Part]) -> Iterator[str]:
        for factor, run in groupby(parts, lambda part: self.factors.get(part.key)):
            some = list(run)
            if factor is None:
                continue
            if len(some) > 1 and some[0].many is not None:
                yield some[0].many(f"{some[0].key} to {some[-1].key}", factor)
            else:
                yield from (part.words(factor) for part in some)

    def match(self, case: Case, share: float, worst: float) -> FaultMatch:
        """Return the fault: the end of K is dropped if only its last parts are missing, else that of the split.

        Args:
            share: the fraction of the error that the factors explain.
            worst: |y - f| / bound.
        """
        parts = [part for part in self.split.parts(case) if part.many is not None]
        factors = [self.factors.get(part.key) for part in parts]
        kept = factors.index(0.0) if 0.0 in factors else len(factors)
        dropped = self.split.along_k and kept > 0 and set(factors[:kept]) == {None} and set(factors[kept:]) == {0.0}
        fault = end_of_k_dropped if dropped and len(self.factors) == len(parts) - kept else OBSERVED[self.split.id]
        return observed(fault.id, self.words(case), fault.fix, share, worst)


def weighed(y: Floats, case: Case) -> tuple[Weighed, FaultMatch] | None:
    """Return the first split whose factors explain y float32[M, N]."""
    if case.parts.half_products or not np.isfinite(y).all() or not np.isfinite(case.right.exact).all():
        return None
    if np.count_nonzero(y) < _FEWEST:  # zeros fit any split with factors of zero
        return None
    few = _few(case)
    few_y = np.ascontiguousarray(y[: len(few.x), : len(few.rows)])
    for split in SPLITS:
        found = Weighed(split, _fitted(few_y, few, split.parts(few)))
        explained = _explained(y, case, found) if found.factors else None
        if explained is not None:
            return found, found.match(few, *explained)
    return None


def _few(case: Case) -> Case:
    """Return the case of only the first tokens and rows."""
    values = None if case.values is None else case.values[:_TOKENS]
    return replace(case, rows=np.ascontiguousarray(case.rows[:_ROWS]), x=case.x[:_TOKENS], values=values)


def _fitted(y: Floats, case: Case, parts: Sequence[Part]) -> dict[str, float]:
    """Return the factors that differ from the definition's, rounded to simple numbers.

    None if the outputs do not determine the factors.
    """
    at = [part for part in parts if part.values.any()]
    bound = case.right.bound
    looked = bound > 0
    if not 2 <= len(at) <= _MOST_PARTS or looked.sum() < _OUTPUTS_EACH * len(at) or min(y.shape) < 2:
        return {}
    if not (np.abs(sum(p.meant * p.values for p in parts) - case.right.exact) <= bound).all():
        return {}  # the definition rounds between the parts
    columns = np.stack([part.values[looked] / bound[looked] for part in at], axis=1)
    outputs = y[looked].astype(np.float64) / bound[looked]
    size = np.sqrt((columns**2).sum(axis=0))
    columns /= size
    fit, _, rank, _ = np.linalg.lstsq(columns, outputs, rcond=1e-9)
    if rank < len(at):
        return {}
    variance = float(((outputs - columns @ fit) ** 2).sum()) / (len(outputs) - len(at))
    deviations = np.sqrt(variance * np.diag(np.linalg.inv(columns.T @ columns)))
    found = {}
    for part, c, deviation in zip(at, fit / size, deviations / size, strict=True):
        factor = _simple(float(c), part.meant, _DEVIATIONS * float(deviation) + _OF_FACTOR * abs(float(c)) + _OF_FIT)
        if factor != part.meant:
            found[part.key] = factor
    return found


def _simple(factor: float, meant: float, within: float) -> float:
    """Return the simplest number near a factor: the definition's, a multiple of it by a simple fraction, or itself."""
    if abs(factor - meant) <= within:
        return meant
    unit = abs(meant) or 1.0
    for denominator in _DENOMINATORS:
        near = round(factor / unit * denominator) / denominator * unit
        if abs(near - factor) <= within:
            return near
    return factor


def _explained(y: Floats, case: Case, found: Weighed) -> tuple[float, float] | None:
    """Return the fraction of the error that factors explain, and the worst |y - f| / bound.

    None unless all outputs are within the bound.
    """
    predicted, right = found.predicted(case), case.right
    difference = np.abs(y.astype(np.float64) - predicted.exact)
    if not (difference <= predicted.bound).all():
        return None
    error = float(((y.astype(np.float64) - right.exact) ** 2).sum())
    share = 1 - float((difference**2).sum()) / error if error else 0.0
    if not share >= 1 - _LEFT:
        return None
    return share, float((difference / np.maximum(predicted.bound, np.finfo(np.float64).tiny)).max())


# ---- the splits ------------------------------------------------------------------------------------------------------


def _times(what: str) -> Callable[[float], str]:
    """Return the description of a part that counts once."""
    return lambda c: f"{what} {_TIMES.get(c, f'is {c:.6g} times what it should be')}"


def _of_terms(case: Case) -> Sequence[Part]:
    """Return the products of codes, the offset and the minimum, and a constant."""
    codes = _product(case, case.parts.q + _stored_offset(case))
    constant = Part("constant", np.ones(codes.shape), 0.0, lambda c: f"{c:.6g} is added to each output")
    return [Part("codes", codes, 1.0, _times("the codes' term")), *_rest(case), constant]


def _stored_offset(case: Case) -> int:
    """Return the number to add to the codes of `Parts` to get the file's codes."""
    return case.taken_off + case.fmt.zero


def _rest(case: Case) -> list[Part]:
    """Return the parts that are no products of stored codes: the offset, and the minimum."""
    p, fmt = case.parts, case.fmt
    if p.m.any() and not fmt.has_min:  # the offset is multiplied by the sums
        return [_of_offset(p.s @ p.m.T / -fmt.offset, fmt.offset)]
    offset = _of_offset(_product(case, np.ones_like(p.q)), _stored_offset(case))
    return [offset, *_minimum(case)]


def _of_offset(values: Doubles, offset: int) -> Part:
    def words(c: float) -> str:
        term = f": {_times('the term of the offset')(-c / offset)}" if offset else ""
        return f"{0 - c:g} is subtracted from the codes, not {offset:g}{term}"

    return Part("offset", values, -float(offset), words)


def _minimum(case: Case) -> list[Part]:
    p = case.parts
    return [Part("minimum", p.s @ p.m.T, 1.0, _times("the minimum's term"))] if p.m.any() else []


def _of_bits(case: Case) -> Sequence[Part]:
    """Return the bits of all codes."""
    return _bits(case, (_all_codes(case),))


def _of_nibbles(case: Case) -> Sequence[Part]:
    """Return the bits of codes in low and in high nibbles."""
    distance, (terms, values) = case.fmt.nibble_distance, case.parts.q.shape[1:]
    if distance is None:
        return ()
    low = np.arange(terms * values).reshape(terms, values) // distance % 2 == 0
    return _bits(case, (("codes in low nibbles", low), ("codes in high nibbles", ~low)))


def _of_bits_and_pairs(case: Case) -> Sequence[Part]:
    """Return the bits of all codes, and each two bits that are both set.

    Bits that are shifted to one place and joined by | or ^ are no sum: a | b = a + b - a·b.
    """
    bits = _bits(case, (_all_codes(case),))
    stored = _stored_codes(case)

    def pair(one: int, other: int) -> Part:
        values = _product(case, (stored >> one & stored >> other & 1).astype(np.float64))
        which = f"bits {one} and {other} of the codes"
        return Part(
            f"{which} both set",
            values,
            0.0,
            lambda c: f"{which} count {abs(c):g} {'more' if c > 0 else 'less'} where both are set",
        )

    return [*bits, *starmap(pair, combinations(range(case.fmt.bits), 2))] if bits else ()


def _all_codes(case: Case) -> tuple[str, npt.NDArray[np.bool_]]:
    return "codes", np.ones(case.parts.q.shape[1:], bool)


def _stored_codes(case: Case) -> npt.NDArray[np.int64]:
    return (case.parts.q + _stored_offset(case)).astype(np.int64)


def _bits(case: Case, which: Sequence[tuple[str, npt.NDArray[np.bool_]]]) -> Sequence[Part]:
    fmt = case.fmt
    if fmt.stored_bits != fmt.bits:
        return ()  # codes that are not stored as such
    stored = _stored_codes(case)
    signed = fmt.low < 0 and not _stored_offset(case)

    def part(bit: int, of: str, at: npt.NDArray[np.bool_]) -> Part:
        meant = -(2.0**bit) if signed and bit == fmt.bits - 1 else 2.0**bit
        values = _product(case, ((stored >> bit & 1) * at).astype(np.float64))
        return Part(f"bit {bit} of {of}", values, meant, lambda c: f"bit {bit} of the {of} counts {c:g}, not {meant:g}")

    return [*(part(bit, of, at) for of, at in which for bit in range(fmt.bits)), *_rest(case)]


def _of_values(case: Case) -> Sequence[Part]:
    """Return the products of the codes of each value."""
    codes = np.unique(case.parts.q)
    if not 2 <= len(codes) <= 16:
        return ()

    def part(code: float) -> Part:
        values = _product(case, (case.parts.q == code).astype(np.float64))
        return Part(f"{code:g}", values, float(code), lambda c: f"codes of value {code:g} count as {c:g}")

    return [*map(part, codes), *_minimum(case)]


def _of_positions(case: Case) -> Sequence[Part]:
    """Return the products of codes at each place of the terms."""
    values = case.parts.q.shape[2]

    def part(at: int) -> Part:
        of = _product(case, case.parts.q * (np.arange(values) == at))
        return Part(str(at), of, 1.0, lambda c: f"value {at} of each {values} counts {c:g} times")

    return [*map(part, range(values)), *_minimum(case)]


def _of_groups(case: Case) -> Sequence[Part]:
    """Return the products of codes at one place of each block of weights."""
    n = case.parts.per_block
    return _along(case, np.arange(case.parts.q.shape[1]) % n, f"term {{}} of each {n} of a block", False)


def _of_blocks(case: Case) -> Sequence[Part]:
    """Return the products of codes of each block of K."""
    return _along(case, np.arange(case.parts.q.shape[1]) // case.parts.per_block, "block {} of K", False)


def _of_slices(case: Case) -> Sequence[Part]:
    """Return the products of codes of each term of K, if a block has several."""
    n, values = case.parts.q.shape[1:]
    return () if case.parts.per_block == 1 else _along(case, np.arange(n), f"slice {{}} of {values} values of K", False)


def _of_whole_blocks(case: Case) -> Sequence[Part]:
    """Return each block of K, with its minimum or offset."""
    found = _along(case, np.arange(case.parts.q.shape[1]) // case.parts.per_block, "block {} of K", True)
    return found if case.parts.m.any() else ()  # otherwise the same as `_of_blocks`


def _along(case: Case, place: npt.NDArray[np.intp], name: str, whole: bool) -> Sequence[Part]:
    """Return the terms at each place, whole or without their minima."""
    p, n = case.parts, int(place.max()) + 1
    if not 2 <= n <= _MOST_PARTS:
        return ()

    def part(at: int) -> Part:
        here = place == at
        only = _product(case, p.q * here[:, None]) + (p.s @ (p.m * here).T if whole else 0.0)
        but = "" if whole or not p.m.any() else ", but for {} minimum or offset,"
        one, many = name + but.format("its"), name.replace(" {}", "s {}", 1) + but.format("their")
        return Part(
            str(at),
            only,
            1.0,
            lambda c: f"{one.format(at)} counts {c:g} times",
            lambda which, c: f"{many.format(which)} count {c:g} times",
        )

    return [*map(part, range(n)), *([] if whole else _minimum(case))]


def _product(case: Case, q: Doubles) -> Doubles:
    """Return Σ d·e·Σ q·a of other codes q float64[N, terms, values]."""
    p = case.parts
    return np.asarray((p.a * p.e[..., None]).reshape(len(p.a), -1) @ (q * p.d[..., None]).reshape(len(q), -1).T)


SPLITS: tuple[Split, ...] = (
    Split("term-factor", _of_terms),
    Split("code-bits", _of_bits),
    Split("code-bits", _of_nibbles),
    Split("code-values", _of_values),
    Split("code-bits", _of_bits_and_pairs),
    Split("position-factor", _of_positions),
    Split("block-factor", _of_groups),
    Split("block-factor", _of_blocks, along_k=True),
    Split("block-factor", _of_whole_blocks, along_k=True),
    Split("block-factor", _of_slices, along_k=True),
)
