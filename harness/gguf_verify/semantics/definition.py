"""What a definition of "quantized weights × activations" is: the record that each module of `definitions/` makes.

A weight is w = d_w·q + m_w. A definition says how activations become codes q_a with scale d_a and sum s. It also says
whether a format's offset is subtracted from the integer codes (then m_w is not used) or reaches the result through
m_w·s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..formats import BlockFormat
from ..formats.q8_1 import Q8_1
from .activations import Bytes, Floats

Doubles = npt.NDArray[np.float64]

#: The name of a definition that somebody else's oracle gives.
OWN = "own"


class Oracle(Protocol):
    """The exact result that somebody else's kernel means to compute, as two matrices: y = a·wᵀ, in L columns."""

    def weights(self, fmt: BlockFormat, rows: Bytes) -> Doubles:
        """float64[n, L] of weights uint8[n, row bytes]. Raises KernelFault."""

    def activations(self, x: Bytes) -> Doubles:
        """float64[M, L] of activations uint8[M, row bytes] as the kernel takes them. Raises KernelFault."""


def no_format(_: BlockFormat) -> bool:
    """A trait that no format has."""
    return False


@dataclass(frozen=True)
class ElementRounding:
    """How products with weights that are not quantized underflow: the terms τ of the bound in `elements`.

    Args:
        flushed: operands and results below it may be taken for zero.
        underflow: the most that one product may lose.
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
        source: who computes so. (For which types llama.cpp does stands in the formats' records.)
        activations: the format of the quantized activations; None where they are given as float32.
        encode: float32[M, K] → uint8[M, row bytes] in that format; None likewise.
        ratios: blocks of activations → x/d before it is rounded to a code, and d before it is rounded to the format.
        integer_offset: whether the offset of a format is subtracted from its codes before the integer product.
        half_products: whether the products d_w·d_a and m_w·s of a format are rounded to half.
        half_scales: whether the scales and minima of a superblock, multiplied out, are rounded to half, and the minima
            are multiplied by the stored s.
        zero_apart: the zero point of codes may be multiplied by the activations' codes apart, in lanes where the two
            parts do not cancel, as llama.cpp's SIMD code does.
        minima_apart: activations are float32, and offsets and minima are multiplied by their sums. It admits all that
            `f32` admits.
        raw_sum: s is the sum of the raw values, rounded to half.
        cuda_path: the path of llama.cpp's CUDA backend, "MMVQ" or "MMQ", that computes it: its quantizer gives the
            activation bytes. Empty where there is none.
        any_format: a kernel of any format may compute it, whatever llama.cpp does: `--identify` always looks for it.
        order_known: `exact` states the order in which a kernel may declare that it adds the terms.
        elements: weights are not quantized: how their products underflow. None for quantized weights; F32's definition
            is one of both.
        of_elements: it is a definition of weights that are not quantized alone.
        inside: the definition of a kernel that takes float32 activations and quantizes them itself; its products are
            that one's, of what its `encode` gives.
        oracle: what gives the exact result, where none of the above does.
    """

    name: str
    title: str
    source: str
    activations: BlockFormat | None = None
    encode: Callable[[Floats], Bytes] | None = None
    ratios: Callable[[Floats], tuple[Floats, Floats]] | None = None
    integer_offset: Callable[[BlockFormat], bool] = no_format
    half_products: Callable[[BlockFormat], bool] = no_format
    half_scales: Callable[[BlockFormat], bool] = no_format
    zero_apart: bool = False
    minima_apart: bool = False
    raw_sum: bool = False
    cuda_path: str = ""
    any_format: bool = False
    order_known: bool = False
    elements: ElementRounding | None = None
    of_elements: bool = False
    inside: Semantics | None = None
    oracle: Oracle | None = None

    @property
    def declarable(self) -> bool:
        """Whether the author of a kernel may declare it: the harness has the activations to give it."""
        return not self.of_elements and (self.activations is None or self.activations is Q8_1)

    def bytes_of(self, x: Floats) -> Bytes:
        """Activations float32[M, K] as its products take them, uint8[M, row bytes]."""
        return self.encode(x) if self.encode else np.ascontiguousarray(x, np.float32).view(np.uint8)

    def uses_sum(self, fmt: BlockFormat) -> bool:
        """Whether the product of this weight format reads the activations' s. Raises ValueError where there is none."""
        if self.activations is None or self.integer_offset(fmt):
            return False
        needed = (fmt.min_times_sum or self.half_scales(fmt)) and (fmt.has_min or fmt.offset != 0)
        if needed and not any(field.name == "s" for field in self.activations.fields):
            raise ValueError(f"{self.name} has no sum s, which {fmt.name} needs: the pair has no definition")
        return needed


def quantized_inside(semantics: Semantics) -> Semantics:
    """The same definition of kernels that take float32 activations."""
    return replace(semantics, activations=None, encode=None, inside=semantics)


def by_oracle(oracle: Oracle, takes: Semantics) -> Semantics:
    """A definition of its own, of kernels that take activations as another definition has them."""
    return Semantics(
        name=OWN, title="what an oracle of its author says", source="its author", activations=takes.activations,
        encode=takes.encode, ratios=takes.ratios, raw_sum=takes.raw_sum, oracle=oracle,
    )  # fmt: skip
