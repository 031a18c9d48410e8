"""The interface of a host, which compiles and launches kernels from `kernels/`.

Outputs are poisoned before a launch and lie between two guards that are checked after it. So elements that the kernel
never wrote are detected, and so are writes outside its output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ..support.arrays import Array
from ..support.errors import EnvironmentFault, KernelFinding
from ..support.text import counted
from .compilation import Compilation, ForeignUnit
from .memory import GUARD_BYTES, POISON
from .schedule import Schedule

if TYPE_CHECKING:
    from ..results.environment import HostInfo

_GUARD_FILL = 0xA5
#: Most bytes of memory that a thread block run alone may access.
MOST_ALONE = 1 << 26

Grid = tuple[int, int, int]
#: Placement of a GPU's buffers: in CuPy's pool; each in its own allocation, an output unfilled unless the host has a
#: `fill`; or each directly behind, or before, pages without access rights.
Placement = Literal["pool", "alone", "behind", "before"]
#: The use of an argument in a launch.
Role = Literal["input", "output", "scratch"]


@dataclass(frozen=True)
class Sparse:
    """An argument of a thread block run alone: memory that is allocated where it is accessed.

    Args:
        nbytes: its size, which may be many times the machine's memory.
        content: a buffer from `upload`, whose bytes repeat in it; None: poison.
        zeros: bytes at its end that are zero.
        unit: bytes of a number; `Written` counts in numbers.
        what: its name in faults, unique within a call.
        role: an input cannot be written; writes to scratch memory are not recorded.
        lead: bytes between the beginnings of a page and of the memory.
    """

    nbytes: int
    content: Any
    what: str
    role: Role = "input"
    zeros: int = 0
    unit: int = 4
    lead: int = 0


@dataclass(frozen=True)
class Blocks:
    """Thread blocks of a launch, each run alone.

    Args:
        numbers: the numbers of the blocks, counted along x first.
    """

    kernel: Any
    grid: Grid
    block: Grid
    args: Sequence[Any]
    shared: int
    numbers: Sequence[int]


@dataclass(frozen=True)
class Written:
    """The writes of one thread block to its output.

    Args:
        at: int64[n], the places in numbers of the output (`Sparse.unit`), ascending.
        words: uint32[n], or uint16[n].
    """

    at: npt.NDArray[np.int64]
    words: npt.NDArray[np.uint32]

    def equals(self, other: Written) -> bool:
        """Return whether both have the same numbers at the same places."""
        return np.array_equal(self.at, other.at) and np.array_equal(self.words, other.words)


@dataclass(frozen=True)
class Artefact:
    """A compiled kernel that is not loaded.

    Args:
        entry: the kernel's name in it.
        parts: "code", and the other parts that a host needs to launch it → content.
    """

    entry: str
    parts: dict[str, bytes]

    def placed(self, folder: Path, name: str) -> Placed:
        """Write it to read-only files in a folder, for a process that loads them."""
        paths = {}
        for part, content in self.parts.items():
            path = folder / f"{name}.{part}"
            path.write_bytes(content)
            path.chmod(0o444)
            paths[part] = str(path)
        return Placed(self.entry, paths)


@dataclass(frozen=True)
class Placed:
    """An `Artefact` as files: name of a part → its path."""

    entry: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Source:
    """A kernel of a source for a host to compile: the arguments of `Host.load`."""

    root: Path
    file: str
    entry: str
    defines: dict[str, str]
    target: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The key of a compilation: a source is compiled once with all its kernels."""
        macros = (f"{name}={value}" for name, value in self.defines.items())
        return str(self.root), self.file, self.target or "", *macros


class Host(ABC):
    """Compiles and launches kernels. Buffers are the host's own objects; arrays go in and come out as NumPy."""

    name: str
    #: The GPU's compute capability, such as "90"; None if any kernel runs.
    sm: str | None = None
    #: Operating-system threads that a launch takes; None if the host does not choose.
    threads: int | None = None
    #: Whether kernels can run on memory that another process maps: whether it has `over`.
    runs_on_mapped: bool = False
    #: Whether it has `launch_alone`.
    runs_alone: bool = False
    #: Whether it supports `compile_ahead`.
    compiles_ahead: bool = False
    #: How this host was chosen, for the report.
    chosen = "as asked for"
    #: Placement of its buffers, if it is a GPU. Unless it is "pool", kernels are compiled with line information.
    placement: Placement = "pool"
    #: Offset of its buffers from a multiple of 256 bytes, if it is a GPU and `placement` is "pool". Unless that is 0,
    #: they lie between bytes that are NaN in every type.
    begins: int = 0
    #: The byte in unwritten outputs and workspaces; shared memory holds `shared_fill`. None: the host's choice. Results
    #: that depend on unwritten memory differ between hosts of different fills.
    fill: int | None = None
    #: Unwritten memory that checked launches read and that no output depends on: "shared memory at FILE:LINE".
    unset: tuple[str, ...] = ()
    #: Whether a launched kernel is known to add floats by atomic operations: in an undefined order, so the bits of its
    #: outputs may differ from launch to launch.
    adds_floats = False
    #: How many thread blocks of a launch run, about, and the seed of the choice. None: all. Only the CPU host can
    #: choose; it raises NotTried if one of them might depend on others.
    some: tuple[int, int] | None = None
    #: Addresses of numbers that a whole launch writes, at least 2 bytes each, and the thread blocks that may have
    #: written them, which run with `some`. Only the CPU host notes them.
    watches: Sequence[int] = ()
    writers: Sequence[int] = ()

    @property
    def shared_fill(self) -> int | None:
        """Another byte than `fill`, so that the two can be distinguished."""
        return None if self.fill is None else self.fill ^ 0x5A

    def check(self) -> None:  # noqa: B027 - most hosts have nothing to check
        """Raise EnvironmentFault if the compiler is missing."""

    def close(self) -> None:  # noqa: B027 - most hosts have nothing to end
        """End the processes that it started."""

    def processes_beside(self) -> int:
        """Return how many further processes fit on this host's device, if several processes are faster than several
        threads.
        """
        return 0

    @abstractmethod
    def info(self) -> HostInfo:
        """Return device, compiler and versions, for the report."""

    def describe(self) -> str:
        """Return `info` in one line."""
        return self.info().words

    @abstractmethod
    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        """Compile `root/file` and return its kernel `entry`.

        It is compiled for the architecture `target` ("90a") if that is not the GPU's own. Raises EnvironmentFault with
        the compiler's message.
        """

    def compile_ahead(self, sources: Iterable[Source]) -> None:  # noqa: B027 - most compile when they are asked
        """Begin compiling sources in the background. Errors are raised when they are loaded."""

    def build_all(self, unit: ForeignUnit, schedule: Schedule | None = None) -> tuple[dict[str, Artefact], Compilation]:
        """Compile kernels of a foreign source, for launches under a schedule if there is one, without loading.

        Raises EnvironmentFault.
        """
        raise NotImplementedError

    def load_placed(self, placed: Placed) -> Any:
        """Load the kernel of an `Artefact` built by this kind of host, without compiler or cache.

        Raises EnvironmentFault.
        """
        raise NotImplementedError

    def under(self, schedule: Schedule) -> Host | None:
        """Return this host under a schedule, or None if it cannot choose one, or cannot check."""
        return self.scheduled(schedule) if self.offers(schedule) else None

    def offers(self, schedule: Schedule) -> bool:
        """Return whether it can choose that schedule, and can check if the schedule is checked."""
        return False

    def scheduled(self, schedule: Schedule) -> Host:
        """Return this host under a schedule that it offers, without testing for a compiler."""
        raise NotImplementedError

    def check_fault(self) -> str | None:
        """Return why launches cannot be checked for races and bad accesses here, or None."""
        return f"the {self.name} host cannot check launches"

    def blind_to(self) -> str | None:
        """Return the faults that checked launches cannot detect, in words, or None."""
        return None

    def settle(self) -> None:  # noqa: B027 - most know it at once
        """Called when a product is complete.

        Raises KernelFinding for findings on its launches that are only known then; EnvironmentFault if they were not
        checked.
        """

    @abstractmethod
    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Any:
        """Return a buffer with the array's bytes, aligned to 16. `what` names it in faults: "weights"."""

    def over(self, memory: npt.NDArray[np.uint8], what: str, output: bool = False) -> Any | None:
        """Return a buffer over this very memory, or None if kernels cannot run on memory that another process maps.

        Args:
            memory: its bytes. The caller is responsible for guards and poison.
        """
        return None

    @abstractmethod
    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        """Return the present bytes of a buffer from `upload`."""

    @abstractmethod
    def output(self, nbytes: int, what: str = "output") -> Any:
        """Return a poisoned buffer of `nbytes` between guards. `what` names it in faults."""

    def begin(self, output: Any, content: npt.NDArray[np.uint8]) -> None:
        """Write the content of a buffer from `output` before a launch, uint8[nbytes].

        Raises EnvironmentFault if this host cannot.
        """
        raise EnvironmentFault("outputs and scratch memory with initial contents cannot be checked here")

    @abstractmethod
    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        """Launch a kernel and wait for its end.

        Arguments are buffers or NumPy scalars; the kernel lays out `shared` bytes of shared memory itself. A kernel
        that `overlaps` may start before the previous launch has ended, and waits for that itself. Raises KernelFault if
        the launch failed.
        """

    def counters(self, kernel: Any, to: npt.NDArray[np.uint8]) -> int:
        """Write what a kernel's library has counted, as far as there is room; return its size, 0 if it does not
        count."""
        return 0

    def compared(self, kernel: Any, to: npt.NDArray[np.void]) -> int:
        """Write the comparisons of a traced kernel since the last call as `hosts.comparisons.RECORD`; return their
        number, 0 if it is not traced."""
        return 0

    def launch_alone(self, launches: Sequence[Blocks]) -> Written:
        """Run single thread blocks of the launches of a call, one of the last; return the writes of that one.

        Arguments are `Sparse` or NumPy scalars; one is the output. Writes of other blocks are missing. Raises
        KernelFault if a block accesses anything else or writes into an input; EnvironmentFault if it needs more memory
        than `MOST_ALONE` or this machine cannot do it.
        """
        raise NotImplementedError

    @abstractmethod
    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        """Return how many blocks of this many threads and bytes of shared memory run at the same time.

        Raises KernelFault.
        """

    @abstractmethod
    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        """Return the whole output buffer, guards included."""

    def download(self, output: Any) -> npt.NDArray[np.uint8]:
        """Return the output's bytes. Raises KernelFault if a guard was overwritten."""
        whole = self._read(output)
        check_guards(whole[:GUARD_BYTES], whole[-GUARD_BYTES:])
        return whole[GUARD_BYTES:-GUARD_BYTES]

    def side_by_side(self, output: Any, rows: npt.NDArray[np.uint8]) -> tuple[Array, Array]:
        """Return the output's bytes and those of other rows, uint8[…] each, on the same device for comparison.

        They are arrays of NumPy or of a GPU's library (`support.arrays`). Raises KernelFault if a guard was
        overwritten.
        """
        return self.download(output), rows.reshape(-1)


def check_guards(before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8]) -> None:
    """Raise KernelFinding if these guards of an output were overwritten."""
    if touched := _outside(before, after):
        raise KernelFinding("outside", touched)


def outside(whole: npt.NDArray[np.uint8], name: str = "output", fill: int = _GUARD_FILL) -> str | None:
    """Describe writes to the guards of memory such as `poisoned` returns; None if there are none.

    Args:
        name: the memory's name in the description.
        fill: the fill byte of its guards.
    """
    return _outside(whole[:GUARD_BYTES], whole[-GUARD_BYTES:], name, fill)


def _outside(
    first: npt.NDArray[np.uint8], last: npt.NDArray[np.uint8], name: str = "output", fill: int = _GUARD_FILL
) -> str | None:
    before, after = ((part != fill).sum() for part in (first, last))
    if before or after:
        return f"the kernel wrote outside its {name}: {counted(before, 'bytes')} before, {after} after"
    return None


def poisoned(nbytes: int, fill: int | None = None) -> npt.NDArray[np.uint8]:
    """Return `nbytes` of poison, or of the byte `fill`, between two guards."""
    whole = np.full(nbytes + 2 * GUARD_BYTES, _GUARD_FILL, np.uint8)
    inside = whole[GUARD_BYTES : GUARD_BYTES + nbytes]
    inside[: nbytes // 4 * 4].view(np.uint32)[:] = POISON
    if fill is not None:
        inside[:] = fill
    return whole
