"""Probes with the data that a kernel's code compares with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from ....formats.block import BlockFormat
from ....formats.element import SLICE
from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared
from ....kernels.launches import SparseProduct
from ....semantics.definition import Semantics
from ...field_classes import Places, encodes_each, numbers_of
from ...plan import Probe
from .steering import places_of, steered
from .stored_numbers import Data, numbers

#: Comparisons of a shape whose data are tried, and calls with the data of one.
_MOST, _MOST_CALLS = 40, 32


def data_probes(
    semantics: Semantics,
    product: SparseProduct,
    wide: int,
    observe: Callable[[SparseProduct], Compared | None],
    words: Callable[[str], str],
    most: int,
    done: Collection[str],
) -> list[Probe]:
    """Probes of one shape: the data of one comparison each, in all blocks, and in one.

    Args:
        product: of ordinary blocks.
        wide: another K, of several blocks.
        observe: the comparisons of such a product.
        words: FILE:LINE → that with its text.
        most: products that are observed.
        done: words of places that need no further data.
    """
    fmt, size = product.fmt, _activation_bytes(semantics, product)
    base = Data(
        *(int.from_bytes(of.tobytes(), "little") for of in (product.weights[: fmt.block_bytes], product.x[:size]))
    )

    def blocks(data: Data) -> tuple[bytes, bytes]:
        return data.weights.to_bytes(fmt.block_bytes, "little"), data.x.to_bytes(size, "little")

    def observed(data: Data) -> Compared | None:
        weights, x = (np.frombuffer(block, np.uint8) for block in blocks(data))
        found = observe(replace(product, weights=weights, x=x)) or {}
        return {one: of for one, of in found.items() if words(one.place) not in done}

    stored = [*numbers(True, _stored(fmt)), *numbers(False, _stored_by_activations(semantics, size))]
    probes = []
    for place, data in [*places_of(steered(base, stored, observed, most)).items()][:_MOST]:
        tried = tuple(map(blocks, data))
        # sums of a row are those that were observed only at the same K, where all its blocks are alike
        for k, each in {product.k: 1, wide: 2}.items():
            rows, tokens = (each * len({*of}) for of in zip(*tried, strict=True))
            probe = Probe(
                (product.m,), max(product.n, 2 * rows), k, blocks="what its code compares with",
                values="what its code compares with", because=words(place), data=tried,
            )  # fmt: skip
            calls = min(_MOST_CALLS, -(-tokens // product.m))
            probes += [replace(probe, first=i * tokens // calls) for i in range(calls)]
    return probes


def _activation_bytes(semantics: Semantics, product: SparseProduct) -> int:
    """Bytes of a block of activations, or of a slice of values."""
    takes = semantics.activations
    return product.token_bytes // product.k * SLICE if takes is None else takes.block_bytes


def _stored(fmt: WeightFormat) -> dict[str, list[Places]]:
    return numbers_of(fmt) if isinstance(fmt, BlockFormat) else _values(fmt.block_bytes, 1)


def _stored_by_activations(semantics: Semantics, size: int) -> dict[str, list[Places]]:
    """The numbers that are set; none of blocks with sums that must agree with the codes."""
    takes = semantics.activations
    if takes is None:
        return _values(size // SLICE, SLICE)
    return numbers_of(takes) if encodes_each(takes) else {}


def _values(size: int, count: int) -> dict[str, list[Places]]:
    """Some values of a size in bytes."""
    return {"x": [[(8 * size * i + bit, bit) for bit in range(8 * size)] for i in range(count)]}
