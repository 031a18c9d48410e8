"""Thread blocks of a large launch that run by themselves: which ones, what the others then must have written, and
whether they need other blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..hosts.base import Written
from ..hosts.memory import POISON
from ..kernels.interface import Kernel
from ..kernels.launches import Launched, Needs, SparseProduct, needed, possible_needs
from ..support.errors import KernelFault

Floats = npt.NDArray[np.float32]

#: Outputs and thread blocks of a small product, beyond which it is not tried; its tokens and rows.
_MOST_PRODUCTS, _MOST_SMALL, _SMALL = 1 << 28, 2048, (3, 150)
#: Thread blocks of an earlier launch that run before one of the last, at most; ways in which blocks may depend on those
#: of earlier launches that are tried.
_MOST_NEEDED, _MOST_NEEDS = 2048, 256
_DEPENDENT = "its thread blocks depend on each other: by themselves they give other outputs than together"
#: Random thread blocks.
_DRAWN = 6
#: Blocks that are tried beyond the last one that writes anything; and further ones before it, if these may leave
#: outputs unwritten, which is reported for at least one in this number of outputs.
_BEYOND, _MORE, SHARE = 6, 128, 16


class BlocksAlone:
    """Thread blocks of one launch, each of which runs by itself, once.

    Args:
        run: runs one.
        words: numbers of the whole output.
        key: of random numbers.
        share: unwritten outputs are reported for at least one in this number.
    """

    def __init__(
        self, run: Callable[[int], Written], launched: Launched, words: int, key: tuple[int, ...], share: int = SHARE
    ) -> None:  # fmt: skip
        self._run, self.launched, self._words, self._share = run, launched, words, share
        self._rng = np.random.default_rng(key)
        #: How many words each wrote, by number.
        self.written: dict[int, int] = {}

    def of(self, number: int) -> Written:
        """The words that one wrote. Raises KernelFault, EnvironmentFault."""
        written = self._run(number)
        self.written[number] = len(written.at)
        return written

    def _number(self, at: tuple[int, ...]) -> int:
        x, y, _ = self.launched.grid
        return at[0] + x * (at[1] + y * at[2])

    def chosen(self, crossings: tuple[float, ...]) -> list[int]:
        """The corners of the grid; those at these shares of its blocks, and beside them; random ones."""
        blocks = self.launched.blocks
        corners = itertools.product(*(sorted({0, size - 1}) for size in self.launched.grid))
        near = [int(share * blocks) + d for share in crossings for d in (-1, 0, 1)]
        drawn = self._rng.integers(0, blocks, _DRAWN).tolist()
        found = [*map(self._number, corners), *near, *drawn]
        return [number for number in dict.fromkeys(found) if 0 <= number < blocks]

    def unwritten(self) -> str | None:
        """Whether outputs are left as they were, after the chosen blocks: why that is so, in words, or None.

        All blocks together write at most as much as the most that one was seen to write, for each that writes at all.
        Those are searched for in each dimension of the grid; where they do not come first, nothing is said.
        """
        if not max(self.written.values()):
            return f"none of {len(self.written)} thread blocks of {self.launched.blocks:,} writes anything"
        ends = [self._end(d) if self._wrote(0) else size for d, size in enumerate(self.launched.grid)]
        if any(map(self._wrote, self._past(ends))):
            return None
        if self._left(ends) > 0:  # blocks need not all write as much
            for at in zip(*(self._rng.integers(0, end, _MORE).tolist() for end in ends), strict=True):
                self._wrote(self._number(at))
        left = self._left(ends)
        if left * self._share <= self._words:
            return None
        return f"{left:,} or more of {self._words:,} words of its output are never written"

    def _left(self, ends: list[int]) -> int:
        """How many words are never written, where blocks write up to these ends and none more than was seen."""
        return self._words - max(self.written.values()) * math.prod(ends)

    def _wrote(self, number: int) -> bool:
        if number not in self.written:
            self.of(number)
        return self.written[number] > 0

    def _end(self, dimension: int) -> int:
        """How many blocks in a row along one dimension write, from block 0, which does."""
        low, high = 0, self.launched.grid[dimension]  # block `low` writes, block `high` does not

        def along(at: int) -> int:
            return self._number(tuple(at if d == dimension else 0 for d in range(3)))

        if self._wrote(along(high - 1)):
            return high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._wrote(along(middle)) else (low, middle)
        return high

    def _past(self, ends: list[int]) -> Iterator[int]:
        """Drawn blocks beyond these ends."""
        for d, (end, size) in enumerate(zip(ends, self.launched.grid, strict=True)):
            for _ in range(_BEYOND if end < size else 0):
                at = [int(self._rng.integers(0, size)) for size in self.launched.grid]
                at[d] = int(self._rng.integers(end, size))
                yield self._number(tuple(at))


def dependence(
    kernel: Kernel, fmt: WeightFormat, k: int, sparse: Callable[[int, int, int], SparseProduct]
) -> str | tuple[Needs, ...]:
    """The blocks of earlier launches that the thread blocks of the last one need; or why these cannot be judged by
    themselves. It is tried at a small size. Raises KernelFault.

    Args:
        sparse: M, N and K → the operands of a product.
    """
    domain = kernel.domain
    m, n = (extent.up(few) or extent.down(few) for extent, few in ((domain.m, _SMALL[0]), (domain.n, _SMALL[1])))
    if not m or not n or m * n * k > _MOST_PRODUCTS:
        return "whether its thread blocks depend on each other could not be tried at a small size"
    launched = kernel.only_launch(fmt, m, n, k)
    if isinstance(launched, str):
        return launched
    if launched.blocks > _MOST_SMALL:
        return f"it has {launched.blocks:,} thread blocks for {m * n} outputs"
    small = sparse(m, n, k)
    together = kernel.together(small)
    each = [possible_needs(one.grid, _MOST_NEEDED) for one in kernel.earlier(fmt, m, n, k)]
    why = "its thread blocks need too many of an earlier launch"
    candidates = list(itertools.islice(itertools.product(*each), _MOST_NEEDS))
    if len(candidates) > 1:  # with too few needs a block writes nothing; trying all blocks would take long to show it
        last = launched.blocks - 1
        candidates.sort(key=lambda needs: not _writes(kernel, replace(small, needs=needs), last))
    for needs in candidates:
        found = _apart(kernel, replace(small, needs=needs), launched.blocks, together)
        if found is None:
            return needs
        why = found
    return why


def _writes(kernel: Kernel, small: SparseProduct, number: int) -> bool:
    """Whether a thread block writes anything by itself."""
    try:
        return kernel.alone(small, number).at.size > 0
    except KernelFault:
        return False


def _apart(kernel: Kernel, small: SparseProduct, blocks: int, together: Floats) -> str | None:
    """Why a small product's thread blocks do not give, each by itself, what all of them give together; None where
    they do."""
    alone = np.full(together.shape, POISON)
    if "output" in small.fused:  # what a sum leaves as it was
        alone = widened(small.beside(range(small.m), range(small.n))["output"]).view(np.uint32)
    for number in range(blocks):
        try:
            written = kernel.alone(small, number)
            at = small.places(written.at)
        except KernelFault as error:
            return f"by itself, at a small size, a thread block does not run: {error}"
        if (written.words != together.view(np.uint32)[at]).any():
            return _DEPENDENT
        alone[at] = written.words
    return None if np.array_equal(alone, together.view(np.uint32)) else _DEPENDENT


def too_many(earlier: tuple[Launched, ...], needs: tuple[Needs, ...]) -> int:
    """The blocks of an earlier launch that one block needs, if they are too many; 0 if they are not."""
    counts = (len(needed(one.grid, of, (0, 0, 0))) for one, of in zip(earlier, needs, strict=True))
    return next((count for count in counts if count > _MOST_NEEDED), 0)


def widened(values: npt.NDArray[Any]) -> Floats:
    """Numbers of a type, bfloat16 as its bits, as float32."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(values, np.float32)
