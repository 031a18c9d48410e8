"""The order in which a launch runs, on a host that can choose it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OrderOfThreads = Literal["ascending", "descending", "seeded"]


@dataclass(frozen=True)
class Schedule:
    """The order of a launch. A GPU guarantees none, so a kernel without races gives the same bits under every schedule.

    Args:
        order: of the threads in a block, of warps and of blocks. Ascending: thread 0 and block 0 first, and
            asynchronous operations complete at once. Descending: the last ones first, and asynchronous copies and
            products complete as late as the waits for them allow. Seeded: every choice is random.
        seed: of the random choices.
        checked: the kernel is compiled with instrumentation that finds data races, accesses outside buffers, misaligned
            ones, shared memory that is used before it is written, signed overflow and divergent barriers.
        older: compiled as for a GPU before sm_90, in a source that distinguishes.
        converts: a float that an integer type cannot hold is converted as on this processor, even if a GPU gives
            another integer, which otherwise ends the launch.
        traced: compiled so that it notes the operands of its comparisons.
    """

    order: OrderOfThreads = "ascending"
    seed: int = 0
    checked: bool = False
    older: bool = False
    converts: bool = False
    traced: bool = False

    @property
    def wall_before(self) -> bool:
        """Whether memory without access rights lies directly before inputs, not behind them."""
        return self.order == "seeded" and self.seed % 2 == 1

    @property
    def fill(self) -> int:
        """The byte in shared memory that no thread has written."""
        return {"ascending": 0xFF, "descending": 0, "seeded": 0x40 + self.seed * 37 % 0x80}[self.order]

    @property
    def words(self) -> str:
        """The schedule in a few words."""
        parts = ["checked"] if self.checked else []
        parts.append(f"seed {self.seed}" if self.order == "seeded" else self.order)
        parts += ["as before sm_90"] if self.older else []
        return ", ".join(parts + (["converting as this processor"] if self.converts else []))
