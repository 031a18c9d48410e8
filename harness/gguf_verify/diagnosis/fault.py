"""The record of a known fault, and of the product that may have it.

A fault has variants (which way, which tile); each is a complete prediction of the outputs in float64. Nothing here uses
a kernel's outputs: see `diagnose`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from ..results.diagnoses import FaultMatch
from ..semantics.definition import Semantics
from .operands import Bytes, Floats, Parts, Predicted, parts_of

Variants = Iterator[tuple[str, Parts | Predicted]]
#: The same, where each product may be made on demand.
LazyVariants = Iterator[tuple[str, Parts | Predicted | Callable[[], Parts | Predicted]]]


#: Measures replay one in this many variants of faults with many.
SAMPLED = 23


@dataclass(frozen=True)
class Case:
    """One product that may be faulty.

    Args:
        semantics, fmt: the declared definition, and the weights' format.
        rows: weights uint8[N, row bytes].
        x: activations uint8[M, row bytes] as the definition has them.
        values: float32[M, K] that the kernel quantized itself; None if it got x.
    """

    semantics: Semantics
    fmt: BlockFormat
    rows: Bytes
    x: Bytes
    values: Floats | None

    @cached_property
    def parts(self) -> Parts:
        """The operands of the correct product."""
        return parts_of(self.semantics, self.fmt, self.rows, self.x)

    @cached_property
    def right(self) -> Predicted:
        """The outputs of the correct product."""
        return self.parts.predicted()

    def part(self, rows: npt.NDArray[np.intp], tokens: npt.NDArray[np.intp]) -> Case:
        """Return the product of some rows and tokens, by their numbers."""
        values = None if self.values is None else self.values[tokens]
        return replace(self, rows=np.ascontiguousarray(self.rows[rows]), x=self.x[tokens], values=values)

    def of_parts(self, parts: Parts) -> Case:
        """Return the case with other operands, which its bytes do not give."""
        other = replace(self)
        other.__dict__["parts"] = parts
        return other

    @property
    def quantized(self) -> bool:
        """Whether the activations are quantized."""
        return self.semantics.activations is not None

    @property
    def meets_sum(self) -> bool:
        """Whether the product reads the activations' stored sum s."""
        return self.quantized and self.semantics.uses_sum(self.fmt)

    @property
    def taken_off(self) -> int:
        """The number that the definition subtracts from each code before the integer product: the format's offset, or
        0.
        """
        return self.semantics.term.offset(self.fmt)

    @property
    def half_scale(self) -> bool:
        """Whether the scale of activations is a half."""
        return self.semantics.activations is not None and self.semantics.activations.fields[0].dtype == "<f2"


def case_of(semantics: Semantics, fmt: WeightFormat, rows: Bytes, x: npt.NDArray[Any]) -> Case | None:
    """Return the product of weights uint8[N, row bytes] and activations as a case.

    The activations are float32[M, K] that the kernel quantizes, or uint8[M, row bytes]. None if no fault of it is
    known: weights that are not quantized, an author's oracle, a term whose addends are not known.
    """
    semantics = semantics.inside or semantics
    if semantics.oracle is not None or semantics.epilogue is not None or not isinstance(fmt, BlockFormat):
        return None
    if not semantics.term.splits:
        return None
    values = x if x.dtype == np.float32 else None
    return Case(semantics, fmt, np.ascontiguousarray(rows), semantics.bytes_of(x) if values is not None else x, values)


@dataclass(frozen=True)
class Explanation:
    """A variant of a fault that explains the outputs of a product, with its predictions for any other product.

    Args:
        match: the fault, as in a report.
        predict: returns the outputs of a product; None if they are not known.
        part: the outputs that it explains, bool[M, N], if others are correct that it would make wrong; None for all.
    """

    match: FaultMatch
    predict: Callable[[Case], Predicted | None] = lambda _: None
    part: npt.NDArray[np.bool_] | None = None

    def shows(self, case: Case) -> bool:
        """Return whether the fault would make outputs of a product wrong, if it affected all of them."""
        return bool(self._apart(case).any())

    def shows_in_its_part(self, case: Case) -> bool:
        """Return the same if it only affects that part: outputs of the same rows and tokens.

        Since the part may be lanes of warps, outputs of the same numbers count, too.
        """
        apart = self._apart(case)
        if self.part is None or not apart.any():
            return bool(apart.any())
        m, n = (min(sizes) for sizes in zip(apart.shape, self.part.shape, strict=True))
        of_numbers = min(apart.size, self.part.size)
        at_its_places = apart[:m, :n] & self.part[:m, :n]
        at_its_numbers = apart.ravel()[:of_numbers] & self.part.ravel()[:of_numbers]
        return bool(at_its_places.any() and at_its_numbers.any())

    def _apart(self, case: Case) -> npt.NDArray[np.bool_]:
        """Return the outputs of a product that the fault makes wrong."""
        predicted = self.predict(case)
        if predicted is None:
            return np.zeros(case.right.exact.shape, bool)
        apart = ~(np.abs(predicted.exact - case.right.exact) <= case.right.bound + predicted.bound)
        return np.asarray(apart if predicted.known is None else apart & predicted.known)


def one_each(explanations: Iterable[Explanation]) -> tuple[FaultMatch, ...]:
    """Return the faults, each in the words of its first variant."""
    found: dict[str, FaultMatch] = {}
    for explanation in explanations:
        found.setdefault(explanation.match.id, explanation.match)
    return tuple(found.values())


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A known fault.

    Args:
        id: stable, for JSON.
        words: what the kernel does, in plain words.
        fix: one line.
        applies: whether a product can have it.
        variants: (which way, the faulty product) of a case.
        many: it has so many variants that they are tried on few rows and tokens first, and only if no other fault is
            named. Its effect on an output must depend only on that row and token.
        special: ids of faults that are special cases of this one, and may be named in its place.
    """

    id: str
    words: str
    fix: str
    applies: Callable[[Case], bool]
    variants: Callable[[Case], Variants | LazyVariants]
    many: bool = False
    special: tuple[str, ...] = ()

    def of(self, case: Case, only: Collection[str] | None = None) -> Variants:
        """Yield the variants, or those of these names; none if the fault does not apply."""
        if self.applies(case):
            for which, made in self.variants(case):
                if only is None or which in only:
                    yield which, made() if callable(made) else made

    def sample(self, case: Case, first: int = 0) -> Variants:
        """Yield the variants, for measures: for a fault with many, one in SAMPLED, counted from `first`."""
        if not self.many:
            yield from self.of(case)
        elif self.applies(case):
            names = [which for which, _ in self.variants(case)]
            yield from self.of(case, names[first % SAMPLED :: SAMPLED])

    def named_by(self, ids: Collection[str]) -> bool:
        """Return whether these names are correct for it: it is among them, or they are only special cases of it."""
        return self.id in ids or (bool(ids) and set(ids) <= set(self.special))


def always(_: Case) -> bool:
    """The condition of faults that every product can have."""
    return True


def fault(
    id: str,
    words: str,
    fix: str,
    applies: Callable[[Case], bool] = always,
    many: bool = False,
    special: tuple[str, ...] = (),
) -> Callable[[Callable[[Case], Variants | LazyVariants]], Fault]:
    """Declare a function as the variants of a fault: see `Fault`."""

    def declare(variants: Callable[[Case], Variants | LazyVariants]) -> Fault:
        return Fault(id=id, words=words, fix=fix, applies=applies, variants=variants, many=many, special=special)

    return declare
