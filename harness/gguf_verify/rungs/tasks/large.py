"""Calls of dequantizers and quantizers that are too large for memory: some of their thread blocks, as in `huge`.

The input repeats a prime number of blocks, so the output repeats, too: it is the output of an ordinary call with these
blocks, which is judged. A thread block that writes something else there is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...checks import ALONE
from ...gguf.file import Tensor
from ...hosts.memory import POISON
from ...kernels.domain import Domain, Extent
from ...kernels.launches import LargeCall
from ...results.calls import Call
from ...results.failures import Failure
from ...support.errors import EnvironmentFault, KernelFault
from ...support.text import printable
from ..plan import Huge, huge
from ..schedules import BRIEF
from ..thread_blocks import BlocksAlone
from .calls import INDICES, Found, TaskCalls

Words = npt.NDArray[np.uint32]

#: Blocks that repeat, a prime.
REPEATED = 1021
#: Thread blocks of a small call, beyond which none is tried; its rows or tokens, and its columns.
_MOST_SMALL, _FEW, _COLUMNS = 2048, 3, 1024


def columns_of(extent: Extent, unit: int) -> int | None:
    """A number of columns in a domain that is a multiple of a unit; None if there is none."""
    found = extent.up(_COLUMNS) or extent.up(unit)
    for _ in range(1 << 8):
        if found is None or found % unit == 0:
            return found
        found = extent.up(found + 1)
    return None


def few(extent: Extent) -> int | None:
    """A small number of rows or tokens in a domain; None if there is none."""
    return extent.up(_FEW) or extent.down(_FEW)


def sizes_of(domain: Domain, unit: int, what: str, nbytes: float) -> list[tuple[Huge, int, int]]:
    """Calls whose rows ("N·K") or tokens ("M·K") pass 2^31 in values and bytes: see `LargeTask.check`.

    Args:
        unit: K is a multiple of this.
        nbytes: that a value takes at most, of what is read and of what is written.
    """
    rows = what == "N·K"
    extent, out = domain.n if rows else domain.m, []
    for size in huge(domain, unit, nbytes, nbytes):
        if size.what == what:
            below = extent.down(int(0.9 * 2**31 / (size.k * max(1.0, nbytes)))) or 0
            out.append((size, size.n if rows else size.m, below))
    return out


def check_large(
    calls: TaskCalls, found: Found, tensor: Tensor, sizes: Sequence[tuple[Huge, int, int]],
    make: Callable[[Call], LargeTask | None],
) -> None:  # fmt: skip
    """Check the large calls of one kind.

    Args:
        found: where it is recorded.
        tensor: that failures name.
        sizes: of `sizes_of`.
        make: makes the task; None if its small call is wrong, which is recorded.
    """
    call = Call(kind="index")
    if not calls.wants(call):
        return
    if calls.only is None and (calls.run.options.probes == "brief" or found.wrong or calls.broken):
        wrong = found.wrong or calls.broken
        why = "the kernel is wrong already" if wrong else BRIEF
        found.not_covered.append((INDICES, why))
        return
    task = make(call) if sizes else None
    if task is None:
        found.not_covered.append((INDICES, "its domain ends before"))
        return
    indices, not_covered, wrong_words = task.check(sizes)
    if calls.only is not None:
        calls.result.count(ALONE, len(indices))
    found.indices += indices
    found.not_covered += not_covered
    if wrong_words:
        found.wrong += 1
        calls.result.fail(Failure(f"{printable(tensor.name, 64)}, {found.name}: {wrong_words}", tensor.name, call=call))


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
