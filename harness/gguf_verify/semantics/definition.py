"""The record of a definition of "quantized weights × activations", one for each module of `definitions/`.

A definition consists of independent choices: the `Encoding` of the activations, the `Term` that a block contributes,
the `Accumulation` of the terms, the type of the output, and fused operations behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..formats.block import BlockFormat
from ..formats.tensor_types import WeightFormat
from .accumulation import IN_FLOAT32, Accumulation
from .activations import Bytes, Floats
from .encoding import Encoding
from .sums import Product
from .term import Term

Doubles = npt.NDArray[np.float64]
Output = Literal["float32", "float16", "bfloat16"]

#: The name of a definition given by a kernel author's oracle.
OWN = "own"


class Oracle(Protocol):
    """The exact result of a kernel with its own definition, as two matrices: y = a·wᵀ, in L columns."""

    def weights(self, fmt: BlockFormat, rows: Bytes) -> Doubles:
        """Return float64[n, L] of weights uint8[n, row bytes]. Raises KernelFault."""

    def activations(self, x: Bytes) -> Doubles:
        """Return float64[M, L] of activations uint8[M, row bytes] as the kernel takes them. Raises KernelFault."""


class Epilogue(Protocol):
    """Operations that a kernel fuses behind its product."""

    def applied(
        self,
        product: Product,
        fmt: BlockFormat,
        w: Bytes,
        x: Bytes,
        multiply: Callable[[Bytes], Product],
        *,
        operands: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Product:
        """Apply the operations to the product of weights uint8[N, row bytes] and activations.

        Args:
            x: uint8[M, …], the seed of their random operands: by default the activations.
            multiply: returns the product of other weights and the same activations.
            operands: their operands, by name; None: random ones.
        """


@dataclass(frozen=True)
class ElementRounding:
    """Underflow of products with weights that are not quantized: the terms τ of the bound in `elements`.

    Args:
        flushed: operands and results below it may be replaced by zero.
        underflow: the largest loss of one product.
        exact: products are exact in float32 unless they underflow.
    """

    flushed: float
    underflow: float
    exact: bool


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """One definition of the product.

    Args:
        name: its name in reports and in a kernel's declaration.
        title: the block term in one line.
        source: the code that computes it. (The formats' records say for which types llama.cpp does.)
        encoding: the bytes of the activations that a kernel gets.
        term: the contribution of a block.
        accumulation: the arithmetic of the sum of the terms.
        output: the type to which a result is rounded, to nearest even; rungs see it widened to float32.
        epilogue: the operations fused behind the product, before that rounding; None for nothing.
        any_format: a kernel of any format may compute it, whatever llama.cpp does: `identify` always tries it.
        elements: for weights that are not quantized, the underflow of their products. None for quantized weights; F32's
            definition is for both.
        of_elements: it is only for weights that are not quantized.
        inside: for a kernel that takes values and quantizes them itself: the definition of its product, applied to
            these values in that definition's encoding.
        oracle: returns the exact result, if none of the above defines it.
    """

    name: str
    title: str
    source: str
    encoding: Encoding
    term: Term
    accumulation: Accumulation = IN_FLOAT32
    output: Output = "float32"
    epilogue: Epilogue | None = None
    any_format: bool = False
    elements: ElementRounding | None = None
    of_elements: bool = False
    inside: Semantics | None = None
    oracle: Oracle | None = None

    @property
    def activations(self) -> BlockFormat | None:
        """The format of the blocks of activations that a kernel gets; None if it gets values."""
        return self.encoding.format

    @property
    def encode(self) -> Callable[[Floats], Bytes] | None:
        """The function that encodes such blocks; None if the kernel gets values."""
        return self.encoding.encode if self.encoding.quantizes else None

    @property
    def cuda_path(self) -> str:
        """The path of llama.cpp's CUDA backend with this quantization of activations: see `Encoding`."""
        return self.encoding.cuda_path

    @property
    def raw_sum(self) -> bool:
        """Whether s is the sum of the raw values, rounded to half."""
        return self.encoding.raw_sum

    @property
    def order_known(self) -> bool:
        """Whether `exact` states an order of the terms that a kernel may declare."""
        return (self.inside or self).fused_in_half or (
            self.any_format and self.term.order_known and self.accumulation.name == "float32"
        )

    @property
    def fused_in_half(self) -> bool:
        """Whether values are halves added in half, so that `__hfma` in ascending k has known bits."""
        halves = self.encoding.dtype == self.term.weights == self.accumulation.name == "float16"
        return halves and self.term.order_known

    @property
    def declarable(self) -> bool:
        """Whether the author of a kernel may declare it."""
        return not self.of_elements

    @property
    def plain(self) -> bool:
        """Whether sums and outputs are float32, and nothing is fused behind them."""
        return self.accumulation is IN_FLOAT32 and self.output == "float32" and self.epilogue is None

    @property
    def rounded_words(self) -> str:
        """The rounding of sums and outputs, if not float32, in words that follow its name."""
        sums = "" if self.accumulation is IN_FLOAT32 else f", added in {self.accumulation}"
        return sums + ("" if self.output == "float32" else f", with outputs of {self.output}")

    def sums_in_halves(self, fmt: WeightFormat) -> bool:
        """Return whether a product, a sum or an output is a half, which ends at 65504."""
        inner = self.inside or self
        if isinstance(fmt, BlockFormat) and inner.term.rounded(fmt) == "products":
            return True
        return "float16" in (self.output, inner.accumulation.name)

    def range_of_halves(self, fmt: WeightFormat) -> bool:
        """Return whether one of these, a weight or an activation is a half; a scale does not count."""
        return self.sums_in_halves(fmt) or "float16" in ((self.inside or self).term.weights, self.encoding.dtype)

    def bytes_of(self, x: Floats) -> Bytes:
        """Encode activations float32[M, K] as a kernel gets them, uint8[M, row bytes]."""
        return self.encoding.encode(x)

    def values_of(self, x: Bytes) -> Floats:
        """Return the values float32[M, K] of a kernel's activations uint8[M, row bytes]."""
        return self.encoding.values(x)

    def uses_sum(self, fmt: BlockFormat) -> bool:
        """Return whether the product of this weight format reads the activations' s.

        Raises ValueError if it needs an s and the encoding has none that fits.
        """
        encoding, needed = self.encoding, self.term.reads_sum(fmt)
        fmt = self.term.reads(fmt)
        if needed and not encoding.values_per_sum:
            raise ValueError(f"{self.name} has no sum s, which {fmt.name} needs: the pair has no definition")
        if needed and encoding.values_per_sum != min(fmt.group, 32):
            raise ValueError(
                f"{self.name} has sums of {encoding.values_per_sum} activations, and {fmt.name} needs those of "
                f"{min(fmt.group, 32)}: the pair has no definition"
            )
        return needed


def quantized_inside(semantics: Semantics, takes: Encoding | None = None) -> Semantics:
    """Return the definition for kernels that take values (by default float32) and quantize them."""
    from .encodings.values import FLOAT32

    return replace(semantics, encoding=takes or FLOAT32, inside=semantics)


def by_oracle(oracle: Oracle, takes: Semantics) -> Semantics:
    """Return a definition given by an oracle, for kernels that take the activations of another definition."""
    return Semantics(
        name=OWN,
        title="what an oracle of its author says",
        source="its author",
        encoding=takes.encoding,
        term=takes.term,
        accumulation=takes.accumulation,
        output=takes.output,
        epilogue=takes.epilogue,
        oracle=oracle,
    )
