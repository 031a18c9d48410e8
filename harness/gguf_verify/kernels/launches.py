"""What a product launches, seen without running it, and one thread block of it by itself.

CUDA refuses a launch whose grid or block is too large, and an index in 32 bits overflows where a product is large.
Neither needs the product: the sizes of a launch are known before it, and on a host that makes memory where it is
accessed, one thread block of a launch of any size takes as long as it does in a small one.
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

from ..formats import WeightFormat
from ..hosts.base import Grid, Host, Source, Written
from ..semantics.drawn import Place
from ..support.errors import KernelFault

Bytes = npt.NDArray[np.uint8]

#: Blocks of a grid, threads of a block in each dimension and in all, and bytes of dynamic shared memory of a block that
#: CUDA launches (CUDA Programming Guide, compute capabilities; sm_90 has the most shared memory).
MOST_BLOCKS, MOST_THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
MOST_IN_BLOCK, MOST_SHARED = 1024, 232448
#: Bytes of rows that repeat, at most, and how many rows these are at least.
_MOST_REPEATED, _FEWEST_ROWS = 1 << 22, 31


@dataclass(frozen=True)
class Launched:
    """A launch: its blocks, the threads of a block, and its bytes of dynamic shared memory.

    Args:
        kernel, args: what is launched on what, where it was recorded; the host's.
    """

    grid: Grid
    block: Grid
    shared: int
    kernel: Any = None
    args: tuple[Any, ...] = ()

    @property
    def blocks(self) -> int:
        """How many there are."""
        x, y, z = self.grid
        return x * y * z

    @property
    def refused(self) -> str | None:
        """Why CUDA does not launch it, or None where it does."""
        for what, sizes, most in (("grid", self.grid, MOST_BLOCKS), ("block", self.block, MOST_THREADS)):
            fits = all(1 <= v <= limit for v, limit in zip(sizes, most, strict=True))
            if not fits or (what == "block" and sizes[0] * sizes[1] * sizes[2] > MOST_IN_BLOCK):
                return f"its {what} is {' × '.join(map(str, sizes))}, which CUDA does not launch"
        if not 0 <= self.shared <= MOST_SHARED:
            return f"its shared memory is {self.shared} bytes, which CUDA does not launch"
        return None


#: Which thread blocks of an earlier launch a block of the last one needs, for each dimension of the grid: those of the
#: same number as its own in dimension 0, 1 or 2, or (None) all.
Needs = tuple[int | None, int | None, int | None]


def needed(grid: Grid, needs: Needs, at: Grid) -> list[int]:
    """The numbers of an earlier launch's blocks, counted along x first, that the block at a place of the last launch's
    grid needs."""
    x, y, z = (range(size) if of is None else range(at[of], min(at[of] + 1, size))
               for size, of in zip(grid, needs, strict=True))  # fmt: skip
    return [a + grid[0] * (b + grid[1] * c) for c in z for b in y for a in x]


def possible_needs(grid: Grid, most: int) -> list[Needs]:
    """What a block may need of an earlier launch, the fewest blocks first, and none of more than `most`."""
    x, y, z = ([None] if size == 1 else [0, 1, 2, None] for size in grid)
    count = {
        needs: math.prod(size for size, of in zip(grid, needs, strict=True) if of is None)
        for needs in itertools.product(x, y, z)
    }
    return sorted((needs for needs in count if count[needs] <= most), key=lambda needs: count[needs])


@dataclass(frozen=True)
class Lies:
    """Where a matrix lies in memory.

    Args:
        row, unit: bytes from row to row, and from unit (a block, or a number) to unit.
        of_unit: bytes of a unit.
        units: in a row.
        nbytes: of all.
        filled: units of zeros that follow those of a row.
        tail: bytes of zeros at the end of all.
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
        """Whether the units of a row lie together, and no transposed matrix."""
        return self.row > self.unit or (self.row == self.unit and self.units + self.filled == 1)

    @property
    def zeros(self) -> int:
        """Bytes of zeros at the end, behind what repeats."""
        return self.tail + (0 if self.by_row else self.filled * self.unit)

    def content(self, units: Bytes) -> Bytes:
        """What repeats in it, of units that repeat in its rows: these, or whole rows that are filled up with zeros. The
        number of rows has no factor 2 either."""
        if not self.filled or not self.by_row:
            return units
        count = min(_MOST_REPEATED // self.row, len(units) // self.of_unit)
        rows, width = np.zeros((prime(max(_FEWEST_ROWS, count)), self.row), np.uint8), self.units * self.of_unit
        rows[:, :width] = np.resize(units, (len(rows), width))
        return rows.reshape(-1)

    @classmethod
    def plain(cls, rows: int, of_unit: int, units: int) -> Lies:
        """Rows one behind the other."""
        return cls(of_unit * units, of_unit, of_unit, units, rows * of_unit * units)

    def cut(self, content: Bytes, which: Sequence[int]) -> Bytes:
        """Some rows, uint8[len(which), row bytes], of a matrix in which the content repeats."""
        rows = np.array([at * self.row % len(content) for at in which], np.int64)
        units = np.arange(self.units, dtype=np.int64) * self.unit
        at = rows[:, None, None] + units[:, None] + np.arange(self.of_unit)
        return np.asarray(content[at % len(content)]).reshape(len(which), self.units * self.of_unit)

    def places(self, words: npt.NDArray[np.int64], rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows and columns of numbers in a matrix of such. Raises KernelFault where one lies between its rows."""
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
    """An operand of what is fused behind a product of any size.

    Args:
        place: of what it has one number; None: a second matrix of weights.
        numbers: what repeats in it, of its type: a prime number of them. Of a matrix, uint8[…]: blocks.
        tail: bytes of zeros behind it.
    """

    place: Place | None
    numbers: npt.NDArray[Any]
    tail: int = 0

    @property
    def content(self) -> Bytes:
        """The bytes that repeat."""
        return np.ascontiguousarray(self.numbers).view(np.uint8)

    def at(self, which: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Its numbers of these places."""
        return np.asarray(self.numbers[which % len(self.numbers)])


@dataclass(frozen=True, eq=False)
class SparseProduct:
    """A product of any size whose operands repeat a few blocks.

    Args:
        fmt: the weights' format.
        m, n, k: tokens, rows, columns.
        token_bytes: bytes of the activations of a token.
        weights, x: uint8[…], what repeats in the weights and in the activations: whole blocks. Their number has no
            factor 2, so that what lies a power of two away differs.
        lies: where operands lie, by their names, that do not lie as rows one behind the other.
        needs: what a thread block of the last launch needs of each earlier one.
        fused: operands of what is fused behind it, by their names; "output" is what the output holds before.
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
        """What repeats in the inputs, and in an output that holds something before."""
        weights, x = self._of("weights").content(self.weights), self._of("activations").content(self.x)
        fused = {name: operand.content for name, operand in self.fused.items()}
        return {"weights": weights, "activations": x, **fused}

    def rows(self, which: Sequence[int]) -> Bytes:
        """uint8[len(which), row bytes]."""
        return self._of("weights").cut(self.contents["weights"], which)

    def tokens(self, which: Sequence[int]) -> Bytes:
        """uint8[len(which), token bytes]."""
        return self._of("activations").cut(self.contents["activations"], which)

    @property
    def _up(self) -> Lies:
        """Where a second matrix of weights lies."""
        return Lies.plain(self.n, self.fmt.block_bytes, self.k // self.fmt.block_size)

    def beside(self, tokens: Sequence[int], rows: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """The operands of what is fused, of a product of these tokens and rows: `Epilogue.operands`."""
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
        """Tokens and rows of words of the output. Raises KernelFault where one lies between these."""
        return self._of("output").places(words, self.m)


@dataclass(frozen=True, eq=False)
class SparseCall:
    """A call of any size.

    Args:
        contents: operand → uint8[…], what repeats in it: see `SparseProduct`. All others hold poison.
        sizes: bytes of the operands.
        of: the product that it makes; calls of one product have the same contents. None: of no product.
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
    """A call that is not made whole.

    Args:
        launched: its one launch.
        words: of its output, of 4 bytes.
        run: runs one thread block of it by itself. Raises KernelFault, EnvironmentFault.
    """

    launched: Launched
    words: int
    run: Callable[[int], Written]


@dataclass(frozen=True)
class Placeholder:
    """A buffer of a product that is not computed."""

    nbytes: int
    what: str


class Recorder(Host):
    """A host that compiles kernels, and records launches in place of making them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.name, self.sm, self.threads = host.name, host.sm, host.threads
        self.launched: list[Launched] = []

    def info(self) -> Any:
        return self._host.info()

    def load(self, root: Path, file: str, entry: str, defines: dict[str, str], target: str | None = None) -> Any:
        return self._host.load(root, file, entry, defines, target)

    def upload(self, array: npt.NDArray[Any], what: str = "input") -> Placeholder:
        return Placeholder(array.nbytes, what)

    def output(self, nbytes: int, what: str = "output") -> Placeholder:
        return Placeholder(nbytes, what)

    def launch(
        self, kernel: Any, grid: Grid, block: Grid, args: Sequence[Any], shared: int = 0, overlaps: bool = False
    ) -> None:
        self.launched.append(Launched(grid, block, shared, kernel, tuple(args)))

    def resident(self, kernel: Any, threads: int, shared: int) -> int:
        return self._host.resident(kernel, threads, shared)

    def contents(self, buffer: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError("nothing is computed")

    def _read(self, output: Any) -> npt.NDArray[np.uint8]:
        raise NotImplementedError("nothing is computed")


class Foresight(Recorder):
    """A recorder that compiles nothing either: it records what would be loaded."""

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
    """What follows depends on contents, which a recorder has none of."""


def prime(most: int) -> int:
    """The largest prime that is not larger; 1 where there is none."""
    return next((p for p in range(most, 1, -1) if all(p % d for d in range(2, math.isqrt(p) + 1))), 1)
