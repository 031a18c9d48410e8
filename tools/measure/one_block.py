"""A kernel that is wrong for one block of weights, wherever that block occurs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gguf_verify.formats.block import BlockFormat
from gguf_verify.formats.q8_1 import Q8_1
from gguf_verify.formats.tensor_types import WeightFormat
from gguf_verify.kernels.interface import Kernel, Weights
from gguf_verify.semantics.definition import Semantics
from gguf_verify.semantics.order import Order

from .inputs import Bytes, Floats


@dataclasses.dataclass
class Plan:
    """A fault of one block.

    Args:
        kind: a description.
        tensor, row, block: its place.
        original, altered: the block's bytes in the file, and those that the kernel gets.
        without_sum: the bytes are unaltered; instead the outputs lack the block's term m·s.
        look: also compute the outputs without the fault.
        changed: whether the fault changes a bit of any output; None unless `look` is set.
    """

    kind: str
    tensor: str
    row: int
    block: int
    original: Bytes
    altered: Bytes
    without_sum: bool = False
    look: bool = False
    changed: bool | None = None


class OneBlock(Kernel):
    """A kernel that is wrong for one block, which it recognizes by its bytes; no other block has the same.

    Args:
        inner: the correct kernel.
        plan: the fault.
        declares: whether it declares its order of summation.
    """

    def __init__(self, inner: Kernel, plan: Plan, declares: bool = True) -> None:
        self.inner, self.plan, self.declares, self.host = inner, plan, declares, inner.host

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def semantics(self) -> str:
        return self.inner.semantics

    @property
    def definition(self) -> Semantics:
        return self.inner.definition

    @property
    def order(self) -> Order | None:
        return self.inner.order if self.declares else None

    @property
    def layout(self) -> str:
        return self.inner.layout

    def of(self, fmt: WeightFormat, m: int, n: int, k: int) -> Kernel:
        return OneBlock(self.inner.of(fmt, m, n, k), self.plan, self.declares)

    def covers(self, fmt: WeightFormat) -> bool:
        return self.inner.covers(fmt)

    def quantize(self, x: Floats) -> Bytes:
        if self.semantics != "q8_1" or x.nbytes > _KEPT:
            return self.inner.quantize(x)
        return _quantized(self.inner.quantize, x.shape[1], x.tobytes())

    def upload(self, fmt: WeightFormat, rows: Bytes) -> Weights:
        blocks = np.ascontiguousarray(rows).reshape(-1, len(self.plan.original)).copy()
        hits = (blocks == self.plan.original).all(axis=1)
        if not self.plan.without_sum:
            blocks[hits] = self.plan.altered
        places = [divmod(int(i), len(blocks) // len(rows)) for i in np.flatnonzero(hits)]
        right = self.inner.upload(fmt, rows) if self.plan.look else None
        wrong = self.inner.upload(fmt, blocks.reshape(rows.shape))
        return Weights(fmt, wrong.n, wrong.k, (wrong, right, places))

    def gemm(self, weights: Weights, x: Bytes) -> Floats:
        wrong, right, places = weights.buffer
        return self._told(self._lacking(self.inner.gemm(wrong, x), weights.fmt, x, places), right, x)

    def product(self, weights: Weights, x: Floats) -> Floats:
        if self.plan.without_sum or self.layout == "file":  # here `product` consists of these two steps
            return self.gemm(weights, self.quantize(x))
        wrong, right, _ = weights.buffer
        return self._told(self.inner.product(wrong, x), right, x)

    def _lacking(self, y: Floats, fmt: WeightFormat, x: Bytes, places: list[tuple[int, int]]) -> Floats:
        if self.plan.without_sum:
            assert isinstance(fmt, BlockFormat)
            s = Q8_1.view(x.reshape(len(x), -1, Q8_1.block_bytes))["s"].astype(np.float64)
            for row, block in places:
                y[:, row] = y[:, row] - float(fmt.minimum(self.plan.original)) * s[:, block]
        return y

    def _told(self, y: Floats, right: Weights | None, x: npt.NDArray[Any]) -> Floats:
        if right is not None:
            other = self.inner.product(right, x) if x.dtype == np.float32 else self.inner.gemm(right, x)
            self.plan.changed = bool(self.plan.changed) or y.tobytes() != other.tobytes()
            self.looked(y, other)
        return y

    def looked(self, y: Floats, right: Floats) -> None:
        """Hook: called with the outputs float32[M, N] with and without the fault if the plan has `look`."""


class _Once(dict[tuple[int, bytes], Bytes]):
    """A cache of quantized activations, because every trial quantizes the same ones. It is cleared when it is large."""

    def __call__(self, quantize: Callable[[Floats], Bytes], k: int, x: bytes) -> Bytes:
        if (k, x) not in self:
            if len(self) > _QUANTIZED_KEPT:
                self.clear()
            self[k, x] = quantize(np.frombuffer(x, np.float32).reshape(-1, k))
        return self[k, x].copy()


_KEPT, _QUANTIZED_KEPT = 1 << 20, 500
_quantized = _Once()


def flipped(block: Bytes, at: int, mask: int) -> Bytes:
    """Return the block with bits of one byte inverted."""
    out = block.copy()
    out[at] ^= mask
    return out


def low_bits(fmt: BlockFormat) -> list[int]:
    """Return the indices of the bits in a block that are the lowest bit of a value's code."""
    return [
        8 * fmt.field_offset(field.name) + field.item_bits * piece.item + piece.shift
        for field in fmt.fields
        for piece in field.pieces()
        if piece.name == "x" and piece.low == 0
    ]
