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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ....kernels.comparisons import Compared, Comparison
from ...field_classes import Places, classes

#: Calls that are observed; bases; data that are combined; data of one comparison; single numbers of a name whose slopes
#: are tried.
_MOST_OBSERVED, _MOST_BASES, _MOST_COMBINED, _MOST_DATA, _MOST_SINGLE = 1500, 16, 16, 16, 64
#: Comparisons that the threads of all observed products make together, at 10 to 20 ns each.
_MOST_MADE = 1 << 27
#: Steps of a code that are tried together with those of another one.
_MOST_STEPS = 8
#: Numbers of at least this width are floating-point ones: a sign, and all ones in the exponent for no finite number.
_OF_FLOATS, _EXPONENTS = 16, {16: 0x7C00, 32: 0x7F80_0000}
#: Up to this width every pattern of a number is observed.
_EVERY_PATTERN = 4


class Data(NamedTuple):
    """One block of weights and one of activations, which all blocks of a product are: their bytes, little-endian."""

    weights: int
    x: int

    def of(self, weights: bool) -> int:
        return self.weights if weights else self.x


#: The comparisons of a product of such blocks; None if it cannot be made.
Observe = Callable[[Data], Compared | None]


@dataclass(frozen=True)
class Number:
    """A number that a block stores, or all numbers of one name, which get the same bits.

    Args:
        weights: of a block of weights, else of activations.
        places: of each bit of each of them, its place in the block and in the number.
    """

    weights: bool
    places: tuple[tuple[tuple[int, int], ...], ...]

    @property
    def width(self) -> int:
        return len(self.places[0])

    @cached_property
    def _masks(self) -> list[int]:
        """Of each bit of the number, its bits in the block."""
        masks = [0] * (1 + max(of for _, of in self.places[0]))
        for at, of in itertools.chain(*self.places):
            masks[of] |= 1 << at
        return masks

    def set(self, data: Data, pattern: int) -> Data:
        block = data.of(self.weights)
        for bit, mask in enumerate(self._masks):
            block = block | mask if pattern >> bit & 1 else block & ~mask
        return Data(block, data.x) if self.weights else Data(data.weights, block)

    def get(self, data: Data) -> int | None:
        """The pattern; None if the numbers differ."""
        block = data.of(self.weights)
        found = {sum((block >> at & 1) << of for at, of in places) for places in self.places}
        return found.pop() if len(found) == 1 else None

    @property
    def runs(self) -> list[list[int]]:
        """Patterns to observe: runs in which the value rises or falls all along."""
        patterns = [int(p) for p in classes(self.width, self.width <= _EVERY_PATTERN)]
        if self.width < _OF_FLOATS:
            return [sorted(patterns)]
        sign = 1 << self.width - 1
        return [sorted(p for p in patterns if p & sign == side) for side in (0, sign)]

    def finite(self, pattern: int) -> bool:
        ones = _EXPONENTS.get(self.width, 0)
        return 0 <= pattern < 1 << self.width and (not ones or pattern & ones != ones)


def numbers(weights: bool, stored: dict[str, list[Places]]) -> tuple[list[Number], list[Number]]:
    """The numbers of a block (`numbers_of`): those of each name together, and single ones of several."""
    together, single = list[Number](), list[Number]()
    for members in stored.values():
        places = tuple(tuple(one) for one in members)
        together.append(Number(weights, places))
        single += [Number(weights, (one,)) for one in places[:_MOST_SINGLE]] if len(members) > 1 else []
    return together, single


def steered(
    base: Data, fields: tuple[list[Number], list[Number]], observe: Observe
) -> dict[Comparison, tuple[Data, ...]]:  # fmt: skip
    """Data on both sides of a change of each comparison's outcome that depends on data, and at it.

    Args:
        base: an ordinary block of each operand.
        fields: see `numbers`, of both operands.
    """
    search, bases = _Search(*fields, observe), [base]
    with contextlib.suppress(_Spent):
        for place in bases:
            known = {comparison for comparison, _ in search.first} | {*search.at(place)}
            search.around(place)
            if place is bases[-1]:
                search.combine(base)
            new = [data for (comparison, _), data in search.first.items() if comparison not in known]
            bases += [data for data in dict.fromkeys(new) if data not in bases][: _MOST_BASES - len(bases)]
    made: dict[Comparison, dict[Data, None]] = {}
    for (comparison, _), data in search.first.items():
        made.setdefault(comparison, {}).update({} if data == base else {data: None})
    for comparison, others in search.found.items():
        made.setdefault(comparison, {}).update(others)
    return {comparison: tuple(data)[:_MOST_DATA] for comparison, data in made.items() if data}


class _Spent(Exception):
    """No further products are observed."""


@dataclass
class _Search:
    together: list[Number]
    single: list[Number]
    observe: Observe
    #: Comparison → the data that were found for it.
    found: dict[Comparison, dict[Data, None]] = field(default_factory=dict)
    #: Comparison and sign of a - b → the first data that gave it.
    first: dict[tuple[Comparison, int], Data] = field(default_factory=dict)
    _observed: dict[Data, Compared] = field(default_factory=dict)
    #: Comparisons that the threads of all observed products made.
    _made: int = 0

    def at(self, data: Data) -> Compared:
        if data not in self._observed:
            if len(self._observed) >= _MOST_OBSERVED or self._made >= _MOST_MADE:
                raise _Spent
            self._observed[data] = self.observe(data) or {}
            for comparison, operands in self._observed[data].items():
                self._made += operands.times
                for end in operands.apart:
                    self.first.setdefault((comparison, _sign(end)), data)
        return self._observed[data]

    def value(self, data: Data, comparison: Comparison, end: int) -> float | None:
        operands = self.at(data).get(comparison)
        return None if operands is None else operands.apart[end]

    def around(self, base: Data) -> None:
        """Solve each comparison in the numbers of each name, from a base."""
        changing: dict[Comparison, dict[Number, None]] = {}
        for number in self.together:
            samples = [self.at(number.set(base, pattern)) for pattern in itertools.chain(*number.runs)]
            for comparison in dict.fromkeys(itertools.chain(*samples)):
                seen = {(of.a, of.b) for sample in samples if (of := sample.get(comparison))}
                # one that is gone elsewhere may compare a single number of several
                if len(seen) > 1 or (comparison in self.at(base) and any(comparison not in s for s in samples)):
                    changing.setdefault(comparison, {})[number] = None
        for comparison, in_numbers in changing.items():
            if self.found.get(comparison):
                continue
            for number in in_numbers:
                for end in (1, 0):
                    self.keep(comparison, self.crossings(base, number, comparison, end))
            if (comparison, 0) not in self.first:
                self.approach(base, list(in_numbers), comparison)

    def combine(self, base: Data) -> None:
        """Observe pairs of the data that give equality, for `a & b`."""
        equal = dict.fromkeys(data for (_, sign), data in self.first.items() if sign == 0 and data != base)
        for one, other in itertools.combinations([*equal][:_MOST_COMBINED], 2):
            changed = [of ^ ((than ^ was) & ~(of ^ was)) for of, than, was in zip(one, other, base, strict=True)]
            self.at(Data(*changed))

    def keep(self, comparison: Comparison, data: Iterable[Data]) -> None:
        self.found.setdefault(comparison, {}).update(dict.fromkeys(data))

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

    # ---- equality that no single number showed ----------------------------------------------------------------------

    def approach(self, base: Data, changing: list[Number], comparison: Comparison) -> None:
        """Reach a = b from the nearest data: by single bits of the numbers, then by single codes."""
        distances = {
            data: min(map(abs, of[comparison].apart)) for data, of in self._observed.items() if comparison in of
        }
        nearest = min(distances, key=lambda data: distances[data])
        apart = self._observed[nearest][comparison].apart
        end = min((0, 1), key=lambda end: abs(apart[end]))
        members = self._members(changing)
        for start in dict.fromkeys((base, nearest)):
            there = self._by_bits(self._by_codes(start, members, comparison, end), changing, comparison, end)
            if self.value(there, comparison, end) == 0:
                one = next((one for one in members if self._slope(there, one, comparison, end)), None)
                beside = [] if one is None else [one.set(there, _pattern(one, _code(one, there) + i)) for i in (-1, 1)]
                return self.keep(comparison, (there, *beside))
        return None

    def _members(self, changing: list[Number]) -> list[Number]:
        """The single numbers of some names; activations first, which have more codes."""
        places = {(number.weights, one) for number in changing for one in number.places}
        members = [one for one in self.single if (one.weights, one.places[0]) in places]
        return sorted(members, key=lambda one: one.weights)

    def _nearer(self, data: Data, other: Data, comparison: Comparison, end: int) -> bool:
        here, there = self.value(data, comparison, end), self.value(other, comparison, end)
        return here is not None and there is not None and abs(there) < abs(here)

    def _by_bits(self, data: Data, changing: list[Number], comparison: Comparison, end: int) -> Data:
        for number in changing:
            for bit in reversed(range(number.width)):
                pattern = number.get(data)
                if pattern is None or self.value(data, comparison, end) == 0:
                    break
                other = number.set(data, pattern ^ 1 << bit)
                if number.finite(pattern ^ 1 << bit) and self._nearer(data, other, comparison, end):
                    data = other
        return data

    def _by_codes(self, data: Data, members: list[Number], comparison: Comparison, end: int) -> Data:
        """Solve a - b = 0 in single codes, as if it were linear."""
        for of in (False, True):
            here = self.value(data, comparison, end)
            slopes = {one: self._slope(data, one, comparison, end) for one in members if one.weights == of}
            if not here or not any(slopes.values()):
                continue
            other = data
            for one, code in _solved(here, {one: (slope, _code(one, data)) for one, slope in slopes.items()}).items():
                other = one.set(other, _pattern(one, code))
            data = other if self._nearer(data, other, comparison, end) else data
        return data

    def _slope(self, data: Data, one: Number, comparison: Comparison, end: int) -> float:
        """Of a - b, if it is an integer, along a number; 0 if that does not change it."""
        code = _code(one, data)
        step = 1 if _code(one, one.set(data, _pattern(one, code + 1))) == code + 1 else -1
        here = self.value(data, comparison, end)
        there = self.value(one.set(data, _pattern(one, code + step)), comparison, end)
        return 0.0 if here is None or there is None or here % 1 or there % 1 else (there - here) * step


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _ends(number: Number) -> tuple[int, int]:
    """The least and the largest code: those of bytes are signed."""
    half = 1 << number.width - 1
    return (-half, half - 1) if number.width == 8 else (0, 2 * half - 1)


def _code(number: Number, data: Data) -> int:
    pattern = number.get(data) or 0
    return pattern if pattern <= _ends(number)[1] else pattern - (1 << number.width)


def _pattern(number: Number, code: int) -> int:
    """The bits of the nearest code."""
    least, most = _ends(number)
    return max(least, min(code, most)) & (1 << number.width) - 1


def places_of(found: dict[Comparison, tuple[Data, ...]]) -> dict[str, tuple[Data, ...]]:
    """FILE:LINE → the data of all its comparisons, each once."""
    by_place = dict[str, dict[Data, None]]()
    for comparison, data in found.items():
        by_place.setdefault(comparison.place, {}).update(dict.fromkeys(data))
    return {place: tuple(data) for place, data in by_place.items()}


def _solved(distance: float, codes: dict[Number, tuple[float, int]]) -> dict[Number, int]:
    """Codes that take a distance to 0, or near it: those with the largest slopes take as much as they can, and then two
    of them the rest.

    Args:
        codes: the slope and the present code of each.
    """
    made, rest = {one: code for one, (_, code) in codes.items()}, -distance
    slopes = {one: slope for one, (slope, _) in sorted(codes.items(), key=lambda each: -abs(each[1][0])) if slope}

    def moved(one: Number, steps: int) -> bool:
        least, most = _ends(one)
        return least <= made[one] + steps <= most

    for one, slope in slopes.items():
        least, most = _ends(one)
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
