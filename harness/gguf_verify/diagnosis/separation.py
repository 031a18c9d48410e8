"""A small decision tree that separates wrong from correct samples, in words.

A sample is an output, a row, or a row of one of several calls; its features are numbers. The tree asks at most DEPTH
questions, and all samples of one kind reach its last leaf: "wrong exactly where N mod 128 = 64 and row ≥ N - 64". The
questions are comparisons with a bound, an equality, and comparisons of remainders; divisors are powers of two and three
times powers of two. A question is only considered if all wrong samples (or all correct ones) answer it alike, so the
search is over conjunctions and is complete up to pairs; a third question is added to the best pairs.

Among n samples of which w are wrong, log2 C(n, w) bits say which, and a rule that was not known before must cost at
least MARGIN bits less: the probability that random labels have any rule of that cost is at most 2^-MARGIN. Wrong
samples are often neighbours, so labels of r runs count as at most 1 + log2 C(n - 1, r - 1) bits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb, log2

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]

#: The most questions of a tree, and the bits by which it must be shorter than the labels.
DEPTH, MARGIN = 3, 10.0
#: Divisors of remainders: powers of two, and three times powers of two.
DIVISORS = tuple(sorted({*(2 << i for i in range(10)), *(3 << i for i in range(9))}))
#: Pairs of questions to which a third is added, and the most rules that are returned.
_PAIRS, _MOST_RULES = 24, 64


@dataclass(frozen=True)
class Feature:
    """A number of each sample.

    Args:
        values: float64[samples].
        at_least: the words for "at least {}".
        below: the words for "less than {}".
        equal: the words for "equal to {}".
        remainders: the feature's name if its remainders are features, too; "" if they are not.
        flag: the words for 1 and for 0, if these are the only values; then only `equal` is used.
    """

    values: Doubles
    at_least: str
    below: str
    equal: str
    remainders: str = ""
    flag: tuple[str, str] | None = None


def number(name: str, values: npt.ArrayLike, remainders: bool = False) -> Feature:
    """Return a feature that is compared by its name."""
    return Feature(
        np.asarray(values, np.float64), name + " ≥ {}", name + " < {}", name + " = {}", name if remainders else ""
    )


def flag(yes: str, no: str, values: npt.ArrayLike) -> Feature:
    """Return a feature that is true or false."""
    return Feature(np.asarray(values, np.float64), "", "", "", flag=(yes, no))


Table = Mapping[str, Feature]


@dataclass(frozen=True)
class Question:
    """A comparison of a feature, or of its remainder by `divisor`, with a value.

    Args:
        feature: key in a `Table`.
        relation: "≥", "<" or "=".
        value: the other side.
        divisor: 0 for none.
        bits: the cost of writing it down, besides the feature.
    """

    feature: str
    relation: str
    value: float
    divisor: int = 0
    bits: float = 0.0

    def holds(self, table: Table) -> Bools:
        """Return which samples answer yes, bool[samples]."""
        values = table[self.feature].values
        values = values % self.divisor if self.divisor else values
        if self.relation == "=":
            return np.asarray(values == self.value)
        return np.asarray(values >= self.value if self.relation == "≥" else values < self.value)

    def words(self, table: Table, negated: bool = False) -> str:
        """Return the comparison, or its opposite."""
        feature, relation = table[self.feature], self.relation
        if feature.flag is not None:
            return feature.flag[negated == (self.value == 1)]
        if negated:
            relation = {"≥": "<", "<": "≥", "=": "≠"}[relation]
        if self.divisor and (relation, self.value) in (("=", 0), ("<", 1)):
            return f"{feature.remainders} is a multiple of {self.divisor}"
        if self.divisor and (relation, self.value) in (("≠", 0), ("≥", 1)):
            return f"{feature.remainders} is no multiple of {self.divisor}"
        if self.divisor:
            return f"{feature.remainders} mod {self.divisor} {relation} {self.value:g}"
        if relation == "≠":
            return feature.equal.replace(" = ", " ≠ ").format(f"{self.value:,g}")
        shape = {"≥": feature.at_least, "<": feature.below, "=": feature.equal}[relation]
        return shape.format(_figures(self.value))


@dataclass(frozen=True)
class Rule:
    """Samples are wrong where all questions are answered yes; if `negated`, where any is answered no.

    Args:
        share: the fraction of the samples that meet the condition and are wrong: 1 if the rule is exact. All other
            samples are correct.
        bits: the cost of writing it down.
    """

    questions: tuple[Question, ...]
    negated: bool = False
    share: float = 1.0
    bits: float = 0.0

    def holds(self, table: Table) -> Bools:
        """Return which samples it predicts to be wrong, bool[samples]."""
        met = np.logical_and.reduce([question.holds(table) for question in self.questions])
        return np.asarray(~met if self.negated else met)

    def condition(self, table: Table) -> str:
        """Return the condition in words."""
        parts = [question.words(table, self.negated) for question in self.questions]
        return (" or " if self.negated else " and ").join(parts)

    def words(self, table: Table) -> str:
        """Return the rule in words."""
        if self.share == 1:
            return f"wrong exactly where {self.condition(table)}"
        return f"wrong only where {self.condition(table)}, in {int(self.share * 1000) / 10:g} % of those"

    @property
    def compares_only(self) -> bool:
        """Whether it has no remainders: a range of places, which describes any neighbouring outputs."""
        return all(not question.divisor for question in self.questions)


def rules(table: Table, wrong: Bools) -> list[Rule]:
    """Return the exact rules of wrong samples, bool[samples], the shortest first; none if one kind is missing."""
    if wrong.all() or not wrong.any():
        return []
    found: dict[tuple[Question, ...], Rule] = {}
    for negated, of in ((False, wrong), (True, ~wrong)):
        for questions in _conjunctions(table, of):
            bits = sum(q.bits for q in questions) + len(questions) * log2(len(table)) + negated
            found.setdefault(questions, Rule(questions, negated, bits=bits))
    return sorted(found.values(), key=lambda rule: (rule.bits, len(rule.questions)))[:_MOST_RULES]


def approximate(table: Table, wrong: Bools, least: float) -> Rule | None:
    """Return the shortest question or pair that all wrong samples meet, and of those that meet it at least the
    fraction `least` are wrong; None if there is none."""
    asked = [(q, q.holds(table)) for q in _questions(table, wrong)]
    best: tuple[float, Rule] | None = None
    for size in (1, 2):
        for some in combinations(asked, size):
            met = np.logical_and.reduce([holds for _, holds in some])
            share = float(wrong[met].mean())
            bits = sum(q.bits for q, _ in some) + size * log2(len(table))
            if share >= least and (best is None or (-share, bits) < (best[0], best[1].bits)):
                best = -share, Rule(tuple(q for q, _ in some), False, share, bits)
        if best is not None:
            return best[1]
    return None


def evidence(wrong: Bools, ordered: bool = True) -> float:
    """Return the bits that say which samples are wrong.

    Args:
        ordered: whether neighbouring samples are expected to be alike.
    """
    n, w = len(wrong), int(wrong.sum())
    bits = log2(comb(n, w))
    runs = 1 + int(np.count_nonzero(np.diff(wrong)))
    return min(bits, 1 + log2(comb(n - 1, runs - 1))) if ordered else bits


def _conjunctions(table: Table, of: Bools) -> Iterator[tuple[Question, ...]]:
    """Yield the questions of which all are answered yes by exactly these samples, bool[samples]."""
    asked = list(_questions(table, of))
    if not asked:
        return
    # of each question, the other samples that answer yes; a conjunction must leave none of them
    left = np.array([question.holds(table)[~of] for question in asked], bool).reshape(len(asked), -1)
    counts = left.sum(axis=1)
    useful = counts < left.shape[1]
    asked, left, counts = [q for q, kept in zip(asked, useful, strict=True) if kept], left[useful], counts[useful]
    alone = counts == 0
    yield from ((q,) for q, exact in zip(asked, alone, strict=True) if exact)
    asked, left, counts = [q for q, exact in zip(asked, alone, strict=True) if not exact], left[~alone], counts[~alone]
    packed = np.packbits(left, axis=1)
    helpful: list[tuple[int, int, int]] = []  # how many samples a pair leaves, and the pair
    for i, one in enumerate(asked):
        both = np.bitwise_count(packed[i] & packed[i + 1 :]).sum(axis=1, dtype=np.intp)
        yield from ((one, asked[i + 1 + int(j)]) for j in np.flatnonzero(both == 0))
        if not alone.any():
            fewer = (both > 0) & (both < np.minimum(counts[i], counts[i + 1 :]))
            helpful += [(int(both[j]), i, i + 1 + int(j)) for j in np.flatnonzero(fewer)]
    for _, i, j in sorted(helpful, key=lambda pair: (pair[0], asked[pair[1]].bits + asked[pair[2]].bits))[:_PAIRS]:
        exact = ~(packed[i] & packed[j] & packed).any(axis=1)
        yield from ((asked[i], asked[j], asked[h]) for h in np.flatnonzero(exact) if h not in (i, j))


def _questions(table: Table, of: Bools) -> Iterator[Question]:
    """Yield the questions that all these samples answer yes, and some other sample no."""
    for key, feature in table.items():
        values = feature.values
        yield from _comparisons(key, values, of, 0, feature.flag is not None)
        for divisor in DIVISORS if feature.remainders else ():
            if divisor <= values.max():
                yield from _comparisons(key, values % divisor, of, divisor)


def _comparisons(key: str, values: Doubles, of: Bools, divisor: int, only_equal: bool = False) -> Iterator[Question]:
    mine, others = values[of], values[~of]
    low, high = float(mine.min()), float(mine.max())
    below, above = others[others < low], others[others > high]
    bits = log2(divisor * len(DIVISORS)) if divisor else log2(max(2, len(np.unique(values))))
    if low == high and (only_equal or (below.size and above.size) or divisor):
        if below.size or above.size:
            yield Question(key, "=", low, divisor, bits)
        if only_equal or divisor == 2:
            return
    if below.size and not only_equal:
        yield Question(key, "≥", _simple(float(below.max()), low), divisor, bits + bool(divisor))
    if above.size and not only_equal:
        yield Question(key, "<", _simple(high, float(above.min())), divisor, bits + bool(divisor))


def _simple(above: float, most: float) -> float:
    """Return the simplest number greater than one and at most another: a multiple of the largest power of two."""
    if above < 0 < most:
        return most if most == int(most) else 0.0
    unit = 2.0 ** np.floor(log2(max(abs(above), abs(most), 1e-300)))
    while unit >= 1e-300:
        multiple = np.floor(most / unit) * unit
        if multiple > above:
            return float(multiple)
        unit /= 2
    return most


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


# ---- features of places ----------------------------------------------------------------------------------------------


def of_places(
    at: npt.NDArray[np.intp], sizes: npt.ArrayLike, what: str, size: str, only: Collection[str] | None = None
) -> dict[str, Feature]:
    """Return the features of indices in dimensions of some sizes.

    They are the index, its remainders, its distance from the end, and for each size of a tile whether it lies past the
    last whole tile.

    Args:
        at: the indices.
        sizes: of the dimension, one or one for each index.
        what, size: the names: "row" and "N", "token" and "M".
        only: the features; None: all.
    """
    ends = np.broadcast_to(np.asarray(sizes), at.shape)
    behind = (ends - 1 - at).astype(np.float64)
    found = {
        what: number(what, at, remainders=True),
        "end": Feature(
            behind, f"{what} < {size} - {{}}", f"{what} ≥ {size} - {{}}", f"{{}} {what}s are behind the {what}"
        ),
    }
    for tile in DIVISORS if only is None else (tile for tile in DIVISORS if f"tile {tile}" in only):
        yes, no = f"the {what} is past the last whole tile of {tile}", f"the {what} is in a whole tile of {tile}"
        found[f"tile {tile}"] = flag(yes, no, at >= ends // tile * tile)
    return found
