"""What a call of a foreign kernel is given beside weights, activations and output: operands of what is fused behind the
product, and the experts of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...formats import BlockFormat, WeightFormat
from ...semantics.epilogue import Epilogue, filled_up
from ...support.errors import UsageError
from ..experts import Taken, taken_of
from ..routing import Routing
from .api import Declaration
from .operands import Operand
from .products import Given

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.intp]
Arrays = Mapping[str, npt.NDArray[Any]]


def epilogue_of(declared: Declaration) -> Epilogue | None:
    """What a kernel declares to be fused, or None. Raises UsageError."""
    if not declared.fused:
        return None
    if declared.ordered:
        raise UsageError("the bits of a declared order are not known behind an epilogue: leave out ordered")
    if declared.computes != "gemm":
        raise UsageError(f"nothing is fused behind what a kernel that computes {declared.computes!r} computes")
    try:
        return Epilogue(declared.fused)
    except ValueError as error:
        raise UsageError(str(error)) from None


def experts_taken(declared: Declaration) -> Taken | None:
    """What a kernel for mixtures of experts declares to take, or None for another. Raises UsageError."""
    said = dict(declared.more).get("experts")
    if declared.computes == "experts":
        return taken_of({} if said is None else said)
    if said is not None:
        raise UsageError('experts are declared by a kernel with computes = "experts"')
    return None


@dataclass(frozen=True)
class Beside:
    """Operands of one call.

    Args:
        arrays: by their names; "output" is what the output holds before the call.
        routing: the experts of its tokens, of a kernel for experts.
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
        """What the output holds before the call, [M, N]; None where it holds nothing."""
        return self.arrays.get("output")

    def given(self) -> list[Given]:
        """The further operands."""
        out = []
        for name, values in self.arrays.items():
            if name != "output":
                dtype = "bfloat16" if values.dtype == np.uint16 else str(values.dtype)
                content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
                out.append(Given(Operand(name, "input", dtype, values.shape), content))
        return out


#: What most calls have.
NOTHING = Beside()


def routed_beside(routing: Routing, taken: Taken, names: tuple[str, ...]) -> Beside:
    """The lists of a routing, of these names."""
    return Beside({name: made for name, made in routing.operands(taken.block_m).items() if name in names}, routing)


@dataclass(frozen=True)
class Fused:
    """The operands of a product's epilogue, of all of its tokens and rows.

    Args:
        arrays: of `Epilogue.operands`.
        n: rows of the product.
    """

    arrays: Arrays
    n: int

    @classmethod
    def of(
        cls, epilogue: Epilogue | None, fmt: WeightFormat, rows: Bytes, x: Bytes, output: str, neutral: bool
    ) -> Fused | None:
        """Of weights uint8[N, row bytes] and activations uint8[M, row bytes], as the judge has them; None for none."""
        if epilogue is None or not isinstance(fmt, BlockFormat):
            return None
        return cls(epilogue.operands(fmt, rows, x, output, neutral), len(rows))

    def call(self, tokens: Index, n: int, row_bytes: int) -> Beside:
        """Of a call with these tokens, and with n rows of so many bytes, which repeat those of the product."""
        return Beside(filled_up(self.arrays, tokens, np.arange(n) % self.n, row_bytes))


__all__ = ["NOTHING", "Beside", "Fused", "epilogue_of", "experts_taken", "routed_beside"]
