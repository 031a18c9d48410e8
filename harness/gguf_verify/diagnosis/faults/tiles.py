"""Faults of tiles along K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..fault import Case, Variants, fault
from ..operands import Doubles

_TILES = (32, 64, 128, 256, 512)


def _tiles(case: Case) -> Iterator[tuple[int, int]]:
    """Yield (values, terms) of tiles of which K holds more than one."""
    terms, values = case.parts.q.shape[1:]
    for tile in _TILES:
        if tile % values == 0 and 2 * tile <= terms * values:
            yield tile, tile // values


def _values_at_the_end(case: Case, weight: float) -> Variants:
    """Yield products in which the last values of a row, fewer than a term has, count `weight` times."""
    p = case.parts
    terms, values = p.q.shape[1:]
    length = 1
    while length <= values // 2:
        counted = np.ones((terms, values))
        counted[-1, -length:] = weight
        yield f"the last {length} of K", replace(p, a=p.a * counted).with_sums()
        length *= 2


@fault(
    "end-of-k-dropped",
    "the end of K is skipped",
    "make the loop over K cover its last tile",
)
def end_of_k_dropped(case: Case) -> Variants:
    p = case.parts
    terms, values = p.q.shape[1:]
    k = terms * values
    lengths = [(tile, f"the last {tile} of K") for tile, _ in _tiles(case)]
    lengths += [(k % tile, f"K mod {tile} = {k % tile} at the end") for tile in _TILES if k > tile]
    for length, which in lengths:
        count = length // values
        if 0 < count < terms:  # two of one length here may differ in calls with another K
            kept = np.arange(terms) < terms - count
            yield which, replace(p, d=p.d * kept, m=p.m * kept)

    yield from _values_at_the_end(case, 0.0)
    if terms > p.per_block:
        first = np.arange(terms) < p.per_block
        yield "all but the first block", replace(p, d=p.d * first, m=p.m * first)


@fault(
    "end-of-k-twice",
    "the end of K is added twice",
    "make the parts of K that threads process disjoint",
)
def end_of_k_twice(case: Case) -> Variants:
    p = case.parts
    terms, values = p.q.shape[1:]
    yield from _values_at_the_end(case, 2.0)
    for tile in _TILES:
        count = tile // values
        if 0 < count < terms:
            factor = np.where(np.arange(terms) < terms - count, 1.0, 2.0)
            yield f"the last {tile} of K", replace(p, d=p.d * factor, m=p.m * factor)


@fault(
    "stale-tile",
    "the last tile of K holds the data of the one before it",
    "load the last tile (and synchronize) before it is used",
)
def stale_tile(case: Case) -> Variants:
    p = case.parts
    for tile, count in _tiles(case):

        def old(v: Doubles, count: int = count) -> Doubles:
            return np.concatenate([v[:, :-count], v[:, -2 * count : -count]], axis=1)

        weights = replace(p, q=old(p.q), d=old(p.d), m=old(p.m))
        yield f"weights, of {tile}", weights
        yield f"codes of weights, of {tile}", replace(p, q=old(p.q))
        yield f"codes of activations, of {tile}", replace(p, a=old(p.a)).with_sums()
        for of, other in (("activations", p), ("both", weights)):
            yield f"{of}, of {tile}", replace(other, a=old(p.a), e=old(p.e), s=old(p.s))
