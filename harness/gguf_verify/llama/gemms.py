"""Products with weights as llama.cpp computed them, split into one per matrix, and joined again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..support.array_types import Bytes, Floats
from ..support.errors import KernelFault
from . import answers

#: Number of activation rows used for a matrix that received none.
_IDLE_ROWS = 4


@dataclass(frozen=True)
class Gemm:
    """One product with a weight matrix as llama.cpp computed it: a MUL_MAT, one of several matrices of a batched one,
    or one expert of a MUL_MAT_ID with the rows that were routed to it.

    Args:
        tensor: name of the weights.
        node: name of the graph node.
        type_id: ggml type of the weights.
        x: activations, float32[M, K].
        y: llama.cpp's output, float32[M, N].
        quantized: x in each requested activation format, uint8[M, row bytes], by ggml type; for weights in F16 or BF16,
            x in their type instead.
        crc32: checksum of the matrix as llama.cpp holds it, if requested.
        first_row: the tensor's row at which the matrix begins.
        idle: the node did not use this matrix: x are rows that it gave to others, y is empty.
        tokens: the number by which llama.cpp chose its code: columns of a MUL_MAT, tokens of a MUL_MAT_ID.
        experts: it is part of a MUL_MAT_ID.
        on_backend: the backend with the model's layers computed it, not the CPU in its place.
    """

    tensor: str
    node: str
    type_id: int
    x: Floats
    y: Floats
    quantized: dict[int, Bytes]
    crc32: int | None
    first_row: int = 0
    idle: bool = False
    tokens: int = 0
    experts: bool = False
    on_backend: bool = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return len(self.x), self.y.shape[1], self.x.shape[1]

    def outside_graph(self) -> Gemm:
        """Return the same product as a separate MUL_MAT, which the backend computes outside the graph."""
        return replace(self, tokens=len(self.x), experts=False, on_backend=True)


def tapped_product(said: answers.Product, arrays: list[npt.NDArray[Any]]) -> TappedProduct:
    """Convert the child's message on a product. Raises ProtocolError or ValueError if the arrays do not match."""
    x, y, matrix, row, *quantized = arrays
    answers.expect(x, np.float32, None, None)
    answers.expect(y, np.float32, None, None)
    for indices in (matrix, row):
        answers.expect(indices, np.int32, len(y))
    said.check(x, y, matrix, row, quantized)
    return TappedProduct(said, x, y, matrix, row, dict(zip(said.activations, quantized, strict=True)))


class TappedProduct:
    """A product of one evaluation, split into matrices.

    Args:
        header: names, type, and each matrix's first row and crc32.
        x: activations, float32[rows, K].
        y: outputs, float32[rows, N].
        matrix, row: the matrix and the row of x of each output row, int32[rows].
        quantized: x in other formats.
    """

    def __init__(
        self,
        header: answers.Product,
        x: Floats,
        y: Floats,
        matrix: npt.NDArray[np.int32],
        row: npt.NDArray[np.int32],
        quantized: dict[int, Bytes],
    ) -> None:
        self._header, self._x, self._y, self._row, self._quantized = header, x, y, row, quantized
        order = np.argsort(matrix, kind="stable")
        starts = np.flatnonzero(np.diff(matrix[order], prepend=-1))
        #: Matrix → its output rows.
        self._places = {int(matrix[rows[0]]): rows for rows in np.split(order, starts[1:]) if len(rows)}

    @property
    def tensor(self) -> str:
        """The weights' name."""
        return self._header.tensor

    def gemms(self) -> Iterator[Gemm]:
        """Yield each matrix that the node used, in order."""
        for matrix, places in self._places.items():
            yield self._gemm(matrix, self._row[places], _picked(self._y, places))

    def idle(self) -> Iterator[Gemm]:
        """Yield each matrix that the node did not use, with some rows of x that others got."""
        rows = np.unique(np.linspace(0, len(self._x) - 1, _IDLE_ROWS).astype(int)) if len(self._x) else np.zeros(0, int)
        for matrix in range(len(self._header.first_rows)):
            if matrix not in self._places:
                yield self._gemm(matrix, rows, self._y[:0], idle=True)

    def _gemm(self, matrix: int, rows: npt.NDArray[Any], y: Floats, idle: bool = False) -> Gemm:
        header, checksums = self._header, self._header.crc32
        quantized = {kind: _picked(x, rows) for kind, x in self._quantized.items()}
        return Gemm(
            header.tensor,
            header.node,
            header.type,
            _picked(self._x, rows),
            y,
            quantized,
            None if checksums is None else checksums[matrix],
            header.first_rows[matrix],
            idle,
            header.tokens,
            header.experts,
            header.on_backend,
        )

    def joined(self, given: list[Floats | None]) -> Floats | None:
        """Return the node's output with the given outputs of `gemms` in their rows; None if none was given."""
        if all(y is None for y in given):
            return None
        out = self._y.copy()
        for places, y in zip(self._places.values(), given, strict=True):
            if y is not None:
                if y.shape != (len(places), out.shape[1]):
                    raise KernelFault(f"an output of {y.shape} for {len(places)} rows of {out.shape[1]}")
                out[places] = y
        return out


def _picked(array: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return rows of an array; the array itself if these are all of its rows in order."""
    return array if np.array_equal(rows, np.arange(len(array))) else array[rows]
