"""How far an author's `Oracle` is from every known definition of the product.

An oracle gives two matrices, and the rungs multiply and bound them, so an oracle cannot widen its own bound. But it may
describe another product, or its terms may be written so that they cancel, and then the bound, which grows with the
terms, would excuse any output. Both are measured on the activations that the kernel gets, and both are mismatches.

An error in few places hides in the distance between the products. So the oracle's matrices are also compared with the
file's weights and with the activations, value by value. A few weights that differ are a mismatch. Where many differ,
the oracle may have rotated the weights of the same product, and it may have clipped activations: the report says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..diagnosis.identify import definitions
from ..formats import BlockFormat, ElementFormat, WeightFormat
from ..gguf import Tensor, printable
from ..results import Failure, RungResult
from ..semantics import Oracle, Product, Semantics, product
from ..semantics.accumulation import IN_FLOAT32
from ..semantics.exact import exact_weights
from .run import Run

#: An oracle with a larger NMSE to every definition describes another product: activations of 8 bits are at 1e-4, those
#: of 4 bits below 1e-2.
FAR = 1e-2
#: The oracle's bound may be so many times as large as that of every definition: the bound of `f32` counts K roundings
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


class OracleDistance:
    """The distances of one rung: `add` each product of a tensor, `judge` them together, and `report` at the end."""

    def __init__(self, run: Run, result: RungResult) -> None:
        self._run, self._result = run, result
        #: Definition → Σ(o - d)², Σd² of the products since the last `judge`.
        self._sums: dict[str, tuple[float, float]] = {}
        self._excused = 0.0
        #: Of all products.
        self.worst = Distances()
        #: The place of the first of a few weights that differ.
        self._few: tuple[int, int, float] | None = None

    def add(
        self, semantics: Semantics, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8],
        own: Product,
    ) -> None:  # fmt: skip
        """Add the product of weights uint8[N, row bytes] and activations as the kernel takes them. Products of another
        definition than an author's oracle are not looked at."""
        if semantics.oracle is None or isinstance(fmt, ElementFormat):
            return
        self._compare(semantics.oracle, semantics, fmt, rows, x)
        if not semantics.plain:  # the known definitions have no output or sum in halves, and nothing fused
            plain = replace(semantics, accumulation=IN_FLOAT32, output="float32", epilogue=None)
            own = product(plain, fmt, rows, x, threads=self._run.options.threads)
        most = np.zeros(own.bound.shape)
        with np.errstate(all="ignore"):
            for name, known in self._known(semantics, fmt, rows, x):
                difference, energy = self._sums.get(name, (0.0, 0.0))
                finite = np.isfinite(known.exact) & np.isfinite(own.exact)  # the others fail anyway
                difference += float(((own.exact - known.exact)[finite] ** 2).sum())
                self._sums[name] = difference, energy + float((known.exact[finite] ** 2).sum())
                most = np.fmax(most, known.bound)
            allowed = most + _NEGLIGIBLE / EXCUSE * most.mean()
            ratio = np.where(own.bound > 0, own.bound / allowed, 0.0)
        self._excused = max(self._excused, float(np.nan_to_num(ratio, nan=np.inf).max(initial=0.0)))

    def _compare(
        self, oracle: Oracle, semantics: Semantics, fmt: BlockFormat, rows: npt.NDArray[np.uint8],
        x: npt.NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """Compare the oracle's two matrices, where they have one column for each value."""
        values = semantics.values_of(x)
        rows = rows[: max(1, _MOST_VALUES // values.shape[1])]
        blocks = rows.reshape(len(rows), -1, fmt.block_bytes)
        for what, theirs, given in (
            ("activations", oracle.activations(x), values.astype(np.float64)),
            ("weights", oracle.weights(fmt, rows), exact_weights(fmt, blocks).reshape(len(rows), -1)),
        ):
            if theirs.shape == given.shape and np.isfinite(given).all():
                largest = np.abs(given).max(axis=1, keepdims=True)
                off = np.divide(np.abs(theirs - given), largest, out=np.zeros(given.shape), where=largest > 0)
                self.worst.off[what] = max(self.worst.off[what], float(off.max()))
                wrong = off > _REPORTED
                if what == "weights" and self._few is None and 0 < wrong.sum() < _FEW * wrong.size:
                    n, i = (int(v) for v in np.argwhere(wrong)[0])
                    self._few = n, i, float(wrong.mean())

    def _known(
        self, semantics: Semantics, fmt: WeightFormat, rows: npt.NDArray[np.uint8], x: npt.NDArray[np.uint8]
    ) -> Iterator[tuple[str, Product]]:
        takes, threads = semantics.encoding, self._run.options.threads
        values = semantics.values_of(x)
        theirs = self._llama(fmt)
        for definition in definitions(fmt):
            given = x if definition.encoding.format is takes.format and takes.quantizes else definition.bytes_of(values)
            name = definition.name + (" (llama.cpp)" if definition.name in theirs else "")
            yield name, product(definition, fmt, rows, given, threads=threads)

    def _llama(self, fmt: WeightFormat) -> set[str]:
        return {d.name for d in self._run.backend.definitions(fmt).values() if d is not None}

    def forget(self) -> None:
        """Forget what was added since the last `judge`, because an error broke the product off."""
        self._sums, self._excused, self._few = {}, 0.0, None

    def judge(self, tensor: Tensor) -> None:
        """Record a failure where the products since the last call are far from every definition, or where their bound
        excuses any output."""
        nmse = {}
        for name, (difference, energy) in self._sums.items():
            nmse[name] = difference / energy if energy else (np.inf if difference else 0.0)
            self.worst.nmse[name] = max(self.worst.nmse.get(name, 0.0), nmse[name])
        excused, few = self._excused, self._few
        self.forget()
        label = printable(tensor.name, 64)
        if nmse and not min(nmse.values()) <= FAR:
            nearest = min(nmse, key=lambda name: nmse[name])
            self._result.fail(
                Failure(
                    f"{label}: the oracle of the kernel's author describes another product: NMSE {nmse[nearest]:.2g} "
                    f"to {nearest}, the nearest definition, more than {FAR:g}", tensor.name,
                    culprit="oracle",
                )
            )  # fmt: skip
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
