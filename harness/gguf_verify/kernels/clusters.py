"""Clusters: thread blocks that quantize a few tokens together (kernels/cluster.cuh)."""

from __future__ import annotations

from collections.abc import Mapping

from .tiling import several_strips

#: The first cards that have clusters.
_FIRST_CARD = 90


def cluster(sizes: Mapping[int, tuple[int, int]], sm: str | None, tokens: int, n: int) -> int:
    """How many thread blocks share the tokens of a build, for n rows.

    Args:
        sizes: by tokens of the build: where each thread block has one strip at most, and elsewhere.
        sm: the card's compute capability, or None for the CPU host.
    """
    if sm is not None and int(sm) < _FIRST_CARD:
        return 1
    return sizes[tokens][several_strips(n)]


def whole_clusters(of: int, strips: int, resident: int) -> int:
    """Thread blocks, in clusters of so many, for strips of which each block takes any number: no more than are resident
    at a time, and at least one cluster."""
    return min(-(-strips // of), max(1, resident // of)) * of
