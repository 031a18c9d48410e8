"""The weights and activations of a probe, made of the type's own blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ....formats.block import BlockFormat
from ....formats.q8_1 import Q8_1
from ....formats.tensor_types import WeightFormat
from ....semantics.definition import Semantics
from ....semantics.order import Order
from ....semantics.sums import Product
from ....support.arrays import get
from ...field_classes import (
    FINITE_HALVES,
    elements_of_classes,
    every_class,
    every_half,
    halves_of,
    numbers_of_classes,
    values_of_classes,
)
from ...generated_inputs import any_blocks, drawn, held_by, special, ties_of_codes, with_least_codes
from ...plan import Probe

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
#: Rows uint8[N, row bytes], activations uint8[M, row bytes] and an order → spans of the rows, and their products.
Exact = Callable[[Bytes, Bytes, Order | None], Iterator[tuple[slice, Product]]]

#: The largest weight, of which sums of products are finite in float32: an exponent of E8M0 reaches 2^127.
_LARGEST = 2.0**61
#: The same where outputs or sums are halves and blocks of every scale are in one product.
_LARGEST_NARROW = 16.0
#: Blocks of the model of which one is chosen.
_FEW_BLOCKS = 256


class ProbeInputs:
    """Weights and activations of one type.

    Args:
        fmt, semantics: the type, and the definition of its products.
        units: blocks of the model, uint8[…, block bytes], which are laid out anew.
        like: activations float32[M, K] of the graph, whose size random ones have.
        seed: of random ones.
        exact: multiplies.
    """

    def __init__(
        self, fmt: WeightFormat, semantics: Semantics, units: Bytes, like: Floats, seed: int, exact: Exact
    ) -> None:  # fmt: skip
        self._fmt, self._semantics, self._units, self._like = fmt, semantics, units, like
        self._seed, self._exact = seed, exact

    def others(self, number: int) -> ProbeInputs:
        """Other random activations, and the blocks in another order."""
        units = np.roll(self._units, number * (1 + len(self._units) // 4), axis=0)
        return ProbeInputs(self._fmt, self._semantics, units, self._like, self._seed + number, self._exact)

    def weights(self, probe: Probe) -> Bytes:
        """uint8[N, row bytes]."""
        fmt, wide = self._fmt, probe.k // self._fmt.unit
        if probe.data:
            # the data are those of the first unit but for a few numbers: other units show codes that were kept
            others = np.roll(self._units, -1, axis=0)
            blocks = _distinct(weights for weights, _ in probe.data)
            blocks = blocks[self._held(blocks, probe)]
            made = _all_and_last(blocks, np.resize(others, (1, wide * others.shape[1])))
            between = np.stack([made, np.resize(others, made.shape)], axis=1)
            return np.resize(between, (probe.n, made.shape[1]))
        if probe.blocks == "each class of each field":
            if not isinstance(fmt, BlockFormat):
                elements = elements_of_classes(fmt, probe.k)
                return np.resize(elements, (probe.n, elements.shape[1]))
            own = np.resize(self._units, (probe.n, fmt.block_bytes))
            blocks = np.resize(every_class(fmt, own), own.shape)
            held = self._held(blocks, probe)
            blocks[~held] = own[~held]
            return np.tile(blocks, (1, probe.k // fmt.block_size))
        if probe.blocks == "every half of a field":
            assert isinstance(fmt, BlockFormat)
            own = self._without_cancellation()
            blocks = every_half(fmt, own, [*halves_of(fmt)][probe.first // FINITE_HALVES])
            blocks = np.resize(np.roll(blocks, -(probe.first % FINITE_HALVES), axis=0), (probe.n, len(own)))
            held = self._held(blocks, probe)
            if "float16" in (self._semantics.output, self._semantics.accumulation.name):
                held &= np.abs(fmt.decode(blocks)).max(axis=-1) <= _LARGEST_NARROW
            blocks[~held] = own
            return np.tile(blocks, (1, probe.k // fmt.block_size))
        if probe.blocks == "any bits":
            assert isinstance(fmt, BlockFormat)
            blocks = any_blocks(fmt, probe.n * probe.k // fmt.block_size, self._seed)
            large = ~held_by(self._semantics, fmt, blocks, alone=probe.k <= fmt.unit)
            blocks[large] = np.resize(self._units, blocks.shape)[large]
            return blocks.reshape(probe.n, -1)
        there = len(self._units) - (len(self._units) % wide == 0 and len(self._units) > 1)  # so that rows repeat late
        needed = min(there, probe.n * wide)  # of a large matrix, whose blocks a small probe does not use up
        return np.resize(self._units[:needed], (probe.n, wide * self._units.shape[1]))

    def has_halves(self, probe: Probe) -> bool:
        """Whether the operands have the field of which a probe has every half, and the product depends on it."""
        fmt, takes, at = self._fmt, self._semantics.activations, probe.first // FINITE_HALVES
        if probe.blocks == "every half of a field":
            return isinstance(fmt, BlockFormat) and at < len(halves_of(fmt))
        names = [] if takes is None else [*halves_of(takes)]
        assert isinstance(fmt, BlockFormat)
        return at < len(names) and (not names[at].startswith("s ") or self._semantics.uses_sum(fmt))

    def _without_cancellation(self) -> Bytes:
        """uint8[block bytes]: the block of the model whose sum with positive activations cancels least."""
        fmt = self._fmt
        assert isinstance(fmt, BlockFormat)
        blocks = self._units.reshape(-1, fmt.block_bytes)[:_FEW_BLOCKS]
        values = fmt.decode(blocks).astype(np.float64)
        kept = np.abs(values.sum(axis=1)) / np.maximum(np.abs(values).sum(axis=1), 1e-300)
        return np.asarray(blocks[int(kept.argmax())])

    def values(self, probe: Probe, rows: Bytes) -> Floats:
        """float32[largest M, K]; the last token of random ones has ties of codes."""
        m, k = max(probe.tokens), probe.k
        if probe.data and self._semantics.activations is None:
            made = self._with_data(probe, self._semantics.bytes_of(drawn((1, k), self._like, self._seed)))
            made = made[self._finite(rows, made)]
            return self._semantics.values_of(np.resize(np.roll(made, -probe.first, axis=0), (m, made.shape[1])))
        if probe.values == "special":
            # where blocks have no sum s, a kernel that makes one of its own must not keep it in a half
            semantics, fmt = self._semantics, self._fmt
            few = semantics.activations is not None or semantics.range_of_halves(fmt)
            values = special(k, self._like, 1e2 if semantics.sums_in_halves(fmt) else 1e4 if few else 1e6)
            return np.resize(values[self._finite(rows, semantics.bytes_of(values))], (m, k))
        if probe.values == "classes of scales and sums":
            values = values_of_classes(k) if self._semantics.activations is not None else numbers_of_classes(k)
            values = values[self._finite(rows, self._semantics.bytes_of(values))]
            return np.resize(np.roll(values, -probe.first, axis=0), (m, k))
        if "every half of a field" in (probe.blocks, probe.values):
            return np.tile(np.abs(drawn((1, k), self._like, self._seed)), (m, 1))
        values = drawn((m, k), self._like, self._seed)
        if m > 1 or probe.values == "drawn":
            values[-1:] = ties_of_codes(k)
        return values

    def encoded(self, probe: Probe, rows: Bytes, ordinary: Bytes) -> Bytes:
        """Activations uint8[M, row bytes] that no quantizer need write.

        Args:
            rows: uint8[N, row bytes]: products with these are finite.
            ordinary: activations of the same shape.
        """
        if probe.values == "codes of -128":
            return with_least_codes(ordinary)
        fmt = self._semantics.activations
        assert fmt is not None
        if probe.data:
            made = self._with_data(probe, ordinary[:1])
        elif probe.values == "every half of a field":
            name = [*halves_of(fmt)][probe.first // FINITE_HALVES]
            made = every_half(fmt, ordinary[0, : fmt.block_bytes], name)
            made = np.tile(made, (1, ordinary.shape[1] // fmt.block_bytes))
            return np.resize(np.roll(made, -(probe.first % FINITE_HALVES), axis=0), ordinary.shape)
        else:
            made = every_class(fmt, ordinary[:, : fmt.block_bytes])
            if fmt is not Q8_1:  # CPUs multiply such codes by instructions for a sign, for which -128 has no negative
                made = made[(fmt.codes(made) > -128).all(axis=1)]
            made = np.tile(made, (1, ordinary.shape[1] // fmt.block_bytes))
        made = made[self._finite(rows, made)]
        return np.resize(np.roll(made, -probe.first, axis=0), ordinary.shape)

    def finite(self, probe: Probe) -> Probe:
        """With those of its data of which every row and token that repeats one block has a product that is held."""
        weights, x = (_distinct(blocks) for blocks in zip(*probe.data, strict=True))
        weights = weights[self._held(weights, probe)]
        width = self._semantics.bytes_of(np.zeros((1, probe.k), np.float32)).shape[1]
        rows, tokens = (np.tile(of, (1, wide // of.shape[1])) for of, wide in (
            (weights, probe.k // self._fmt.block_size * weights.shape[1]), (x, width),
        ))  # fmt: skip
        held = {each.tobytes() for each in (*weights, *x[self._finite(rows, tokens)])}
        return replace(probe, data=tuple(pair for pair in probe.data if held.issuperset(pair)))

    def _with_data(self, probe: Probe, ordinary: Bytes) -> Bytes:
        """uint8[M, row bytes]: those of `Probe.data`."""
        return _all_and_last(_distinct(x for _, x in probe.data), ordinary)

    def _held(self, blocks: Bytes, probe: Probe) -> npt.NDArray[np.bool_]:
        """Whether the definition's numbers hold ordinary products with blocks uint8[n, block bytes]: bool[n]."""
        fmt = self._fmt
        if not isinstance(fmt, BlockFormat):
            return np.asarray(np.isfinite(fmt.decode(blocks)).all(axis=-1))
        held = held_by(self._semantics, fmt, blocks, alone=probe.k <= fmt.unit)
        return np.asarray(held & (np.abs(fmt.decode(blocks)).max(axis=-1) <= _LARGEST))

    def _finite(self, rows: Bytes, encoded: Bytes) -> npt.NDArray[np.bool_]:
        """Whether the products of activations uint8[M, row bytes] are finite: bool[M]. Others are a matter of the
        definition's range."""
        finite = np.ones(len(encoded), bool)
        for _, exact in self._exact(rows, encoded, None):
            finite &= get(np.isfinite(exact.exact).all(axis=1))
        return finite


def _distinct(blocks: Iterable[bytes]) -> Bytes:
    """uint8[n, block bytes]: each once."""
    each = dict.fromkeys(blocks)
    return np.frombuffer(b"".join(each), np.uint8).reshape(len(each), -1)


def _all_and_last(blocks: Bytes, ordinary: Bytes) -> Bytes:
    """uint8[2n, row bytes]: of each block, a row of it alone; then, in rows of several, the ordinary row uint8[1, row
    bytes] that ends with it."""
    alone = np.tile(blocks, (1, ordinary.shape[1] // blocks.shape[1]))
    last = np.repeat(ordinary, len(blocks), axis=0)
    last[:, -blocks.shape[1] :] = blocks
    return alone if alone.shape == blocks.shape else np.concatenate([alone, last])
