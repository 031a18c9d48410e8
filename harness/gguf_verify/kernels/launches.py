"""What a product launches, seen without running it, and one thread block of it by itself.

CUDA refuses a launch whose grid or block is too large, and an index in 32 bits overflows where a product is large.
Neither needs the product: the sizes of a launch are known before it, and on a host that makes memory where it is
accessed, one thread block of a launch of any size takes as long as it does in a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats import WeightFormat
from ..hosts.base import Grid, Host, Source, Written

Bytes = npt.NDArray[np.uint8]

#: Blocks of a grid, threads of a block in each dimension and in all, and bytes of dynamic shared memory of a block that
#: CUDA launches (CUDA Programming Guide, compute capabilities; sm_90 has the most shared memory).
MOST_BLOCKS, MOST_THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
MOST_IN_BLOCK, MOST_SHARED = 1024, 232448


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


@dataclass(frozen=True, eq=False)
class SparseProduct:
    """A product of any size whose operands repeat a few blocks.

    Args:
        fmt: the weights' format.
        m, n, k: tokens, rows, columns.
        token_bytes: bytes of the activations of a token.
        weights, x: uint8[…], what repeats in the weights and in the activations: whole blocks. Their number has no
            factor 2, so that what lies a power of two away differs.
    """

    fmt: WeightFormat
    m: int
    n: int
    k: int
    token_bytes: int
    weights: Bytes
    x: Bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of weights."""
        return self.k // self.fmt.block_size * self.fmt.block_bytes

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of the three operands."""
        return {"weights": self.n * self.row_bytes, "activations": self.m * self.token_bytes,
                "output": 4 * self.m * self.n}  # fmt: skip

    @property
    def contents(self) -> dict[str, Bytes]:
        """What repeats in the inputs."""
        return {"weights": self.weights, "activations": self.x}

    def rows(self, which: Sequence[int]) -> Bytes:
        """uint8[len(which), row bytes]."""
        return _cut(self.weights, which, self.row_bytes)

    def tokens(self, which: Sequence[int]) -> Bytes:
        """uint8[len(which), token bytes]."""
        return _cut(self.x, which, self.token_bytes)


@dataclass(frozen=True, eq=False)
class SparseCall:
    """A call of any size of a kernel that multiplies nothing.

    Args:
        contents: input → uint8[…], what repeats in it: see `SparseProduct`.
        sizes: bytes of the inputs and of "output".
    """

    contents: dict[str, Bytes]
    sizes: dict[str, int]


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


def _cut(content: Bytes, which: Sequence[int], nbytes: int) -> Bytes:
    """Those of the rows of `nbytes` in which the content repeats."""
    starts = np.array([at * nbytes % len(content) for at in which], np.int64)
    return np.asarray(content[(starts[:, None] + np.arange(nbytes)) % len(content)])


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


__all__ = [
    "Foresight", "LargeCall", "Launched", "Placeholder", "Recorder", "SparseCall", "SparseProduct", "Unforeseen",
]  # fmt: skip
