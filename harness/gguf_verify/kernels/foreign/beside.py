"""Operands of a call besides weights, activations and output: those of fused operations, and lists of experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats.block import BlockFormat
from ...formats.tensor_types import WeightFormat
from ...semantics.drawn import keys_of_slots
from ...semantics.epilogue import Epilogue, filled_up
from ...support.errors import UsageError
from ..experts import Embedded, Taken, taken_of
from ..routing import Routing
from .declaration import Declaration
from .layouts import Further, Layouts
from .products import Given

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.intp]
Arrays = Mapping[str, npt.NDArray[Any]]


def epilogue_of(declared: Declaration) -> Epilogue | None:
    """Return the declared epilogue of a kernel, or None. Raises UsageError."""
    if not declared.fused:
        return None
    try:
        return Epilogue(declared.fused)
    except ValueError as error:
        raise UsageError(str(error)) from None


def experts_taken(declared: Declaration) -> Taken | None:
    """Return what a kernel for mixtures of experts declares under `experts`; None for another kernel.

    Raises UsageError.
    """
    said = dict(declared.more).get("experts")
    if declared.computes == "experts":
        return taken_of({} if said is None else said)
    if said is not None:
        raise UsageError('experts needs computes = "experts"')
    return None


@dataclass(frozen=True)
class Beside:
    """Further operands of one call.

    Args:
        arrays: by name; "output" is the content of the output before the call.
        routing: the experts of its tokens, for a kernel for experts.
    """

    arrays: Arrays = field(default_factory=dict)
    routing: Routing | None = None

    @property
    def slots(self) -> int:
        """Rows of output for each token."""
        return 1 if self.routing is None else self.routing.top_k

    @property
    def experts(self) -> int:
        return 1 if self.routing is None else self.routing.experts

    @property
    def before(self) -> npt.NDArray[Any] | None:
        """The content of the output before the call, [M, N]; None if it has none."""
        return self.arrays.get("output")

    def given(self, layouts: Layouts, names: Mapping[str, int]) -> list[Given]:
        """Return the further operands.

        Args:
            names: the values of the names in expressions.
        """
        return [
            Given(*layouts.further.get(name, Further()).operand(name, values, names))
            for name, values in self.arrays.items()
            if name != "output"
        ]


#: The further operands of most calls: none.
NOTHING = Beside()


def routed_beside(routing: Routing, taken: Taken, names: tuple[str, ...], fused: Arrays | None = None) -> Beside:
    """Return the lists of a routing with these names, and the operands of fused operations."""
    lists = {name: made for name, made in routing.operands(taken.block_m).items() if name in names}
    return Beside({**lists, **(fused or {})}, routing)


def fused_of_slots(
    epilogue: Epilogue | None, fmt: WeightFormat, rows: Bytes, x: Bytes, routing: Routing, output: str, neutral: bool
) -> Arrays:
    """Return the operands of what is fused behind the products of experts; {} if nothing is.

    Args:
        rows: weights of all experts, uint8[E·N, row bytes].
        x: activations of the tokens, or of the slots, uint8[M or M·top_k, row bytes].
    """
    if epilogue is None or not isinstance(fmt, BlockFormat):
        return {}
    m, top_k = routing.ids.shape
    slots = np.arange(m * top_k)
    own = x if len(x) == m * top_k else x[slots // top_k]
    arrays = epilogue.operands(fmt, rows, keys_of_slots(own, slots), output, neutral)
    of_experts = np.arange(len(rows)).reshape(routing.experts, -1)
    return filled_up(arrays, slots, of_experts, rows.shape[1], routing.ids.reshape(-1))


@dataclass(frozen=True)
class Fused:
    """The operands of a product's epilogue, for all of its tokens and rows.

    Args:
        arrays: from `Epilogue.operands`.
        n: rows of the product.
    """

    arrays: Arrays
    n: int

    @classmethod
    def of(
        cls, epilogue: Epilogue | None, fmt: WeightFormat, rows: Bytes, x: Bytes, output: str, neutral: bool
    ) -> Fused | None:
        """Build them from weights uint8[N, row bytes] and activations uint8[M, row bytes], as the judge has them.

        None without an epilogue.
        """
        if epilogue is None or not isinstance(fmt, BlockFormat):
            return None
        return cls(epilogue.operands(fmt, rows, x, output, neutral), len(rows))

    def call(self, tokens: Index, n: int, row_bytes: int) -> Beside:
        """Return those of a call with these tokens, and with n rows of `row_bytes` bytes, the product's repeated."""
        return Beside(filled_up(self.arrays, tokens, np.arange(n) % self.n, row_bytes))

    def routed(self, call: Embedded, tokens: Index, row_bytes: int) -> Arrays:
        """Return those of a call of experts that stands for the product of these tokens."""
        of_slots, rows = tokens[call.tokens.reshape(-1)], call.experts.rows % self.n
        return filled_up(self.arrays, of_slots, rows, row_bytes, call.routing.ids.reshape(-1))
