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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared, Comparison, in_words
from ....kernels.launches import SparseProduct
from ...plan import Probe, near
from ...run import Run
from .along import Shape
from .compared_data import Blocks, Pair, QuantizedBlocks, probes_with, with_blocks
from .comparisons import OF_DATA, Boundary, boundaries
from .observing import Observed
from .steering import Steered, places_of, steered
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


@dataclass(frozen=True)
class Base:
    """Where a search begins: a shape, and a block of each operand that all are; None: ordinary ones."""

    shape: Shape
    pair: Pair | None = None


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
    pairs: tuple[Pair, ...]
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
        self._pairs: dict[str, tuple[Pair, ...]] = {}

    def probes(self, shapes: Sequence[Shape]) -> Iterator[Probe]:
        """Those of the comparisons with data. `shapes`: those at which comparisons of ordinary products change."""
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
                ordinary, with_data = ordinary + (base.pair is None), with_data + (base.pair is not None)
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
        here = observed(shape, None if base.pair is None else with_blocks(product, [base.pair])) or {}
        if not here.keys() - self._shown:
            return None
        self._shown |= here.keys()
        at, found = base.pair is not None or shape not in {*self._ordinary()}, list[WithData]()
        reached, met, unequal = dict[Pair, None](), {*self._done}, frozenset[Comparison]()
        blocks = Blocks(self._semantics, product, base.pair)
        quantized = QuantizedBlocks.of(self._semantics, product, base.pair)
        for each in (blocks,) if quantized is None else (blocks, quantized):
            if each is quantized and not unequal:
                continue
            steps = self._steered(shape, product, each, met, most)
            unequal = steps.unequal
            for place, data in [*places_of(steps.data).items()][:_MOST_PLACES]:
                pairs = tuple(map(each.bytes_of, data))
                self._pairs[place] = (*self._pairs.get(place, ()), *pairs)
                found.append(WithData(self._words(place), shape, pairs, at))
            behind_data = [one for one in steps.data if one not in here and one not in self._shown]
            reached |= dict.fromkeys(each.bytes_of(steps.data[one][0]) for one in behind_data)
            self._done |= steps.data.keys()
            met |= (here.keys() | steps.data.keys()) - unequal
        for pair in [*reached][:_MOST_SIZED]:
            found += self._sized(shape, pair, behind)
        self._shown |= self._done
        return found

    def _steered(
        self, shape: Shape, product: SparseProduct, blocks: Blocks, met: Collection[Comparison], most: int
    ) -> Steered:  # fmt: skip
        """The data that a search from some blocks finds. `met`: comparisons that are not solved."""
        known = frozenset(met)

        def observe(data: Data) -> Compared:
            compared = self._observed(shape, with_blocks(product, [blocks.bytes_of(data)])) or {}
            return {one: of for one, of in compared.items() if one not in known}

        return steered(blocks.start, blocks.numbers, observe, most)

    def _sized(self, shape: Shape, pair: Pair, behind: deque[Base]) -> Iterator[WithData]:
        """The shapes at which comparisons change that are only made with some data."""

        def with_data(shape: Shape) -> Compared | None:
            return self._observed.sizes(shape, with_blocks(self._observed.product(shape), [pair]))

        for boundary in boundaries(self._domain, self._unit, with_data, OF_DATA, shape, self._shown):
            for found in boundary.shapes:
                yield WithData(self._words(boundary.place), found, (pair,), True)
                behind.append(Base(found, pair))

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
