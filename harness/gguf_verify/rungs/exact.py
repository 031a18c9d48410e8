"""The exact products that a rung judges outputs by.

Where the author of a kernel brings an `Oracle`, the exact product is what that oracle says, and the oracle is judged
too: each product is compared with those of the known definitions. Elsewhere nothing is added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat, WeightFormat
from ..gguf.file import Tensor
from ..results.rungs import RungResult
from ..semantics.definition import Semantics
from ..semantics.exact import each_block, product
from ..semantics.order import Order
from ..semantics.sums import Product
from .author_oracle import Distances, OracleDistance
from .run import Run

Bytes = npt.NDArray[np.uint8]


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
        """The products of single blocks of whole rows, as far as they can be computed together: see `each_block`."""
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
        """How far an author's oracle was, as far as was judged, for `join`."""
        return None if self._distance is None else self._distance.worst

    def join(self, distances: Distances | None) -> None:
        """Count the distances of others of these among those that `report` tells of."""
        if self._distance is not None and distances is not None:
            self._distance.worst.join(distances)

    def report(self) -> None:
        """Record how far an author's oracle is from the known definitions."""
        if self._distance is not None:
            self._distance.report()
