"""The products that benchmarks time: random weights and activations, and the check of a rival's outputs."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.hosts.base import Host, Source
from gguf_verify.support.array_types import Bytes, Doubles
from gguf_verify.support.errors import UsageError
from gguf_verify.support.paths import kernel_root

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

#: Rows from the beginning and from the end of the weights that are compared on the GPU, for every token; rows and
#: tokens from both ends for which NumPy computes the expected outputs.
CHECKED_ROWS, FEW_ROWS, CHECKED_TOKENS = 160, 40, 5
#: The most that the outputs of kernels whose order or definition is not known may differ from the product of the same
#: weights with the float32 activations, as NMSE: where they quantize the activations to 8 bits, and where they round
#: weights or activations to halves.
LIMIT_8_BITS, LIMIT_HALVES = 1e-3, 1e-4
#: The largest value of a block lies between these, so that products of halves are finite too.
SMALLEST, LARGEST = 2.0**-6, 2.0**6
#: Number of different blocks in a matrix, which repeats them in random order.
DISTINCT = 1024
_CANDIDATES, _TRIES, _SCALE = 8192, 32, 0.01
#: The kernel that converts weights of any type to halves, its number of threads and its largest number of blocks.
_FILE, _ENTRY = "dequantize/halves.cu", "dequantize"
_THREADS, _MOST_BLOCKS = 256, 1 << 16


def blocks_of(fmt: BlockFormat, rng: np.random.Generator, count: int = DISTINCT) -> Bytes:
    """Return random blocks whose values are finite and of the usual size, uint8[count, block bytes].

    Bytes are uniform, and fields of type half are Gaussian.

    A type whose scales are not halves needs no special case: random blocks are generated until enough are suitable.
    Raises UsageError if hardly any are.
    """
    found: list[Bytes] = []
    missing = count
    for _ in range(_TRIES):
        blocks = rng.integers(0, 256, (_CANDIDATES, fmt.block_bytes), np.uint8)
        structs = fmt.view(blocks)
        for field in fmt.fields:
            if field.dtype == "<f2":
                structs[field.name] = rng.normal(0, _SCALE, structs[field.name].shape)
        if fmt.make_finite is not None:
            fmt.make_finite(structs, rng)
        blocks = blocks[fmt.finite(blocks)]
        with np.errstate(over="ignore", invalid="ignore"):
            most = np.abs(fmt.decode(blocks)).max(axis=-1)
        kept = blocks[(most >= SMALLEST) & (most <= LARGEST)][:missing]
        found.append(kept)
        missing -= len(kept)
        if not missing:
            return np.concatenate(found)
    fit = f"{count - missing} of {_TRIES * _CANDIDATES} random blocks of {fmt.name}"
    raise UsageError(f"{fit} have values of the usual size")


def random_rows(fmt: BlockFormat, n: int, k: int, seed: int) -> Bytes:
    """Return rows of such blocks in random order, uint8[n, row bytes]. Raises UsageError like `blocks_of`, and
    ValueError if k is not a multiple of the block size."""
    fmt.row_bytes(k)
    rng = np.random.default_rng((seed, fmt.type_id))
    blocks = blocks_of(fmt, rng)
    order = rng.integers(0, len(blocks), n * (k // fmt.block_size), np.uint16)
    return np.asarray(blocks[order].reshape(n, -1))


def ends(size: int, each: int) -> Index:
    """Return the indices of the first and the last `each` of `size` items."""
    return np.unique(np.concatenate([np.arange(min(each, size)), np.arange(max(0, size - each), size)]))


def nmse(y: npt.NDArray[Any], expected: Doubles) -> float:
    """Σ(y - o)² / Σo², in float64; NaN if y is not finite."""
    off = y.astype(np.float64) - expected
    return float((off**2).sum() / (expected**2).sum())


class Activations:
    """Gaussian activations float32[most tokens, k] on the host and on the GPU; a product of m tokens takes the first
    m."""

    def __init__(self, most: int, k: int, seed: int, cupy: Any) -> None:
        self.k = k
        self.values: Floats = np.random.default_rng((seed, k)).standard_normal((most, k), np.float32)
        self._cupy = cupy

    @cached_property
    def on_gpu(self) -> Any:
        return self._cupy.asarray(self.values)


class Matrix:
    """Weights of one type, uint8[n, row bytes], on the host and on the GPU."""

    def __init__(self, fmt: BlockFormat, n: int, x: Activations, seed: int, cupy: Any) -> None:
        self.fmt, self.n, self.k, self.x = fmt, n, x.k, x
        self.rows = random_rows(fmt, n, x.k, seed)
        self._cupy = cupy

    @cached_property
    def on_gpu(self) -> Any:
        return self._cupy.asarray(self.rows)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    @cached_property
    def checked(self) -> tuple[Index, Doubles]:
        """Return the rows that are checked, and their values float64[rows, k]."""
        index = ends(self.n, FEW_ROWS)
        blocks = self.rows[index].reshape(-1, self.fmt.block_bytes)
        return index, self.fmt.decode(blocks).astype(np.float64).reshape(len(index), self.k)

    def off(self, m: int, outputs: Any) -> float:
        """Return the NMSE of some outputs of a product of m tokens.

        Args:
            outputs: returns outputs array[tokens, rows] for tokens and rows.
        """
        tokens = ends(m, CHECKED_TOKENS)
        rows, values = self.checked
        return nmse(outputs(tokens, rows), self.x.values[tokens].astype(np.float64) @ values.T)


class Dequantizer:
    """kernels/dequantize/halves.cu on a host: weights of any type to halves."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @staticmethod
    def source(fmt: BlockFormat) -> Source:
        """Return the source that `launch` loads."""
        return Source(kernel_root(), _FILE, _ENTRY, fmt.macros)

    def launch(self, fmt: BlockFormat, weights: Any, halves: Any, values: int) -> None:
        """Convert the first `values` weights of a buffer to halves. Raises KernelFault."""
        kernel, slices = self._host.load(kernel_root(), _FILE, _ENTRY, fmt.macros), values // 32
        grid = (min(-(-slices * 4 // _THREADS), _MOST_BLOCKS), 1, 1)
        self._host.launch(kernel, grid, (_THREADS, 1, 1), [weights, halves, np.int64(slices)])
