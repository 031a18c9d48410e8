"""Limits of a kernel: the largest sizes at which CUDA makes its launches.

A grid has at most 65,535 blocks in y and in z, so a kernel that counts tokens there is correct up to M = 65,535 and
cannot be launched beyond. Beyond all products of the model that is a limit, and no bug: it is found exactly, and a
verdict holds up to there. The sizes of a launch follow from M, N and K, so nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....kernels.domain import Domain
from ....results.rungs import RungResult
from ...plan import PLANNED, near

#: M, N and K, and why CUDA refuses one of the launches of such a product; None where it makes all.
Refusal = Callable[[int, int, int], str | None]


@dataclass(frozen=True)
class Limit:
    """A dimension, "M", "N" or "K", its largest size, and why CUDA refuses larger ones."""

    name: str
    most: int
    why: str

    @property
    def scope(self) -> str:
        """As the headline of a pass names it."""
        return f"up to {self.name} = {self.most:,}"

    @property
    def words(self) -> str:
        """The verified range, the rest, and both cures."""
        return (
            f"{self.why}. It is verified {self.scope}: declare domain = {{ {self.name} = {{ most = {self.most} }} }}, "
            f"or use another grid (2^31 - 1 blocks in x, 65,535 in y and z)"
        )

    @property
    def in_plan(self) -> bool:
        """Whether the probe plan has larger sizes, as models have."""
        return self.most < PLANNED[self.name]


def limit_of(refused: Refusal, tried: tuple[int, int, int], domain: Domain, unit: int) -> Limit | None:
    """The limit that a product of these sizes exceeds; None where no smaller M, N or K alone makes its launches.

    Args:
        unit: K is a multiple of this.
    """
    extents = (("M", domain.m, 1), ("N", domain.n, 1), ("K", domain.k, unit))
    for d in sorted(range(3), key=lambda d: -tried[d]):
        name, extent, step = extents[d]

        def fits(size: int, d: int = d) -> bool:
            return refused(*(size if i == d else v for i, v in enumerate(tried))) is None

        low = near(extent, 1, step)
        if low is None or low >= tried[d] or not fits(low):
            continue
        high = 2 * low
        while high < tried[d] and ((size := near(extent, high, step)) is None or fits(size)):
            low, high = size or low, 2 * high
        high = min(high, tried[d])
        while True:  # the largest size of the extent that fits, between `low`, which does, and `high`, which does not
            size = near(extent, (low + high) // 2, step)
            if size is None or not low < size < high:
                size = next((s for s in (near(extent, low + 1, step),) if s is not None and s < high), None)
                if size is None:
                    break
            low, high = (size, high) if fits(size) else (low, size)
        beyond = near(extent, low + 1, step) or tried[d]
        sizes = [beyond if i == d else v for i, v in enumerate(tried)]
        at = ", ".join(f"{n}={v}" for n, v in zip("MNK", sizes, strict=True))
        return Limit(name, low, f"at {at} {refused(*sizes) or 'CUDA refuses a launch'}")
    return None


def record_limit(result: RungResult, limit: Limit, kind: str, tensor: str) -> None:
    """Record a limit of the kernel with weights of a type. One below sizes that models have is not verified."""
    result.omit("grids", f"{kind}: {limit.words}", limit.scope)
    if limit.in_plan:
        result.leave(f"{kind}, {limit.name} above {limit.most:,}", limit.words, tensor, "kernel")
