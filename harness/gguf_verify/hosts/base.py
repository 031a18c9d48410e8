"""What a host is: a place where a kernel from `kernels/` is compiled and launched. A host is one file of this package
that defines a `HostKind`.

Outputs are poisoned before a launch and lie between two guards that are checked after it. So an element that the kernel
never wrote is seen, and so is a byte that it wrote outside its output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..results import HostInfo
from ..support.arrays import Array
from ..support.errors import EnvironmentFault, KernelFinding
from .compilation import Author, Compilation
from .memory import GUARD_BYTES, POISON
from .schedule import Schedule

_GUARD_FILL = 0xA5
#: Bytes of memory that a thread block may touch that runs alone.
MOST_ALONE = 1 << 26

Grid = tuple[int, int, int]
#: Where a card's buffers lie: among others; each in an allocation of its own size, an output unfilled unless the host
#: has a `fill`; or each directly behind, or before, pages that cannot be accessed.
Placement = Literal["pool", "alone", "behind", "before"]
#: What a launch does with an argument.
Role = Literal["input", "output", "scratch"]


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


@dataclass(frozen=True)
class Sparse:
    """An argument of a thread block that runs alone: memory that is made where it is accessed.

    Args:
        nbytes: its size, which may be many times the machine's.
        content: a buffer that `upload` made, whose bytes repeat in it; None: poison.
        zeros: its last bytes, which are zero.
        unit: bytes of a number of it: `Written` counts these.
        what: names it in faults, and tells it from the others of a call.
        role: an input cannot be written; what is written into scratch memory is not looked at.
    """

    nbytes: int
    content: Any
    what: str
    role: Role = "input"
    zeros: int = 0
    unit: int = 4


@dataclass(frozen=True)
class Before:
    """Thread blocks of an earlier launch of a call, each of which runs alone before a thread block of the last one.

    Args:
        numbers: of the blocks, counted along x first.
    """

    kernel: Any
    grid: Grid
    block: Grid
    args: Sequence[Any]
    shared: int
    numbers: Sequence[int]


@dataclass(frozen=True)
class Written:
    """What one thread block wrote into its output.

    Args:
        at: int64[n], the places in numbers of the output (`Sparse.unit`), ascending.
        words: uint32[n], or uint16[n].
    """

    at: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel that nobody has loaded.

    Args:
        entry: the kernel's name in it.
        parts: what it consists of: "code", and what else a host needs to launch it → content.
    """

    entry: str
    parts: dict[str, bytes]

    def placed(self, folder: Path, name: str) -> Placed:
        """Files in a folder that can be read alone, for a process that loads them."""
        paths = {}
        for part, content in self.parts.items():
            path = folder / f"{name}.{part}"
            path.write_bytes(content)
            path.chmod(0o444)
            paths[part] = str(path)
        return Placed(self.entry, paths)


@dataclass(frozen=True)
class Placed:
    """An `Artefact` as files: what a part is called → its path."""

    entry: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Source:
    """A kernel of a source that a host compiles: what `Host.load` takes."""

    root: Path
    file: str
    entry: str
    defines: dict[str, str]
    target: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Sources of one key are compiled once: a source is compiled with all its kernels."""
        macros = (f"{name}={value}" for name, value in self.defines.items())
        return str(self.root), self.file, self.target or "", *macros


class Host(ABC):
    """Compiles and launches kernels. Buffers are the host's own objects; arrays go in and come out as NumPy."""

    name: str
    #: The GPU's compute capability, such as "90"; None if any kernel runs.
    sm: str | None = None
    #: Operating-system threads that a launch takes; None if the host does not choose.
    threads: int | None = None
    #: Whether kernels run on memory that another process maps: whether it has `over`.
    runs_on_mapped: bool = False
    #: Whether it has `launch_alone`.
    runs_alone: bool = False
    #: Whether it compiles what `compile_ahead` is told.
    compiles_ahead: bool = False
    #: Who chose this host, for the report.
    chosen = "as asked for"
    #: Where its buffers lie, if it is a card. Unless it is "pool", kernels are compiled with the lines of their source.
    placement: Placement = "pool"
    #: At how many bytes behind a multiple of 256 its buffers begin, if it is a GPU and `placement` is "pool". Unless
    #: that is 0, they lie among bytes that are NaN in every type.
    begins: int = 0
    #: The byte that outputs and workspaces hold that no kernel has written; shared memory holds `shared_fill`. None: as
    #: the host likes. What a kernel makes of such memory differs between hosts of different fills.
    fill: int | None = None
    #: What checked launches read that nothing has written, and that no output depends on: "shared memory at FILE:LINE".
    unset: tuple[str, ...] = ()
    #: Whether a kernel that was launched adds floats by atomic operations, as far as the host can tell: in an order
    #: that nobody chooses, so the bits of its outputs may differ from launch to launch.
    adds_floats = False

    @property
    def shared_fill(self) -> int | None:
        """Another byte than `fill`, so that the two can be told from each other."""
        return None if self.fill is None else self.fill ^ 0x5A

    def check(self) -> None:  # noqa: B027 - most hosts have nothing to check
        """Raise EnvironmentFault if what compiles kernels is missing."""

    def close(self) -> None:  # noqa: B027 - most hosts have nothing to end
        """End the processes that it started."""

    def processes_beside(self) -> int:
        """How many processes have room on this host's device beside this one, where several of them are faster than one
        process with several threads."""
        return 0

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

    def compile_ahead(self, sources: Iterable[Source]) -> None:  # noqa: B027 - most compile when they are asked
        """Begin to compile what will be loaded, beside what else is done. What fails is raised where it is loaded."""

    def build(
        self, root: Path, file: str, entry: str, defines: dict[str, str], schedule: Schedule | None = None
    ) -> Artefact:
        """Compile as `load` does, for launches under a schedule if there is one, and load nothing. Raises
        EnvironmentFault."""
        raise NotImplementedError

    def build_all(
        self, root: Path, file: str, entries: Sequence[str], defines: dict[str, str], schedule: Schedule | None = None,
        author: Author | None = None,
    ) -> tuple[dict[str, Artefact], Compilation]:  # fmt: skip
        """Compile kernels of one source that is not this project's, at once, as its author has it compiled; load
        nothing. An entry is a function's name, in a namespace perhaps, and with a template's arguments. Raises
        EnvironmentFault."""
        raise NotImplementedError

    def load_placed(self, placed: Placed) -> Any:
        """The kernel of an `Artefact` that this host's kind has built; it needs neither compiler nor cache. Raises
        EnvironmentFault."""
        raise NotImplementedError

    def under(self, schedule: Schedule) -> Host | None:
        """This host under a schedule, or None where it cannot choose one, or where it cannot check."""
        return self.scheduled(schedule) if self.offers(schedule) else None

    def offers(self, schedule: Schedule) -> bool:
        """Whether it can choose that schedule, and can check if the schedule asks for it."""
        return False

    def scheduled(self, schedule: Schedule) -> Host:
        """This host under a schedule that it offers. It does not look whether a compiler is there."""
        raise NotImplementedError

    def check_fault(self) -> str | None:
        """Why launches cannot be checked for races and bad accesses here, or None."""
        return f"the {self.name} host cannot check launches"

    def blind_to(self) -> str | None:
        """What checked launches are not looked at for, in words, or None."""
        return None

    def settle(self) -> None:  # noqa: B027 - most know it at once
        """Called when a product is done. Raises KernelFinding for what is known only then of its launches;
        EnvironmentFault where they were not checked."""

    @abstractmethod
    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Any:
        """A buffer with the array's bytes, at a multiple of 16. `what` names it in faults: "weights"."""

    def over(self, memory: npt.NDArray[np.uint8], what: str, output: bool = False) -> Any | None:
        """A buffer that is this very memory, or None where kernels cannot run on memory that another process maps.

        Args:
            memory: its bytes. Who gives them sees to guards and poison.
        """
        return None

    @abstractmethod
    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        """The bytes of a buffer that `upload` made, as they are now."""

    @abstractmethod
    def output(self, nbytes: int, what: str = "output") -> Any:
        """A poisoned buffer of `nbytes` between guards. `what` names it in faults."""

    def begin(self, output: Any, content: npt.NDArray[np.uint8]) -> None:
        """Write what a buffer that `output` made holds before a launch, uint8[nbytes]. Raises EnvironmentFault where
        this host cannot."""
        raise EnvironmentFault("outputs and scratch memory that hold something before a launch cannot be checked here")

    @abstractmethod
    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        """Run to the end. Arguments are buffers or NumPy scalars; the kernel lays out `shared` bytes of shared memory
        itself. A kernel that `overlaps` may start before the previous launch has ended, and waits for that itself.
        Raises KernelFault if the launch failed."""

    def launch_alone(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int, number: int,
        before: Sequence[Before] = (),
    ) -> Written:  # fmt: skip
        """Run only thread block `number` of a grid, counted along x first, after some of earlier launches. Arguments
        are `Sparse` or NumPy scalars; one is the output. What any other block wrote is not there. Raises KernelFault
        where a block accesses anything else or writes into an input; EnvironmentFault where it takes more memory than
        `MOST_ALONE` or this machine cannot do it."""
        raise NotImplementedError

    @abstractmethod
    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        """How many blocks of so many threads and bytes of shared memory run at the same time. Raises KernelFault."""

    @abstractmethod
    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        """The whole output buffer, guards included."""

    def download(self, output: Any) -> npt.NDArray[np.uint8]:
        """The output's bytes. Raises KernelFault if a guard was overwritten."""
        whole = self._read(output)
        check_guards(whole[:GUARD_BYTES], whole[-GUARD_BYTES:])
        return whole[GUARD_BYTES:-GUARD_BYTES]

    def side_by_side(self, output: Any, rows: npt.NDArray[np.uint8]) -> tuple[Array, Array]:
        """The output's bytes and those of other rows, uint8[…] each, where they can be compared: NumPy's arrays, or
        those of a card's library (`support.arrays`). Raises KernelFault if a guard was overwritten."""
        return self.download(output), rows.reshape(-1)


def check_guards(before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8]) -> None:
    """Raise KernelFinding if something was written into these guards of an output."""
    if touched := _outside(before, after):
        raise KernelFinding("outside", touched)


def outside(whole: npt.NDArray[np.uint8], name: str = "output", fill: int = _GUARD_FILL) -> str | None:
    """What was written into the guards of memory such as `poisoned` makes, in words; None if nothing was.

    Args:
        name: what the words call it.
        fill: the byte that its guards hold.
    """
    return _outside(whole[:GUARD_BYTES], whole[-GUARD_BYTES:], name, fill)


def _outside(
    first: npt.NDArray[np.uint8], last: npt.NDArray[np.uint8], name: str = "output", fill: int = _GUARD_FILL
) -> str | None:  # fmt: skip
    before, after = ((part != fill).sum() for part in (first, last))
    if before or after:
        return f"the kernel wrote outside its {name}: {before} bytes before, {after} after"
    return None


def poisoned(nbytes: int, fill: int | None = None) -> npt.NDArray[np.uint8]:
    """`nbytes` of poison, or of the byte `fill`, between two guards."""
    whole = np.empty(nbytes + 2 * GUARD_BYTES, np.uint8)
    poison(whole)
    if fill is not None:
        whole[GUARD_BYTES : GUARD_BYTES + nbytes] = fill
    return whole


def poison(whole: Array) -> None:
    """Make poison between two guards of memory that begins at a multiple of 4: NumPy's or a card's uint8[…]."""
    whole[:GUARD_BYTES] = _GUARD_FILL
    whole[-GUARD_BYTES:] = _GUARD_FILL
    inside = whole[GUARD_BYTES:-GUARD_BYTES]
    nbytes = len(inside)
    inside[nbytes // 4 * 4 :] = _GUARD_FILL
    inside[: nbytes // 4 * 4].view(np.uint32)[:] = POISON
