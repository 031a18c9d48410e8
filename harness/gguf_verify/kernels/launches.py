"""Launches of a product, recorded without running it, and single thread blocks of them.

CUDA refuses a launch whose grid or block is too large, and a 32-bit index overflows in a large product. Neither check
needs the whole product: the sizes of a launch are known in advance, and on a host that allocates memory when it is
accessed, one thread block takes the same time in a launch of any size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.tensor_types import WeightFormat
from ..hosts.base import Grid, Host, Source, Written
from ..results.environment import HostInfo
from ..semantics.drawn import Place
from ..support.errors import KernelFault

Bytes = npt.NDArray[np.uint8]

#: The most blocks of a grid, threads of a block (per dimension and in total), and bytes of dynamic shared memory of a
#: block that CUDA launches (CUDA Programming Guide, compute capabilities; sm_90 has the most shared memory).
MOST_BLOCKS, MOST_THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
MOST_IN_BLOCK, MOST_SHARED = 1024, 232448
#: The most bytes of repeated rows, and the least number of such rows.
_MOST_REPEATED, _FEWEST_ROWS = 1 << 22, 31


@dataclass(frozen=True)
class Launched:
    """A launch: its blocks, the threads of a block, and its bytes of dynamic shared memory.

    Args:
        kernel, args: the function and its arguments, if recorded; specific to the host.
    """

    grid: Grid
    block: Grid
    shared: int
    kernel: Any = None
    args: tuple[Any, ...] = ()

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        x, y, z = self.grid
        return x * y * z

    @property
    def refused(self) -> str | None:
        """Return why CUDA refuses the launch, or None if it does not."""
        for what, sizes, most in (("grid", self.grid, MOST_BLOCKS), ("block", self.block, MOST_THREADS)):
            fits = all(1 <= v <= limit for v, limit in zip(sizes, most, strict=True))
            if not fits or (what == "block" and sizes[0] * sizes[1] * sizes[2] > MOST_IN_BLOCK):
                return f"its {what} is {' × '.join(map(str, sizes))}, which CUDA does not launch"
        if not 0 <= self.shared <= MOST_SHARED:
            return f"its shared memory is {self.shared} bytes, which CUDA does not launch"
        return None


#: The thread blocks of an earlier launch that a block of the last one needs, for each dimension of the grid: those with
#: the same number as its own in dimension 0, 1 or 2, or (None) all.
Needs = tuple[int | None, int | None, int | None]


def needed(grid: Grid, needs: Needs, at: Grid) -> list[int]:
    """Return the block numbers of an earlier launch, counted along x first, that a block of the last launch needs.

    `at` is the position of that block in the grid.
    """
    x, y, z = (
        range(size) if of is None else range(at[of], min(at[of] + 1, size))
        for size, of in zip(grid, needs, strict=True)
    )
    return [a + grid[0] * (b + grid[1] * c) for c in z for b in y for a in x]


def possible_needs(grid: Grid, most: int) -> list[Needs]:
    """Return the possible needs of a block, those of the fewest blocks first, and none of more than `most` blocks."""
    x, y, z = ([None] if size == 1 else [0, 1, 2, None] for size in grid)
    count = {
        needs: math.prod(size for size, of in zip(grid, needs, strict=True) if of is None)
        for needs in itertools.product(x, y, z)
    }
    return sorted((needs for needs in count if count[needs] <= most), key=lambda needs: count[needs])


@dataclass(frozen=True)
class Lies:
    """The memory layout of a matrix.

    Args:
        row, unit: stride in bytes between rows, and between units (a unit is a block, or a number).
        of_unit: bytes of a unit.
        units: units of a row.
        nbytes: total bytes.
        filled: units of zeros after those of a row.
        tail: bytes of zeros at the end of the matrix.
    """

    row: int
    unit: int
    of_unit: int
    units: int
    nbytes: int
    filled: int = 0
    tail: int = 0

    @property
    def by_row(self) -> bool:
        """Return whether the units of a row are contiguous and the matrix is not transposed."""
        return self.row > self.unit or (self.row == self.unit and self.units + self.filled == 1)

    @property
    def zeros(self) -> int:
        """Bytes of zeros at the end, after the repeated content."""
        return self.tail + (0 if self.by_row else self.filled * self.unit)

    def content(self, units: Bytes) -> Bytes:
        """Return the repeated content, given the units that repeat in a row: these, or whole rows padded with zeros.

        The number of rows then has no factor 2 either.
        """
        if not self.filled or not self.by_row:
            return units
        count = min(_MOST_REPEATED // self.row, len(units) // self.of_unit)
        rows, width = np.zeros((prime(max(_FEWEST_ROWS, count)), self.row), np.uint8), self.units * self.of_unit
        rows[:, :width] = np.resize(units, (len(rows), width))
        return rows.reshape(-1)

    @classmethod
    def plain(cls, rows: int, of_unit: int, units: int) -> Lies:
        """Return the layout of contiguous rows."""
        return cls(of_unit * units, of_unit, of_unit, units, rows * of_unit * units)

    def cut(self, content: Bytes, which: Sequence[int]) -> Bytes:
        """Return some rows, uint8[len(which), row bytes], of a matrix in which the content repeats."""
        once = self.unit == self.of_unit  # the units of a row are one piece
        count, size = (1, self.units * self.of_unit) if once else (self.units, self.of_unit)
        rows = np.array([at * self.row % len(content) for at in which], np.int64)
        at = (rows[:, None] + np.arange(count) * self.unit) % len(content)
        pieces = np.lib.stride_tricks.sliding_window_view(np.resize(content, len(content) + size), size)
        return np.asarray(pieces[at]).reshape(len(which), self.units * self.of_unit)

    def places(self, words: npt.NDArray[np.int64], rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return rows and columns of numbers in a matrix with this layout.

        Raises KernelFault if one lies between its rows.
        """
        first, second = (self.row, self.unit) if self.by_row else (self.unit, self.row)
        at_byte = self.of_unit * words
        outer, inner = at_byte // first, at_byte % first // second
        row, column = (outer, inner) if self.by_row else (inner, outer)
        if (row >= rows).any() or (column >= self.units).any():
            at = int(at_byte[(row >= rows) | (column >= self.units)][0])
            raise KernelFault(f"the kernel writes between the rows of its output, at byte {at:,}")
        return row, column


@dataclass(frozen=True, eq=False)
class Repeated:
    """A fused operand of a product of any size.

    Args:
        place: the dimension for which it has one number per index; None: a second matrix of weights.
        numbers: the repeated content, in its type: a prime number of values. For a matrix, uint8[…]: blocks.
        tail: bytes of zeros after it.
    """

    place: Place | None
    numbers: npt.NDArray[Any]
    tail: int = 0

    @property
    def content(self) -> Bytes:
        """The repeated bytes."""
        return np.ascontiguousarray(self.numbers).view(np.uint8)

    def at(self, which: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return its numbers at these indices."""
        return np.asarray(self.numbers[which % len(self.numbers)])


@dataclass(frozen=True, eq=False)
class SparseProduct:
    """A product of any size whose operands repeat a few blocks.

    Args:
        fmt: the weights' format.
        m, n, k: tokens, rows, columns.
        token_bytes: bytes of the activations of a token.
        weights, x: uint8[…], the repeated content of the weights and of the activations: whole blocks. Their number has
            no factor 2, so that contents a power of two apart differ.
        lies: layouts of operands that are not contiguous rows, by name.
        needs: what a thread block of the last launch needs of each earlier one.
        fused: fused operands, by name; "output" is the previous content of the output.
        correct: whether the writes of a thread block are correct. With it, operands may begin at any address that a
            kernel takes; else at pages.
    """

    fmt: WeightFormat
    m: int
    n: int
    k: int
    token_bytes: int
    weights: Bytes
    x: Bytes
    lies: Mapping[str, Lies] = field(default_factory=dict)
    needs: tuple[Needs, ...] = ()
    fused: Mapping[str, Repeated] = field(default_factory=dict)
    correct: Callable[[Written], bool] | None = None

    def _of(self, name: str) -> Lies:
        if name in self.lies:
            return self.lies[name]
        if name == "weights":
            return Lies.plain(self.n, self.fmt.block_bytes, self.k // self.fmt.block_size)
        return Lies.plain(self.m, self.token_bytes, 1) if name == "activations" else Lies.plain(self.m, 4, self.n)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the operands."""
        found = {name: self._of(name).nbytes for name in ("weights", "activations", "output")}
        counts = {"one": 1, "row": self.n, "token": self.m, "output": self.m * self.n, None: self._up.nbytes}
        for name, operand in self.fused.items():
            if name != "output":
                found[name] = counts[operand.place] * operand.numbers.itemsize + operand.tail
        return found

    @property
    def zeros(self) -> dict[str, int]:
        """Bytes of zeros at the ends of inputs."""
        found = {name: self._of(name).zeros for name in ("weights", "activations")}
        return found | {name: operand.tail for name, operand in self.fused.items()}

    @property
    def unit(self) -> int:
        """Bytes of a number of the output."""
        return self._of("output").of_unit

    @cached_property
    def contents(self) -> dict[str, Bytes]:
        """The repeated contents of the inputs, and of an output that is read before it is written."""
        weights, x = self._of("weights").content(self.weights), self._of("activations").content(self.x)
        fused = {name: operand.content for name, operand in self.fused.items()}
        return {"weights": weights, "activations": x, **fused}

    def rows(self, which: Sequence[int]) -> Bytes:
        """Return weight rows, uint8[len(which), row bytes]."""
        return self._of("weights").cut(self.contents["weights"], which)

    def tokens(self, which: Sequence[int]) -> Bytes:
        """Return activations, uint8[len(which), token bytes]."""
        return self._of("activations").cut(self.contents["activations"], which)

    @property
    def _up(self) -> Lies:
        """The layout of a second matrix of weights."""
        return Lies.plain(self.n, self.fmt.block_bytes, self.k // self.fmt.block_size)

    def beside(self, tokens: Sequence[int], rows: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """Return the fused operands for a product of these tokens and rows: see `Epilogue.operands`."""
        m, n, found = np.array(tokens, np.int64), np.array(rows, np.int64), {}
        out = self._of("output")
        for name, operand in self.fused.items():
            if operand.place is None:
                found[name] = self._up.cut(operand.numbers, rows)
            elif operand.place == "output" and name == "output":
                found[name] = operand.at((m[:, None] * out.row + n * out.unit) // out.of_unit)
            else:
                at = {"one": np.zeros(1, np.int64), "row": n, "token": m, "output": m[:, None] * self.n + n}
                found[name] = operand.at(at[operand.place])
        return found

    def places(self, words: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return tokens and rows of words of the output. Raises KernelFault if a word lies between rows."""
        return self._of("output").places(words, self.m)


@dataclass(frozen=True, eq=False)
class SparseCall:
    """A call of any size.

    Args:
        contents: operand → uint8[…], its repeated content: see `SparseProduct`. All other operands hold poison.
        sizes: bytes of the operands.
        of: the product that it computes; calls of one product have the same contents. None: no product.
        scratch: operands that launches write for later ones.
        zeros: bytes of zeros at the ends of operands.
        unit: bytes of a number of the output.
    """

    contents: dict[str, Bytes]
    sizes: dict[str, int]
    of: SparseProduct | None = None
    scratch: frozenset[str] = frozenset()
    zeros: Mapping[str, int] = field(default_factory=dict)
    unit: int = 4


@dataclass(frozen=True)
class LargeCall:
    """A call of which only single thread blocks are run.

    Args:
        launched: its one launch.
        words: number of 4-byte words of its output.
        run: runs one thread block alone. Raises KernelFault, EnvironmentFault.
    """

    launched: Launched
    words: int
    run: Callable[[int], Written]


@dataclass(frozen=True)
class Placeholder:
    """A buffer of a product that is not computed."""

    nbytes: int
    what: str


class Recording(Host):
    """A host that records launches instead of running them. Its buffers are placeholders."""

    def __init__(self) -> None:
        self.launched: list[Launched] = []

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Placeholder:
        return Placeholder(array.nbytes, what)

    def output(self, nbytes: int, what: str = "output") -> Placeholder:
        return Placeholder(nbytes, what)

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        self.launched.append(Launched(grid, block, shared, kernel, tuple(args)))

    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError("nothing is computed")

    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError("nothing is computed")


class Recorder(Recording):
    """A recording host that compiles kernels by another host."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self.name, self.sm, self.threads = host.name, host.sm, host.threads

    def info(self) -> HostInfo:
        return self._host.info()

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        return self._host.load(root, file, entry, defines, target)

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        return self._host.resident(kernel, threads, shared)


class Foresight(Recorder):
    """A recorder that does not compile either: it records what would be loaded."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.sources: list[Source] = []

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        self.sources.append(Source(root, file, entry, defines, target))

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        return 1

    def side_by_side(self, output: Any, rows: Bytes) -> Any:
        raise Unforeseen


class Unforeseen(Exception):
    """Raised where the next steps depend on contents, which a recorder does not have."""


def prime(most: int) -> int:
    """Return the largest prime that is at most `most`; 1 if there is none."""
    return next((p for p in range(most, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1))), 1)
