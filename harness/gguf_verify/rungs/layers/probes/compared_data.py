"""The data with which a kernel's code compares, as blocks of both operands and as probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ....formats.block import BlockFormat
from ....formats.element import SLICE
from ....formats.tensor_types import WeightFormat
from ....kernels.launches import SparseProduct
from ....semantics.definition import Semantics
from ...field_classes import Places, encodes_each, numbers_of
from ...plan import Probe
from .stored_numbers import Data, Number, numbers

#: Calls with the data of one comparison.
_MOST_CALLS = 32


@dataclass(frozen=True)
class Blocks:
    """Blocks of weights and of activations whose numbers are set.

    Args:
        product: of ordinary blocks.
    """

    semantics: Semantics
    product: SparseProduct

    @property
    def x_bytes(self) -> int:
        """Bytes of a block of activations, or of a slice of values."""
        takes = self.semantics.activations
        return self.product.token_bytes // self.product.k * SLICE if takes is None else takes.block_bytes

    @cached_property
    def ordinary(self) -> Data:
        """The first block of each operand."""
        first = self.product.weights[: self.product.fmt.block_bytes], self.product.x[: self.x_bytes]
        return Data(*(int.from_bytes(of.tobytes(), "little") for of in first))

    @cached_property
    def numbers(self) -> list[Number]:
        """Those of both blocks."""
        return [*numbers(True, _stored(self.product.fmt)), *numbers(False, self._stored_by_activations())]

    def _stored_by_activations(self) -> dict[str, list[Places]]:
        """The numbers that are set; none of blocks with sums that must agree with the codes."""
        takes = self.semantics.activations
        if takes is None:
            return _values(self.x_bytes // SLICE, SLICE)
        return numbers_of(takes) if encodes_each(takes) else {}

    def bytes_of(self, data: Data) -> tuple[bytes, bytes]:
        """Return a block of each operand."""
        weights = data.weights.to_bytes(self.product.fmt.block_bytes, "little")
        return weights, data.x.to_bytes(self.x_bytes, "little")

    def of(self, product: SparseProduct, data: Data) -> SparseProduct:
        """Return a product all of whose blocks have these data."""
        return with_blocks(product, [self.bytes_of(data)])


def with_blocks(product: SparseProduct, pairs: Sequence[tuple[bytes, bytes]]) -> SparseProduct:
    """Return a product that repeats some blocks of each operand: an odd number, so that the first blocks of rows a
    power of two apart differ."""
    odd = [*pairs, *pairs[: 1 - len(pairs) % 2]]
    weights, x = (np.frombuffer(b"".join(blocks), np.uint8) for blocks in zip(*odd, strict=True))
    return replace(product, weights=weights, x=x)


def probes_with(
    shape: tuple[int, int, int], pairs: Sequence[tuple[bytes, bytes]], several: bool, because: str
) -> Iterator[Probe]:  # fmt: skip
    """Probes of exactly one shape with blocks of data, as many as its rows and tokens need.

    Args:
        pairs: blocks of weights and of activations.
        several: a row has several blocks: each pair is tried in all of them and in the last one.
    """
    m, n, k = shape
    each = 2 if several else 1
    at_once = max(1, n // (2 * each))  # every other row is an ordinary one
    for start in range(0, len(pairs), at_once):
        data = tuple(pairs[start : start + at_once])
        probe = Probe(
            (m,), n, k, blocks="what its code compares with", values="what its code compares with", because=because,
            data=data,
        )  # fmt: skip
        tokens = each * len({x for _, x in data})
        calls = min(_MOST_CALLS, -(-tokens // m))
        yield from (replace(probe, first=i * tokens // calls) for i in range(calls))


def _stored(fmt: WeightFormat) -> dict[str, list[Places]]:
    return numbers_of(fmt) if isinstance(fmt, BlockFormat) else _values(fmt.block_bytes, 1)


def _values(size: int, count: int) -> dict[str, list[Places]]:
    """Some values of a size in bytes."""
    return {"x": [[(8 * size * i + bit, bit) for bit in range(8 * size)] for i in range(count)]}
