"""The exact products that a rung judges outputs by, and how far an author's oracle is from the known definitions.

If the author of a kernel brings an `Oracle`, it says what the exact product is. It gives two matrices, and the rungs
multiply and bound them, so an oracle cannot widen its own bound. But it may describe another product, or its terms may
cancel, and then the bound, which grows with the terms, would excuse any output. Both are measured on the activations
that the kernel gets, and both are mismatches.

An error in few places hides in the distance of all products. So each token and each row of weights has a distance of
its own, relative to its outputs if no terms cancelled. And the oracle's matrices are compared with the file's weights,
every row of them, and with the activations, value by value. A few different weights are a mismatch. If many differ, the
oracle may have rotated the weights of the same product, and it may have clipped activations: the report says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.element import ElementFormat
from ..formats.tensor_types import WeightFormat
from ..gguf.file import Tensor
from ..results.failures import Failure
from ..results.rungs import RungResult
from ..semantics.accumulation import IN_FLOAT32
from ..semantics.definition import Oracle, Semantics
from ..semantics.exact import each_block, product
from ..semantics.order import Order
from ..semantics.sums import Product
from ..semantics.values import exact_weights
from ..support.text import printable
from .run import Run

Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]

#: An oracle with a larger NMSE to every definition describes another product: activations of 8 bits are at 1e-4, those
#: of 4 bits below 1e-2.
FAR = 1e-2
#: The same of each token and of each row, which differ more: where all of one is zero, it is about one.
FAR_EACH = 0.1
#: The largest ratio of the oracle's bound to that of every definition: the bound of `f32` counts K roundings
#: where another counts K/32, and codes without their offset are about twice as large.
EXCUSE = 64.0
#: A share of the mean bound that is too small to excuse anything.
_NEGLIGIBLE = 1e-3
#: A value is reported where it is further from the file's, or from the activation's, in units of its row's largest
#: value: codes of 4 bits are within 0.07.
_REPORTED = 0.1
#: Up to this share of weights that are so far off, they are a fault; more may be a rotation of all of them.
_FEW = 0.25
#: Weights that are compared at a time.
_MOST_VALUES = 1 << 22


@dataclass
class Distances:
    """The worst of several products.

    Args:
        nmse: definition → the largest NMSE of a tensor's products to it.
        off: which of the oracle's matrices → the largest difference of a value.
    """

    nmse: dict[str, float] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=lambda: {"weights": 0.0, "activations": 0.0})

    def join(self, other: Distances) -> None:
        """Keep the larger of both."""
        for mine, theirs in ((self.nmse, other.nmse), (self.off, other.off)):
            for name, value in theirs.items():
                mine[name] = max(mine.get(name, 0.0), value)


@dataclass
class _Sums:
    """How far products are from those of one definition.

    Args:
        difference, energy: Σ(o - d)² and Σd².
        tokens: number of tokens of a product → (difference, energy) of each token, float64[M] each. Terms do not cancel
            in this energy.
        worst_row: the number of the row that is furthest off, and by how much.
    """

    difference: float = 0.0
    energy: float = 0.0
    tokens: dict[int, tuple[Doubles, Doubles]] = field(default_factory=dict)
    worst_row: tuple[int, float] = (0, 0.0)

    def add(self, own: Product, known: Product) -> None:
        """Add a product [M, N]."""
        finite = np.isfinite(known.exact) & np.isfinite(own.exact)  # the others fail anyway
        difference = np.where(finite, (own.exact - known.exact) ** 2, 0.0)
        energy = np.where(finite, known.exact**2, 0.0)
        self.difference += float(difference.sum())
        self.energy += float(energy.sum())
        if known.scale is not None:
            energy = np.maximum(energy, np.where(finite, known.scale**2, 0.0))
        m = len(energy)
        before = self.tokens.get(m, (np.zeros(m), np.zeros(m)))
        self.tokens[m] = before[0] + difference.sum(axis=1), before[1] + energy.sum(axis=1)
        self.worst_row = max(self.worst_row, _worst(difference.sum(axis=0), energy.sum(axis=0)), key=lambda at: at[1])

    @property
    def nmse(self) -> float:
        return self.difference / self.energy if self.energy else (np.inf if self.difference else 0.0)

    @property
    def worst_token(self) -> tuple[int, float]:
        """The number of the token that is furthest off, and by how much."""
        return max((_worst(*sums) for sums in self.tokens.values()), key=lambda at: at[1], default=(0, 0.0))


def _worst(difference: Doubles, energy: Doubles) -> tuple[int, float]:
    """The place of the largest quotient, and that."""
    ratio = np.where(difference > 0, difference / np.where(energy > 0, energy, np.nan), 0.0)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    return (int(ratio.argmax()), float(ratio.max())) if ratio.size else (0, 0.0)


@dataclass
class _Products:
    """The findings of the products since the last `judge`.

    Args:
        of: definition → how far they are from its own.
        excused: the largest quotient of the oracle's bound and those of the definitions.
        few: the place of the first of a few weights that differ, and the share of these.
        compared: digests of the rows of weights that were compared.
    """

    of: dict[str, _Sums] = field(default_factory=dict)
    excused: float = 0.0
    few: tuple[int, int, float] | None = None
    compared: set[bytes] = field(default_factory=set)


class OracleDistance:
    """The distances of one rung: `add` each product of a tensor, `judge` them together, and `report` at the end."""

    def __init__(self, run: Run, result: RungResult) -> None:
        self._run, self._result = run, result
        self._products = _Products()
        #: Of all products.
        self.worst = Distances()

    def add(
        self, semantics: Semantics, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8],
        own: Product,
    ) -> None:  # fmt: skip
        """Add the product of weights uint8[N, row bytes] and activations as the kernel takes them. Products of another
        definition than an author's oracle are skipped."""
        if semantics.oracle is None or isinstance(fmt, ElementFormat):
            return
        self._compare(semantics.oracle, semantics, fmt, rows, x)
        if not semantics.plain:  # the known definitions have no output or sum in halves, and nothing fused
            plain = replace(semantics, accumulation=IN_FLOAT32, output="float32", epilogue=None)
            own = product(plain, fmt, rows, x, threads=self._run.options.threads)
        most = np.zeros(own.bound.shape)
        with np.errstate(all="ignore"):
            for name, known in self._known(semantics, fmt, rows, x):
                self._products.of.setdefault(name, _Sums()).add(own, known)
                most = np.fmax(most, known.bound)
            allowed = most + _NEGLIGIBLE / EXCUSE * most.mean()
            ratio = np.where(own.bound > 0, own.bound / allowed, 0.0)
        excused = float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0))
        self._products.excused = max(self._products.excused, excused)

    def _compare(
        self, oracle: Oracle, semantics: Semantics, fmt: BlockFormat, rows: npt.NDArray[np.uint8],
        x: npt.NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """Compare the oracle's two matrices, where they have one column for each value: every row, once."""
        values, found = semantics.values_of(x), self._products
        self._off("activations", oracle.activations(x), values.astype(np.float64))
        digest = hashlib.sha256(rows.tobytes()).digest()
        if digest in found.compared:
            return
        found.compared.add(digest)
        step = max(1, _MOST_VALUES // values.shape[1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            exact = exact_weights(fmt, part.reshape(len(part), -1, fmt.block_bytes)).reshape(len(part), -1)
            wrong = self._off("weights", oracle.weights(fmt, part), exact)
            if found.few is None and 0 < wrong.sum() < _FEW * wrong.size:
                n, i = (int(v) for v in np.argwhere(wrong)[0])
                found.few = start + n, i, float(wrong.mean())

    def _off(
        self, what: str, theirs: npt.NDArray[np.float64], given: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.bool_]:  # fmt: skip
        """Mask of the values that are too far off, if both have the same shape. The largest difference is kept."""
        if theirs.shape != given.shape or not np.isfinite(given).all():
            return np.zeros(given.shape, bool)
        largest = np.abs(given).max(axis=1, keepdims=True)
        off = np.divide(np.abs(theirs - given), largest, out=np.zeros(given.shape), where=largest > 0)
        self.worst.off[what] = max(self.worst.off[what], float(off.max(initial=0.0)))
        return np.asarray(off > _REPORTED)

    def _known(
        self, semantics: Semantics, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[str, Product]]:
        takes, threads = semantics.encoding, self._run.options.threads
        values = semantics.values_of(x)
        theirs = self._llama(fmt)
        from ..diagnosis.identify import definitions

        for definition in definitions(fmt):
            given = x if definition.encoding.format is takes.format and takes.quantizes else definition.bytes_of(values)
            name = definition.name + (" (llama.cpp)" if definition.name in theirs else "")
            yield name, product(definition, fmt, rows, given, threads=threads)

    def _llama(self, fmt: WeightFormat) -> set[str]:
        return {d.name for d in self._run.backend.definitions(fmt).values() if d is not None}

    def forget(self) -> None:
        """Forget what was added since the last `judge`, because an error broke the product off."""
        self._products = _Products()

    def judge(self, tensor: Tensor) -> None:
        """Record a failure where the products since the last call are far from every definition, or where their bound
        excuses any output."""
        found, label = self._products, printable(tensor.name, 64)
        nmse = {name: sums.nmse for name, sums in found.of.items()}
        for name, distance in nmse.items():
            self.worst.nmse[name] = max(self.worst.nmse.get(name, 0.0), distance)
        excused, few = found.excused, found.few
        self.forget()
        nearest = min(nmse, key=lambda name: nmse[name], default="")
        if nmse and not nmse[nearest] <= FAR:
            self._result.fail(
                Failure(
                    f"{label}: the oracle of the kernel's author describes another product: NMSE {nmse[nearest]:.2g} "
                    f"to {nearest}, the nearest definition, more than {FAR:g}", tensor.name,
                    culprit="oracle",
                )
            )  # fmt: skip
        elif nmse:
            self._judge_each(tensor, nearest, found.of[nearest])
        if few is not None:
            n, i, share = few
            self._result.fail(
                Failure(
                    f"{label}: the oracle of the kernel's author has other weights than the file: {share:.2g} of them, "
                    f"the first in row {n} of a product, value {i}", tensor.name, culprit="oracle",
                )
            )  # fmt: skip
        if not excused <= EXCUSE:
            self._result.fail(
                Failure(
                    f"{label}: the oracle of the kernel's author has terms that cancel: its bound is {excused:.2g} "
                    "times as large as that of any definition, and would excuse any output", tensor.name,
                    culprit="oracle",
                )
            )  # fmt: skip

    def _judge_each(self, tensor: Tensor, nearest: str, sums: _Sums) -> None:
        """Record a failure where a token or a row is far from the definition that is nearest on the whole."""
        for what, (at, distance) in (("token", sums.worst_token), ("row", sums.worst_row)):
            if not distance <= FAR_EACH:
                words = (
                    f"{printable(tensor.name, 64)}: the oracle of the kernel's author describes another product in "
                    f"{what} {at}: NMSE {distance:.2g} to {nearest}, the nearest definition, more than {FAR_EACH:g}"
                )
                self._result.fail(Failure(words, tensor.name, culprit="oracle"))

    def report(self) -> None:
        """The worst distances as figures."""
        for name, worst in self.worst.nmse.items():
            self._result.figures[f"the author's oracle to {name}, worst NMSE"] = worst
        for what, off in self.worst.off.items() if self.worst.nmse else ():
            if off > _REPORTED:
                self._result.notes.append(
                    f"the author's oracle has {what} that are not "
                    f"{'those of the file' if what == 'weights' else 'those that it is given'}: off by up to {off:.2g} "
                    "of their row's largest"
                )


class ExactProducts:
    """The exact products of one rung."""

    def __init__(self, run: Run, result: RungResult) -> None:
        self._run, self._threads = run, run.options.threads
        self._distance = OracleDistance(run, result) if run.kernel.definition.oracle is not None else None

    def product(
        self, semantics: Semantics, fmt: WeightFormat, rows: Bytes, x: Bytes, order: Order | None = None
    ) -> Product:
        """The product of weights uint8[N, row bytes] and activations uint8[M, row bytes]: see `semantics.product`.

        Raises KernelFault where an author's oracle breaks its contract; EnvironmentFault where a device computes other
        numbers than NumPy.
        """
        if self._distance is None:
            return self._run.product(semantics, fmt, rows, x, order)
        made = product(semantics, fmt, rows, x, order, self._threads)
        self._distance.add(semantics, fmt, rows, x, made)
        return made

    def blocks(
        self, semantics: Semantics, fmt: WeightFormat, rows: Bytes, x: Bytes, order: Order | None
    ) -> list[Product] | None:
        """The products of single blocks of whole rows, if they can be computed together: see `each_block`."""
        if self._distance is not None or not isinstance(fmt, BlockFormat):
            return None
        return each_block(semantics, fmt, rows, x, order, self._threads, self._run.device_for(rows, x))

    @contextmanager
    def of(self, tensor: Tensor) -> Iterator[None]:
        """The products in this block belong to one tensor. When they are complete, an author's oracle is judged by
        them; where an error breaks them off, it is not."""
        try:
            yield
        except BaseException:
            if self._distance is not None:
                self._distance.forget()
            raise
        if self._distance is not None:
            self._distance.judge(tensor)

    @property
    def distances(self) -> Distances | None:
        """The distances of an author's oracle so far, for `join`."""
        return None if self._distance is None else self._distance.worst

    def join(self, distances: Distances | None) -> None:
        """Count the distances of a part of the work among those of `report`."""
        if self._distance is not None and distances is not None:
            self._distance.worst.join(distances)

    def report(self) -> None:
        """Record how far an author's oracle is from the known definitions."""
        if self._distance is not None:
            self._distance.report()
