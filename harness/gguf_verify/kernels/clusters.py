"""Clusters: groups of thread blocks that quantize a few tokens together (kernels/cluster.cuh)."""

from __future__ import annotations

from collections.abc import Mapping

from .tiling import several_strips

#: The first compute capability with clusters.
_FIRST_CARD = 90


def cluster(sizes: Mapping[int, tuple[int, int]], sm: str | None, tokens: int, n: int) -> int:
    """Return how many thread blocks share the tokens of a build, for n rows.

    Args:
        sizes: keyed by the tokens of the build: the cluster size where each thread block has at most one strip, and the
            size otherwise.
        sm: compute capability of the GPU, or None for the CPU host.
    """
    if sm is not None and int(sm) < _FIRST_CARD:
        return 1
    return sizes[tokens][several_strips(n)]


def whole_clusters(of: int, strips: int, resident: int) -> int:
    """Return the number of thread blocks to launch, in clusters of `of` blocks that take any number of strips each.

    The number is at most what can be resident at a time, and at least one cluster.
    """
    return min(-(-strips // of), max(1, resident // of)) * of
