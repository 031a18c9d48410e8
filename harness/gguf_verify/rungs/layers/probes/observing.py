"""The comparisons that a kernel makes in a product: in single thread blocks, or in whole calls of a kernel in Python.
Those in the declaration of its launches count too."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ....formats.tensor_types import WeightFormat
from ....kernels.comparisons import Compared, Comparison
from ....kernels.interface import Kernel
from ....kernels.launches import Launched, Needs, SparseProduct
from ....support.errors import EnvironmentFault, KernelFault
from ...run import Run
from ...thread_blocks import dependence, too_many
from .along import Shape
from .huge import HugeProbes

#: The cost of whole calls together, in multiply-adds, before the search among sizes ends, and that among data: twice
#: that of the most expensive search that was measured.
_MOST_COST = 1 << 34
#: A safety net for a kernel whose multiply-adds take longer than those of others. Time limits of a call in which all
#: calls must end; and parts of one in which a call must end of which a probe is made, up to three times in 1.5 limits.
_MOST_LIMITS, _PARTS = 10, 3
#: Multiply-adds of calls of the plan that are observed together, of thread blocks and of whole calls; and thread blocks
#: of one of them.
_MOST_PLANNED, _MOST_PLANNED_IN_CALLS, _MOST_BLOCKS = 1 << 24, 1 << 27, 64
#: Outputs of a thread block that is observed.
_MOST_OUTPUTS = 1 << 16

Bytes = npt.NDArray[np.uint8]
_Needs = tuple[Needs, ...]


@dataclass
class Observed:
    """Observes the comparisons of products.

    Attributes:
        costs: shape of a whole call that ended → its cost in multiply-adds.
        slow: shape → the seconds of a call that took too long for a probe.
        cost, seconds: of all whole calls.
        values: that were compared.
        fault: the first of a call that was observed; "" if there is none.
        any_in_code: whether a call showed comparisons in the kernel's code.
        unsteady: comparisons whose operands are not the same again: they are not solved for sizes or data.
    """

    run: Run
    fmt: WeightFormat
    huge: HugeProbes
    costs: dict[Shape, int] = field(default_factory=dict)
    slow: dict[Shape, float] = field(default_factory=dict)
    cost: int = 0
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
    def ended(self) -> str | None:
        """Why no further calls are observed, or None."""
        if self.cost > _MOST_COST:
            return f"its calls cost {_MOST_COST:,} multiply-adds before all comparisons were observed"
        if self.seconds > _MOST_LIMITS * self.run.options.kernel_time_limit:
            return f"its calls took {self.seconds:.0f} s before all comparisons were observed"
        return None

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

    def observe_plan(self, calls: Iterable[tuple[Shape, Bytes, Bytes]]) -> None:
        """Observe calls of the plan while a comparison, whose outcome is a value, had one outcome only: the search need
        not have met both, and no branch shows them.

        Args:
            calls: shapes with their rows uint8[N, row bytes] and activations uint8[M, row bytes].
        """
        left = _MOST_PLANNED_IN_CALLS if self.calls else _MOST_PLANNED
        for shape, rows, x in calls:
            kernel, left = self.run.kernel.of(self.fmt, *shape), left - math.prod(shape)
            if not kernel.one_sided or isinstance(self.needs, str) or left < 0 or self.run.budget.spent:
                return
            product = self.huge.sparse(kernel, shape) if self.calls else self.product(shape)
            made = replace(product, weights=rows.reshape(-1), x=x.reshape(-1))
            with contextlib.suppress(KernelFault, EnvironmentFault):
                if self.calls:
                    self._in_call(kernel, shape, made)
                elif isinstance(launched := kernel.only_launch(self.fmt, *shape), Launched) and not launched.refused:
                    numbers = np.linspace(0, launched.blocks - 1, min(launched.blocks, _MOST_BLOCKS)).astype(int)
                    kernel.compared(made, [*dict.fromkeys(numbers.tolist())])

    def _in_call(self, kernel: Kernel, shape: Shape, product: SparseProduct | None) -> Compared | None:
        if self.ended is not None or self.run.budget.spent:
            return None
        begun = time.monotonic()
        try:
            found = kernel.compared(product or self.huge.sparse(kernel, shape), ())
        finally:
            took = time.monotonic() - begun
            self.seconds += took
            self.cost += kernel.observed_cost
        self.costs[shape] = kernel.observed_cost
        if took > self.run.options.kernel_time_limit / _PARTS:
            self.slow[shape] = took
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
