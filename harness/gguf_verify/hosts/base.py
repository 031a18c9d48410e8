"""What a host is: a place where a kernel from `kernels/` is compiled and launched. A host is one file of this package
that defines a `HostKind`.

Outputs are poisoned before a launch and lie between two guards that are checked after it. So an element that the kernel
never wrote is seen, and so is a byte that it wrote outside its output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..results import HostInfo
from ..support.errors import KernelFault
from .schedule import Schedule

#: A NaN that no arithmetic produces: an output element that still holds it was never written.
POISON = np.uint32(0x7FC0DEAD)
GUARD_BYTES = 4096
_GUARD_FILL = 0xA5

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class HostKind:
    """A host as `--host` offers it.

    Args:
        name: what `--host` calls it.
        title: what it is, for help texts.
        rank: `auto` takes the usable host of the highest rank.
        make: makes the host, for so many operating-system threads (0: as many as it likes). Raises EnvironmentFault.
        fault: why it cannot be used on this machine, or None if it can.
        emulated: it emulates a card, many times slower than one.
    """

    name: str
    title: str
    rank: int
    make: Callable[[int], Host]
    fault: Callable[[], str | None]
    emulated: bool = False


class Host(ABC):
    """Compiles and launches kernels. Buffers are the host's own objects; arrays go in and come out as NumPy."""

    name: str
    #: The GPU's compute capability, such as "90"; None if any kernel runs.
    sm: str | None = None
    #: Operating-system threads that a launch takes; None if the host does not choose.
    threads: int | None = None
    #: Who chose this host, for the report.
    chosen = "as asked for"

    def check(self) -> None:  # noqa: B027 - most hosts have nothing to check
        """Raise EnvironmentFault if what compiles kernels is missing."""

    def close(self) -> None:  # noqa: B027 - most hosts have nothing to end
        """End the processes that it started."""

    @abstractmethod
    def info(self) -> HostInfo:
        """Device, compiler, versions, for the report."""

    def describe(self) -> str:
        """`info` in one line."""
        return self.info().words

    @abstractmethod
    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        """Compile `root/file` and return its kernel `entry`, for the architecture `target` ("90a") if that is not the
        card's own. Raises EnvironmentFault with the compiler's message."""

    def under(self, schedule: Schedule) -> Host | None:
        """This host under a schedule, or None where it cannot choose one, or where the compiler cannot check."""
        return None

    @abstractmethod
    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Any:
        """A buffer with the array's bytes, at a multiple of 16. `what` names it in faults: "weights"."""

    @abstractmethod
    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer that `upload` made, as they are now."""

    @abstractmethod
    def output(self, nbytes: int, what: str = "output") -> Any:
        """A poisoned buffer of `nbytes` between guards. `what` names it in faults."""

    @abstractmethod
    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        """Run to the end. Arguments are buffers or NumPy scalars; the kernel lays out `shared` bytes of shared memory
        itself. A kernel that `overlaps` may start before the previous launch has ended, and waits for that itself.
        Raises KernelFault if the launch failed."""

    @abstractmethod
    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        """How many blocks of so many threads and bytes of shared memory run at the same time. Raises KernelFault."""

    @abstractmethod
    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        """The whole output buffer, guards included."""

    def download(self, output: Any) -> npt.NDArray[np.uint8]:
        """The output's bytes. Raises KernelFault if a guard was overwritten."""
        whole = self._read(output)
        if touched := outside(whole):
            raise KernelFault(touched)
        return whole[GUARD_BYTES:-GUARD_BYTES]


def outside(whole: npt.NDArray[np.uint8]) -> str | None:
    """What was written into the guards of an output that `poisoned` made, in words; None if nothing was."""
    before, after = ((part != _GUARD_FILL).sum() for part in (whole[:GUARD_BYTES], whole[-GUARD_BYTES:]))
    if before or after:
        return f"the kernel wrote outside its output: {before} bytes before, {after} after"
    return None


def poisoned(nbytes: int) -> npt.NDArray[np.uint8]:
    """`nbytes` of poison between two guards."""
    whole = np.full(nbytes + 2 * GUARD_BYTES, _GUARD_FILL, np.uint8)
    inside = whole[GUARD_BYTES : GUARD_BYTES + nbytes]
    inside[: nbytes // 4 * 4].view(np.uint32)[:] = POISON
    return whole
