"""Clusters: thread blocks that quantize a few tokens together (kernels/cluster.cuh)."""

from __future__ import annotations

#: Thread blocks of a cluster, by tokens of a build, and the first cards that have clusters.
_BLOCKS, _FIRST_CARD = {1: 1, 2: 4, 4: 8, 8: 8}, 90


def cluster(sm: str | None, tokens: int) -> int:
    """How many thread blocks share a build's tokens on a card of compute capability `sm`, or on the CPU host (None)."""
    return _BLOCKS[tokens] if sm is None or int(sm) >= _FIRST_CARD else 1


def whole_clusters(of: int, strips: int, resident: int) -> int:
    """Thread blocks, in clusters of so many, for strips of which each block takes any number: no more than are resident
    at a time, and at least one cluster."""
    return min(-(-strips // of), max(1, resident // of)) * of


__all__ = ["cluster", "whole_clusters"]
