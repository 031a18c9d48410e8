"""The data with which a kernel's code compares, as blocks of both operands and as probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

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
#: Times that the difference of a sum is spread over the values that are not at an end.
_ROUNDS = 8

#: A block of weights and one of activations.
Pair = tuple[bytes, bytes]


@dataclass(frozen=True)
class Blocks:
    """Blocks of weights and of activations whose numbers are set.

    Args:
        product: of ordinary blocks.
        pair: a block of each operand, with which a search begins; None: the first of the product.
    """

    semantics: Semantics
    product: SparseProduct
    pair: Pair | None = None

    @property
    def x_bytes(self) -> int:
        """Bytes of a block of activations, or of a slice of values."""
        takes = self.semantics.activations
        return self.product.token_bytes // self.product.k * SLICE if takes is None else takes.block_bytes

    @property
    def first(self) -> Pair:
        """The blocks with which a search begins."""
        weights, x = self.product.weights[: self.product.fmt.block_bytes], self.product.x[: self.x_bytes]
        return (weights.tobytes(), x.tobytes()) if self.pair is None else self.pair

    @cached_property
    def start(self) -> Data:
        """Return the data of these."""
        weights, x = self.first
        return Data(int.from_bytes(weights, "little"), int.from_bytes(x, "little"))

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

    def bytes_of(self, data: Data) -> Pair:
        """Return a block of each operand."""
        weights = data.weights.to_bytes(self.product.fmt.block_bytes, "little")
        return weights, data.x.to_bytes(self.x_bytes, "little")


@dataclass(frozen=True)
class QuantizedBlocks(Blocks):
    """Blocks of weights, and the blocks that a kernel quantizes its activations to.

    The data are those of the quantized block: its scale, its codes, its sum. They become values whose quantization
    gives them, x = d·q. So that d = max|x| / (largest code), the largest code stays as it is.
    """

    def __post_init__(self) -> None:
        assert self.semantics.inside is not None

    @classmethod
    def of(cls, semantics: Semantics, product: SparseProduct, pair: Pair | None) -> QuantizedBlocks | None:
        """Return those of a kernel that quantizes; None if it does not, or its blocks have sums of codes."""
        inside = semantics.inside
        takes = None if inside is None else inside.activations
        return cls(semantics, product, pair) if takes is not None and encodes_each(takes) else None

    @property
    def _takes(self) -> BlockFormat:
        assert self.semantics.inside is not None
        assert self.semantics.inside.activations is not None
        return self.semantics.inside.activations

    @cached_property
    def start(self) -> Data:
        assert self.semantics.inside is not None
        weights, x = self.first
        values = np.resize(
            self.semantics.values_of(np.frombuffer(x, np.uint8)[None]), (1, self._takes.block_size)
        )  # fmt: skip
        quantized = self.semantics.inside.bytes_of(values).tobytes()
        return Data(int.from_bytes(weights, "little"), int.from_bytes(quantized, "little"))

    @cached_property
    def _largest(self) -> int:
        """The place of the largest code."""
        return int(np.abs(self._decoded(self.start)).argmax())

    def _stored_by_activations(self) -> dict[str, list[Places]]:
        stored = numbers_of(self._takes)
        return {**stored, "x": [one for i, one in enumerate(stored["x"]) if i != self._largest]}

    def _block(self, data: Data) -> npt.NDArray[np.uint8]:
        return np.frombuffer(data.x.to_bytes(self._takes.block_bytes, "little"), np.uint8)

    def _decoded(self, data: Data) -> npt.NDArray[np.float32]:
        return np.asarray(self._takes.decode(self._block(data)[None])[0], np.float32)

    def bytes_of(self, data: Data) -> Pair:
        values = self._decoded(data)
        if "s" in (self._takes.view(self._block(data)[None]).dtype.names or ()):
            sums = (float(self._takes.view(self._block(of)[None])["s"][0]) for of in (data, self.start))
            wanted, before = sums
            if wanted != before:
                values = self._with_sum(values, wanted)
        weights = data.weights.to_bytes(self.product.fmt.block_bytes, "little")
        return weights, self.semantics.bytes_of(values[None]).tobytes()

    def _with_sum(self, values: npt.NDArray[np.float32], wanted: float) -> npt.NDArray[np.float32]:
        """Values with another sum, as near as the largest one lets it be: first by less than a rounding of codes."""
        largest = np.abs(values[self._largest])
        others = np.arange(len(values)) != self._largest
        made = values.astype(np.float64)
        for _ in range(_ROUNDS):
            rest = wanted - made.sum()
            made[others] = np.clip(made[others] + rest / max(1, others.sum()), -largest, largest)
        return made.astype(np.float32)


def with_blocks(product: SparseProduct, pairs: Sequence[Pair]) -> SparseProduct:
    """Return a product that repeats some blocks of each operand: an odd number, so that the first blocks of rows a
    power of two apart differ."""
    odd = [*pairs, *pairs[: 1 - len(pairs) % 2]]
    weights, x = (np.frombuffer(b"".join(blocks), np.uint8) for blocks in zip(*odd, strict=True))
    return replace(product, weights=weights, x=x)


def probes_with(
    shape: tuple[int, int, int], pairs: Sequence[Pair], several: bool, because: str
) -> Iterator[Probe]:  # fmt: skip
    """Probes of exactly one shape with blocks of data, as many as its rows and tokens need.

    Args:
        pairs: blocks of weights and of activations.
        several: a row has several blocks: each pair is tried in all of them and in the last one.
    """
    m, n, k = shape
    each = 2 if several else 1
    for data in _parts(pairs, max(1, n // (2 * each))):  # every other row is an ordinary one
        probe = Probe(
            (m,), n, k, blocks="what its code compares with", values="what its code compares with", because=because,
            data=data,
        )  # fmt: skip
        tokens = each * len({x for _, x in data})
        calls = min(_MOST_CALLS, -(-tokens // m))
        yield from (replace(probe, first=i * tokens // calls) for i in range(calls))


def _parts(pairs: Sequence[Pair], most: int) -> Iterator[tuple[Pair, ...]]:
    """Pairs in parts with at most this number of different blocks of weights."""
    part: list[Pair] = []
    for pair in pairs:
        if len({weights for weights, _ in (*part, pair)}) > most:
            yield tuple(part)
            part = []
        part.append(pair)
    yield tuple(part)


def _stored(fmt: WeightFormat) -> dict[str, list[Places]]:
    return numbers_of(fmt) if isinstance(fmt, BlockFormat) else _values(fmt.block_bytes, 1)


def _values(size: int, count: int) -> dict[str, list[Places]]:
    """Some values of a size in bytes."""
    return {"x": [[(8 * size * i + bit, bit) for bit in range(8 * size)] for i in range(count)]}
