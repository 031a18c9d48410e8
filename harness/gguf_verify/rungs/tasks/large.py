"""Calls of dequantizers and quantizers that are too large for memory: some of their thread blocks, as in `huge`.

The input repeats a prime number of blocks, so the output repeats, too: it is the output of an ordinary call with these
blocks, which is judged. A thread block that writes something else there is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hosts.memory import POISON
from ...kernels.domain import Domain, Extent
from ...kernels.launches import LargeCall
from ...support.errors import EnvironmentFault, KernelFault
from ..index_limits import Huge, huge
from ..thread_blocks import BlocksAlone

Words = npt.NDArray[np.uint32]

#: Blocks that repeat, a prime.
REPEATED = 1021
#: Thread blocks of a small call, beyond which none is tried; its rows or tokens, and its columns.
_MOST_SMALL, _FEW, _COLUMNS = 2048, 3, 1024


@dataclass(frozen=True)
class Repeating:
    """Calls whose input repeats, so that their outputs repeat. Sizes are (rows or tokens, columns).

    Args:
        what: the operand that is large: rows ("N·K") or tokens ("M·K").
        unit: K is a multiple of this.
        nbytes: that a value takes at most, of what is read and of what is written.
        values, period: how many values of the input repeat, and bytes of the output.
        input: sizes → the input.
        outputs: sizes → the bytes that an ordinary call writes. Raises KernelFault.
        large: sizes → a call that is too large for memory, or why it cannot be made.
    """

    what: str
    unit: int
    nbytes: float
    values: int
    period: int
    input: Callable[[int, int], npt.NDArray[Any]]
    outputs: Callable[[int, int], npt.NDArray[np.uint8]]
    large: Callable[[int, int], LargeCall | str]

    def extent(self, domain: Domain) -> Extent:
        """Where the kernel promises to work: rows or tokens."""
        return domain.n if self.what == "N·K" else domain.m

    def small(self, domain: Domain) -> tuple[int, int] | None:
        """Sizes of an ordinary call with the whole input; None if the domain has none."""
        k = _columns_of(domain.k, self.unit)
        count = None if k is None else self.extent(domain).up(-(-self.values // k))
        return None if k is None or count is None else (count, k)

    def sizes(self, domain: Domain) -> list[tuple[Huge, int, int]]:
        """Calls whose rows or tokens pass 2^31 in values and bytes: see `LargeTask.check`."""
        extent, found = self.extent(domain), []
        for size in huge(domain, self.unit, self.nbytes, self.nbytes):
            if size.what == self.what:
                below = extent.down(int(0.9 * 2**31 / (size.k * max(1.0, self.nbytes)))) or 0
                found.append((size, size.n if size.what == "N·K" else size.m, below))
        return found

    def task(self, domain: Domain, seed: int) -> LargeTask | None:
        """The large calls; None if the domain has none. Raises KernelFault."""
        small, extent = self.small(domain), self.extent(domain)
        some = extent.up(_FEW) or extent.down(_FEW)
        if small is None or some is None:
            return None
        made = self.outputs(*small)[: self.period]
        expected = np.tile(made, 4 // math.gcd(4, made.size)).view("<u4")  # whole words
        return LargeTask(self.large, self.whole_words, expected, (some, small[1]), seed)

    def whole_words(self, count: int, k: int) -> Words:
        """The whole words that an ordinary call writes. Raises KernelFault."""
        made = self.outputs(count, k)
        return made[: made.size // 4 * 4].view("<u4")


def _columns_of(extent: Extent, unit: int) -> int | None:
    """A number of columns in a domain that is a multiple of a unit; None if there is none."""
    found = extent.up(_COLUMNS) or extent.up(unit)
    for _ in range(1 << 8):
        if found is None or found % unit == 0:
            return found
        found = extent.up(found + 1)
    return None


@dataclass(frozen=True)
class LargeTask:
    """One kind of call.

    Args:
        large: (rows or tokens, columns) → the call, or why it cannot be made.
        whole: (rows or tokens, columns) → the words that an ordinary call of the same repeating input writes. Raises
            KernelFault.
        expected: the words that repeat in every output.
        small: rows or tokens, and columns, of a call whose thread blocks all run by themselves.
        seed: of random blocks.
    """

    large: Callable[[int, int], LargeCall | str]
    whole: Callable[[int, int], Words]
    expected: Words
    small: tuple[int, int]
    seed: int

    def check(self, sizes: Sequence[tuple[Huge, int, int]]) -> tuple[list[str], list[tuple[str, str]], str]:
        """Run some thread blocks of large calls.

        Args:
            sizes: with rows or tokens, and those of a call in which no index reaches 2^31.

        Returns: the correct calls; what is not covered, and why; and the fault in words, or "".
        """
        indices, not_covered = list[str](), list[tuple[str, str]]()
        for size, count, below in sizes:
            what = f"{size.what} of 2^31 and more"
            try:
                call = self.large(count, size.k)
                if isinstance(call, LargeCall) and call.launched.refused:
                    call = call.launched.refused
                if isinstance(call, str) or (why := self._dependent()) is not None:
                    not_covered.append((what, call if isinstance(call, str) else str(why)))
                    continue
            except (KernelFault, EnvironmentFault) as error:  # a number of a parameter does not fit its type
                not_covered.append((what, str(error)))
                continue
            where = f"{size.what.replace('·', ' × ')} = {count} × {size.k}"
            try:
                wrong, ran = self._wrong(call, size.crossings, (count, size.k))
            except EnvironmentFault as error:
                not_covered.append((what, str(error)))
                continue
            if wrong:
                return indices, not_covered, f"at {where}: {wrong}{self._why(below, size)}"
            indices.append(f"{ran} thread blocks of {where}")
        return indices, not_covered, ""

    def _why(self, below: int, size: Huge) -> str:
        """That an index overflows, if a smaller call is correct; in words that follow the fault."""
        try:
            call = self.large(below, size.k) if below else ""
            if isinstance(call, str) or call.launched.refused or self._wrong(call, (), (below, size.k))[0]:
                return ""
        except (KernelFault, EnvironmentFault):  # nothing is known of the smaller call; the larger one is wrong
            return ""
        where = f"{size.what.replace('·', ' × ')} = {below} × {size.k}"
        return f" (an index or a count overflows 32 bits: right at {where}, where they take less than 2^31 bytes)"

    def _wrong(self, call: LargeCall, crossings: tuple[float, ...], key: tuple[int, int]) -> tuple[str, int]:
        """The fault of chosen thread blocks, and how many ran. Raises EnvironmentFault."""
        blocks = BlocksAlone(call.run, call.launched, call.words, (self.seed, *key))
        for number in blocks.chosen(crossings):
            of = f"thread block {number:,} of {call.launched.blocks:,}"
            try:
                written = blocks.of(number)
            except KernelFault as error:
                return f"{of}: {error}", len(blocks.written)
            bad = written.words != self.expected[written.at % len(self.expected)]
            if bad.any():
                at = 4 * int(written.at[bad.argmax()])
                return f"{of} writes something else than in a small call at byte {at:,}", len(blocks.written)
        try:
            return blocks.unwritten() or "", len(blocks.written)
        except KernelFault as error:
            return f"one of {call.launched.blocks:,} thread blocks: {error}", len(blocks.written)

    def _dependent(self) -> str | None:
        """Why thread blocks cannot be judged by themselves, tried at a small size; None where they can. Raises
        KernelFault, EnvironmentFault."""
        call = self.large(*self.small)
        if isinstance(call, str):
            return call
        if call.launched.blocks > _MOST_SMALL:
            return f"it has {call.launched.blocks:,} thread blocks for {call.words:,} words"
        alone = np.full(call.words, POISON)
        for number in range(call.launched.blocks):
            written = call.run(number)
            alone[written.at] = written.words
        if np.array_equal(alone, self.whole(*self.small)):
            return None
        return (
            "its thread blocks depend on each other, or share words of 4 bytes: by themselves they write something "
            "else than together"
        )
