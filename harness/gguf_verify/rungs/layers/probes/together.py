"""Probes with the data that a kernel's code compares with, also at the sizes that it compares in the same condition.

A comparison of data may only be made at some sizes, `if (M % 6 == 5 && sum == -6988)`, and one of sizes only with some
data. So the search goes from one base to the next: a shape, and the data of its blocks. From each base the comparisons
that no earlier one showed are solved for data; those that only the data found show are solved for sizes with these
data; and each shape found, with its data, is another base. Comparisons of one line that are both made anywhere,
`(sum == -6988) & (M % 6 == 5)`, are tried together as they are.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared, Comparison, in_words
from ...plan import Probe, near
from ...run import Run
from .along import Shape
from .compared_data import Blocks, probes_with
from .comparisons import OF_DATA, Boundary, boundaries
from .observing import Observed
from .steering import places_of, steered
from .stored_numbers import Data

#: Shapes, in units of K, at which data are searched for first, and then if they show further comparisons; the units of
#: another probe with these data.
_SHAPES, _UNITS = ((3, 7, 1), (1, 33, 2), (16, 64, 2), (130, 130, 2)), 2
#: Bases with ordinary data and with others; data of one base with which sizes are searched for; places of one base.
_MOST_BASES, _MOST_BEHIND, _MOST_SIZED, _MOST_PLACES = 8, 12, 8, 40
#: Products that are observed in a search for data at a base.
_MOST_OBSERVED: dict[str, int] = {"thread blocks": 3000, "calls": 700}
#: Multiply-adds of a base of whole calls.
_MOST_WORK_OBSERVED = 1 << 22
#: Shapes and pairs of blocks of one line that are combined; calls of one comparison at a shape of its own.
_MOST_SHAPES_OF_LINE, _MOST_PAIRS_OF_LINE, _MOST_CALLS = 8, 8, 8

_Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Base:
    """Where a search begins: a shape, and the data of all blocks; None: ordinary ones."""

    shape: Shape
    data: Data | None = None


@dataclass(frozen=True)
class WithData:
    """Blocks to try at a shape.

    Args:
        because: the comparison, in words.
        pairs: blocks of weights and of activations.
        at: whether other rows and columns are no use: a comparison depends on them.
    """

    because: str
    shape: Shape
    pairs: tuple[_Pair, ...]
    at: bool


class Together:
    """The search for data, and for data and sizes together.

    Args:
        sizes: the boundaries of ordinary products.
    """

    def __init__(self, run: Run, fmt: WeightFormat, observed: Observed, sizes: Sequence[Boundary]) -> None:
        self._run, self._fmt, self._observed, self._sizes = run, fmt, observed, sizes
        self._semantics, self._domain, self._unit = run.semantics(fmt), run.kernel.domain, observed.huge.unit
        #: Comparisons that a base showed, and those for which data were found.
        self._shown, self._done = set[Comparison](), set[Comparison]()
        #: FILE:LINE → the blocks found for it with a shape of its first search.
        self._pairs: dict[str, tuple[_Pair, ...]] = {}

    def probes(self, shapes: Sequence[Shape]) -> Iterator[Probe]:
        """Those of the comparisons with data. `shapes`: those that comparisons of ordinary products ask for."""
        compares = self._run.kernel.of(self._fmt, 1, 1, self._unit).compares
        if compares not in _MOST_OBSERVED or isinstance(self._observed.needs, str):
            return
        for found in [*self._found(shapes, _MOST_OBSERVED[compares]), *self._of_lines()]:
            yield from self._as_probes(found)

    def _found(self, shapes: Sequence[Shape], most: int) -> Iterator[WithData]:
        first = deque(dict.fromkeys(Base(shape) for shape in (*self._ordinary(), *shapes)))
        behind = deque[Base]()
        ordinary = with_data = 0
        while (first and ordinary < _MOST_BASES) or (behind and with_data < _MOST_BEHIND):
            # what is only compared with some data is nearer to its base than another shape
            base = behind.popleft() if behind and with_data < _MOST_BEHIND else first.popleft()
            solved = self._from(base, most, behind)
            if solved is not None:
                ordinary, with_data = ordinary + (base.data is None), with_data + (base.data is not None)
                yield from solved

    def _ordinary(self) -> Iterator[Shape]:
        domain, unit = self._domain, self._unit
        for m, n, units in _SHAPES:
            shape = near(domain.m, m), near(domain.n, n), near(domain.k, units * unit, unit)
            if None not in shape:
                yield shape  # type: ignore[misc]

    def _from(self, base: Base, most: int, behind: deque[Base]) -> list[WithData] | None:
        """What is found from a base, None if it shows no further comparisons; the bases that follow are added to
        `behind`."""
        shape, observed = base.shape, self._observed
        if observed.calls and math.prod(shape) > _MOST_WORK_OBSERVED:
            return None
        product = observed.product(shape)
        blocks = Blocks(self._semantics, product)
        start = blocks.ordinary if base.data is None else base.data
        here = observed(shape, None if base.data is None else blocks.of(product, start)) or {}
        if not here.keys() - self._shown:
            return None
        self._shown |= here.keys()

        def observe(data: Data) -> Compared:
            compared = observed(shape, blocks.of(product, data)) or {}
            return {one: of for one, of in compared.items() if one not in self._done}

        made = steered(start, blocks.numbers, observe, most)
        self._done |= made.keys()
        at, found = base.data is not None or shape not in {*self._ordinary()}, list[WithData]()
        for place, data in [*places_of(made).items()][:_MOST_PLACES]:
            pairs = tuple(map(blocks.bytes_of, data))
            self._pairs.setdefault(place, pairs)
            found.append(WithData(self._words(place), shape, pairs, at))
        reached: dict[Data, None] = {}
        for comparison, data in made.items():
            if comparison not in here and comparison not in self._shown:
                reached.setdefault(data[0])
        for one in [*reached][:_MOST_SIZED]:
            found += self._sized(shape, blocks, one, behind)
        self._shown |= made.keys()
        return found

    def _sized(self, shape: Shape, blocks: Blocks, data: Data, behind: deque[Base]) -> Iterator[WithData]:
        """The shapes at which comparisons change that are only made with some data."""

        def with_data(shape: Shape) -> Compared | None:
            return self._observed.sizes(shape, blocks.of(self._observed.product(shape), data))

        for boundary in boundaries(self._domain, self._unit, with_data, OF_DATA, shape, self._shown):
            for found in boundary.shapes:
                yield WithData(self._words(boundary.place), found, (blocks.bytes_of(data),), True)
                behind.append(Base(found, data))

    def _of_lines(self) -> Iterator[WithData]:
        """The data and the shapes of comparisons on one line."""
        shapes: dict[str, dict[Shape, None]] = {}
        for boundary in self._sizes:
            if boundary.uniform and boundary.place in self._pairs:
                shapes.setdefault(boundary.place, {}).update(dict.fromkeys(boundary.shapes))
        for place, found in shapes.items():
            for shape in itertools.islice(found, _MOST_SHAPES_OF_LINE):
                yield WithData(self._words(place), shape, self._pairs[place][:_MOST_PAIRS_OF_LINE], True)

    def _words(self, place: str) -> str:
        return in_words(place, self._run.kernel.texts)

    def _as_probes(self, found: WithData) -> Iterator[Probe]:
        m, n, k = found.shape
        if found.at:
            probes = probes_with(found.shape, found.pairs, k > self._unit, found.because)
            yield from itertools.islice(probes, _MOST_CALLS)
            return
        # sums of a row are those that were observed only at the same K, where all its blocks are alike
        wide = max(k, near(self._domain.k, _UNITS * self._unit, self._unit) or 0)
        for wanted, each in {k: 1, wide: 2}.items():
            rows = each * len({weights for weights, _ in found.pairs})
            wider = near(self._domain.n, max(n, 2 * rows)) or n
            yield from probes_with((m, wider, wanted), found.pairs, each > 1, found.because)
