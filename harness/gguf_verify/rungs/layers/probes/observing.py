"""The comparisons that a kernel makes in a product: in single thread blocks, or in whole calls of a kernel in Python.
Those in the declaration of its launches count too."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared, Comparison
from ....kernels.interface import Kernel
from ....kernels.launches import Launched, Needs, SparseProduct
from ....support.errors import EnvironmentFault, KernelFault
from ...run import Run
from ...thread_blocks import dependence, too_many
from .along import Shape
from .huge import HugeProbes

#: Seconds of observed calls together, before the search among sizes ends, and that among data.
_MOST_SECONDS = 120.0
#: Seconds in which a call ends soon. A call of a probe is made two or three times, within the kernel's time limit.
_SOON = 10.0
#: Outputs of a thread block that is observed.
_MOST_OUTPUTS = 1 << 16

_Needs = tuple[Needs, ...]


@dataclass
class Observed:
    """Observes the comparisons of products.

    Attributes:
        ended: the shapes of whole calls that ended soon.
        seconds: that whole calls took.
        values: that were compared.
        fault: the first of a call that was observed; "" if there is none.
        any_in_code: whether a call showed comparisons in the kernel's code.
        unsteady: comparisons whose operands are not the same again: they are not solved for sizes or data.
    """

    run: Run
    fmt: WeightFormat
    huge: HugeProbes
    ended: set[Shape] = field(default_factory=set)
    seconds: float = 0.0
    values: set[float] = field(default_factory=set)
    fault: str = ""
    any_in_code: bool = False
    unsteady: set[Comparison] = field(default_factory=set)
    _ordinary: dict[Shape, Compared] = field(default_factory=dict)

    @cached_property
    def needs(self) -> _Needs | str:
        """The thread blocks of earlier launches that one needs; or why none can run by itself."""
        k = 2 * self.huge.unit
        kernel = self.run.kernel.of(self.fmt, 1, 1, k)
        if kernel.compares == "calls":
            return ()
        try:
            return dependence(kernel, self.fmt, k, lambda m, n, k: self.huge.sparse(kernel, (m, n, k)))
        except (KernelFault, EnvironmentFault) as error:
            return str(error)

    @property
    def calls(self) -> bool:
        """Whether whole calls are observed."""
        return self.run.kernel.of(self.fmt, 1, 1, self.huge.unit).compares == "calls"

    @property
    def too_slow(self) -> bool:
        """Whether the calls took so long that no further ones are observed."""
        return self.seconds > _MOST_SECONDS

    def product(self, shape: Shape) -> SparseProduct:
        """Return a product of ordinary operands whose thread blocks run by themselves. `needs` must not be words."""
        assert not isinstance(self.needs, str)
        return self.huge.sparse(self.run.kernel.of(self.fmt, *shape), shape, self.needs)

    def sizes(self, shape: Shape, product: SparseProduct | None = None) -> Compared | None:
        """The comparisons of a product that sizes may change; of ordinary operands if it is None.

        Comparisons of the elements of arrays in Python depend on data."""
        found = self(shape, product)
        return {one: of for one, of in (found or {}).items() if not self.calls or of.times == 1} or None

    def __call__(self, shape: Shape, product: SparseProduct | None = None) -> Compared | None:
        """The comparisons of a product; of ordinary operands if it is None. Unsteady ones are not among them. Of
        other operands, nor are conversions of data to floats and back, whose limits no data reach."""
        if product is None and shape in self._ordinary:
            return self._ordinary[shape]
        found = {
            one: of
            for one, of in self.again(shape, product).items()
            if one not in self.unsteady and not (one.of_float and product is not None)
        }
        if product is None:
            self._ordinary[shape] = found
        return found or None

    def again(self, shape: Shape, product: SparseProduct | None = None) -> Compared:
        """All comparisons of a product, which is made another time if it was made before."""
        kernel = self.run.kernel.of(self.fmt, *shape)
        in_launches: Compared = {}
        try:
            in_launches = kernel.compared_in_launches(self.fmt, *shape)
            in_code = self._in_call(kernel, shape, product) if self.calls else self._in_blocks(kernel, shape, product)
        except (KernelFault, EnvironmentFault) as error:
            in_code = None
            self.fault = self.fault or str(error)
        self.any_in_code |= bool(in_code)
        found = {**(in_code or {}), **in_launches}
        self.values |= {
            end for operands in found.values() if operands.uniform for end in (operands.a[0], operands.b[0])
        }
        return found

    def _in_call(self, kernel: Kernel, shape: Shape, product: SparseProduct | None) -> Compared | None:
        if self.too_slow or self.run.budget.spent:
            return None
        begun = time.monotonic()
        try:
            found = kernel.compared(product or self.huge.sparse(kernel, shape), ())
        finally:
            took = time.monotonic() - begun
            self.seconds += took
        if took < _SOON:
            self.ended.add(shape)
        return found

    def _in_blocks(self, kernel: Kernel, shape: Shape, product: SparseProduct | None) -> Compared | None:
        """Those of the first and the last thread block."""
        if kernel.compares == "launches":
            return None
        (m, n, _), needs, fmt = shape, self.needs, self.fmt
        if isinstance(needs, str):
            return None
        launched, earlier = kernel.only_launch(fmt, *shape), kernel.earlier(fmt, *shape)
        if not isinstance(launched, Launched) or launched.refused or m * n > _MOST_OUTPUTS * launched.blocks:
            return None
        if any(one.refused for one in earlier) or len(earlier) != len(needs) or too_many(earlier, needs):
            return None
        product = product or self.huge.sparse(kernel, shape, needs)
        return kernel.compared(product, sorted({0, launched.blocks - 1}))
