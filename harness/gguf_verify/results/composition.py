"""The composition of a model: the tensors, the weights and the bytes of each type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class TypeShare(msgspec.Struct, frozen=True, kw_only=True):
    """The tensors of one type.

    Args:
        type: its name, such as "Q4_0".
        tensors: number of tensors.
        weights: number of their values.
        nbytes: size of their data in bytes, without padding.
    """

    type: str
    tensors: int
    weights: int
    nbytes: int

    @property
    def bits_per_weight(self) -> float:
        """Bits of data for each value."""
        return 8 * self.nbytes / max(1, self.weights)


class Composition(NamedTuple):
    """The types of all tensors of a model, those with the most bytes first."""

    types: Sequence[TypeShare]

    @property
    def weights(self) -> int:
        """Number of values of all tensors."""
        return sum(share.weights for share in self.types)

    @property
    def nbytes(self) -> int:
        """Size of the data of all tensors in bytes."""
        return sum(share.nbytes for share in self.types)

    @property
    def bits_per_weight(self) -> float:
        """Bits of data for each value, over all tensors: the figure that llama.cpp prints as BPW."""
        return 8 * self.nbytes / max(1, self.weights)

    def percent(self, share: TypeShare) -> str:
        """The share of a type in the bytes. "100 %" only if it has all of them, "0 %" only if it has none."""
        part = 100 * share.nbytes / max(1, self.nbytes)
        if part and part < 0.1:
            return "<0.1 %"
        if share.nbytes < self.nbytes:
            part = min(part, 99.9)
        return f"{part:.0f} %" if part == round(part) or 10 <= part < 99 else f"{part:.1f} %"

    def words(self, most: int = 4) -> str:
        """The types by bytes, such as "73 % Q8_0, 18 % Q5_0, 5.0 % Q4_K"; those beyond `most` are counted."""
        shown = [f"{self.percent(share)} {share.type}" for share in self.types[:most]]
        beyond = len(self.types) - most
        return ", ".join(shown) + (f", and {beyond} more type{'' if beyond == 1 else 's'}" if beyond > 0 else "")
