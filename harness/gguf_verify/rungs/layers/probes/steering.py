"""Blocks and activations at which the comparisons in a kernel's code change their outcome.

The probe plan sets each field to the classes of its number format (`field_classes`). A kernel may compare with any
other number: `if (d == 0x3C01)`, `if (sum == 12345)`. But the operands of its comparisons can be observed for any data,
so each comparison is solved for the fields that its operands change with (input-to-state correspondence: Aschermann et
al., REDQUEEN, NDSS 2019), by the branch distance a - b (Korel, Automated Software Test Data Generation, IEEE TSE 16,
1990): by bisection between two numbers that give it different signs, by single bits, for masks, and by single codes,
for integer sums.

A comparison that is only made behind another one shows in the data that were found for that one: these are the bases of
the next search.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ....kernels.comparisons import Compared, Comparison, Operands
from .stored_numbers import Data, Number

#: Products that are observed for one comparison and base, beside those with the numbers of each name together.
_MOST_OF_ONE = 250
#: Bases; data that are combined; data of one comparison.
_MOST_BASES, _MOST_COMBINED, _MOST_DATA = 32, 12, 16
#: Single numbers whose bits are flipped; and those whose slopes are tried.
_FEW_SINGLE, _MOST_SINGLE = 8, 64
#: Comparisons that the threads of all observed products make together, at 10 to 20 ns each.
_MOST_MADE = 1 << 27
#: Sums of changes of bits that are formed.
_MOST_SUMS = 1 << 13
#: Steps of a code that are tried together with those of another one.
_MOST_STEPS = 8
#: Bits of `Operands.outcomes`: a < b, a = b, a > b; then the same of integers read as unsigned.
_LESS, _EQUAL, _GREATER = 0, 1, 2

#: The comparisons of a product of such blocks; None if it cannot be made.
Observe = Callable[[Data], Compared | None]
#: A bit of a number.
_Bit = tuple[Number, int]


@dataclass(frozen=True)
class Steered:
    """The result of a search.

    Args:
        data: of each comparison whose outcome depends on data.
        unequal: those of them whose operands were never equal.
    """

    data: dict[Comparison, tuple[Data, ...]]
    unequal: frozenset[Comparison]


def steered(base: Data, numbers: Sequence[Number], observe: Observe, most: int) -> Steered:
    """Data on both sides of a change of each comparison's outcome that depends on data, and at it.

    Args:
        base: an ordinary block of each operand.
        numbers: of both operands, those of each name together.
        most: products that are observed.
    """
    search, bases = _Search(numbers, observe, most), [base]
    with contextlib.suppress(_Spent):
        for place in bases:
            search.around(place, place == base)
            if place in (base, bases[-1]):
                search.combine(base)
            new = [data for data in dict.fromkeys(search.reached.values()) if data not in bases]
            bases += new[: _MOST_BASES - len(bases)]
    made: dict[Comparison, dict[Data, None]] = {}
    for (comparison, _), data in search.first.items():
        made.setdefault(comparison, {}).update({} if data == base else {data: None})
    for comparison, others in search.found.items():
        made.setdefault(comparison, {}).update(others)
    found = {comparison: tuple(data)[:_MOST_DATA] for comparison, data in made.items() if data}
    return Steered(found, frozenset(one for one in found if not search.equal(one)))


class _Spent(Exception):
    """No further products are observed."""


class _Enough(Exception):
    """No further products are observed for one comparison."""


@dataclass
class _Search:
    numbers: Sequence[Number]
    observe: Observe
    most: int
    #: Comparison → the data that were found for it.
    found: dict[Comparison, dict[Data, None]] = field(default_factory=dict)
    #: Comparison and outcome → the first data that gave it.
    first: dict[tuple[Comparison, int], Data] = field(default_factory=dict)
    #: Comparison → the first data that it was made with.
    reached: dict[Comparison, Data] = field(default_factory=dict)
    _solved: set[Comparison] = field(default_factory=set)
    _observed: dict[Data, Compared] = field(default_factory=dict)
    #: Comparisons that the threads of all observed products made; and how many products may be observed for the present
    #: one.
    _made: int = 0
    _until: int = 1 << 62

    def at(self, data: Data) -> Compared:
        if data not in self._observed:
            if len(self._observed) >= self.most or self._made >= _MOST_MADE:
                raise _Spent
            if len(self._observed) >= self._until:
                raise _Enough
            self._observed[data] = self.observe(data) or {}
            for comparison, operands in self._observed[data].items():
                self._made += operands.times
                self.reached.setdefault(comparison, data)
                for outcome in _outcomes(operands):
                    self.first.setdefault((comparison, outcome), data)
        return self._observed[data]

    def value(self, data: Data, comparison: Comparison, end: int) -> float | None:
        operands = self.at(data).get(comparison)
        return None if operands is None else operands.apart[end]

    def equal(self, comparison: Comparison) -> bool:
        return (comparison, _EQUAL) in self.first

    def around(self, base: Data, every: bool) -> None:
        """Solve each comparison from a base.

        Args:
            every: observe every pattern of each number, also where a few change nothing.
        """
        changing: dict[Comparison, dict[Number, None]] = {}
        for number in self.numbers:
            patterns = itertools.chain(*number.runs) if every else number.few
            samples = [self.at(base), *(self.at(number.set(base, pattern)) for pattern in patterns)]
            for comparison in dict.fromkeys(itertools.chain(*samples)):
                seen = {(of.a, of.b) for sample in samples if (of := sample.get(comparison))}
                # one that is gone elsewhere may compare a single number of several
                if len(seen) > 1 or (comparison in samples[0] and any(comparison not in s for s in samples)):
                    changing.setdefault(comparison, {})[number] = None
        for comparison, in_numbers in changing.items():
            if comparison not in self._solved:
                self.solve(base, comparison, list(in_numbers))
                if comparison in self.at(base):
                    self._solved.add(comparison)

    def solve(self, base: Data, comparison: Comparison, in_numbers: list[Number]) -> None:
        """Solve a comparison in the numbers of each name; then in single ones."""
        for number in in_numbers:
            for end in (1, 0):
                self.keep(comparison, self.crossings(base, number, comparison, end))
        if self.equal(comparison):
            return
        nearest = min(
            (data for data, of in self._observed.items() if comparison in of),
            key=lambda data: min(map(abs, self._observed[data][comparison].apart)),
        )
        apart = self.at(nearest)[comparison].apart
        end = min((0, 1), key=lambda end: abs(apart[end]))
        both = (comparison, _LESS) in self.first and (comparison, _GREATER) in self.first
        if apart[end] % 1 == 0 or not both:  # two floats need not be equal anywhere
            self._until = len(self._observed) + _MOST_OF_ONE
            with contextlib.suppress(_Enough):
                for start in dict.fromkeys((base, nearest)):
                    if comparison in self.at(start) and not self.equal(comparison):
                        self.approach(start, comparison, in_numbers, end)
            self._until = 1 << 62

    def combine(self, base: Data) -> None:
        """Pair the data of two comparisons, for conditions that are both evaluated: `a & b`, and those of arrays."""
        others = [(of != _EQUAL, comparison, data) for (comparison, of), data in self.first.items() if data != base]
        few = sorted(others, key=lambda each: each[0])[:_MOST_COMBINED]
        for (_, first, one), (_, second, other) in itertools.combinations(few, 2):
            changed = [(a ^ was, b ^ was) for a, b, was in zip(one, other, base, strict=True)]
            both = Data(*(a ^ b ^ was for (a, b), was in zip(changed, base, strict=True)))
            if first != second and not any(a & b for a, b in changed) and self._is_finite(both):
                self.keep(first, [both])

    def _is_finite(self, data: Data) -> bool:
        return all(one.finite(one.get(data) or 0) for number in self.numbers for one in number.singles)

    def keep(self, comparison: Comparison, data: Iterable[Data]) -> None:
        """Keep data that were found for a comparison, and observe what is only compared there."""
        for each in data:
            self.found.setdefault(comparison, {})[each] = None
            self.at(each)

    def crossings(self, base: Data, number: Number, comparison: Comparison, end: int) -> Iterator[Data]:
        """Around each change of the sign between patterns of a number: the last before it, the first, and the next."""
        firsts: dict[int, Data] = {}
        changes = False
        for run in number.runs:
            values = [(p, self.value(number.set(base, p), comparison, end)) for p in run]
            points = [(p, _sign(v)) for p, v in values if v is not None]
            for p, sign in points:
                firsts.setdefault(sign, number.set(base, p))
            for (low, before), (high, after) in itertools.pairwise(points):
                if before != after:
                    changes = True
                    for there in self._bisected(base, number, (comparison, end, before), low, high):
                        yield number.set(base, there)
        if not changes and len(firsts) > 1:  # only from one run to the other, as in a test of the sign bit
            yield from firsts.values()

    def _bisected(
        self, base: Data, number: Number, of: tuple[Comparison, int, int], low: int, high: int
    ) -> list[int]:  # fmt: skip
        comparison, end, before = of
        while high - low > 1:
            middle = (low + high) // 2
            there = self.value(number.set(base, middle), comparison, end)
            if there is not None and _sign(there) == before:
                low = middle
            else:
                high = middle
        return [p for p in (low, high, high + 1) if number.finite(p)]

    # ---- what the numbers of a name together did not show -----------------------------------------------------------

    def approach(self, start: Data, comparison: Comparison, in_numbers: list[Number], end: int) -> None:
        """Reach a = b from some data: by bits of the numbers, then by single numbers, or by codes of a sum."""
        there = self._by_bits(start, in_numbers, comparison, end)
        if self.equal(comparison):
            return self.keep(comparison, [there])
        singles = self._influencing(start, comparison, in_numbers)
        if len(singles) <= _FEW_SINGLE:
            there = self._by_bits(start, singles, comparison, end)
            for number in () if self.equal(comparison) else singles:
                for of in (1, 0):
                    self.keep(comparison, self.crossings(start, number, comparison, of))
        else:
            codes = [one for one in singles if not one.floating]
            there = self._by_bits(self._by_codes(start, codes, comparison, end), in_numbers, comparison, end)
        if self.value(there, comparison, end) == 0:
            one = next((one for one in singles if self._slope(there, one, comparison, end)), None)
            beside = [] if one is None else [one.set(there, one.pattern(one.code(there) + i)) for i in (-1, 1)]
            self.keep(comparison, (there, *beside))
        return None

    def _influencing(self, start: Data, comparison: Comparison, in_numbers: list[Number]) -> list[Number]:
        """Single numbers that change the operands; activations first, which have more codes. Those on which it depends
        whether the comparison is made are not among them."""
        found = list[Number]()
        before = self.at(start)[comparison]
        for number in sorted(in_numbers, key=lambda one: one.weights):
            changing = [p for p in number.few if self._changes(start, number, p, comparison, before)]
            most = _FEW_SINGLE + 1 if number.floating else _MOST_SINGLE  # more are no codes of a sum
            parted = self._parted(start, number, changing[0], comparison, before, most) if changing else []
            if len(changing) > 1 and len(parted) <= _FEW_SINGLE:  # some may have the pattern already
                parted += self._parted(start, number, changing[-1], comparison, before, most)
            found += dict.fromkeys(parted)
        return found

    def _changes(self, start: Data, number: Number, pattern: int, comparison: Comparison, before: Operands) -> bool:
        after = self.at(number.set(start, pattern)).get(comparison)
        return after is None or (after.a, after.b) != (before.a, before.b)

    def _parted(
        self, start: Data, number: Number, pattern: int, comparison: Comparison, before: Operands, most: int
    ) -> list[Number]:  # fmt: skip
        """The single ones of some numbers that change the operands, by halves."""
        if most <= 0 or not self._changes(start, number, pattern, comparison, before):
            return []
        if len(number.places) == 1:
            return [number] if comparison in self.at(number.set(start, pattern)) else []
        half = len(number.places) // 2
        found = list[Number]()
        for part in (number.places[:half], number.places[half:]):
            one = Number(number.weights, part)
            found += self._parted(start, one, pattern, comparison, before, most - len(found))
        return found

    def _nearer(self, data: Data, other: Data, comparison: Comparison, end: int) -> bool:
        here, there = self.value(data, comparison, end), self.value(other, comparison, end)
        return here is not None and there is not None and abs(there) < abs(here)

    def _by_bits(self, data: Data, changing: list[Number], comparison: Comparison, end: int) -> Data:
        """Flip bits so that a - b is 0 if they change it independently; else those that take it nearer to 0, the ones
        that change it most first."""

        def flipped(data: Data, number: Number, bit: int) -> Data | None:
            pattern = number.get(data)
            pattern = None if pattern is None else pattern ^ 1 << bit
            return None if pattern is None or not number.finite(pattern) else number.set(data, pattern)

        here, changes = self.value(data, comparison, end) or 0.0, dict[tuple[Number, int], float]()
        for one in ((number, bit) for number in changing for bit in range(number.width)):
            other = flipped(data, *one)
            there = None if other is None else self.value(other, comparison, end)
            changes[one] = 0.0 if there is None else there - here
        exactly, at_once = data, _that_sum_to(-here, {one: change for one, change in changes.items() if change})
        for one in at_once or ():
            exactly = flipped(exactly, *one) or exactly
        if at_once is not None and self._nearer(data, exactly, comparison, end):
            data = exactly
        # a bit may matter only after another one
        for one in 2 * sorted(changes, key=lambda one: (-abs(changes[one]), -one[1])):
            if self.value(data, comparison, end) == 0:
                break
            other = flipped(data, *one)
            data = other if other is not None and self._nearer(data, other, comparison, end) else data
        return data

    def _by_codes(self, data: Data, singles: list[Number], comparison: Comparison, end: int) -> Data:
        """Solve a - b = 0 in single codes, as if it were linear."""
        for of in (False, True):
            here = self.value(data, comparison, end)
            slopes = {one: self._slope(data, one, comparison, end) for one in singles if one.weights == of}
            if not here or not any(slopes.values()):
                continue
            other = data
            for one, code in _solved(here, {one: (slope, one.code(data)) for one, slope in slopes.items()}).items():
                other = one.set(other, one.pattern(code))
            data = other if self._nearer(data, other, comparison, end) else data
        return data

    def _slope(self, data: Data, one: Number, comparison: Comparison, end: int) -> float:
        """Of a - b, if it is an integer, along a number; 0 if that does not change it."""
        code = one.code(data)
        step = 1 if one.code(one.set(data, one.pattern(code + 1))) == code + 1 else -1
        here = self.value(data, comparison, end)
        there = self.value(one.set(data, one.pattern(code + step)), comparison, end)
        return 0.0 if here is None or there is None or here % 1 or there % 1 else (there - here) * step


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _outcomes(operands: Operands) -> list[int]:
    """The outcomes that occurred; those of the ends if they were not noted."""
    noted = [bit for bit in range(6) if operands.outcomes >> bit & 1]
    return noted or [_sign(end) + _EQUAL for end in operands.apart]


def places_of(found: dict[Comparison, tuple[Data, ...]]) -> dict[str, tuple[Data, ...]]:
    """FILE:LINE → the data of all its comparisons, each once."""
    by_place = dict[str, dict[Data, None]]()
    for comparison, data in found.items():
        by_place.setdefault(comparison.place, {}).update(dict.fromkeys(data))
    return {place: tuple(data) for place, data in by_place.items()}


def _that_sum_to(sought: float, changes: dict[_Bit, float]) -> tuple[_Bit, ...] | None:
    """Some of these changes with a sum; None if none are found."""
    sums: dict[float, tuple[_Bit, ...]] = {0.0: ()}
    for bit, change in changes.items():
        if sought in sums or len(sums) > _MOST_SUMS:
            break
        sums = {**{before + change: (*bits, bit) for before, bits in sums.items()}, **sums}
    return sums.get(sought)


def _solved(distance: float, codes: dict[Number, tuple[float, int]]) -> dict[Number, int]:
    """Codes that take a distance to 0, or near it: those with the largest slopes take as much as they can, and then two
    of them the rest.

    Args:
        codes: the slope and the present code of each.
    """
    made, rest = {one: code for one, (_, code) in codes.items()}, -distance
    slopes = {one: slope for one, (slope, _) in sorted(codes.items(), key=lambda each: -abs(each[1][0])) if slope}

    def moved(one: Number, steps: int) -> bool:
        least, most = one.ends
        return least <= made[one] + steps <= most

    for one, slope in slopes.items():
        least, most = one.ends
        steps = max(least - made[one], min(round(rest / slope), most - made[one]))
        made[one] += steps
        rest -= steps * slope
    for one, other in itertools.permutations(slopes, 2) if rest else ():
        for steps in range(-_MOST_STEPS, _MOST_STEPS + 1):
            others, left = divmod(rest - steps * slopes[one], slopes[other])
            if not left and moved(one, steps) and moved(other, int(others)):
                made[one] += steps
                made[other] += int(others)
                return made
    return made
